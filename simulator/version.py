"""The version of rackcast."""

__version__ = "0.1.0"
