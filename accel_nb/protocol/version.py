"""The version of this package: both ends of a channel compare it. The same as in ``package.json``."""

__version__ = "0.1.0"
