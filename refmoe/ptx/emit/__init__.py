"""Basic blocks to code."""
