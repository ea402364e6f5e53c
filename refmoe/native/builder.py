"""A builder of LLVM code that writes text at once, with the methods of llvmlite's `IRBuilder`.

llvmlite keeps an object for each instruction and prints them at the end: for code of thousands of instructions that
takes longer than LLVM needs to compile it. Here an instruction is a line of its block. Functions and modules stay
llvmlite's, and so do types and constants.

A line that computes the same as an earlier one of its block is not written again. Lines that access memory, calls and
branches are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from llvmlite import ir

_POINTER, _BIT, _WORD32 = ir.PointerType(), ir.IntType(1), ir.IntType(32)
_RELATIONS = {">": "gt", "<": "lt", "==": "eq", "!=": "ne", ">=": "ge", "<=": "le"}
Type = Any
# Of the code: a `LineResult`, or a constant of llvmlite.
Operand = Any


class LineResult:
    """What an instruction gives.

    Attributes:
        type: of llvmlite.
        bits_of: the value whose bits these are, in another type, or None.
    """

    __slots__ = ("_reference", "bits_of", "type")

    def __init__(self, kind: Type, reference: str) -> None:
        self.type, self._reference = kind, reference
        self.bits_of: Operand = None

    def get_reference(self) -> str:
        """How other instructions name it."""
        return self._reference


class Room(LineResult):
    """Memory of the function's own.

    Attributes:
        align: bytes, or None for what its type needs.
    """

    __slots__ = ("_kind", "align")

    def __init__(self, kind: Type, reference: str) -> None:
        super().__init__(_POINTER, reference)
        self._kind = kind
        self.align: int | None = None

    def __str__(self) -> str:
        align = "" if self.align is None else f", align {self.align}"
        return f"{self._reference} = alloca {self._kind}{align}"


class Phi(LineResult):
    """A value that depends on the block that control comes from."""

    __slots__ = ("_incoming",)

    def __init__(self, kind: Type, reference: str) -> None:
        super().__init__(kind, reference)
        self._incoming: list[str] = []

    def add_incoming(self, value: Operand, block: TextBlock) -> None:
        """Its value where control comes from a block."""
        self._incoming.append(f"[{value.get_reference()}, {block.get_reference()}]")

    def __str__(self) -> str:
        return f"{self._reference} = phi {self.type} {', '.join(self._incoming)}"


class TextBlock:
    """A basic block.

    Attributes:
        name: in its function.
        instructions: its lines; a phi is one whose text is not known yet.
        is_terminated: whether its last instruction leaves it.
        known: by text of an instruction without effects, what it gives.
    """

    __slots__ = ("instructions", "is_terminated", "known", "name", "rooms")

    def __init__(self, name: str) -> None:
        self.name = name
        self.rooms: list[Room] = []
        self.instructions: list[str | Phi] = []
        self.is_terminated = False
        self.known: dict[str, LineResult] = {}

    def get_reference(self) -> str:
        """How branches name it."""
        return f"%{self.name}"

    def descr(self, lines: list[str]) -> None:
        """Append its text, as llvmlite's functions ask for it."""
        lines.append(f"{self.name}:\n")
        lines += [f"  {each}\n" for each in (*self.rooms, *self.instructions)]


def _same(left: Operand, right: Operand) -> Type:
    kind = left.type
    if kind is not right.type and kind != right.type:
        raise ValueError(f"operands of types {kind} and {right.type}")
    return kind


def _truth(kind: Type) -> Type:
    """The type of a comparison."""
    return ir.VectorType(_BIT, kind.count) if isinstance(kind, ir.VectorType) else _BIT


Binary = Callable[["TextBuilder", Operand, Operand], LineResult]
Cast = Callable[["TextBuilder", Operand, Type], Operand]


def _binary(opcode: str) -> Binary:
    def write(self: TextBuilder, left: Operand, right: Operand) -> LineResult:
        kind = _same(left, right)
        return self.known(f"{opcode} {kind} {left.get_reference()}, {right.get_reference()}", kind)

    return write


