"""Models: what a `config.json` describes, and what its operators compute. Knows nothing of hardware."""
