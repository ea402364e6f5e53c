"""Somebody's own finalize, as an exhibit."""
