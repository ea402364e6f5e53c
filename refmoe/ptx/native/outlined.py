"""Long native forms, written once in a module and called: a sum of halves is 80 instructions of the host.

Unrolled loops of other people's kernels have thousands of those, and every one of them cost a compiler's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from refmoe.native.builder import TextBuilder
from refmoe.ptx.ops.lanes import LaneBuilder, Lowering, Value

# Instructions from which on a form is called.
_LONG = 40


class Outlined:
    """The functions of a module that stand for long forms."""

    def __init__(self, module: Any) -> None:
        self._module = module
        # By opcode and types of the sources; None where the form is short.
        self._functions: dict[tuple[str, ...], Any] = {}

    def results(self, opcode: str, form: Lowering, lanes: LaneBuilder, sources: Sequence[Value]) -> list[Value]:
        """What `form`, the native form of an opcode, makes of its sources."""
        if any(lanes.known(each) is not None for each in sources):
            # What is known when code is made shortens it.
            return list(form(lanes, sources))
        key = (opcode, *(str(each.type) for each in sources))
        if key not in self._functions:
            self._functions[key] = self._function(form, [each.type for each in sources])
        function = self._functions[key]
        if function is None:
            return list(form(lanes, sources))
        called = lanes.build.call(function, sources)
        if not isinstance(called.type, ir.LiteralStructType):
            return [called]
        return [lanes.build.extract_value(called, number) for number in range(len(called.type.elements))]

    def _function(self, form: Lowering, kinds: Sequence[Any]) -> Any:
        """The function of a form; None if it is short."""
        # Written once aside, to know how long it is and what it gives.
        aside = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), kinds), "aside")
        results = self._write(form, aside, aside.module)[1]
        if sum(len(block.instructions) for block in aside.blocks) < _LONG:
            return None
        types = [each.type for each in results]
        given = types[0] if len(types) == 1 else ir.LiteralStructType(types)
        function = ir.Function(self._module, ir.FunctionType(given, kinds), f"form_{len(self._functions)}")
        function.linkage = "internal"
        build, results = self._write(form, function, self._module)
        if len(types) == 1:
            build.ret(results[0])
            return function
        held: Value = ir.Constant(given, ir.Undefined)
        for number, each in enumerate(results):
            held = build.insert_value(held, each, number)
        build.ret(held)
        return function

    def _write(self, form: Lowering, function: Any, module: Any) -> tuple[Any, list[Value]]:
        """A form as the body of a function, without its end: the builder, and what it gives."""
        build = TextBuilder(function)
        mask = ir.Constant(ir.VectorType(ir.IntType(1), 32), [True] * 32)
        return build, list(form(LaneBuilder(module, build, mask), list(function.args)))
