"""Tensor cores: fragments and products."""
