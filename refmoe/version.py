"""The release, for whoever must not import the face: reports name it, and the face offers it."""

__version__ = "0.1.0"
