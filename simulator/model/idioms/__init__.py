"""Idioms: spellings of a `config.json` that several families share, read into parts of an architecture."""
