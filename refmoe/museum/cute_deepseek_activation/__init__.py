"""SwiGLU of a first product's rows, quantized to block FP8, as a CuTe DSL kernel."""
