"""Undefined values: which bits of registers and of memory they are, where they came from, and where they are used."""
