"""What can go wrong in a launch, as exceptions that say where: block, thread, PTX line, source line, instruction."""

from __future__ import annotations

from typing import Any, Protocol

from refmoe.errors import RefmoeError

Index3 = tuple[int, int, int]


class WrittenInstruction(Protocol):
    """What an error says of an instruction, see `refmoe.ptx.text.syntax.Instruction`."""

    @property
    def opcode(self) -> str:
        """Its full spelling, or what stands for one that no lane may run."""
        ...

    @property
    def spelling(self) -> str:
        """Its full spelling as written."""
        ...

    @property
    def line(self) -> int:
        """In the PTX text, 1-based."""
        ...

    @property
    def source(self) -> str | None:
        """`file:line` of the `.loc` directive in force, or None."""
        ...

    @property
    def callers(self) -> tuple[str, ...]:
        """Where the function of `source` is inlined, the function there, and so on, in the same form."""
        ...

    @property
    def text(self) -> str:
        """As it stands there."""
        ...


class Explained(Protocol):
    """What is said of a race, see `refmoe.ptx.findings.Finding`."""

    def lines(self) -> tuple[str, ...]:
        """Sentences."""
        ...

    def document(self) -> dict[str, Any]:
        """JSON-able."""
        ...


class PtxError(RefmoeError):
    """Base class of the executor's errors. Keyword arguments of the constructor become attributes.

    Attributes:
        schedule: number of the schedule under which it happened, see `refmoe.ptx.Schedule`.
    """

    schedule: int = 0

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self._fields = fields
        for name, value in fields.items():
            setattr(self, name, value)

    def under(self, schedule: int, why: str) -> PtxError:
        """The same error, with the schedule under which it happened, and what is to be said of that."""
        return _rebuild(type(self), f"{self.message}; {why}", {**self._fields, "schedule": schedule})

    def adding(self, sentence: str) -> PtxError:
        """The same error, of which one thing more is said."""
        return _rebuild(type(self), f"{self.message}; {sentence}", self._fields)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by their message alone, which would lose the fields between worker processes.
        return _rebuild, (type(self), self.message, self._fields)


def _rebuild(kind: type[PtxError], message: str, fields: dict[str, Any]) -> PtxError:
    return kind(message, **fields)


class ParseError(PtxError):
    """The text is not PTX that this parser reads.

    A statement in a function is an error when a lane reaches it; what stands elsewhere when the text is read.

    Attributes:
        line: 1-based.
        name: of the module.
        block, thread: the lane that reached it; None where nothing ran.
    """

    line: int
    name: str
    block: Index3 | None = None
    thread: Index3 | None = None


class UnknownOpcode(PtxError):
    """An instruction that the executor does not define.

    It is an error when a lane reaches it: an opcode that does not exist here, or operands that do not fit it.

    Attributes:
        opcode: its full spelling.
        line, source, text: as for a `LaneError`.
        block, thread: the lane that reached it; None where the entry could not be compiled.
        alike: the instructions at which lanes of one member mask wait for each other, if that is what is not defined.
    """

    opcode: str
    line: int
    source: str | None
    text: str
    block: Index3 | None
    thread: Index3 | None
    alike: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls, instruction: WrittenInstruction, message: str, block: Index3 | None = None, thread: Index3 | None = None
    ) -> UnknownOpcode:
        """The error of an instruction."""
        fields = {name: getattr(instruction, name) for name in ("line", "source", "text")}
        return cls(message, opcode=instruction.spelling, **fields, block=block, thread=thread)


class Contraction(PtxError):
    """A module parsed as strict has an FP add, sub or mul that ptxas may fuse. Attributes: `opcode`, `line`, `text`."""

    opcode: str
    line: int
    text: str


class ArgumentMismatch(PtxError):
    """The launch does not fit the entry: its arguments, its grid, its block or its shared memory."""


class CooperativeLaunchTooLarge(ArgumentMismatch):
    """A cooperative launch has more blocks than can be resident, as cudaErrorCooperativeLaunchTooLarge.

    Attributes:
        blocks: of the grid.
        resident: the most that can be.
    """

    blocks: int
    resident: int


