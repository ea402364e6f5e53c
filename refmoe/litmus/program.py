"""A litmus program as data: two to four threads, where each of them runs, and what each of them does.

Memory is a few variables of 16 bytes. x, y, z, u, v, w lie in global memory, one after the other, and a, b, c, d, e, f
in the shared memory of each CTA. `Address.of("x+2")` is the third byte of x. All bytes are zero at first, except where
`Program.initial` says otherwise. Barriers in memory lie beside the variables and are initialised before any thread
starts.

A register holds 64 bits, is zero at first, and belongs to its thread. Loads extend with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from refmoe.errors import RefmoeError

Scope = Literal["cta", "cluster", "gpu", "sys"]
Space = Literal["global", "shared"]

#: Bytes of a variable.
VARIABLE_BYTES = 16
#: Names of the variables of each space, in the order of their addresses.
VARIABLES: dict[Space, str] = {"global": "xyzuvw", "shared": "abcdef"}
#: Barriers in memory that a CTA may have.
MAX_MBARRIERS = 4


class ProgramError(RefmoeError):
    """A litmus program that PTX has not, or that this package does not take, with the reason."""


@dataclass(frozen=True, order=True)
class Address:
    """A byte of global memory, or of the shared memory of the CTA whose thread uses it."""

    space: Space
    offset: int

    @classmethod
    def of(cls, text: str) -> Address:
        """The address of a variable, or of a byte in it: `"x"`, `"a+4"`.

        Raises:
            ProgramError: there is no such variable.
        """
        name, _, offset = text.partition("+")
        for space, names in VARIABLES.items():
            if len(name) == 1 and name in names:
                return cls(space, names.index(name) * VARIABLE_BYTES + int(offset or 0))
        raise ProgramError(f"no variable {name!r}; there are {', '.join(VARIABLES.values())}")

    def behind(self, count: int) -> Address:
        """The address so many bytes behind it."""
        return Address(self.space, self.offset + count)

    def __str__(self) -> str:
        variable, offset = divmod(self.offset, VARIABLE_BYTES)
        name = VARIABLES[self.space][variable]
        return f"{name}+{offset}" if offset else name


@dataclass(frozen=True)
class Load:
    """`ld`. `order` is weak, volatile, relaxed, acquire or nc (`ld.global.nc`); relaxed and acquire have a scope."""

    register: str
    at: Address
    width: int = 4
    order: Literal["weak", "volatile", "relaxed", "acquire", "nc"] = "weak"
    scope: Scope | None = None

    def __str__(self) -> str:
        return f"ld.{_spelled(self.order, self.scope)}.b{8 * self.width} {self.register}, [{self.at}]"


@dataclass(frozen=True)
class Store:
    """`st` of a constant, or of what a register holds."""

    at: Address
    value: int | str
    width: int = 4
    order: Literal["weak", "volatile", "relaxed", "release"] = "weak"
    scope: Scope | None = None

    def __str__(self) -> str:
        return f"st.{_spelled(self.order, self.scope)}.b{8 * self.width} [{self.at}], {self.value}"


@dataclass(frozen=True)
class Atomic:
    """`atom`, or without a register `red`.

    Attributes:
        operation: exch, add or cas; a `red` only adds.
        operand: what is written, or added.
        compare: of cas: what has to be there for a write to happen.
        register: gets what was there.
    """

    operation: Literal["exch", "add", "cas"]
    at: Address
    operand: int
    order: Literal["relaxed", "acquire", "release", "acq_rel"] = "relaxed"
    scope: Scope = "gpu"
    register: str | None = None
    compare: int = 0
    width: int = 4

    def __str__(self) -> str:
        spelled = f"{_spelled(self.order, self.scope)}.{self.operation}.b{8 * self.width}"
        if self.register is None:
            return f"red.{spelled} [{self.at}], {self.operand}"
        compare = f"{self.compare}, " if self.operation == "cas" else ""
        return f"atom.{spelled} {self.register}, [{self.at}], {compare}{self.operand}"


@dataclass(frozen=True)
class Fence:
    """`fence` of some order, or `membar`, which is `fence.sc` from sm_70 on (PTX ISA, membar/fence)."""

    order: Literal["acq_rel", "acquire", "release", "sc", "membar"]
    scope: Scope

    def __str__(self) -> str:
        if self.order == "membar":
            return f"membar.{'gl' if self.scope == 'gpu' else self.scope}"
        return f"fence.{self.order}.{self.scope}"


@dataclass(frozen=True)
class ProxyFence:
    """`fence.proxy.async`, between the generic proxy and the one of bulk copies."""

    def __str__(self) -> str:
        return "fence.proxy.async"


@dataclass(frozen=True)
class Barrier:
    """`bar.sync`, or `bar.arrive`, on a numbered barrier of the CTA.

    Attributes:
        number: of the barrier.
        warps: that take part; each of them by one thread of the program.
        arrive: whether the thread goes on at once.
        reduces: `bar.red`, whose result nobody looks at.
    """

    number: int
    warps: int
    arrive: bool = False
    reduces: bool = False

    def __str__(self) -> str:
        if self.reduces:
            return f"bar.red.or.pred %p, {self.number}, {32 * self.warps}, %p"
        return f"bar.{'arrive' if self.arrive else 'sync'} {self.number}, {32 * self.warps}"


@dataclass(frozen=True)
class ClusterArrive:
    """`barrier.cluster.arrive` with its default, .release, or with .relaxed; every thread of the cluster arrives."""

    relaxed: bool = False

    def __str__(self) -> str:
        return f"barrier.cluster.arrive.{'relaxed' if self.relaxed else 'release'}"


@dataclass(frozen=True)
class ClusterWait:
    """`barrier.cluster.wait` with its default, .acquire."""

    def __str__(self) -> str:
        return "barrier.cluster.wait.acquire"


@dataclass(frozen=True)
class WarpSync:
    """`bar.warp.sync` among some lanes of the thread's warp, bits of a mask."""

    mask: int

    def __str__(self) -> str:
        return f"bar.warp.sync {self.mask:#x}"


