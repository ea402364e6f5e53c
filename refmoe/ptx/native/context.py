"""What native code knows of the machine that it runs for: one table of 64-bit fields, and one row for each region.

Python writes these tables as NumPy arrays, native code reads them by the field numbers below.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum, auto


class Context(IntEnum):
    """Fields of the context, each of 64 bits; a pointer is an address."""

    REGISTERS = 0
    """Pointer to the registers: for each warp its homes, of 32 values each."""
    WARP_BYTES = auto()
    """From the registers of a warp to those of the next."""
    NOW = auto()
    """The step, as race records have it."""
    CHANGED = auto()
    """Set to one by every store, but for those to shared memory."""
    STORED = auto()
    """Set to one by every store to shared memory."""
    SLOW = auto()
    """Pointer to the function that does an access, or an instruction, for one warp in Python."""
    SYMBOLS = auto()
    """Pointer to the addresses of module variables, in the order of the kernel's list."""
    APPROXIMATE = auto()
    """Pointer to one byte for each approximate instruction, set where a result was not provably exact."""
    REGIONS = auto()
    """Pointer to the rows of regions: shared, local, then buffers by window."""
    REGION_COUNT = auto()
    PARAMETERS = auto()
    """Pointer to the bytes of the kernel's parameters."""
    SHARED_OFFSET = auto()
    """Pointer to int64 by warp: where its CTA's shared memory begins in that of all."""
    REFUSE_UNWRITTEN = auto()
    """Whether reads of bytes that nobody wrote are looked for."""
    LOOK_UNWRITTEN = auto()
    """Whether reads of registers that nothing wrote are looked for."""
    FIRST_THREAD = auto()
    """Of the grid, counted in whole warps: the thread of lane 0."""
    FIRST_WARP = auto()
    WARPS = auto()
    """Of a cluster: those that have columns of their own in what `Clocks` holds."""
    SEEN = auto()
    """Pointers to what `Clocks` holds."""
    SEEN_COLUMNS = auto()
    APART = auto()
    FOREIGN = auto()
    POOL = auto()
    """Pointer to the rows that those refer to, see `refmoe.ptx.engine.order.knowledge`."""
    CTA_WARPS = auto()
    BY_LANE = auto()
    BULK = auto()
    PLACES = auto()
    """Pointer to the rows of places, see `Place`."""
    QUEUES = auto()
    """Pointer to the queue of each warp, see `Queue`."""
    ALL_WARPS = auto()
    """Of the machine."""
    BUDGET = auto()
    """Blocks that one warp may run."""
    STEPS = auto()
    """Blocks that warps ran natively; each counts once for a warp."""
    INSTRUCTIONS = auto()
    """Of those blocks."""
    LANE_INSTRUCTIONS = auto()
    PATIENCE = auto()
    """Back edges that the warp that runs may still take before others run; 0 where Python runs one block alone."""
    POLLED = auto()
    """Set to one by a back edge of a loop that may wait for another lane's write."""
    YIELDED = auto()
    """Set to one where a warp has lanes that may go on natively, but did not yet."""
    EXITED = auto()
    """Set to one where lanes exited."""
    TURNS = auto()
    """Whether warps take turns at each block that accesses memory: where they race, nobody would say so."""
    ELECTED = auto()
    """The lane at which the search for the leader of `elect.sync` begins."""
    PREFERENCE = auto()
    """Under a schedule: the lowest place is the one whose number is lowest with these bits flipped, 32 bits."""
    ORDER = auto()
    """Under a schedule: pointer to the warps, int64, in the order in which they take turns."""
    TURN_BLOCKS = auto()
    """Under a schedule: most blocks of a warp's turn, at most 2^31; 0 where warps stay together."""
    RANDOM = auto()
    """Under a schedule: the state of what draws the blocks of each turn."""


