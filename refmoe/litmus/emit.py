"""PTX text of litmus programs, which a launch of a few threads runs.

A kernel holds one program or several. It takes two pointers: global memory, `GLOBAL_BYTES` from x on, and the results,
8 bytes for each of `Program.registers`; and the number of the program. It first sets shared memory to zero and
initialises barriers in memory, and a `bar.sync` of the block orders that before everything. A thread writes its
registers to the results at its end.

A thread of the program is one lane. If it takes part in a `bar.sync` its whole warp comes along, and everything but
the barriers is guarded by being that lane. Otherwise the other lanes of the block do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from refmoe.litmus.program import (
    MAX_MBARRIERS,
    VARIABLE_BYTES,
    VARIABLES,
    Address,
    Arrive,
    AsyncArrive,
    AsyncCopy,
    Atomic,
    Barrier,
    BulkLoad,
    BulkStore,
    ClusterArrive,
    ClusterWait,
    CommitGroup,
    Fence,
    If,
    Instruction,
    Load,
    Program,
    ProgramError,
    ProxyFence,
    Store,
    Thread,
    Until,
    Wait,
    WaitGroup,
    WarpSync,
    walk,
)

Arch = Literal["sm_80", "sm_90"]

#: Of the global variables together.
GLOBAL_BYTES = VARIABLE_BYTES * len(VARIABLES["global"])
_SHARED_BYTES = VARIABLE_BYTES * len(VARIABLES["shared"])
#: What a module begins with.
HEADERS = {
    "sm_80": ".version 7.8\n.target sm_80\n.address_size 64\n",
    "sm_90": ".version 8.6\n.target sm_90\n.address_size 64\n",
}


@dataclass(frozen=True)
class GridShape:
    """How a kernel is launched: blocks, threads of a block, blocks of a cluster."""

    grid: int
    block: int
    cluster: int


def shape(program: Program) -> GridShape:
    """How the kernel of a program is launched."""
    places = [thread.place for thread in program.threads]
    ctas = max(place.cta for place in places) + 1
    grid = -(-ctas // program.cluster) * program.cluster
    warps = max(place.warp for place in places) + 1
    if warps > 1 or any(isinstance(each, Barrier) for thread in program.threads for each in thread.instructions):
        return GridShape(grid, 32 * warps, program.cluster)
    return GridShape(grid, max(place.lane for place in places) + 1, program.cluster)


def arch(program: Program) -> Arch:
    """The oldest of the two architectures that has what a program needs."""
    for thread in program.threads:
        for each in walk(thread.instructions):
            if isinstance(each, ProxyFence | BulkLoad | BulkStore | ClusterArrive | ClusterWait):
                return "sm_90"
            if isinstance(each, Load | Store | Atomic | Fence) and each.scope == "cluster":
                return "sm_90"
            if isinstance(each, Fence) and each.order in ("acquire", "release"):
                return "sm_90"
            if isinstance(each, Arrive) and each.expect_bytes:
                return "sm_90"
    return "sm_90" if program.cluster > 1 else "sm_80"


def module_text(programs: Sequence[Program], target: Arch = "sm_90", name: str = "litmus") -> str:
    """A module with one kernel, which runs the program that its third parameter names.

    Raises:
        ProgramError: the architecture has not what a program needs.
    """
    for program in programs:
        if target == "sm_80" and arch(program) != "sm_80":
            raise ProgramError(f"{program.shape}: sm_90 is needed, for clusters, bulk copies and their fences")
    return HEADERS[target] + KernelWriter(target).text(programs, name)


class KernelWriter:
    """Writes one kernel."""

    def __init__(self, target: Arch) -> None:
        self.target = target
        self.lines: list[str] = []
        self.labels = 0
        self.declared: set[tuple[str, int]] = set()
        self.guard = ""
        self.thread = 0
        self._dropped = False
        self.shared_space = "shared" if target == "sm_80" else "shared::cta"

    def text(self, programs: Sequence[Program], name: str) -> str:
        """The kernel."""
        starts = [self._label() for _ in programs]
        if len(programs) > 1:
            for number, start in enumerate(starts):
                self.lines.append(f"setp.eq.u32 %p, %which, {number};")
                self.lines.append(f"@%p bra {start};")
            self.lines.append("ret;")
        for program, start in zip(programs, starts, strict=True):
            self.lines.append(f"{start}:")
            self.lines += [f"// {line}" for line in str(program).splitlines()]
            self._program(program)
        parameters = ".param .u64 global, .param .u64 results, .param .u32 which"
        return self.entry(name, parameters, "    .reg .b32 %which;\n", [], ["ld.param.u32 %which, [which];"])

    def entry(
        self, name: str, parameters: str, registers: str, directives: Sequence[str], first: Sequence[str] = ()
    ) -> str:
        """The entry with all lines, which `first` comes before, and with these registers beside its own."""
        declared = "".join(f"    .reg .b{bits} {register};\n" for register, bits in sorted(self.declared))
        body = "\n".join(line if line.endswith(":") else f"    {line}" for line in (*first, *self.lines))
        head = "\n".join((f".visible .entry {name}({parameters})", *directives))
        return (
            f"{head}\n{{\n"
            "    .reg .pred %lead, %p;\n    .reg .b32 %cta, %thread, %warp;\n"
            f"    .reg .b64 %global, %results, %zero, %state;\n{registers}{declared}"
            f"    .shared .align 16 .b8 variables[{_SHARED_BYTES}];\n"
            f"    .shared .align 8 .b64 mbarriers[{MAX_MBARRIERS}];\n"
            "    ld.param.u64 %global, [global];\n    ld.param.u64 %results, [results];\n"
            "    mov.u32 %cta, %ctaid.x;\n    mov.u32 %thread, %tid.x;\n    shr.u32 %warp, %thread, 5;\n"
            f"{body}\n    ret;\n}}\n"
        )

    def _begin(self) -> None:
        """What comes behind the prologue of a program."""

    def _program(self, program: Program) -> None:
        """All that one program does, to the end of its threads."""
        self.program = program
        self.wide = _wide(program)
        self.declared |= {(self._register(*key), self._bits(*key)) for key in program.registers}
        used = [each for thread in program.threads for each in walk(thread.instructions)]
        shared = {at.offset // VARIABLE_BYTES for each in used for at in _addresses(each) if at.space == "shared"}
        self._prologue(shared, any(isinstance(each, BulkLoad | BulkStore) for each in used))
        self._begin()
        for number, thread in enumerate(program.threads):
            self._thread(number, thread)
        self.lines.append("ret;")

    def _bits(self, thread: int, register: str) -> int:
        """Of a register: 32 wherever they do. An atomic's result has no other width, and to extend it would use it."""
        return 64 if (thread, register) in self.wide else 32

    def _register(self, thread: int, register: str) -> str:
        return f"%t{thread}_{register}_b{self._bits(thread, register)}"

    def _label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def _add(self, line: str) -> None:
        """An instruction that only the thread itself executes."""
        self.lines.append(f"{self.guard}{line}")

    def _prologue(self, shared: set[int], bulk: bool) -> None:
        add = self.lines.append
        if shared or self.program.mbarriers:
            ready = self._label()
            add("setp.ne.u32 %p, %thread, 0;")
            add(f"@%p bra {ready};")
            if shared:
                add("mov.b64 %zero, 0;")
                for variable in sorted(shared):
                    add(f"st.shared.v2.b64 [variables+{VARIABLE_BYTES * variable}], {{%zero, %zero}};")
            for number, count in enumerate(self.program.mbarriers):
                add(f"mbarrier.init.{self.shared_space}.b64 {self._mbarrier(number)}, {count};")
            if bulk:
                add("fence.proxy.async;")
            add(f"{ready}:")
            add("bar.sync 0;")

    def _thread(self, number: int, thread: Thread) -> None:
        self.thread, end, place = number, self._label(), thread.place
        self.guard = ""
        self.lines.append(f"setp.ne.u32 %p, %cta, {place.cta};")
        self.lines.append(f"@%p bra {end};")
        if any(isinstance(each, Barrier) for each in thread.instructions):
            self.lines.append(f"setp.ne.u32 %p, %warp, {place.warp};")
            self.lines.append(f"@%p bra {end};")
            self.lines.append(f"setp.eq.u32 %lead, %thread, {32 * place.warp + place.lane};")
            self.guard = "@%lead "
        else:
            self.lines.append(f"setp.ne.u32 %p, %thread, {32 * place.warp + place.lane};")
            self.lines.append(f"@%p bra {end};")
        mine = [key for key in self.program.registers if key[0] == number]
        for key in mine:
            self.lines.append(f"mov.b{self._bits(*key)} {self._register(*key)}, 0;")
        for at, each in enumerate(thread.instructions):
            self._dropped = _is_dropped(each, thread.instructions[at + 1 :])
            self._instruction(each)
        self._dropped = False
        for index, key in enumerate(self.program.registers):
            if key in mine:
                self._add(f"st.global.b{self._bits(*key)} [%results+{8 * index}], {self._register(*key)};")
        self.lines.append("ret;")
        self.lines.append(f"{end}:")

    def _target(self, register: str) -> str:
        """Where a read goes: to a register of its own if nobody asks for what it read, as a compiler has it."""
        if not self._dropped:
            return self._register(self.thread, register)
        bits = self._bits(self.thread, register)
        name = f"%dropped{sum(each.startswith('%dropped') for each, _ in self.declared)}"
        self.declared.add((name, bits))
        return name

    def _at(self, at: Address) -> str:
        return f"[%global+{at.offset}]" if at.space == "global" else f"[variables+{at.offset}]"

    def _mbarrier(self, number: int) -> str:
        return f"[mbarriers+{8 * number}]"

    def _instruction(self, each: Instruction) -> None:
        if isinstance(each, If):
            self._if(each)
        elif isinstance(each, Until):
            self._until(each)
        elif isinstance(each, Load):
            self._load(each)
        elif isinstance(each, Store):
            self._store(each)
        elif isinstance(each, Atomic):
            self._atomic(each)
        elif isinstance(each, Fence | ProxyFence | CommitGroup | WaitGroup):
            self._add(f"{each};")
        elif isinstance(each, Barrier | WarpSync | ClusterArrive | ClusterWait):
            # The whole warp comes along to a barrier of the block, and the lane alone to one of its warp. To one of the
            # cluster come all that have not exited.
            self.lines.append(f"{each};")
        elif isinstance(each, Wait):
            self._wait(each)
        elif isinstance(each, Arrive):
            at = self._mbarrier(each.mbarrier)
            if each.expect_bytes:
                self._add(f"mbarrier.arrive.expect_tx.{self.shared_space}.b64 %state, {at}, {each.expect_bytes};")
            else:
                self._add(f"mbarrier.arrive.{self.shared_space}.b64 %state, {at};")
        elif isinstance(each, AsyncCopy):
            self._add(f"cp.async.ca.shared.global {self._at(each.to)}, {self._at(each.source)}, {each.width};")
        elif isinstance(each, AsyncArrive):
            self._add(f"cp.async.mbarrier.arrive.noinc.shared.b64 {self._mbarrier(each.mbarrier)};")
        elif isinstance(each, BulkLoad):
            self._add(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                f"{self._at(each.to)}, {self._at(each.source)}, {each.width}, {self._mbarrier(each.mbarrier)};"
            )
        else:
            opcode, adds = ("cp.reduce.async.bulk", ".add.u32") if each.adds else ("cp.async.bulk", "")
            self._add(
                f"{opcode}.global.shared::cta.bulk_group{adds} "
                f"{self._at(each.to)}, {self._at(each.source)}, {each.width};"
            )

    def _qualified(self, each: Load | Store | Atomic) -> str:
        """Order, scope and space, as they stand in an opcode."""
        order = "" if each.order in ("weak", "nc") else f".{each.order}"
        return f"{order}{f'.{each.scope}' if each.scope else ''}.{each.at.space}{'.nc' if each.order == 'nc' else ''}"

    def _load(self, each: Load) -> None:
        self._add(f"ld{self._qualified(each)}.u{8 * each.width} {self._target(each.register)}, {self._at(each.at)};")

    def _store(self, each: Store) -> None:
        value = each.value
        if isinstance(value, int):
            source = str(value)
        else:
            # A register that nothing writes is zero.
            known = (self.thread, value) in self.program.registers
            source = self._register(self.thread, value) if known else "0"
        self._add(f"st{self._qualified(each)}.u{8 * each.width} {self._at(each.at)}, {source};")

    def _atomic(self, each: Atomic) -> None:
        bits = 8 * each.width
        kind = f"{'u' if each.operation == 'add' else 'b'}{bits}"
        opcode = f"{'red' if each.register is None else 'atom'}{self._qualified(each)}.{each.operation}.{kind}"
        operands = f"{each.compare}, {each.operand}" if each.operation == "cas" else f"{each.operand}"
        if each.register is None:
            self._add(f"{opcode} {self._at(each.at)}, {operands};")
            return
        target = self._target(each.register)
        if bits == self._bits(self.thread, each.register):
            self._add(f"{opcode} {target}, {self._at(each.at)}, {operands};")
        else:
            self.declared.add(("%narrow", 32))
            self._add(f"{opcode} %narrow, {self._at(each.at)}, {operands};")
            self._add(f"cvt.u64.u32 {target}, %narrow;")

    def _until(self, each: Until) -> None:
        again = self._label()
        self.lines.append(f"{again}:")
        self._instruction(each.attempt)
        self._branch_if("ne", str(each.attempt.register), each.value, again)

    def _if(self, each: If) -> None:
        if (self.thread, each.register) not in self.program.registers:
            # A register that nothing writes is zero.
            if (each.value == 0) == each.equal:
                for inner in each.body:
                    self._instruction(inner)
            return
        skip = self._label()
        self._branch_if("ne" if each.equal else "eq", each.register, each.value, skip)
        for inner in each.body:
            self._instruction(inner)
        self.lines.append(f"{skip}:")

    def _branch_if(self, relation: str, register: str, value: int, label: str) -> None:
        """Branch if the thread's own register compares so."""
        both = ", %lead" if self.guard else ""
        bits, name = self._bits(self.thread, register), self._register(self.thread, register)
        self.lines.append(f"setp.{relation}{'.and' if both else ''}.u{bits} %p, {name}, {value}{both};")
        self.lines.append(f"@%p bra {label};")

    def _wait(self, each: Wait) -> None:
        again = self._label()
        wait = "test_wait" if self.target == "sm_80" else "try_wait"
        self.lines.append("setp.eq.u32 %p, 0, 0;") if self.guard else None
        self.lines.append(f"{again}:")
        self._add(f"mbarrier.{wait}.parity.{self.shared_space}.b64 %p, {self._mbarrier(each.mbarrier)}, {each.parity};")
        self.lines.append(f"@!%p bra {again};")


