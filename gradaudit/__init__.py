"""gradaudit measures, layer by layer, what a shared gradient gives away."""

__version__ = "0.1.0"