class Row(IntEnum):
    """Fields of a region's row."""

    BASE = 0
    """Generic address of its first byte."""
    SIZE = auto()
    DATA = auto()
    VALID = auto()
    """Pointer, or 0 where every byte is initialised."""
    WRITABLE = auto()
    """Whether native code may store here: not where somebody watches."""
    STRIDE = auto()
    """Local memory: bytes from one lane's to the next; else 0."""
    POISONED = auto()
    """As `VALID`, where bytes that nobody wrote read as poison, whatever lies there; else 0."""
    KEPT = auto()
    """Pointer to one word for each page whose bytes are kept before they are written, or 0 where none are."""
    BEFORE = auto()
    """Pointer to the kept bytes, each as far from the first as in the data."""
    PAGE_STATES = auto()
    """Pointer to one word for each page: its granules, see `Granules`."""
    PAGE_COLUMNS = auto()
    """Pointer to one word for each page: the columns that may have records, a bit each, that of writes first."""
    PAGE_STEPS = auto()
    """Pointer to one word for each page and column but that of writes: the last step of its records, see `Granules`."""
    WRITES = auto()
    """Pointer to the records of last writes, or 0 where races are not looked for."""
    READS = auto()
    """Pointer to those behind them: of reads, and of a write that a stronger one took the place of."""
    COLUMNS = auto()
    """Records of a granule besides the last write; the last of them is of a write."""
    COLUMN_BYTES = auto()
    """From a column of records to the next: eight for each byte of the region."""
    READERS = auto()
    """Warps whose reads are kept apart, 0 for none."""
    READ_STEPS = auto()
    """Pointers to the steps of the last accesses of a line by each warp, or 0."""
    WRITE_STEPS = auto()
    READ_STEP_COLUMNS = auto()
    ADMITTED = auto()
    """Pointer to 32 bits for each warp: the lanes that may access the region, or 0 where all may."""


class Place(IntEnum):
    """Fields of a place's row: a block as the scheduler knows it."""

    FUNCTION = 0
    """Address of its native code, of type `PIECE`; 0 where Python runs it."""
    TABLE = auto()
    """Address of what that code is given to find its registers and its successors by."""
    END = auto()
    """How it ends, see `End`."""
    TARGET = auto()
    """Where lanes go on: those that take the branch."""
    OTHER = auto()
    """Where those go on that do not."""
    EDGES = auto()
    """`Edge`s to the target, and to the other `EDGE_BITS` higher."""
    GATHER = auto()
    """What lanes wait for at its start, see `Meeting`."""
    MEMBERS = auto()
    """The mask of that meeting, or the bytes from a warp's registers to the register that holds it."""


class End(IntEnum):
    """How a native block ends."""

    JUMP = 0
    BRANCH = auto()
    EXIT = auto()


class Edge(IntEnum):
    """What is known of an edge, as bits."""

    BACK = 1
    POLLS = 2


EDGE_BITS = 2


class Meeting(IntEnum):
    """Where the member mask of a warp-level instruction comes from."""

    NONE = 0
    CONSTANT = auto()
    REGISTER = auto()
    BARRIER_CONSTANT = auto()
    """Of `bar.warp.sync`, at which lanes may meet at different places."""
    BARRIER_REGISTER = auto()


class Queue(IntEnum):
    """Fields of a warp's queue: its lanes as groups, each at one place. Groups have no order."""

    COUNT = 0
    """Of groups."""
    ALIVE = auto()
    """Lanes that exist and have not exited, a bit each."""
    EXIST = auto()
    """Lanes that exist, exited or not."""
    CHOSEN = auto()
    """The group that comes next; NOBODY for none."""
    NEXT = auto()
    """Its key if it can run natively now; else WAITING, and where a group was chosen Python must run it."""
    PATIENCE = auto()
    """Back edges that the warp may still take before others run, while it does not run."""
    RAN = auto()
    """Blocks that it ran."""
    HELD = auto()
    """Under a schedule: whether the warp may not run now."""
    SPLIT = auto()
    """Under a schedule: the lanes that run before the others where nothing keeps them together; 0 for none."""
    KEYS = auto()
    """Of each of up to 32 groups: WAITING if it waits for other lanes, its turn, its place (32 bits)."""


# Of each group its lanes.
MASKS = Queue.KEYS + 32
QUEUE_FIELDS = MASKS + 32
NOBODY = -1
WAITING = 1 << 62
TURN = 1 << 32

SHARED_ROW, LOCAL_ROW, FIRST_BUFFER_ROW = 0, 1, 2
FIELD_BYTES = 8
ROW_BYTES = len(Row) * FIELD_BYTES
# (site, warp, mask, addresses, values) -> 0, or 1 if it raised.
SLOW = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p
)

# Bytes of a lane's value in a home.
HOME_BYTES = {"pred": 1, "b8": 1, "b16": 2, "b32": 4, "b64": 8}


def starts(kinds: Sequence[str]) -> list[int]:
    """Bytes of a lane's values before each home, and of all."""
    result = [0]
    for kind in kinds:
        result.append(result[-1] + HOME_BYTES[kind])
    return result