def _is_dropped(each: Instruction, behind: tuple[Instruction, ...]) -> bool:
    """Whether an instruction reads into a register that another one of its thread overwrites before anybody asks."""
    if not isinstance(each, Load | Atomic) or each.register is None:
        return False
    for other in behind:
        for one in walk((other,)):
            asks = one.value if isinstance(one, Store) else one.register if isinstance(one, If) else None
            if asks == each.register:
                return False
        if isinstance(other, Load | Atomic) and other.register == each.register:
            return True
    return False


def _wide(program: Program) -> set[tuple[int, str]]:
    """(thread, register) of the registers that 8 bytes are loaded into, or stored from."""
    wide: set[tuple[int, str]] = set()
    for number, thread in enumerate(program.threads):
        for each in walk(thread.instructions):
            if isinstance(each, Load | Atomic) and each.width == 8 and each.register is not None:
                wide.add((number, each.register))
            elif isinstance(each, Store) and each.width == 8 and isinstance(each.value, str):
                wide.add((number, each.value))
    return wide


def _addresses(each: Instruction) -> tuple[Address, ...]:
    """The variables, or bytes of them, that an instruction accesses."""
    if isinstance(each, Load | Store | Atomic):
        return (each.at,)
    if isinstance(each, AsyncCopy | BulkLoad | BulkStore):
        return (each.to, each.source)
    return ()
