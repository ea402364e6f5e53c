"""Machine proofs that a mutant of a kernel's PTX is the same kernel: `refmoe.mutation.proofs.differences.proof`."""
