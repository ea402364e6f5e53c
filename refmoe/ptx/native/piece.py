"""Pieces of an entry as native code: each a function of one warp.

`piece(context, warp, mask, table)` returns the block at whose end it is and the lanes of `mask` that take the branch
there, or `FAILED` if Python code that it called raised. A warp's lanes are computed together; what those that do not
act compute is thrown away when registers are written back.

The code is that of a `Template`: what is the entry's own, such as where its registers lie, it finds in the table.

A whole block goes on to the next one by itself as long as all its lanes do, and as nobody can tell when they do: the
next block neither accesses memory that others see nor waits for other lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

from llvmlite import ir

from refmoe.native.builder import TextBuilder
from refmoe.ptx import isa
from refmoe.ptx.native import exchange, matrix, memory
from refmoe.ptx.native.bounds import either, leaves
from refmoe.ptx.native.context import FIELD_BYTES, QUEUE_FIELDS, Context, Queue
from refmoe.ptx.native.forms import native_form
from refmoe.ptx.native.memory import MatrixLoad, Variant
from refmoe.ptx.native.mma import WarpMma
from refmoe.ptx.native.outlined import Outlined
from refmoe.ptx.native.scalar import (
    BYTE,
    FAILED,
    PIECE,
    POINTER,
    WARP_MASK,
    WORD,
    at,
    call_pointer,
    room,
    word,
)
from refmoe.ptx.native.scalar import field as table_field
from refmoe.ptx.native.suspicion import Looker
from refmoe.ptx.native.template import Kind, Onward, OwnNumber, Slot, Target, Template
from refmoe.ptx.ops.lanes import BITS, LANES, LaneBuilder, Value, vector
from refmoe.ptx.ops.table import exactness
from refmoe.ptx.program.registers import CARRY, destinations_and_sources
from refmoe.ptx.state.spaces import LOCAL_WINDOW, SHARED_WINDOW
from refmoe.ptx.state.special_registers import SPECIALS
from refmoe.ptx.text.literals import literal_bits
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

_QUEUE_BYTES = QUEUE_FIELDS * FIELD_BYTES
_ALIVE, _EXIST = Queue.ALIVE * FIELD_BYTES, Queue.EXIST * FIELD_BYTES
_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


class Library:
    """A module of templates, and what all of them call."""

    def __init__(self) -> None:
        self.module = ir.Module()
        self.outlined = Outlined(self.module)
        self.access = memory.access_function(self.module)

    def add(self, name: str, template: Template) -> tuple[Slot, ...]:
        """Write the code of a template as a function of that name; returns what its table holds."""
        return PieceWriter(self, name, template).build()


class PieceWriter:
    """The function of one template."""

    def __init__(self, library: Library, name: str, template: Template) -> None:
        self.library, self.template = library, template
        function = ir.Function(library.module, PIECE, name)
        self.function = function
        self.context, self.warp, self.bits, self.table = function.args
        self.slots: dict[Slot, int] = {}
        # The instruction that is being written, by its number in the piece.
        self.position = 0
        build = TextBuilder(function)
        self.build_ = build
        registers = table_field(build, self.context, Context.REGISTERS, POINTER)
        warp_bytes = table_field(build, self.context, Context.WARP_BYTES)
        entry, self.failed = build.block, build.append_basic_block("failed")
        build.position_at_end(self.failed)
        build.ret(word(FAILED))
        build.position_at_end(entry)
        self.registers = at(build, registers, build.mul(self.warp, warp_bytes))
        self.mask = build.bitcast(self.bits, vector(1))
        self.lanes = LaneBuilder(library.module, build, self.mask)
        self.values: dict[str, Value] = {}
        self.suspicion = Looker(self)
        # What was read of the table, by block and number.
        self._read: dict[tuple[Any, int], Value] = {}

    @cached_property
    def scratch(self) -> Value:
        """Where values of all lanes lie."""
        return room(self.build_, ir.ArrayType(BYTE, LANES * 32))

    @cached_property
    def places(self) -> Value:
        """Where addresses of all lanes lie."""
        return room(self.build_, vector(64))

    @cached_property
    def status(self) -> Value:
        """Where a call's answer lies."""
        return room(self.build_, WARP_MASK)

    @cached_property
    def fragments(self) -> Value:
        """Where registers of A, B and C of a product lie, at most 4 + 2 + 4."""
        return room(self.build_, ir.ArrayType(BYTE, 4 * LANES * 10))

    def build(self) -> tuple[Slot, ...]:
        """All of it; returns what its table holds."""
        template = self.template
        for register in template.loads:
            self.values[register.name] = self._load(register.name, register.kind)
        for self.position, instruction in enumerate(template.instructions):
            self.suspicion.look(instruction)
            self._instruction(instruction)
        self.position = len(template.instructions)
        for register in template.stores:
            self._store(register.name, register.kind, self.values[register.name])
        if template.targets is None:
            self.build_.ret(word(0))
        else:
            self._end(template.targets)
        return tuple(self.slots)

    # Its table

    def slot(self, kind: Kind, of: object = None, typ: Any = WORD) -> Value:
        """What a slot of the table holds, 64 bits or a pointer."""
        number = self.slots.setdefault(Slot(kind, of), len(self.slots))
        # In another block LLVM would have to keep it on the stack.
        place = self.build_.block, number
        if (held := self._read.get(place)) is None:
            held = self._read[place] = table_field(self.build_, self.table, number, typ)
        return held

    # The end of a whole block

    def _end(self, targets: Sequence[Target]) -> None:
        """Count the block, and go on to the next one or return to the scheduler."""
        build, branch = self.build_, self.template.branch
        if self.template.counted is not None:
            self._count(self.template.counted)
        everyone = build.zext(self.bits, WORD)
        if branch is None:
            if targets:
                self._go_on(0)
            if not build.block.is_terminated:
                self._return(everyone)
            return
        self.suspicion.look(branch)
        guard = self._guard(branch)
        assert guard is not None
        taken = build.zext(build.bitcast(build.and_(guard, self.mask), WARP_MASK), WORD)
        for lanes, (number, target) in zip((everyone, word(0)), enumerate(targets), strict=True):
            if target.goes_on is not Onward.NEVER:
                with build.if_then(build.icmp_unsigned("==", taken, lanes)):
                    self._go_on(number)
        self._return(taken)

    def _return(self, taken: Value) -> None:
        """Return to the scheduler, with the lanes that take the branch."""
        self.build_.ret(self.build_.or_(self.slot(Kind.BLOCK), taken))

    def _go_on(self, number: int) -> None:
        """All lanes run the next block, if they need not return to the scheduler before."""
        build = self.build_
        assert self.template.targets is not None
        target = self.template.targets[number]
        if target.goes_on is Onward.NEVER:
            return
        patience = at(build, self.context, Context.PATIENCE * FIELD_BYTES)
        left = build.load(patience, typ=WORD)
        if target.back:
            left = build.sub(left, word(1))
        may = build.icmp_signed(">", left, word(0))
        if target.goes_on is Onward.TOGETHER:
            queues = build.inttoptr(table_field(build, self.context, Context.QUEUES), POINTER)
            alive = at(build, queues, build.add(build.mul(self.warp, word(_QUEUE_BYTES)), word(_ALIVE)))
            # Lanes that wait for a barrier or a phase are in no group.
            absent = build.xor(build.load(alive, typ=WORD), build.zext(self.bits, WORD))
            apart = build.or_(absent, table_field(build, self.context, Context.TURNS))
            may = build.and_(may, build.icmp_unsigned("==", apart, word(0)))
        with build.if_then(may):
            if target.back:
                build.store(left, patience)
            self._jump(number)

    def _jump(self, number: int) -> None:
        build = self.build_
        function = self.slot(Kind.TARGET, number, POINTER)
        table = self.slot(Kind.TARGET_TABLE, number, POINTER)
        arguments = [self.context, self.warp, self.bits, table]
        build.ret(call_pointer(build, function, PIECE, arguments, tail="musttail"))

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

    def _home(self, kind: Kind, name: str) -> Value:
        """Where this warp's values of a register lie."""
        return at(self.build_, self.registers, self.slot(kind, name))

    def _load(self, name: str, kind: str) -> Value:
        build, home = self.build_, self._home(Kind.HOME, name)
        if kind == "pred":
            held = build.load(home, typ=vector(8), align=32)
            return build.icmp_unsigned("!=", held, self.lanes.constant(0, 8))
        return build.load(home, typ=vector(BITS[kind]), align=32)

    def _store(self, name: str, kind: str, value: Value) -> None:
        """Write a register back: the lanes that do not act keep theirs."""
        build = self.build_
        kept = build.select(self.mask, value, self._load(name, kind))
        place = self._home(Kind.HOME, name)
        build.store(self.lanes.resize(kept, 8) if kind == "pred" else kept, place, align=32)

    def _special(self, name: str) -> Value:
        # Predicates among them are as wide as the others.
        held = self.build_.load(self._home(Kind.SPECIAL, name), typ=vector(32), align=32)
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
        if isinstance(operand, OwnNumber):
            return self._own(Kind.NUMBER, (self.position, operand.operand, kind), BITS[kind])
        if isinstance(operand, Symbol):
            return lanes.resize(self._address_of(operand.name, operand.offset), BITS[kind])
        if isinstance(operand, Special):
            return lanes.resize(self._special(operand.name), BITS[kind])
        assert isinstance(operand, Register)
        return lanes.resize(self.values[operand.name], BITS[kind])

    def _own(self, kind: Kind, of: object, bits: int) -> Value:
        """A number of the table, in every lane."""
        # Hosts are little-endian: the low bytes come first.
        return exchange.splat(self.lanes, self.slot(kind, of, ir.IntType(bits)))

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
        build, known = self.build_, self.template.where(name).address
        if known is not None:
            return self.lanes.constant(known + offset, 64)
        table = table_field(build, self.context, Context.SYMBOLS, POINTER)
        base = build.load(at(build, table, self.slot(Kind.SYMBOL, name)), typ=WORD)
        return exchange.splat(self.lanes, build.add(base, word(offset)))

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
        results = self.library.outlined.results(instruction.opcode, native_form(instruction), self.lanes, values)
        targets: list[Operand] = list(destinations)
        if operation.carry_out:
            targets.append(CARRY)
        self._assign_all(instruction, list(zip(targets, results, strict=True)), operation.sign_extend)

    def _note(self, instruction: Instruction, values: Sequence[Value]) -> None:
        """Remember an approximate instruction whose result is not provably exact in every acting lane."""
        build = self.build_
        exact = exactness(instruction.opcode)
        assert exact is not None
        (fine,) = exact(self.lanes, values)
        guard = self._guard(instruction)
        acting = self.mask if guard is None else build.and_(self.mask, guard)
        inexact = build.bitcast(build.and_(acting, build.not_(fine)), WARP_MASK)
        with build.if_then(build.icmp_unsigned("!=", inexact, ir.Constant(WARP_MASK, 0))):
            table = table_field(build, self.context, Context.APPROXIMATE, POINTER)
            build.store(ir.Constant(BYTE, 1), at(build, table, self.slot(Kind.APPROXIMATE, self.position)))

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
            self.python(bad)
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
            queue = build.mul(self.warp, word(_QUEUE_BYTES))
            alive, exist = (
                build.load(at(build, queues, build.add(queue, word(field))), typ=WORD) for field in (_ALIVE, _EXIST)
            )
            by_lane = build.icmp_unsigned("!=", table_field(build, self.context, Context.BY_LANE), word(0))
            alive = build.select(by_lane, exist, alive)
            here = build.zext(self.bits, WORD)
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
                    self.python(self.bits)

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
        value = self.value(source, "b64")
        window = self.lanes.constant(_WINDOWS.get(space, 0), 64)
        if space == "local":
            first = build.add(table_field(build, self.context, Context.FIRST_THREAD), build.mul(self.warp, word(LANES)))
            numbers = ir.Constant(vector(64), [lane + 1 for lane in range(LANES)])
            threads = build.add(exchange.splat(self.lanes, first), numbers)
            window = build.add(window, exchange.owned(self.lanes, threads))
        self._assign_all(instruction, [(destination, (build.sub if "to" in parts else build.add)(value, window))])

    # Memory

    def _address(self, operand: Operand, space: str) -> tuple[Value, str]:
        """(address of 64 bits in every lane, the space that it lies in)."""
        assert isinstance(operand, Address)
        base = operand.base
        if isinstance(base, Immediate):
            return self.lanes.constant(base.value + operand.offset, 64), space
        if isinstance(base, Symbol):
            lies_in = self.template.where(base.name).space
            own = space in ("param", "generic") and lies_in == "local"
            window = _WINDOWS.get(lies_in, 0) if space == "generic" and not own else 0
            place = self._address_of(base.name, base.offset + operand.offset + window)
            return place, "local" if own else space
        value = self.values[base.name]
        # The offset is added in the register's own width.
        if self.template.moved[self.position]:
            value = self.build_.add(value, self._own(Kind.OFFSET, self.position, BITS[base.kind]))
        return self.lanes.resize(value, 64), space

    def _pointer(self, variant: Variant | MatrixLoad | WarpMma) -> Value:
        """The address of a function."""
        return self.slot(Kind.FUNCTION, variant, POINTER)

    def _next(self) -> Any:
        """A new block, for what comes after a condition."""
        self.following = self.build_.append_basic_block()
        return self.following

    def _call(self, variant: Variant, address: Value, guard: Value | None) -> None:
        """The access of the lanes whose guard is on; Python does what the native function will not, or is beyond."""
        build = self.build_
        acting = self.mask if guard is None else build.and_(self.mask, guard)
        bits = self.bits if guard is None else build.bitcast(acting, WARP_MASK)
        build.store(address, self.places, align=32)
        site, function = self.slot(Kind.SITE, self.position), self._pointer(variant)
        arguments = [self.context, self.warp, bits, self.places, self.scratch, site, function]
        bounds = self.template.bounds[self.position]
        if bounds is None or variant.space == "local":
            failed = build.call(self.library.access, arguments)
        else:
            beyond = leaves(self.lanes, build, address, acting, bounds, variant.space, variant.width)
            slowly = partial(memory.call_slow, build, self.context, [site, *arguments[1:5]])
            failed = either(build, beyond, slowly, lambda: build.call(self.library.access, arguments))
        build.cbranch(build.icmp_unsigned("!=", failed, ir.Constant(WARP_MASK, 0)), self.failed, self._next())
        build.position_at_end(self.following)

    def python(self, bits: Value, values: Value | None = None, what: Kind = Kind.SITE) -> None:
        """Let Python do the instruction for the lanes of a mask, and end the piece if it raises."""
        build = self.build_
        arguments = [self.slot(what, self.position), self.warp, bits, self.places, values or self.scratch]
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
        variant: Variant | MatrixLoad = Variant(not loads, 4, 1, space)
        if loads and "trans" not in parts:
            variant = MatrixLoad(len(elements), "b8x16" in instruction.opcode, space)

        def access(addresses: Value, mask: int, values: Value) -> Value:
            build.store(addresses, self.places, align=32)
            arguments = [self.context, self.warp, ir.Constant(WARP_MASK, mask), self.places, values]
            return call_pointer(build, self._pointer(variant), memory.SIGNATURE, arguments)

        registers = [] if loads else [self.value(each, "b32") for each in elements]
        whole = build.icmp_unsigned("==", self.bits, ir.Constant(WARP_MASK, 0xFFFFFFFF))
        crooked = build.and_(address, self.lanes.constant(15, 64))
        used = matrix.numbers([lane < 8 * len(elements) for lane in range(LANES)], 1)
        wrong = build.and_(build.icmp_unsigned("!=", crooked, self.lanes.constant(0, 64)), used)
        fine = build.and_(whole, build.icmp_unsigned("==", build.bitcast(wrong, WARP_MASK), ir.Constant(WARP_MASK, 0)))
        build.store(ir.Constant(WARP_MASK, 1), self.status)
        with build.if_then(fine):
            if isinstance(variant, MatrixLoad):
                status = access(address, 0xFFFFFFFF, self.scratch)
            elif loads:
                status = matrix.load_transposed(self.lanes, access, address, self.scratch, len(elements))
            else:
                status = matrix.store(self.lanes, access, address, self.scratch, registers, "trans" in parts)
            build.store(status, self.status)
        refused = build.icmp_unsigned("!=", build.load(self.status, typ=WARP_MASK), ir.Constant(WARP_MASK, 0))
        with build.if_then(refused, likely=False):
            build.store(address, self.places, align=32)
            for number, register in enumerate(registers):
                build.store(register, at(build, self.scratch, 4 * LANES * number), align=32)
            self.python(self.bits)
        if loads:
            loaded = [
                build.load(at(build, self.scratch, 4 * LANES * number), typ=vector(32), align=32)
                for number in range(len(elements))
            ]
            self._assign_all(instruction, list(zip(elements, loaded, strict=True)))

    def _multiply(self, instruction: Instruction) -> None:
        """`mma.sync`, by all lanes of a warp."""
        build = self.build_
        form = self.template.products[self.position]
        assert form is not None
        bits = self.bits
        with build.if_then(build.icmp_unsigned("!=", bits, ir.Constant(WARP_MASK, 0xFFFFFFFF)), likely=False):
            self.python(bits)
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
            self.python(self.bits, self.fragments)

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
            self._call(variant, address, self._guard(instruction))
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
        base = operand.base
        if opcode.space != "param" or not isinstance(base, Symbol):
            return None
        begin = self.template.where(base.name).parameter
        if begin is None:
            return None
        first, width = begin + base.offset + operand.offset, opcode.size * opcode.count
        inside = 0 <= first <= self.template.parameter_bytes - width
        return first if inside and first % width == 0 else None

    def _of_parameters(self, first: int, size: int) -> Value:
        """The element at a byte of the kernel's parameters, in every lane: all are initialised, and nobody writes."""
        build, kind = self.build_, ir.IntType(8 * size)
        parameters = table_field(build, self.context, Context.PARAMETERS, POINTER)
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
        self._call(variant, address, self._guard(instruction))


def _family(space: str) -> str:
    return space if space in ("shared", "local") else "generic"
