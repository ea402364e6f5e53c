"""The kernels of a DeepSeek-V3 layer in FP8 that no other layer has, and what their host side refuses and launches."""
