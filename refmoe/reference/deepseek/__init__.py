"""The steps of a DeepSeek-V3 layer in FP8 that no other layer has: its routing, its activation, its finalize."""
