"""What each opcode computes, as native code over the 32 lanes of a warp.

A file here has the name of the file in `refmoe.ptx.isa` that specifies the same opcodes as NumPy functions. The two
share no arithmetic: each spelling is held against its specification on operands that reach every special case.
"""
