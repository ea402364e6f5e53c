"""The world of lanes: memory, address spaces, predefined registers, tensor maps."""
