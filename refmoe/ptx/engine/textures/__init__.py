"""Instructions on textures and surfaces: what they read and write through texture and surface objects.

A handle and coordinates become addresses in the region that has the texels. From there on they are accesses like any
other: inside, initialised, ordered.
"""
