"""The errors of this room."""

from __future__ import annotations

from refmoe.errors import RefmoeError


class CuteMissing(RefmoeError):
    """No CuTe DSL on this machine, or another release than refmoe knows; the message says how to install it."""


class CompileError(RefmoeError):
    """CuTe DSL refused a function; the message holds its own."""


class HostError(RefmoeError):
    """The host code of a kernel cannot be run, or it ended with an error; the message says which call failed."""
