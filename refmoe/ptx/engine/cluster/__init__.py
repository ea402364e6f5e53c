"""Blocks of a cluster: their shared memory, and the barrier of all of them."""