def _cast(opcode: str) -> Cast:
    def write(self: TextBuilder, value: Operand, kind: Type) -> Operand:
        held = value.type
        if held is kind or held == kind:
            return value
        return self.known(f"{opcode} {held} {value.get_reference()} to {kind}", kind)

    return write


class TextBuilder:
    """Writes one function, at the place where the next instruction goes.

    Args:
        function: of llvmlite, without blocks; the builder begins its first one.
        name: of that block.

    Attributes:
        block: which is being written.
    """

    def __init__(self, function: Any, name: str = "entry") -> None:
        self._function, self._blocks, self._values = function, 0, 0
        self.block = self._entry = TextBlock(name)
        function.blocks.append(self.block)

    # What is written where

    def append_basic_block(self, name: str = "b") -> TextBlock:
        """A new block of the function; the current one stays."""
        self._blocks += 1
        block = TextBlock(f"{name}{self._blocks}")
        self._function.blocks.append(block)
        return block

    def position_at_end(self, block: TextBlock) -> None:
        """Go on in a block."""
        self.block = block

    def _new(self) -> str:
        self._values += 1
        return f"%v{self._values}"

    def known(self, text: str, kind: Type) -> LineResult:
        """What an instruction without effects gives, by its text; written where the block does not have it yet."""
        block = self.block
        found = block.known.get(text)
        if found is None:
            found = block.known[text] = LineResult(kind, self._new())
            block.instructions.append(f"{found.get_reference()} = {text}")
        return found

    def _effect(self, text: str) -> None:
        self.block.instructions.append(text)

    def _end(self, text: str) -> None:
        if self.block.is_terminated:
            raise ValueError(f"block {self.block.name} has ended")
        self.block.is_terminated = True
        self._effect(text)

    # Arithmetic

    add, sub, mul = _binary("add"), _binary("sub"), _binary("mul")
    udiv, sdiv, urem, srem = _binary("udiv"), _binary("sdiv"), _binary("urem"), _binary("srem")
    shl, lshr, ashr = _binary("shl"), _binary("lshr"), _binary("ashr")
    and_, or_, xor = _binary("and"), _binary("or"), _binary("xor")
    fadd, fsub, fmul, fdiv = _binary("fadd"), _binary("fsub"), _binary("fmul"), _binary("fdiv")

    trunc, zext, sext = _cast("trunc"), _cast("zext"), _cast("sext")
    fptrunc, fpext = _cast("fptrunc"), _cast("fpext")
    fptoui, fptosi, uitofp, sitofp = _cast("fptoui"), _cast("fptosi"), _cast("uitofp"), _cast("sitofp")
    inttoptr, ptrtoint = _cast("inttoptr"), _cast("ptrtoint")
    _bitcast = _cast("bitcast")

    def bitcast(self, value: Operand, kind: Type) -> Operand:
        """The same bits in another type; there and back is no instruction."""
        before = value.bits_of if isinstance(value, LineResult) else None
        if before is not None and before.type == kind:
            return before
        result = self._bitcast(value, kind)
        if result is not value:
            result.bits_of = value
        return result

    def not_(self, value: Operand) -> LineResult:
        """Every bit the other way."""
        kind = value.type
        ones = f"splat ({kind.element} -1)" if isinstance(kind, ir.VectorType) else "-1"
        return self.known(f"xor {kind} {value.get_reference()}, {ones}", kind)

    def neg(self, value: Operand) -> LineResult:
        """The negative of integers."""
        return self.known(f"sub {value.type} zeroinitializer, {value.get_reference()}", value.type)

    def fneg(self, value: Operand) -> LineResult:
        """The other sign."""
        return self.known(f"fneg {value.type} {value.get_reference()}", value.type)

    def icmp_signed(self, relation: str, left: Operand, right: Operand) -> LineResult:
        """Compare integers with signs."""
        return self._compared("icmp", "s", relation, left, right)

    def icmp_unsigned(self, relation: str, left: Operand, right: Operand) -> LineResult:
        """Compare integers without signs."""
        return self._compared("icmp", "u", relation, left, right)

    def fcmp_ordered(self, relation: str, left: Operand, right: Operand) -> LineResult:
        """Compare floats; false for a NaN."""
        return self._compared("fcmp", "o", relation, left, right)

    def fcmp_unordered(self, relation: str, left: Operand, right: Operand) -> LineResult:
        """Compare floats; true for a NaN."""
        return self._compared("fcmp", "u", relation, left, right)

    def _compared(self, opcode: str, prefix: str, relation: str, left: Operand, right: Operand) -> LineResult:
        kind, word = _same(left, right), _RELATIONS.get(relation, relation)
        if relation in _RELATIONS and (opcode == "fcmp" or relation not in ("==", "!=")):
            word = prefix + word
        text = f"{opcode} {word} {kind} {left.get_reference()}, {right.get_reference()}"
        return self.known(text, _truth(kind))

    def select(self, condition: Operand, chosen: Operand, other: Operand) -> LineResult:
        """One of two values."""
        kind = _same(chosen, other)
        either = f"{kind} {chosen.get_reference()}, {kind} {other.get_reference()}"
        return self.known(f"select {condition.type} {condition.get_reference()}, {either}", kind)

    # Parts of vectors and structures

    def extract_element(self, vector: Operand, number: Operand) -> LineResult:
        """One element of a vector."""
        place = f"{number.type} {number.get_reference()}"
        return self.known(f"extractelement {vector.type} {vector.get_reference()}, {place}", vector.type.element)

    def insert_element(self, vector: Operand, value: Operand, number: Operand) -> LineResult:
        """A vector with another element."""
        kind = vector.type
        given = f"{value.type} {value.get_reference()}, {number.type} {number.get_reference()}"
        return self.known(f"insertelement {kind} {vector.get_reference()}, {given}", kind)

    def shuffle_vector(self, one: Operand, other: Operand, order: Operand) -> LineResult:
        """Elements of two vectors, by constant numbers."""
        kind = _same(one, other)
        both = f"{kind} {one.get_reference()}, {kind} {other.get_reference()}"
        text = f"shufflevector {both}, {order.type} {order.get_reference()}"
        return self.known(text, ir.VectorType(kind.element, order.type.count))

    def extract_value(self, whole: Operand, number: int) -> LineResult:
        """One part of a structure."""
        return self.known(f"extractvalue {whole.type} {whole.get_reference()}, {number}", whole.type.elements[number])

    def insert_value(self, whole: Operand, value: Operand, number: int) -> LineResult:
        """A structure with another part."""
        given = f"{value.type} {value.get_reference()}, {number}"
        return self.known(f"insertvalue {whole.type} {whole.get_reference()}, {given}", whole.type)

    # Memory

    def alloca(self, kind: Type) -> Room:
        """Memory of the function's own, which is there from its first block on: no loop allocates."""
        room = Room(kind, self._new())
        self._entry.rooms.append(room)
        return room

    def gep(self, base: Operand, indices: Sequence[Operand], *, source_etype: Type) -> LineResult:
        """The address of an element behind an address."""
        places = ", ".join(f"{each.type} {each.get_reference()}" for each in indices)
        return self.known(f"getelementptr {source_etype}, ptr {base.get_reference()}, {places}", _POINTER)

    def load(self, place: Operand, *, typ: Type, align: int | None = None) -> LineResult:
        """What lies at an address."""
        result = LineResult(typ, self._new())
        self._effect(f"{result.get_reference()} = load {typ}, ptr {place.get_reference()}{_aligned(align)}")
        return result

    def store(self, value: Operand, place: Operand, align: int | None = None) -> None:
        """Put a value at an address."""
        self._effect(f"store {value.type} {value.get_reference()}, ptr {place.get_reference()}{_aligned(align)}")

    # Where control goes

    def call(self, function: Any, arguments: Sequence[Operand], *, tail: str = "") -> LineResult:
        """Call a function, or what has its `function_type`; `tail` is LLVM's word for calls that end a function."""
        signature = function.function_type
        kinds = [each.type for each in arguments]
        if len(kinds) != len(signature.args) or any(map(_differ, kinds, signature.args)):
            raise ValueError(f"arguments of types {', '.join(map(str, kinds))} for {signature}")
        given = ", ".join(f"{each.type} {each.get_reference()}" for each in arguments)
        kind = signature.return_type
        text = f"{tail} call {kind} {function.get_reference()}({given})".lstrip()
        if isinstance(kind, ir.VoidType):
            self._effect(text)
            return LineResult(kind, "")
        result = LineResult(kind, self._new())
        self._effect(f"{result.get_reference()} = {text}")
        return result

    def ctpop(self, value: Operand) -> LineResult:
        """How many bits of an integer are set."""
        return self.call(self._function.module.declare_intrinsic("llvm.ctpop", [value.type]), [value])

    def cttz(self, value: Operand, nonzero: Operand) -> LineResult:
        """How many bits below the lowest one are not set; of 0 nothing, if `nonzero`."""
        kinds = [value.type, nonzero.type]
        function = self._function.module.declare_intrinsic("llvm.cttz", kinds)
        return self.call(function, [value, nonzero])

    def ctlz(self, value: Operand, nonzero: Operand) -> LineResult:
        """How many bits above the highest one are not set; of 0 nothing, if `nonzero`."""
        kinds = [value.type, nonzero.type]
        function = self._function.module.declare_intrinsic("llvm.ctlz", kinds)
        return self.call(function, [value, nonzero])

    def phi(self, kind: Type) -> Phi:
        """A value for each block that control comes from; it stands in front of other instructions."""
        phi = Phi(kind, self._new())
        self.block.instructions.append(phi)
        return phi

    def ret(self, value: Operand) -> None:
        """Return a value."""
        self._end(f"ret {value.type} {value.get_reference()}")

    def ret_void(self) -> None:
        """Return."""
        self._end("ret void")

    def branch(self, target: TextBlock) -> None:
        """Go on in another block."""
        self._end(f"br label {target.get_reference()}")

    def cbranch(self, condition: Operand, then: TextBlock, other: TextBlock, likely: bool | None = None) -> None:
        """Go on in one of two blocks; `likely` says whether that is mostly the first, or mostly the other."""
        weights = ""
        if likely is not None:
            module = self._function.module
            odds = [ir.Constant(_WORD32, each) for each in ((99, 1) if likely else (1, 99))]
            noted = module.add_metadata([ir.MetaDataString(module, "branch_weights"), *odds])
            weights = f", !prof {noted.get_reference()}"
        targets = f"label {then.get_reference()}, label {other.get_reference()}"
        self._end(f"br i1 {condition.get_reference()}, {targets}{weights}")

    @contextmanager
    def if_then(self, condition: Operand, likely: bool | None = None) -> Iterator[None]:
        """What is done where a condition holds."""
        then, after = self.append_basic_block(), self.append_basic_block()
        self.cbranch(condition, then, after, likely)
        with self._inside(then, after):
            yield
        self.position_at_end(after)

    @contextmanager
    def if_else(
        self, condition: Operand, likely: bool | None = None
    ) -> Iterator[tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
        """What is done where a condition holds, and what where it does not."""
        then, other, after = (self.append_basic_block() for _ in range(3))
        self.cbranch(condition, then, other, likely)
        yield self._inside(then, after), self._inside(other, after)
        self.position_at_end(after)

    @contextmanager
    def _inside(self, block: TextBlock, after: TextBlock) -> Iterator[None]:
        self.position_at_end(block)
        yield
        if not self.block.is_terminated:
            self.branch(after)


def _differ(one: Type, other: Type) -> bool:
    return one is not other and bool(one != other)


def _aligned(align: int | None) -> str:
    return "" if align is None else f", align {align}"
