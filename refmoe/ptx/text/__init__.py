"""PTX text to functions."""
