"""The device code, in CuTe DSL. It imports NVIDIA's package, and nothing imports it but `refmoe.museum.cute_kernel`.

Imports between its modules are relative: a copy of the folder, with a fault in it, is another package.
"""