class LaneError(PtxError):
    """A fault of one lane.

    Attributes:
        block: index of its CTA in the grid, (x, y, z).
        thread: its index in the CTA, (x, y, z).
        line: line of the instruction in the PTX text, 1-based.
        source: `file:line` of the `.loc` directive in force, or None.
        callers: where the function of `source` is inlined, the function there, and so on, in the same form, innermost
            first, as far as the text says; empty where it is not inlined.
        text: the instruction.
    """

    block: Index3
    thread: Index3
    line: int
    source: str | None
    callers: tuple[str, ...] = ()
    text: str


class MemoryFault(LaneError):
    """A memory access that the machine refuses.

    Attributes:
        kind: `"out of bounds"`, `"uninitialised"`, `"misaligned"`, `"read only"`, `"unmapped"`, `"gone"` (shared
            memory of a block of the cluster that has exited) or `"another thread's"` (local memory).
        space: state space of the access.
        address: the address the lane used, in that space.
        buffer: name of the buffer or variable, or None where the address belongs to none.
        offset: byte offset from the buffer's start (it may be negative), or None.
        size: bytes accessed.
        use: where a byte that nobody wrote is used, in words; empty where the access itself is the fault.
        under_way: whether the bytes are those of a copy that nobody has waited for.
        race: of bytes that nobody wrote, but that another thread writes in this launch and which nothing orders before
            the read: that race, with its finding. None where there is none, or the launch was not run again for it.
    """

    kind: str
    space: str
    address: int
    buffer: str | None
    offset: int | None
    size: int
    use: str = ""
    under_way: bool = False
    race: RaceError | None = None

    def __str__(self) -> str:
        return "\n  ".join((self.message, *self.race_said()))

    def race_said(self) -> tuple[str, ...]:
        """What is said of its race, a sentence each."""
        if self.race is None:
            return ()
        lines = () if self.race.finding is None else self.race.finding.lines()
        return "another thread writes these bytes, and nothing orders the two", *lines

    def of(self, race: RaceError) -> MemoryFault:
        """The same fault, of bytes that are written, but that nothing orders before the read."""
        return MemoryFault(self.message, **{**self._fields, "race": race})


class RaceError(LaneError):
    """Two accesses of one byte, at least one a write, that nothing orders.

    Attributes:
        kind: `"write-write"`, `"read-write"` (the later access writes), `"write-read"` (the later access reads) or
            `"proxy"` (a bulk copy reads what was written in order, but through another proxy and without its fence) or
            `"exit"` (a block ends while another block of its cluster may still access its shared memory) or
            `"non-coherent"` (`ld.global.nc` reads what the grid wrote) or `"tensor map"` (a map is rewritten while a
            copy that goes by it is under way) or `"previous grid"` (an access to what the grid before this one still
            writes, without `griddepcontrol.wait`) or `"texture"` (a fetch or a surface read of what the grid wrote).
        space, buffer, offset: where.
        other_block, other_thread: the lane of the earlier access; the thread is None where several lanes read.
        warning: empty for a fault: PTX gives no result, or another legal order gives another one. Otherwise the access
            is against the letter of PTX, but is not known to go wrong: `"missing acquire"` (a strong read saw the
            signal, without an acquire or a fence behind it), `"same value"` (both write the same bytes) or
            `"warp-collective"` (the lanes of a warp read, an instruction of the whole warp took the values, and one
            lane signalled for all) or `"copied operand"` (`wgmma` reads what `cp.async` brought, without a proxy
            fence) or `"non-coherent"` (`ld.global.nc` reads what the grid before wrote, behind `griddepcontrol.wait`)
            or `"unfenced init"` (a bulk copy completes on an mbarrier whose `mbarrier.init` has no proxy fence) or
            `"unused value"` (a plain read, of whose value nothing depends).
        certain: whether it is known which of several accesses is not ordered.
        earlier: the instruction of the earlier access, or None where it is not known.
        among: the thread of the earlier access, or one of several; of a bulk copy that completes on a barrier None.
        poll: of a missing acquire the strong read that saw the signal, else None.
        finding: what is to be said of both accesses, and what would order them; None where the launch was not run
            again for it, see `Checks.explain`.
        use: of a plain read whose value was followed, what the value reaches, and where; else empty.
    """

    kind: str
    space: str
    buffer: str
    offset: int
    other_block: Index3
    other_thread: Index3 | None
    warning: str
    certain: bool
    earlier: WrittenInstruction | None = None
    among: Index3 | None = None
    poll: WrittenInstruction | None = None
    finding: Explained | None = None
    use: str = ""

    def __str__(self) -> str:
        return "\n  ".join((self.message, *self.use_said(), *(() if self.finding is None else self.finding.lines())))

    def use_said(self) -> tuple[str, ...]:
        """What is said of the use, a sentence or none."""
        return (f"the value that was read {self.use}",) if self.use else ()

    @property
    def cause(self) -> tuple[Any, ...]:
        """What two races have in common that are one finding: what they lack, or the poll that all of it follows."""
        if self.poll is not None:
            return self.warning, self.poll.line
        return self.kind, self.warning, self.line, self.buffer

    def explained(self, finding: Explained, **fields: Any) -> RaceError:
        """The same error with more to say."""
        return RaceError(self.message, **{**self._fields, **fields, "finding": finding})

    def used(self, use: str) -> RaceError:
        """The same error, of a read whose value was followed to its use."""
        return RaceError(self.message, **{**self._fields, "use": use})

    def unused(self, checked: bool = False) -> RaceError:
        """The warning that it is where nothing depends on the value read; `checked`: but a CAS of its bytes."""
        of = "a CAS that compares it with what is there, and nothing else, depends" if checked else "nothing depends"
        message = f"{self.message}; {of} on the value that was read"
        return RaceError(message, **{**self._fields, "warning": "unused value"})


