"""Pieces of an entry as native code: each a function of one warp.

`piece_<block>_<number>(context, warp, mask)` returns the block at whose end it is and the lanes of `mask` that take the
branch there, or `FAILED` if Python code that it called raised. A warp's lanes are computed together; what those that do
not act compute is thrown away when registers are written back.

A whole block goes on to the next one by itself as long as all its lanes do, and as nobody can tell when they do: the
next block neither accesses memory that others see nor waits for other lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from llvmlite import ir

from refmoe.ptx import isa
from refmoe.ptx.native import exchange, matrix, memory
from refmoe.ptx.native.bounds import either, leaves
from refmoe.ptx.native.context import FIELD_BYTES, QUEUE_FIELDS, Context, Queue, starts
from refmoe.ptx.native.forms import native_form
from refmoe.ptx.native.memory import Variant
from refmoe.ptx.native.mma import WarpMma
from refmoe.ptx.native.outlined import Outlined
from refmoe.ptx.native.scalar import (
    BYTE,
    FAILED,
    PIECE,
    PLACE_SHIFT,
    POINTER,
    WARP_MASK,
    WORD,
    at,
    call_pointer,
    room,
    word,
)
from refmoe.ptx.native.scalar import field as table_field
from refmoe.ptx.native.suspicion import Looker, Suspects
from refmoe.ptx.ops.lanes import BITS, LANES, LaneBuilder, Value, vector
from refmoe.ptx.ops.table import exactness
from refmoe.ptx.program.blocks import Block, Program
from refmoe.ptx.program.layout import Layout
from refmoe.ptx.program.pieces import Homes, Piece
from refmoe.ptx.program.registers import CARRY, destinations_and_sources
from refmoe.ptx.program.unwritten import UnwrittenReads
from refmoe.ptx.state.spaces import LOCAL_WINDOW, SHARED_WINDOW
from refmoe.ptx.state.specials import SPECIALS
from refmoe.ptx.text.memory_ops import MemoryOpcode, memory_opcode
from refmoe.ptx.text.spellings import synchronised
from refmoe.ptx.text.syntax import (
    Address,
    Immediate,
    Instruction,
    Not,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from refmoe.ptx.text.values import literal_bits

_ALIVE, _EXIST = Queue.ALIVE * FIELD_BYTES, Queue.EXIST * FIELD_BYTES
_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


class Pieces:
    """What the pieces of an entry share."""

    def __init__(
        self,
        program: Program,
        homes: Homes,
        layout: Layout,
        approximate: Sequence[Instruction],
        products: Mapping[Instruction, WarpMma],
        unwritten: UnwrittenReads,
        chained: bool,
    ) -> None:
        self.module = ir.Module()
        self.outlined = Outlined(self.module)
        self.program = program
        self.products = products
        self.approximate = approximate
        self.layout = layout
        self.homes = homes.registers
        self.specials: list[str] = []
        self.symbols: list[str] = []
        # What is called by its address: functions for memory, and products.
        self.variants: list[Variant | WarpMma] = []
        self.sites: list[Instruction] = []
        self.suspects = Suspects(homes, unwritten)
        # A warp's homes lie one behind the other: the bytes of those before, for one lane.
        self.starts = starts([kind for _, kind in self.homes.values()])
        self.begin_of_specials = self.starts[-1]
        self.access = memory.access_function(self.module)
        self.functions = {
            piece.block: ir.Function(self.module, PIECE, f"piece_{piece.block}_0")
            for (piece, *_), native in zip(homes.pieces, homes.native, strict=True)
            if native
        }
        self.chained = chained
        self.quiet = {block for block in self.functions if chained and _is_quiet(program.blocks[block])}


def _is_quiet(block: Block) -> bool:
    """Whether nobody can tell when lanes run a block: it accesses no memory of others, and waits for nobody."""
    return not block.gathers and not any(map(_is_seen, block.instructions))


def _is_seen(instruction: Instruction) -> bool:
    stem, *parts = instruction.opcode.split(".")
    return stem in ("st", "ldmatrix", "stmatrix", "bar") or (stem == "ld" and parts[0] not in ("param", "const"))


class PieceWriter:
    """The function of one piece."""

    def __init__(self, made: Pieces, piece: Piece) -> None:
        self.made, self.piece = made, piece
        self.whole = piece.block in made.functions
        if self.whole:
            function = made.functions[piece.block]
        else:
            function = ir.Function(made.module, PIECE, f"piece_{piece.block}_{piece.number}")
        self.function = function
        self.context, self.warp, self.bits = function.args
        build = ir.IRBuilder(function.append_basic_block("entry"))
        self.build_ = build
        self.scratch = room(build, ir.ArrayType(BYTE, LANES * 32))
        self.places = room(build, vector(64))
        self.status = room(build, WARP_MASK)
        # Registers of A, B and C of a product, at most 4 + 2 + 4.
        self.fragments = room(build, ir.ArrayType(BYTE, 4 * LANES * 10))
        registers = build.inttoptr(table_field(build, self.context, Context.REGISTERS), POINTER)
        warp_bytes = table_field(build, self.context, Context.WARP_BYTES)
        self.failed = function.append_basic_block("failed")
        ir.IRBuilder(self.failed).ret(word(FAILED))
        self.registers = at(build, registers, build.mul(self.warp, warp_bytes))
        self.mask = build.bitcast(self.bits, vector(1))
        self.lanes = LaneBuilder(made.module, build, self.mask)
        self.values: dict[str, Value] = {}
        self.suspicion = Looker(self, made.suspects, made.sites, self._python)

    def build(self) -> None:
        """All of it."""
        build, homes = self.build_, self.made.homes
        for register in self.piece.usage.loads.values():
            self.values[register.name] = self._load(register.name, register.kind)
        for instruction in self.piece.instructions:
            self.suspicion.look(instruction)
            self._instruction(instruction)
        for register in self.piece.usage.writes.values():
            if register.name in homes:
                self._store(register.name, register.kind, self.values[register.name])
        if self.whole:
            self._end(self.made.program.blocks[self.piece.block])
        else:
            build.ret(word(0))

    # The end of a whole block

    def _end(self, block: Block) -> None:
        """Count the block, and go on to the next one or return to the scheduler."""
        build = self.build_
        if self.made.chained:
            self._count(len(block.instructions) + (block.terminator.instruction is not None))
        everyone = build.zext(self.bits, WORD)
        if self.piece.branch is None:
            self._go_on(block, block.terminator.targets[0] if block.terminator.targets else None)
            if not build.block.is_terminated:
                self._return(everyone)
            return
        self.suspicion.look(self.piece.branch)
        guard = self._guard(self.piece.branch)
        assert guard is not None
        taken = build.zext(build.bitcast(build.and_(guard, self.mask), WARP_MASK), WORD)
        for lanes, target in zip((everyone, word(0)), block.terminator.targets, strict=True):
            if target in self.made.quiet:
                with build.if_then(build.icmp_unsigned("==", taken, lanes)):
                    self._go_on(block, target)
        self._return(taken)

    def _return(self, taken: Value) -> None:
        """Return to the scheduler, with the lanes that take the branch."""
        self.build_.ret(self.build_.or_(word(self.piece.block << PLACE_SHIFT), taken))

    def _go_on(self, block: Block, target: int | None) -> None:
        """All lanes run the next block, if they need not return to the scheduler before."""
        build = self.build_
        if target not in self.made.quiet or target in block.polling_edges:
            return
        if target not in block.back_edges:
            self._jump(target)
            return
        patience = at(build, self.context, Context.PATIENCE * FIELD_BYTES)
        left = build.sub(build.load(patience, typ=WORD), word(1))
        with build.if_then(build.icmp_signed(">", left, word(0))):
            build.store(left, patience)
            self._jump(target)

    def _jump(self, target: int) -> None:
        build = self.build_
        arguments = [self.context, self.warp, self.bits]
        build.ret(build.call(self.made.functions[target], arguments, tail="musttail"))

    def _count(self, length: int) -> None:
        build = self.build_
        lanes = build.zext(build.ctpop(self.bits), WORD)
        counted = (
            (Context.STEPS, word(1)),
            (Context.INSTRUCTIONS, word(length)),
            (Context.LANE_INSTRUCTIONS, build.mul(lanes, word(length))),
        )
        for number, value in counted:
            place = at(build, self.context, number * FIELD_BYTES)
            build.store(build.add(build.load(place, typ=WORD), value), place)

    # Registers

    def _home(self, start: int) -> Value:
        """Where this warp's values lie."""
        return at(self.build_, self.registers, LANES * start)

    def _start(self, name: str) -> int:
        return self.made.starts[self.made.homes[name][0]]

    def _fetch(self, start: int, kind: str) -> Value:
        build = self.build_
        if kind == "pred":
            held = build.load(self._home(start), typ=vector(8), align=32)
            return build.icmp_unsigned("!=", held, self.lanes.constant(0, 8))
        return build.load(self._home(start), typ=vector(BITS[kind]), align=32)

    def _load(self, name: str, kind: str) -> Value:
        return self._fetch(self._start(name), kind)

    def _store(self, name: str, kind: str, value: Value) -> None:
        """Write a register back: the lanes that do not act keep theirs."""
        build = self.build_
        kept = build.select(self.mask, value, self._load(name, kind))
        place = self._home(self._start(name))
        build.store(self.lanes.resize(kept, 8) if kind == "pred" else kept, place, align=32)

    def _special(self, name: str) -> Value:
        made = self.made
        if name not in made.specials:
            made.specials.append(name)
        # Predicates among them are as wide as the others: each takes four bytes.
        start = made.begin_of_specials + 4 * made.specials.index(name)
        held = self._fetch(start, "b32")
        if SPECIALS[name] == "pred":
            return self.build_.icmp_unsigned("!=", held, self.lanes.constant(0, 32))
        return held

    def value(self, operand: Operand, kind: str) -> Value:
        """A source operand of a register kind; a wider register gives its low bits."""
        build, lanes = self.build_, self.lanes
        if isinstance(operand, Not):
            return build.not_(self.values[operand.operand.name])
        if isinstance(operand, Immediate):
            literal = literal_bits(operand, kind)
            return lanes.constant(int(bool(literal)) if kind == "pred" else literal, BITS[kind])
        if isinstance(operand, Symbol):
            return lanes.resize(self._address_of(operand.name, operand.offset), BITS[kind])
        if isinstance(operand, Special):
            return lanes.resize(self._special(operand.name), BITS[kind])
        assert isinstance(operand, Register)
        return lanes.resize(self.values[operand.name], BITS[kind])

    def _guard(self, instruction: Instruction) -> Value | None:
        if instruction.guard is None:
            return None
        held = self.values[instruction.guard.name]
        return self.build_.not_(held) if instruction.negated else held

    def _assign_all(
        self, instruction: Instruction, targets: Sequence[tuple[Operand, Value]], signed: bool = False
    ) -> None:
        """Each target gets its value, extended to the register, in the lanes whose guard is on."""
        guard = self._guard(instruction)
        for operand, value in targets:
            if isinstance(operand, Sink):
                continue
            assert isinstance(operand, Register)
            wide = self.lanes.resize(value, BITS[operand.kind], signed)
            if guard is not None:
                wide = self.build_.select(guard, wide, self.values[operand.name])
            self.values[operand.name] = wide

    def _address_of(self, name: str, offset: int) -> Value:
        """The address of a variable in its own space."""
        if name in self.made.layout.addresses:
            return self.lanes.constant(self.made.layout.addresses[name] + offset, 64)
        symbols = self.made.symbols
        if name not in symbols:
            symbols.append(name)
        table = self.build_.inttoptr(table_field(self.build_, self.context, Context.SYMBOLS), POINTER)
        base = table_field(self.build_, table, symbols.index(name))
        return exchange.splat(self.lanes, self.build_.add(base, word(offset)))

    # Instructions

    def _instruction(self, instruction: Instruction) -> None:
        stem = instruction.opcode.split(".")[0]
        if stem == "ld":
            self._load_memory(instruction)
        elif stem == "st":
            self._store_memory(instruction)
        elif stem == "cvta":
            self._cvta(instruction)
        elif stem == "mov" and any(isinstance(operand, Vector) for operand in instruction.operands):
            self._move_parts(instruction)
        elif stem in ("shfl", "vote", "redux", "elect", "activemask"):
            self._exchange(instruction)
        elif stem == "bar":
            self._meet(instruction)
        elif stem in ("ldmatrix", "stmatrix"):
            self._matrix(instruction)
        elif stem == "mma":
            self._multiply(instruction)
        else:
            self._compute(instruction)

    def _compute(self, instruction: Instruction) -> None:
        first = instruction.operands[0] if instruction.operands else None
        destinations, sources = destinations_and_sources(instruction)
        operation = isa.resolve(instruction.opcode, 2 if isinstance(first, Pair) else 1, len(sources))
        values = [self.value(operand, kind) for operand, kind in zip(sources, operation.sources, strict=True)]
        if operation.carry_in:
            values.append(self.values[CARRY.name])
        if operation.exact_when is not None:
            self._note(instruction, values)
        results = self.made.outlined.results(instruction.opcode, native_form(instruction), self.lanes, values)
        targets: list[Operand] = list(destinations)
        if operation.carry_out:
            targets.append(CARRY)
        self._assign_all(instruction, list(zip(targets, results, strict=True)), operation.sign_extend)

    def _note(self, instruction: Instruction, values: Sequence[Value]) -> None:
        """Remember an approximate instruction whose result is not provably exact in every acting lane."""
        build = self.build_
        number = self.made.approximate.index(instruction)
        exact = exactness(instruction.opcode)
        assert exact is not None
        (fine,) = exact(self.lanes, values)
        guard = self._guard(instruction)
        acting = self.mask if guard is None else build.and_(self.mask, guard)
        inexact = build.bitcast(build.and_(acting, build.not_(fine)), WARP_MASK)
        with build.if_then(build.icmp_unsigned("!=", inexact, ir.Constant(WARP_MASK, 0))):
            table = build.inttoptr(table_field(build, self.context, Context.APPROXIMATE), POINTER)
            build.store(ir.Constant(BYTE, 1), at(build, table, number))

    # Between lanes

    def _exchange(self, instruction: Instruction) -> None:
        """An instruction that takes values of other lanes of the warp."""
        lanes = self.lanes
        instruction = synchronised(written := instruction)
        stem, *parts = instruction.opcode.split(".")
        destinations, sources = destinations_and_sources(instruction)
        kinds = ["pred", "b32"] if stem == "vote" else ["b32"] * len(sources)
        values = [self.value(operand, kind) for operand, kind in zip(sources, kinds, strict=True)]
        results: Sequence[Value]
        if stem == "shfl":
            results = self._shuffle(written, parts[1], *values)
        elif stem == "vote":
            results = [exchange.vote(lanes, parts[1], *values)]
        elif stem == "elect":
            begin = self.build_.trunc(table_field(self.build_, self.context, Context.ELECTED), WARP_MASK)
            results = exchange.elect(lanes, values[0], exchange.splat(lanes, begin))
        elif stem == "redux":
            results = [exchange.redux(lanes, self.scratch, ".".join(parts[1:]), *values)]
        else:
            results = [exchange.acting(lanes)]
        # A predicate that nobody wants may be left out.
        self._assign_all(instruction, list(zip(destinations, results, strict=False)))

    def _shuffle(
        self, instruction: Instruction, mode: str, value: Value, amount: Value, control: Value, member: Value
    ) -> tuple[Value, Value]:
        build, lanes = self.build_, self.lanes
        known = exchange.known_source(instruction, mode)
        if known is None:
            source, within = exchange.source_lane(lanes, mode, amount, control)
        else:
            source, within = matrix.numbers(known[0]), matrix.numbers(known[1], 1)
        taking_part = build.lshr(exchange.present(lanes, member), source)
        absent = build.icmp_unsigned("==", build.and_(taking_part, lanes.constant(1, 32)), lanes.constant(0, 32))
        bad = build.bitcast(build.and_(absent, self.mask), WARP_MASK)
        with build.if_then(build.icmp_unsigned("!=", bad, ir.Constant(WARP_MASK, 0)), likely=False):
            build.store(lanes.resize(source, 64), self.places, align=32)
            build.store(exchange.present(lanes, member), self.scratch, align=32)
            self._python(instruction, bad)
        if known is not None:
            return matrix.dealt(lanes, value, known[0]), within
        return exchange.permuted(lanes, self.scratch, value, source), within

    def _meet(self, instruction: Instruction) -> None:
        """`bar.warp.sync`: what the acting lanes of the warp did before comes before what they do next.

        Python does it where some lanes do not take part, or know what others do not, or meet a part of those here; and
        where some have exited, and lanes are told apart, because what those did is not ordered before what the others
        do next.
        """
        build = self.build_
        member = self.value(instruction.operands[0], "b32")
        seen = table_field(build, self.context, Context.SEEN)
        with build.if_then(build.icmp_unsigned("!=", seen, word(0))):
            apart = build.inttoptr(table_field(build, self.context, Context.APART), POINTER)
            queues = build.inttoptr(table_field(build, self.context, Context.QUEUES), POINTER)
            queue = build.mul(self.warp, word(QUEUE_FIELDS * FIELD_BYTES))
            alive, exist = (
                build.load(at(build, queues, build.add(queue, word(field))), typ=WORD) for field in (_ALIVE, _EXIST)
            )
            by_lane = build.icmp_unsigned("!=", table_field(build, self.context, Context.BY_LANE), word(0))
            alive = build.select(by_lane, exist, alive)
            here = build.zext(build.bitcast(self.mask, WARP_MASK), WORD)
            alike = build.load(build.gep(apart, [self.warp], source_etype=WORD), typ=WORD)
            # Lanes of several groups may run one instruction, each with the mask of its own group.
            absent = build.icmp_unsigned("!=", exchange.present(self.lanes, member), exchange.acting(self.lanes))
            together = build.icmp_unsigned("==", build.bitcast(absent, WARP_MASK), ir.Constant(WARP_MASK, 0))
            whole = build.and_(build.icmp_unsigned("==", here, alive), build.icmp_unsigned("==", alike, word(0)))
            whole = build.and_(whole, together)
            with build.if_else(whole) as (then, otherwise):
                with then:
                    warps = table_field(build, self.context, Context.WARPS)
                    row = build.mul(self.warp, table_field(build, self.context, Context.SEEN_COLUMNS))
                    own = build.add(row, build.urem(self.warp, warps))
                    now = table_field(build, self.context, Context.NOW)
                    build.store(now, build.gep(build.inttoptr(seen, POINTER), [own], source_etype=WORD))
                    build.store(build.add(now, word(1)), at(build, self.context, Context.NOW * FIELD_BYTES))
                with otherwise:
                    build.store(member, self.scratch, align=32)
                    self._python(instruction, build.bitcast(self.mask, WARP_MASK))

    def _move_parts(self, instruction: Instruction) -> None:
        """`mov` of a vector into a register, or of a register into a vector."""
        build, lanes = self.build_, self.lanes
        destination, source = instruction.operands
        bits = int(instruction.opcode[5:])
        if isinstance(destination, Vector):
            whole, part = self.value(source, f"b{bits}"), bits // len(destination.elements)
            shifted = [
                lanes.resize(build.lshr(whole, lanes.constant(part * number, bits)), part)
                for number in range(len(destination.elements))
            ]
            self._assign_all(instruction, list(zip(destination.elements, shifted, strict=True)))
            return
        assert isinstance(source, Vector)
        part = bits // len(source.elements)
        whole = lanes.constant(0, bits)
        for number, element in enumerate(source.elements):
            wide = lanes.resize(self.value(element, f"b{part}"), bits)
            whole = build.or_(whole, build.shl(wide, lanes.constant(part * number, bits)))
        self._assign_all(instruction, [(destination, whole)])

    def _cvta(self, instruction: Instruction) -> None:
        build = self.build_
        parts = instruction.opcode.split(".")
        space = next(part.split("::")[0] for part in parts[1:] if part not in ("to", "u64"))
        destination, source = instruction.operands
        value, window = self.value(source, "b64"), self.lanes.constant(_WINDOWS.get(space, 0), 64)
        self._assign_all(instruction, [(destination, (build.sub if "to" in parts else build.add)(value, window))])

    # Memory

    def _address(self, operand: Operand, space: str) -> tuple[Value, str]:
        """(address of 64 bits in every lane, the space that it lies in)."""
        assert isinstance(operand, Address)
        base, layout = operand.base, self.made.layout
        if isinstance(base, Immediate):
            return self.lanes.constant(base.value + operand.offset, 64), space
        if isinstance(base, Symbol):
            lies_in = layout.spaces.get(base.name, "global")
            window = _WINDOWS.get(lies_in, 0) if space == "generic" else 0
            place = self._address_of(base.name, base.offset + operand.offset + window)
            return place, "local" if space == "param" and lies_in == "local" else space
        value = self.values[base.name]
        # The offset is added in the register's own width.
        moved = (
            self.build_.add(value, self.lanes.constant(operand.offset, BITS[base.kind])) if operand.offset else value
        )
        return self.lanes.resize(moved, 64), space

    def _pointer(self, variant: Variant | WarpMma) -> Value:
        """The address of a function."""
        build = self.build_
        table = build.inttoptr(table_field(build, self.context, Context.FUNCTIONS), POINTER)
        return build.inttoptr(table_field(build, table, self._function(variant)), POINTER)

    def _function(self, variant: Variant | WarpMma) -> int:
        """The number of a function in the table."""
        variants = self.made.variants
        if variant not in variants:
            variants.append(variant)
        return variants.index(variant)

    def _site(self, instruction: Instruction) -> int:
        """The number by which Python knows an instruction."""
        self.made.sites.append(instruction)
        return len(self.made.sites) - 1

    def _next(self) -> Any:
        """A new block, for what comes after a condition."""
        self.following = self.build_.append_basic_block()
        return self.following

    def _call(self, instruction: Instruction, variant: Variant, address: Value, guard: Value | None) -> None:
        """The access of the lanes whose guard is on; Python does what the native function will not, or is beyond."""
        build = self.build_
        acting = self.mask if guard is None else build.and_(self.mask, guard)
        bits = build.bitcast(acting, WARP_MASK)
        build.store(address, self.places, align=32)
        site, number = word(self._site(instruction)), word(self._function(variant))
        arguments = [self.context, self.warp, bits, self.places, self.scratch, site, number]
        bounds = self.made.layout.bounded(instruction)
        if bounds is None or variant.space == "local":
            failed = build.call(self.made.access, arguments)
        else:
            beyond = leaves(self.lanes, build, address, acting, bounds, variant.space, variant.width)
            slowly = partial(memory.call_slow, build, self.context, [site, *arguments[1:5]])
            failed = either(build, beyond, slowly, lambda: build.call(self.made.access, arguments))
        build.cbranch(build.icmp_unsigned("!=", failed, ir.Constant(WARP_MASK, 0)), self.failed, self._next())
        build.position_at_end(self.following)

    def _python(self, instruction: Instruction, bits: Value, values: Value | None = None) -> None:
        """Let Python do an instruction for the lanes of a mask, and end the piece if it raises."""
        build = self.build_
        arguments = [word(self._site(instruction)), self.warp, bits, self.places, values or self.scratch]
        failed = memory.call_slow(build, self.context, arguments)
        build.cbranch(build.icmp_unsigned("!=", failed, ir.Constant(WARP_MASK, 0)), self.failed, self._next())
        build.position_at_end(self.following)

    # Tensor cores

    def _matrix(self, instruction: Instruction) -> None:
        """`ldmatrix` and `stmatrix`, by all lanes of a warp."""
        build, loads = self.build_, instruction.opcode.startswith("ld")
        parts = instruction.opcode.split(".")
        space = "shared" if any(part.startswith("shared") for part in parts) else "generic"
        where, held = instruction.operands[::-1] if loads else instruction.operands
        address, _ = self._address(where, space)
        elements = self._elements(held)
        variant = Variant(not loads, 4, 1, space)

        def access(addresses: Value, mask: int, values: Value) -> Value:
            build.store(addresses, self.places, align=32)
            arguments = [self.context, self.warp, ir.Constant(WARP_MASK, mask), self.places, values]
            return call_pointer(build, self._pointer(variant), memory.SIGNATURE, arguments)

        registers = [] if loads else [self.value(each, "b32") for each in elements]
        whole = build.icmp_unsigned("==", build.bitcast(self.mask, WARP_MASK), ir.Constant(WARP_MASK, 0xFFFFFFFF))
        crooked = build.and_(address, self.lanes.constant(15, 64))
        used = matrix.numbers([lane < 8 * len(elements) for lane in range(LANES)], 1)
        wrong = build.and_(build.icmp_unsigned("!=", crooked, self.lanes.constant(0, 64)), used)
        fine = build.and_(whole, build.icmp_unsigned("==", build.bitcast(wrong, WARP_MASK), ir.Constant(WARP_MASK, 0)))
        build.store(ir.Constant(WARP_MASK, 1), self.status)
        with build.if_then(fine):
            if loads:
                packed = "b8x16" in instruction.opcode
                status = matrix.load(self.lanes, access, address, self.scratch, len(elements), "trans" in parts, packed)
            else:
                status = matrix.store(self.lanes, access, address, self.scratch, registers, "trans" in parts)
            build.store(status, self.status)
        refused = build.icmp_unsigned("!=", build.load(self.status, typ=WARP_MASK), ir.Constant(WARP_MASK, 0))
        with build.if_then(refused, likely=False):
            build.store(address, self.places, align=32)
            for number, register in enumerate(registers):
                build.store(register, at(build, self.scratch, 4 * LANES * number), align=32)
            self._python(instruction, build.bitcast(self.mask, WARP_MASK))
        if loads:
            loaded = [
                build.load(at(build, self.scratch, 4 * LANES * number), typ=vector(32), align=32)
                for number in range(len(elements))
            ]
            self._assign_all(instruction, list(zip(elements, loaded, strict=True)))

    def _multiply(self, instruction: Instruction) -> None:
        """`mma.sync`, by all lanes of a warp."""
        build = self.build_
        form = self.made.products[instruction]
        bits = build.bitcast(self.mask, WARP_MASK)
        with build.if_then(build.icmp_unsigned("!=", bits, ir.Constant(WARP_MASK, 0xFFFFFFFF)), likely=False):
            self._python(instruction, bits)
        self._check_selectors(instruction, form)
        operands = instruction.operands
        places, begin = [], 0
        for operand in operands[1:4]:
            elements = self._elements(operand)
            places.append(at(build, self.fragments, 4 * LANES * begin))
            for number, element in enumerate(elements):
                place = at(build, self.fragments, 4 * LANES * (begin + number))
                build.store(self.value(element, "b32"), place, align=32)
            begin += len(elements)
        scales: list[Value] = []
        for number, (register, selectors) in enumerate(zip(operands[4::2], operands[5::2], strict=True)):
            place = at(build, self.scratch, 4 * LANES * number)
            build.store(self.value(self._elements(register)[0], "b32"), place, align=32)
            assert isinstance(selectors, Vector)
            scales += [place, *(self._selector(each) for each in selectors.elements)]
        scales = scales or [self.scratch, word(0), word(0)] * 2
        arguments = [*places, places[2], word(4 * LANES), *scales]
        call_pointer(build, self._pointer(form), matrix.multiply_signature(), arguments)
        made = [build.load(at(build, places[2], 4 * LANES * number), typ=vector(32), align=32) for number in range(4)]
        self._assign_all(instruction, list(zip(self._elements(operands[0]), made, strict=True)))

    def _selector(self, operand: Operand) -> Value:
        """The byte or the thread that chooses scales: that of the first lane."""
        return self.build_.zext(
            self.build_.extract_element(self.value(operand, "b16"), ir.Constant(WARP_MASK, 0)), WORD
        )

    def _check_selectors(self, instruction: Instruction, form: WarpMma) -> None:
        """Let Python refuse selectors out of their ranges, or that differ between the lanes of the warp."""
        build, lanes = self.build_, self.lanes
        bytes_, threads = {0: 0, 1: 3, 2: 2, 4: 0}[form.scales], (1, 3)
        wrong: Value = lanes.constant(0, 1)
        held = []
        for pair, most in zip(instruction.operands[5::2], threads, strict=True) if form.scales else ():
            assert isinstance(pair, Vector)
            for operand, bits in zip(pair.elements, (bytes_, most), strict=True):
                value = self.value(operand, "b16")
                if isinstance(operand, Immediate) and not literal_bits(operand, "b16") & 0xFFFF & ~bits:
                    held.append(value)
                    continue
                first = exchange.splat(lanes, build.extract_element(value, ir.Constant(WARP_MASK, 0)))
                beyond = build.and_(value, lanes.constant(~bits, 16))
                wrong = build.or_(wrong, build.icmp_unsigned("!=", beyond, lanes.constant(0, 16)))
                wrong = build.or_(wrong, build.icmp_unsigned("!=", value, first))
                held.append(value)
        with build.if_then(build.icmp_unsigned("!=", build.bitcast(wrong, WARP_MASK), ir.Constant(WARP_MASK, 0))):
            for number, value in enumerate(held):
                place = at(build, self.fragments, 4 * LANES * number)
                build.store(lanes.resize(value, 32), place, align=32)
            self._python(instruction, build.bitcast(self.mask, WARP_MASK), self.fragments)

    def _elements(self, operand: Operand) -> tuple[Operand, ...]:
        return operand.elements if isinstance(operand, Vector) else (operand,)

    def _load_memory(self, instruction: Instruction) -> None:
        build = self.build_
        opcode = memory_opcode(instruction.opcode)
        assert opcode is not None
        parameter = self._parameter(instruction.operands[1], opcode)
        if parameter is not None:
            loaded = [self._of_parameters(parameter + opcode.size * each, opcode.size) for each in range(opcode.count)]
        else:
            address, space = self._address(instruction.operands[1], opcode.space)
            variant = Variant(False, opcode.size, opcode.count, _family(space), opcode.coherent)
            self._call(instruction, variant, address, self._guard(instruction))
            kind, size = vector(opcode.size * 8), opcode.size * LANES
            loaded = [
                build.load(at(build, self.scratch, size * number), typ=kind, align=32) for number in range(opcode.count)
            ]
        targets = list(zip(self._elements(instruction.operands[0]), loaded, strict=True))
        # Its own guard comes last: every assignment still reads it.
        targets.sort(key=lambda item: item[0] == instruction.guard)
        self._assign_all(instruction, targets, opcode.type.startswith("s"))

    def _parameter(self, operand: Operand, opcode: MemoryOpcode) -> int | None:
        """The byte of the kernel's parameters at which a load reads that has nothing to check, or None."""
        assert isinstance(operand, Address)
        base, layout = operand.base, self.made.layout
        if opcode.space != "param" or not isinstance(base, Symbol) or base.name not in layout.parameters:
            return None
        first, width = layout.parameters[base.name] + base.offset + operand.offset, opcode.size * opcode.count
        inside = 0 <= first <= layout.parameter_bytes - width
        return first if inside and first % width == 0 else None

    def _of_parameters(self, first: int, size: int) -> Value:
        """The element at a byte of the kernel's parameters, in every lane: all are initialised, and nobody writes."""
        build, kind = self.build_, ir.IntType(8 * size)
        parameters = build.inttoptr(table_field(build, self.context, Context.PARAMETERS), POINTER)
        element = build.load(at(build, parameters, first), typ=kind, align=size)
        return exchange.splat(self.lanes, element)

    def _store_memory(self, instruction: Instruction) -> None:
        build = self.build_
        opcode = memory_opcode(instruction.opcode)
        assert opcode is not None
        address, space = self._address(instruction.operands[0], opcode.space)
        for number, element in enumerate(self._elements(instruction.operands[1])):
            bits = opcode.size * 8
            if isinstance(element, Register):
                value = self.lanes.resize(self.values[element.name], bits)
            else:
                value = self.value(element, f"b{bits}")
            build.store(value, at(build, self.scratch, opcode.size * LANES * number), align=32)
        variant = Variant(True, opcode.size, opcode.count, _family(space))
        self._call(instruction, variant, address, self._guard(instruction))


def _family(space: str) -> str:
    return space if space in ("shared", "local") else "generic"
