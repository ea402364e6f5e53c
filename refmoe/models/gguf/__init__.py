"""gpt-oss in GGUF files, llama.cpp's format: `header` walks one, `file` maps it, `names` says what has to be in it."""