class UndefinedError(LaneError):
    """A result depends on a value that is undefined. The fields of `LaneError` say where it is used.

    What comes from bytes that nobody wrote is a `MemoryFault` of kind `"uninitialised"`, which says where it is used.

    Attributes:
        sink: what it reaches: `"an address"`, `"a branch"`, `"an output byte"` and so on.
        bits: the undefined ones of the value, a mask.
        register: name of the register that nothing wrote, or None.
        origin_block, origin_thread: the thread whose value was undefined first.
        origin_line, origin_source, origin_text: the instruction that made it so; None for a register that nothing
            wrote.
    """

    sink: str
    bits: int
    register: str | None
    origin_block: Index3
    origin_thread: Index3
    origin_line: int | None
    origin_source: str | None
    origin_text: str | None


class WarpError(LaneError):
    """A warp-level instruction whose result the manual leaves undefined.

    Attributes:
        absent: whether a shuffle reads a lane that does not take part, where undefined values are not looked for.
    """

    absent: bool = False


class MisuseError(LaneError):
    """A barrier in memory or an asynchronous copy used in a way that the manual leaves undefined."""


class Trap(LaneError):
    """A lane executed `trap`, or `brkpt`, at which a chip stops for its debugger."""


class AssertionFailed(Trap):
    """A device-side `assert` failed: a call of `__assertfail`.

    Attributes:
        expression: what did not hold, as the source has it.
        file, file_line, function: where the source has it.
    """

    expression: str
    file: str
    file_line: int
    function: str


class Deadlock(PtxError):
    """No lane can run any more. Attributes: `waiting`, one sentence for each place where lanes wait."""

    waiting: tuple[str, ...]


class CoResidencyError(PtxError):
    """Blocks poll for a block that cannot start before they end: the launch needs co-residency, and is not cooperative.

    Attributes:
        line, source, text: of the instruction that polls, as for a `LaneError`; None where no block is in a loop.
        blocks: those that poll, as indices (x, y, z).
        resident: how many can be resident.
        waiting: how many have not started.
    """

    line: int | None
    source: str | None
    text: str | None
    blocks: tuple[Index3, ...]
    resident: int
    waiting: int


class StepBudgetExceeded(PtxError):
    """The launch ran more block steps than its budget. Attributes: `steps`, `places` where lanes were."""

    steps: int
    places: tuple[str, ...]


class ScheduleError(PtxError):
    """The result depends on the schedule: two legal ones give different bytes, or print different lines.

    Attributes:
        buffer: name of the buffer whose bytes differ, or None where only printed lines do.
        offset: of the first byte that differs.
        count: bytes that differ in all buffers, or lines.
        schedules: the numbers of both.
        values: of each, the element at `offset`, of a buffer of bytes what was written together, as bytes; None where
            it is not initialised; or the line that only one of both prints.
        writers: of each, who wrote that element last, in words; None where nobody did.
    """

    buffer: str | None
    offset: int | None
    count: int
    schedules: tuple[int, int]
    values: tuple[bytes | None, bytes | None]
    writers: tuple[str | None, str | None]
