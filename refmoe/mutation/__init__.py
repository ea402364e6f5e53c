"""Mutants: small changes everywhere in refmoe's own kernels and in the host code that launches them.

A planted fault of refmoe/families/mutants is a mistake that somebody thought of. A mutant is one that nobody thought
of: an operator makes it wherever its pattern stands in the code. What survives the default cases is either no change
of what is computed, which is then proven, or a case that is missing.
"""
