"""The library's own version (Semantic Versioning); the format's version is in `format.constants`."""

__all__ = ["__version__"]

__version__ = "1.0.0.dev0"
