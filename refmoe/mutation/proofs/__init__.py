"""Machine proofs that a mutant of a kernel's PTX is the same kernel, and that one of host code is the same program."""
