"""Functions to basic blocks, and what is known of their registers."""