@dataclass(frozen=True)
class Arrive:
    """`mbarrier.arrive` with its defaults, .release.cta; with bytes `mbarrier.arrive.expect_tx`."""

    mbarrier: int
    expect_bytes: int = 0

    def __str__(self) -> str:
        expect = f".expect_tx [m{self.mbarrier}], {self.expect_bytes}" if self.expect_bytes else f" [m{self.mbarrier}]"
        return f"mbarrier.arrive{expect}"


@dataclass(frozen=True)
class Wait:
    """`mbarrier.try_wait.parity` with its defaults, .acquire.cta, until the phase of that parity is complete."""

    mbarrier: int
    parity: int

    def __str__(self) -> str:
        return f"until mbarrier.try_wait.parity [m{self.mbarrier}], {self.parity}"


@dataclass(frozen=True)
class AsyncCopy:
    """`cp.async` of 4, 8 or 16 bytes from global to shared memory."""

    to: Address
    source: Address
    width: int = 4

    def __str__(self) -> str:
        return f"cp.async [{self.to}], [{self.source}], {self.width}"


@dataclass(frozen=True)
class CommitGroup:
    """`cp.async.commit_group`, or with `bulk` `cp.async.bulk.commit_group`."""

    bulk: bool = False

    def __str__(self) -> str:
        return f"cp.async{'.bulk' if self.bulk else ''}.commit_group"


@dataclass(frozen=True)
class WaitGroup:
    """`cp.async.wait_group`, or of bulk copies: until at most so many of the youngest groups are under way.

    Attributes:
        pending: how many.
        bulk: of bulk copies.
        read: `.read`: until the copies have read their sources, which is all that it says.
    """

    pending: int = 0
    bulk: bool = False
    read: bool = False

    def __str__(self) -> str:
        return f"cp.async{'.bulk' if self.bulk else ''}.wait_group{'.read' if self.read else ''} {self.pending}"


@dataclass(frozen=True)
class AsyncArrive:
    """`cp.async.mbarrier.arrive.noinc`: an arrival once all earlier `cp.async` of the thread are complete."""

    mbarrier: int

    def __str__(self) -> str:
        return f"cp.async.mbarrier.arrive.noinc [m{self.mbarrier}]"


@dataclass(frozen=True)
class BulkLoad:
    """`cp.async.bulk` of 16 bytes from global to shared memory, which completes on a barrier in memory."""

    to: Address
    source: Address
    mbarrier: int
    width: int = 16

    def __str__(self) -> str:
        return f"cp.async.bulk [{self.to}], [{self.source}], {self.width}, [m{self.mbarrier}]"


@dataclass(frozen=True)
class BulkStore:
    """`cp.async.bulk` of 16 bytes from shared to global memory, in a bulk group.

    Attributes:
        to, source: where.
        width: bytes.
        adds: it is `cp.reduce.async.bulk` with `.add.u32`, which adds each of four words to what is there.
    """

    to: Address
    source: Address
    width: int = 16
    adds: bool = False

    def __str__(self) -> str:
        opcode = "cp.reduce.async.bulk.add" if self.adds else "cp.async.bulk"
        return f"{opcode} [{self.to}], [{self.source}], {self.width}"


