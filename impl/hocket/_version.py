"""The one place where the version of hocket is written."""

__version__ = "0.1.0"
