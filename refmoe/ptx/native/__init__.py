"""LLVM as a compiler for this process: modules to machine code, and machine code kept on disk by content."""
