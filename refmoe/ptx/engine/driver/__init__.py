"""Functions of device code that have no body in a module: the driver has them."""
