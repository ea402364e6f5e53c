"""Where state spaces lie in generic addresses.

Every buffer has an address window of 2^40 bytes of its own, so that a wrong index never lands in another buffer: 32-bit
index arithmetic cannot cross a window. Generic addresses of shared and local memory have windows above all buffers.
"""

from __future__ import annotations

WINDOW_BITS = 40
# Kernel parameters are the first buffer of every arena.
PARAM_BASE = 1 << WINDOW_BITS
SHARED_WINDOW = 1 << 56
LOCAL_WINDOW = 1 << 57
# An address in shared memory: above this bit stands whose it is, 0 for the own block, else its rank and one.
RANK_SHIFT = 24
# A generic address of local memory: above this bit stands whose it is, the thread of the launch and one.
OWNER_SHIFT = 24
# The heap of `malloc` in device code: what may be allocated at once, as cudaLimitMallocHeapSize is by default, and the
# bytes that have an address, none of which is given twice.
HEAP_NAME = "the heap of malloc"
HEAP_LIMIT = 8 << 20
HEAP_BYTES = 8 * HEAP_LIMIT
# Functions have addresses that only a call can use.
CODE_WINDOW = 1 << 58
CODE_BYTES = 16
# Handles of texture and surface objects, which no load or store can use.
HANDLE_WINDOW = 1 << 59
# Shared and local addresses start here, so that a null pointer is no valid address of either.
OWN_BASE = 1024
