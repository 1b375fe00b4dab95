"""Readers of `config.json`: one file a model family, found by `model_type`."""