@dataclass(frozen=True)
class Until:
    """A loop: a load or an atomic that is done again until its register has a value."""

    attempt: Load | Atomic
    value: int

    def __str__(self) -> str:
        return f"until {self.attempt} == {self.value}"


@dataclass(frozen=True)
class If:
    """What is done only if a register has a value, or with `equal` False another one."""

    register: str
    value: int
    body: tuple[Instruction, ...]
    equal: bool = True

    def __str__(self) -> str:
        inner = "; ".join(str(each) for each in self.body)
        return f"if {self.register} {'==' if self.equal else '!='} {self.value} {{ {inner} }}"


Instruction = (
    Load
    | Store
    | Atomic
    | Fence
    | ProxyFence
    | Barrier
    | ClusterArrive
    | ClusterWait
    | WarpSync
    | Arrive
    | Wait
    | AsyncCopy
    | CommitGroup
    | WaitGroup
    | AsyncArrive
    | BulkLoad
    | BulkStore
    | Until
    | If
)


@dataclass(frozen=True, order=True)
class ThreadPlace:
    """Where a thread runs: CTA of the grid, warp of the CTA, lane of the warp."""

    cta: int = 0
    warp: int = 0
    lane: int = 0

    def __str__(self) -> str:
        return f"cta {self.cta} warp {self.warp} lane {self.lane}"


