"""The families of a DeepSeek-V3 layer in FP8: routing, activation, finalize, and the whole layer."""
