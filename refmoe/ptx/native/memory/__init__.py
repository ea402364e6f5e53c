"""Loads and stores of one warp as native code, with every check that finds nothing.

A function does an access only if all of it is in order: addresses inside one buffer each, aligned, initialised, and
ordered after whatever touched the bytes before. Otherwise it returns 1 and the warp does the whole access in Python, by
`refmoe.ptx.engine.loads_and_stores`, which knows what to report. What is left behind then is what that access writes
again.

The race rules are those of `refmoe.ptx.engine.races`, whose records these functions read and write.
"""

from refmoe.ptx.native.memory.matrices import MatrixLoad
from refmoe.ptx.native.memory.variants import SIGNATURE, Variant, access_function, call_slow

__all__ = ["SIGNATURE", "MatrixLoad", "Variant", "access_function", "call_slow"]