@dataclass(frozen=True)
class Thread:
    """A place and what is done there."""

    place: ThreadPlace
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Program:
    """A litmus program.

    Attributes:
        shape: what kind of program it is, as "MP" or "spin lock".
        cause: what is special about it, as "fence before the write": the key under which results are counted.
        threads: two to four of them.
        initial: address of global memory, bytes, value of what is not zero at first.
        mbarriers: arrivals that a phase of each barrier in memory needs.
        cluster: CTAs of a cluster; 1 for none.
    """

    shape: str
    cause: str
    threads: tuple[Thread, ...]
    initial: tuple[tuple[Address, int, int], ...] = ()
    mbarriers: tuple[int, ...] = ()
    cluster: int = field(default=1)

    @property
    def key(self) -> str:
        """What the program does, without its names: equal for equal programs."""
        threads = (f"{thread.place}: {'; '.join(map(str, thread.instructions))}" for thread in self.threads)
        initial = ", ".join(f"[{at}] {width} {value}" for at, width, value in self.initial)
        return f"cluster {self.cluster}; mbarriers {self.mbarriers}; {initial}\n" + "\n".join(threads)

    def __str__(self) -> str:
        return f"{self.shape} / {self.cause}\n{self.key}"

    @property
    def registers(self) -> tuple[tuple[int, str], ...]:
        """(thread, register) of all registers that loads and atomics write, in the order of their names."""
        found = {
            (number, target)
            for number, thread in enumerate(self.threads)
            for each in walk(thread.instructions)
            if isinstance(each, Load | Atomic) and (target := each.register) is not None
        }
        return tuple(sorted(found))

    def check(self) -> None:
        """Hold the program against what the rest of this package takes for granted.

        Raises:
            ProgramError: it does not hold.
        """
        if not 2 <= len(self.threads) <= 4:
            raise ProgramError(f"{len(self.threads)} threads; two to four needed")
        places = [thread.place for thread in self.threads]
        if len(set(places)) < len(places):
            raise ProgramError(f"two threads have one place: {', '.join(map(str, places))}")
        if len(self.mbarriers) > MAX_MBARRIERS:
            raise ProgramError(f"{len(self.mbarriers)} barriers in memory; at most {MAX_MBARRIERS}")
        self._check_cluster_barriers()
        warps = [(place.cta, place.warp) for place in places]
        for thread in self.threads:
            for each in walk(thread.instructions):
                _check_instruction(each)
                if isinstance(each, Barrier):
                    if warps.count((thread.place.cta, thread.place.warp)) > 1:
                        raise ProgramError("a bar.sync where two threads of the program are lanes of one warp")
                    if each not in thread.instructions:
                        raise ProgramError("a bar.sync under a condition")
                    if any(isinstance(other, WarpSync) for other in walk(thread.instructions)):
                        raise ProgramError("a bar.sync, to which the whole warp comes along, and a bar.warp.sync")
                if isinstance(each, Arrive | Wait | AsyncArrive | BulkLoad) and each.mbarrier >= len(self.mbarriers):
                    raise ProgramError(f"no barrier in memory m{each.mbarrier}; there are {len(self.mbarriers)}")

    def _check_cluster_barriers(self) -> None:
        """Raises ProgramError unless the threads of a cluster arrive and wait in turns, all as often."""
        uses: dict[int, int] = {}
        for thread in self.threads:
            mine = [each for each in thread.instructions if isinstance(each, ClusterArrive | ClusterWait)]
            if len(mine) < sum(isinstance(each, ClusterArrive | ClusterWait) for each in walk(thread.instructions)):
                raise ProgramError("a barrier.cluster under a condition")
            turns = [ClusterWait if number % 2 else ClusterArrive for number in range(len(mine))]
            if len(mine) % 2 or [type(each) for each in mine] != turns:
                raise ProgramError("barrier.cluster.arrive and .wait that do not follow each other in turns")
            if uses.setdefault(thread.place.cta // self.cluster, len(mine)) != len(mine):
                raise ProgramError("a barrier.cluster at which not all threads of the cluster arrive")

    @property
    def ends_early(self) -> bool:
        """Whether a block, and so its shared memory, may end while a bulk copy reads or writes it.

        PTX says nothing of such a program, unless it has a race besides.
        """
        for thread in self.threads:
            if _leaves_copies(thread.instructions):
                return True
            block = [each for each in self.threads if each.place.cta == thread.place.cta]
            waited = {each.mbarrier for other in block for each in walk(other.instructions) if isinstance(each, Wait)}
            loads = (each for each in walk(thread.instructions) if isinstance(each, BulkLoad))
            if any(each.mbarrier not in waited for each in loads):
                return True
        return False


def _leaves_copies(instructions: tuple[Instruction, ...]) -> bool:
    """Whether a thread ends while bulk copies from shared memory may still read."""
    copies, groups = False, list[bool]()
    for each in walk(instructions):
        if isinstance(each, BulkStore):
            copies = True
        elif isinstance(each, CommitGroup) and each.bulk:
            groups.append(copies)
            copies = False
        elif isinstance(each, WaitGroup) and each.bulk:
            groups = groups[-each.pending :] if each.pending else []
    return copies or any(groups)


def walk(instructions: tuple[Instruction, ...]) -> Iterator[Instruction]:
    """Every instruction, those under conditions and the attempts of loops too; loops and conditions come first."""
    for each in instructions:
        yield each
        if isinstance(each, If):
            yield from walk(each.body)
        elif isinstance(each, Until):
            yield each.attempt


def _spelled(order: str, scope: Scope | None) -> str:
    return order if scope is None else f"{order}.{scope}"


def _check_instruction(each: Instruction) -> None:
    """Raises ProgramError for what PTX has not: a width, a scope, an address."""
    if isinstance(each, Load | Store | Atomic):
        if (each.scope is None) != (each.order in ("weak", "volatile", "nc")):
            raise ProgramError(f"{each}: a scope is needed, or may not be there")
        widths: tuple[int, ...] = (4, 8) if isinstance(each, Atomic) else (1, 2, 4, 8)
        if each.width not in widths or each.at.offset % each.width:
            raise ProgramError(f"{each}: a width of {', '.join(map(str, widths))} at its multiple is needed")
        if each.order == "nc" and each.at.space != "global":
            raise ProgramError(f"{each}: nc is for global memory")
    if isinstance(each, Atomic) and each.register is None:  # noqa: SIM102 (a rule and its case)
        if each.operation != "add" or each.order not in ("relaxed", "release"):
            raise ProgramError(f"{each}: a red adds, relaxed or with release (PTX ISA, red)")
    if isinstance(each, Until):
        if each.attempt.register is None:
            raise ProgramError(f"{each}: a loop looks at a register")
        if isinstance(each.attempt, Atomic) and (each.attempt.operation, each.attempt.compare) != ("cas", each.value):
            raise ProgramError(f"{each}: of atomics a loop takes a cas, an attempt of which that fails writes nothing")
    if isinstance(each, AsyncCopy | BulkLoad) and (each.to.space, each.source.space) != ("shared", "global"):
        raise ProgramError(f"{each}: it copies from global to shared memory")
    if isinstance(each, BulkStore) and (each.to.space, each.source.space) != ("global", "shared"):
        raise ProgramError(f"{each}: it copies from shared to global memory")
    if isinstance(each, AsyncCopy | BulkLoad | BulkStore):
        widths = (4, 8, 16) if isinstance(each, AsyncCopy) else (16,)
        if each.width not in widths or each.to.offset % each.width or each.source.offset % each.width:
            raise ProgramError(f"{each}: a width of {', '.join(map(str, widths))} at its multiple is needed")
