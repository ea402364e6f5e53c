"""Code of each basic block: native functions for most instructions, and Python source for the rest.

`step_N(R, F)` runs the pieces of block N one after another for the lanes of a frame, and returns what the scheduler
needs of its end: a predicate, an index, or the operands of a barrier. A Python piece takes registers from their homes
through the frame and puts back those that it wrote; a native piece does that by itself.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.emit.absent import why_absent
from refmoe.ptx.emit.emitter import Emitter
from refmoe.ptx.emit.plan import Plan, kept
from refmoe.ptx.emit.shadowed import ShadowedBlocks
from refmoe.ptx.engine.barriers import BarrierCode
from refmoe.ptx.engine.code import PLAIN, Code, Gather, View, WaitCode
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.machine import announce
from refmoe.ptx.engine.native_state import NativeState
from refmoe.ptx.engine.refusal import RefusedInstruction
from refmoe.ptx.engine.slow import SlowSuspicion, Suspicion, slow_form
from refmoe.ptx.engine.tensor.mma import Mma
from refmoe.ptx.errors import Contraction
from refmoe.ptx.native.context import EDGE_BITS, Edge, End, Meeting, Place, starts
from refmoe.ptx.native.forms import is_native
from refmoe.ptx.native.kernel import NativeKernel, PieceCode, compile_pieces, content_of
from refmoe.ptx.native.mma import WarpMma
from refmoe.ptx.ops.lanes import LANES
from refmoe.ptx.program.blocks import Block, Program, build
from refmoe.ptx.program.exits import lanes_stay_away
from refmoe.ptx.program.inline import inline_calls
from refmoe.ptx.program.joined import joined
from refmoe.ptx.program.layout import Layout, lay_out
from refmoe.ptx.program.liveness import reads_unwritten
from refmoe.ptx.program.pieces import Homes, Piece, cut
from refmoe.ptx.program.registers import Usage, destinations_and_sources
from refmoe.ptx.program.unwritten import unwritten
from refmoe.ptx.program.warpgroup import may_touch
from refmoe.ptx.text.parser import ParsedModule
from refmoe.ptx.text.syntax import Function, Immediate, Instruction, Label, Not, Register


@contextmanager
def _without_looking_for_garbage() -> Iterator[None]:
    """What is made inside refers to itself nowhere, and there are so many objects of it that the search takes long."""
    looked = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looked:
            gc.enable()


@_without_looking_for_garbage()
def compile_entry(
    module: ParsedModule, name: str, read: Callable[[], Function], strict: bool, view: View = PLAIN
) -> Code:
    """Compile an entry, instructions that nothing reaches included.

    An opcode that does not exist becomes a `RefusedInstruction`, and so do operands that do not fit: an error of the
    lanes that reach it.

    Args:
        module: where it stands.
        name: of the entry.
        read: gives the entry with its body, if that is needed.
        strict: refuse FP add, sub and mul without a rounding suffix, which ptxas may fuse.
        view: how, for an observer.

    Raises:
        Contraction: see `strict`.
    """

    def planned() -> Plan:
        return _plan(module, read(), view)

    # What another observer's view of that name saw in another process is not known here.
    plan = planned() if view.observed else kept(module, name, view.name, planned)
    if strict and plan.contractions:
        first = plan.contractions[0]
        raise Contraction(
            f"{module.name}:{first.line}: ptxas may fuse {first.opcode}; write the rounding out: {first.text}",
            opcode=first.opcode,
            line=first.line,
            text=first.text,
        )
    program, layout, homes = plan.program, plan.layout, plan.homes
    shared = homes.registers
    emitter = Emitter(module, layout)
    emitter.approximate = list(plan.approximate)
    emitter.watched = plan.watched
    checked = {index: _checked(emitter, program.blocks[index]) for index in sorted(plan.emitted)}
    products = _native(emitter.products)
    kernel = compile_pieces(
        plan.content, program, homes, layout, plan.approximate, products, plan.unwritten, chained=not view.observed
    )
    emitter.names["N"] = Invoker(kernel)
    parts = []
    for index, (statements, result) in checked.items():
        if not homes.native[index]:
            parts.append(_function(program.blocks[index], plan, emitter, statements, result, view.alone))
        if index in emitter.waits:
            parts.append(_probe(program.blocks[index], homes.pieces[index][0].usage, shared, emitter))
    source = "\n".join(parts)
    names: dict[str, Any] = {name: view.seen(work) for name, work in emitter.names.items()}
    exec(compile(source, f"<{module.name}:{name}>", "exec"), names)
    steps = [
        NativeBlock(kernel.pieces[index, 0]) if native else names[f"step_{index}"]
        for index, native in enumerate(homes.native)
    ]
    leave = lanes_stay_away(program)
    gathers = {
        block.index: _gather(block, shared)
        for block in program.blocks
        if block.gathers and block.instructions[0] not in plan.refused
    }
    return Code(
        plan.entry,
        program,
        layout,
        tuple(steps),
        kernel,
        tuple(
            SlowSuspicion(instruction)
            if number in kernel.suspects
            else slow_form(instruction, layout, emitter.products)
            for number, instruction in enumerate(kernel.sites)
        ),
        tuple(kind for _, kind in shared.values()),
        gathers,
        {
            block.index: _barrier(block.terminator.instruction, shared)
            for block in program.blocks
            if block.terminator.kind == "barrier"
            and block.terminator.instruction is not None
            and block.terminator.instruction not in plan.refused
        },
        {index: WaitCode(work, names[f"probe_{index}"]) for index, (work, _) in emitter.waits.items()},
        emitter.has_mbarriers,
        emitter.has_bulk,
        emitter.lanes_synchronise
        or any(_meets_in_part(instruction) for block in program.blocks for instruction in block.instructions)
        or leave,
        leave,
        emitter.fences_in_order,
        emitter.fences_inits,
        frozenset(emitter.strong_spaces),
        emitter.has_warpgroups,
        tuple(len(b.instructions) + (b.terminator.instruction is not None) for b in program.blocks),
        plan.approximate,
        tuple(sorted({instruction.line for instruction in plan.contractions})),
        dict(emitter.models),
        source,
        # An observer may look at any register at any time.
        plan.reads_unwritten or view.observed,
        frozenset(shared[name] for name in plan.unwritten.registers),
        shared,
        _places(program, homes, kernel, gathers, runs=not view.observed),
        ShadowedBlocks(plan, emitter, view, module.name, lambda block: _checked(emitter, block)),
    )


def _plan(module: ParsedModule, entry: Function, view: View) -> Plan:
    """Check every instruction of an entry, and cut it into pieces."""
    flat = joined(inline_calls(entry, module), view.joined)

    watched: frozenset[Instruction] = frozenset()

    def natively(instruction: Instruction) -> bool:
        return view.native(instruction) and is_native(instruction) and instruction not in watched

    def checked() -> tuple[Program, Layout, Emitter]:
        nonlocal watched
        watched = frozenset()
        program = build(flat, natively, view.apart)
        if watched := may_touch(program):
            program = build(flat, natively, view.apart)
        layout = lay_out(flat, module)
        emitter = Emitter(module, layout)
        emitter.watched = watched
        for block in program.blocks:
            _checked(emitter, block)
        return program, layout, emitter

    program, layout, emitter = checked()
    while emitter.misfits:
        # What does not fit has no operands that anybody may look at.
        flat = replace(flat, body=tuple(_without(each, emitter.misfits) for each in flat.body or ()))
        program, layout, emitter = checked()
    homes = cut(program, natively, emitter.refused, view.alone)
    products = _native(emitter.products)
    maybe = unwritten(program)
    return Plan(
        flat,
        program,
        layout,
        homes,
        frozenset(emitter.refused),
        tuple(emitter.approximate),
        tuple(emitter.contractions),
        frozenset(
            block.index
            for block in program.blocks
            if not homes.native[block.index] or not products.keys().isdisjoint(block.instructions)
        ),
        watched,
        reads_unwritten(program),
        maybe,
        content_of(program, homes, layout, products, maybe, chained=not view.observed),
    )


def _checked(emitter: Emitter, block: Block) -> tuple[list[list[str]], str | None]:
    """The Python statements of each instruction of a block, and the expression that it returns."""
    emitter.start_block(block.index)
    statements = []
    for current in block.instructions:
        emitter.lines = []
        if (reason := _attempted(emitter, current, partial(_instruction, emitter, block, current))) is not None:
            emitter.lines = [_refuse(emitter, current, reason)]
        statements.append(emitter.lines)
    last = block.terminator.instruction
    if last is None:
        return statements, None
    result: list[str | None] = []
    reason = _attempted(emitter, last, lambda: result.append(_terminator(emitter, block, last)))
    return statements, result[0] if reason is None else _refuse(emitter, last, reason)


def _attempted(emitter: Emitter, instruction: Instruction, emit: Callable[[], None]) -> str | None:
    """Emit an instruction: why it is refused, or None. One whose operands do not fit is one of `misfits` too."""
    try:
        emit()
    except isa.NoSuchInstruction as error:
        return error.reason or why_absent(instruction.opcode)
    except ValueError as error:
        reason = str(error)
    except IndexError:
        # Whoever unpacks operands takes as many as there have to be.
        reason = "too few operands"
    else:
        return None
    emitter.misfits[_unguarded(instruction)] = reason
    return reason


def _unguarded(instruction: Instruction) -> Instruction:
    # Blocks have the guards of some instructions as branches.
    return replace(instruction, guard=None, negated=False)


def _without(statement: Instruction | Label, misfits: Mapping[Instruction, str]) -> Instruction | Label:
    """A statement, or what stands in the place of one that does not fit."""
    reason = misfits.get(_unguarded(statement)) if isinstance(statement, Instruction) else None
    return statement.refuse(reason) if isinstance(statement, Instruction) and reason is not None else statement


def _instruction(emitter: Emitter, block: Block, instruction: Instruction) -> None:
    if instruction.refused is not None:
        raise isa.NoSuchInstruction(instruction.spelling, instruction.refused.reason)
    emitter.instruction(instruction)
    if block.gathers and instruction is block.instructions[0] and not (block.warpgroup or block.whole_warp):
        _members(instruction)


def _refuse(emitter: Emitter, instruction: Instruction, reason: str) -> str:
    """Expression that raises in the lanes whose guard is on; where it raises in none it is a branch not taken."""
    emitter.refused.add(instruction)
    return emitter.call(RefusedInstruction(instruction, reason), emitter.guard(instruction))


def _terminator(emitter: Emitter, block: Block, instruction: Instruction) -> str | None:
    kind = block.terminator.kind
    if kind == "branch":
        emitter.spelled(instruction, "bra", "bra.uni")
        assert instruction.guard is not None
        return emitter.predicate(instruction.guard, instruction.negated)
    if kind == "jump":
        emitter.spelled(instruction, "bra", "bra.uni")
        return None
    if kind == "index":
        emitter.spelled(instruction, "brx.idx", "brx.idx.uni")
        return emitter.value(instruction.operands[0], "b32")
    if kind == "barrier":
        return _barrier_operands(emitter, instruction)
    emitter.spelled(instruction, "ret", "ret.uni", "exit", "trap", "brkpt")
    if instruction.operands:
        raise ValueError("no operands needed")
    return None


def _barrier_operands(emitter: Emitter, instruction: Instruction) -> str:
    code = _barrier_parts(instruction)
    operands = list(destinations_and_sources(instruction)[1])
    vote = "None"
    if code[0] == "red":
        last = operands.pop()
        if not isinstance(last, Register | Not):
            raise ValueError("a reduction needs a predicate")
        vote = emitter.value(last, "pred")
    if code[0].startswith("cluster"):
        if operands:
            raise ValueError("no operands needed")
        # What a relaxed arrival passes on are fences of single lanes.
        emitter.lanes_synchronise |= ".relaxed" in instruction.opcode
        return "(None, None, None)"
    if not 1 <= len(operands) <= 2 or (code[0] == "arrive" and len(operands) != 2):
        raise ValueError("wrong number of operands")
    values = [emitter.value(operand, "b32") for operand in operands]
    return f"({values[0]}, {values[1] if len(values) == 2 else None}, {vote})"


def _meets_in_part(instruction: Instruction) -> bool:
    """Whether lanes of a warp may meet without the others."""
    if instruction.opcode != "bar.warp.sync" or len(instruction.operands) != 1:
        return False
    member = instruction.operands[0]
    return not isinstance(member, Immediate) or member.value & 0xFFFFFFFF != 0xFFFFFFFF


def _barrier_parts(instruction: Instruction) -> tuple[str, str]:
    """(kind, reduction) of a barrier's spelling.

    Raises:
        isa.NoSuchInstruction: there is no such spelling.
    """
    parts = [part for part in instruction.opcode.split(".")[1:] if part not in ("cta", "aligned")]
    known = {
        ("sync",): ("sync", ""),
        ("arrive",): ("arrive", ""),
        ("red", "popc", "u32"): ("red", "popc"),
        ("red", "and", "pred"): ("red", "and"),
        ("red", "or", "pred"): ("red", "or"),
        **{("cluster", "arrive", *order): ("cluster.arrive", "") for order in ((), ("release",), ("relaxed",))},
        **{("cluster", "wait", *order): ("cluster.wait", "") for order in ((), ("acquire",))},
    }
    if tuple(parts) not in known:
        raise isa.NoSuchInstruction(instruction.opcode)
    return known[tuple(parts)]


def _barrier(instruction: Instruction, shared: dict[str, tuple[int, str]]) -> BarrierCode:
    kind, reduction = _barrier_parts(instruction)
    destination = None
    if kind == "red" and isinstance(instruction.operands[0], Register):
        destination = shared[instruction.operands[0].name][0]
    return BarrierCode(instruction, kind, reduction, destination, ".relaxed" not in instruction.opcode)


def _gather(block: Block, shared: dict[str, tuple[int, str]]) -> Gather:
    instruction = block.instructions[0]
    if block.warpgroup:
        return Gather(instruction, None, np.uint32(0xFFFFFFFF), False, warps=4)
    if block.whole_warp:
        return Gather(instruction, None, np.uint32(0xFFFFFFFF), False)
    member = _members(instruction)
    is_barrier = instruction.opcode == "bar.warp.sync"
    if isinstance(member, Immediate):
        return Gather(instruction, None, np.uint32(member.value & 0xFFFFFFFF), is_barrier)
    return Gather(instruction, shared[member.name][0], None, is_barrier)


def _members(instruction: Instruction) -> Immediate | Register:
    """The member mask of an instruction that waits for some lanes of its warp."""
    member = instruction.operands[-1]
    if not isinstance(member, Immediate | Register) or (isinstance(member, Register) and member.kind != "b32"):
        raise ValueError("a member mask must be a register of 32 bits or a constant")
    return member


def _probe(block: Block, usage: Usage, shared: dict[str, tuple[int, str]], emitter: Emitter) -> str:
    lines = [f"def probe_{block.index}(R, F):"]
    for register in usage.loads.values():
        lines.append(f"    {emitter.local(register)} = F.get(R, {shared[register.name][0]})")
    return "\n".join([*lines, f"    return {emitter.waits[block.index][1]}"]) + "\n"


def _function(
    block: Block, plan: Plan, emitter: Emitter, statements: list[list[str]], result: str | None, announced: bool
) -> str:
    lines = [f"def step_{block.index}(R, F):"]
    homes, taken = plan.homes, 0
    for piece in homes.pieces[block.index]:
        count = sum(instruction is not block.terminator.instruction for instruction in piece.instructions)
        own = []
        for number, instruction in enumerate(piece.instructions, taken):
            if names := plan.unwritten.reads.get((block.index, number)):
                own.append(_suspect(emitter, instruction, names, homes))
            own += statements[number] if number < taken + count else []
        taken += count
        if announced:
            lines.append(f"    {emitter.call(announce, emitter.bind('i', piece.instructions[0]))}")
        if piece.native:
            lines.append(f"    N({piece.block}, {piece.number}, F)")
        else:
            lines += [f"    {line}" for line in _in_python(piece, homes, emitter, own)]
    return "\n".join([*lines, f"    return {result}"]) + "\n"


def _suspect(emitter: Emitter, instruction: Instruction, names: tuple[str, ...], homes: Homes) -> str:
    """A call in front of an instruction that may read registers that nothing wrote."""
    kinds = tuple(homes.registers[name][1] for name in names)
    held = ", ".join(emitter.local(Register(name, kind)) for name, kind in zip(names, kinds, strict=True))
    return emitter.call(Suspicion(instruction, kinds), f"({held},)")


def _in_python(piece: Piece, homes: Homes, emitter: Emitter, body: list[str]) -> list[str]:
    shared, usage = homes.registers, piece.usage
    loads = [f"{emitter.local(each)} = F.get(R, {shared[each.name][0]})" for each in usage.loads.values()]
    stores = [
        f"F.put(R, {shared[each.name][0]}, {emitter.local(each)})"
        for each in usage.writes.values()
        if each.name in shared
    ]
    return [*loads, *body, *stores]


def _native(products: Mapping[Instruction, Mma]) -> dict[Instruction, WarpMma]:
    """The native code of tensor-core instructions."""
    return {
        instruction: WarpMma(work.model, work.a_format, work.b_format, work.scales, work.packed)
        for instruction, work in products.items()
    }


def _places(program: Program, homes: Homes, kernel: NativeKernel, gathers: Mapping[int, Gather], runs: bool) -> Any:
    """The rows of places; without `runs` all are left to Python."""
    rows = np.zeros((len(program.blocks), len(Place)), np.int64)
    begins = starts([kind for _, kind in homes.registers.values()])
    for block, row in zip(program.blocks, rows, strict=True):
        if not runs or not homes.native[block.index]:
            continue
        end = block.terminator
        row[Place.FUNCTION], row[Place.TABLE] = kernel.pieces[block.index, 0]
        row[Place.END] = End[end.kind.upper()]
        for number, (field, target) in enumerate(zip((Place.TARGET, Place.OTHER), end.targets, strict=False)):
            row[field] = target
            edge = Edge.BACK * (target in block.back_edges) | Edge.POLLS * (target in block.polling_edges)
            row[Place.EDGES] |= edge << EDGE_BITS * number
        if (gather := gathers.get(block.index)) is not None:
            kinds = (Meeting.CONSTANT, Meeting.REGISTER)
            if gather.is_barrier:
                kinds = (Meeting.BARRIER_CONSTANT, Meeting.BARRIER_REGISTER)
            if gather.register is None:
                row[Place.GATHER], row[Place.MEMBERS] = kinds[0], gather.constant
            else:
                row[Place.GATHER], row[Place.MEMBERS] = kinds[1], begins[gather.register] * LANES
    return rows


class Invoker:
    """Calls a native piece for the lanes of a frame."""

    def __init__(self, kernel: NativeKernel) -> None:
        self._pieces = kernel.pieces

    def __call__(self, block: int, number: int, frame: Frame) -> None:
        """Raises whatever an access that Python did for a warp raised."""
        frame.machine.part(NativeState).run(self._pieces[block, number], frame)


@dataclass(frozen=True)
class NativeBlock:
    """A native block as a step, for a launch that somebody observes."""

    code: PieceCode

    def __call__(self, registers: Any, frame: Frame) -> Any:
        """The lanes that take its branch, bool; see `Invoker`."""
        return frame.from_all(frame.machine.part(NativeState).run(self.code, frame))
