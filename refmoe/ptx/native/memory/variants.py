"""The function of each kind of access, compiled when it is first asked for, and the way to Python."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import ir

from refmoe.native.builder import TextBuilder
from refmoe.native.compiler import Native
from refmoe.ptx.native.consecutive import Consecutive
from refmoe.ptx.native.context import (
    Context,
)
from refmoe.ptx.native.memory import spots
from refmoe.ptx.native.memory.body import AccessBody
from refmoe.ptx.native.memory.lanes import AccessForm, Rules
from refmoe.ptx.native.memory.order import displacing, ordering
from refmoe.ptx.native.order import displaced, is_ordered, merged
from refmoe.ptx.native.pages import keep, refine
from refmoe.ptx.native.rows import FORMS, RowLoads
from refmoe.ptx.native.scalar import (
    POINTER,
    WARP_MASK,
    WORD,
    call_pointer,
    field,
)
from refmoe.ptx.ops.lanes import Value

# (context, warp, mask, addresses, values) -> 0, or 1 where Python must do it.
SIGNATURE = ir.FunctionType(WARP_MASK, [POINTER, WORD, WARP_MASK, POINTER, POINTER])


@dataclass(frozen=True)
class Variant(AccessForm):
    """The function for one kind of access."""

    @property
    def name(self) -> str:
        """Of the function."""
        verb = "store" if self.stores else "load" if self.coherent else "load_nc"
        return f"{verb}_{self.space}_{self.count}x{self.size}"

    @property
    def address(self) -> int:
        """Of the function, which lives as long as the process."""
        return _compiled(self).address(self.name)


@cache
def _compiled(variant: Variant) -> Native:
    return Native.of(lambda: _text(variant), "memory", variant.name, level=2, briefly=True)


def _text(variant: Variant) -> str:
    module = ir.Module()
    write_access(module, variant, *parts_of(module, variant))
    return str(module)


def parts_of(module: Any, variant: Variant) -> tuple[Rules, Any, Any]:
    """What the functions of a kind of access call: its rules, and `refine` and `keep` of `refmoe.ptx.native.pages`."""
    one = is_ordered(module)
    rules = Rules(ordering(module, one), displacing(module, displaced(module, one, merged(module))))
    return rules, refine(module, variant.width), keep(module)


def write_access(module: Any, variant: Variant, rules: Rules, *pages: Any) -> Any:
    """The function of a kind of access, by its name; `rules` and `pages` are its `parts_of`."""
    built = ir.Function(module, SIGNATURE, variant.name)
    if variant.space == "local":
        # Neighbouring lanes have different bytes of it.
        AccessBody(variant, built, rules, *pages).build()
        return built
    anywhere = ir.Function(module, SIGNATURE, "anywhere")
    anywhere.linkage = "internal"
    # The short way has few registers to save, and nothing to prepare.
    anywhere.attributes.add("noinline")
    AccessBody(variant, anywhere, rules, *pages).build()
    if not variant.stores and variant.coherent:
        for number, form in enumerate(FORMS.get((variant.size, variant.count), ())):
            rows = ir.Function(module, SIGNATURE, f"rows_{number}")
            rows.linkage = "internal"
            rows.attributes.add("noinline")
            RowLoads(AccessBody(variant, rows, rules, *pages), *form).build(anywhere)
            anywhere = rows
        for number, lanes in enumerate(spots.FORMS if variant.width == 1 else ()):
            places = ir.Function(module, SIGNATURE, f"spots_{number}")
            places.linkage = "internal"
            places.attributes.add("noinline")
            spots.SpotLoads(AccessBody(variant, places, rules, *pages), lanes).build(anywhere)
            anywhere = places
    Consecutive(AccessBody(variant, built, rules, *pages)).build(anywhere)
    return built


def access_function(module: Any) -> Any:
    """`access(context, warp, mask, addresses, values, site, native)`: by that function or by Python; 1 if it raised."""
    function = ir.Function(module, ir.FunctionType(WARP_MASK, [*SIGNATURE.args, WORD, POINTER]), "access")
    function.linkage = "internal"
    function.attributes.add("noinline")
    context, warp, bits, places, values, site, native = function.args
    build = TextBuilder(function)
    zero = ir.Constant(WARP_MASK, 0)
    with build.if_then(build.icmp_unsigned("==", bits, zero)):
        build.ret(zero)
    status = call_pointer(build, native, SIGNATURE, [context, warp, bits, places, values])
    with build.if_then(build.icmp_unsigned("==", status, zero), likely=True):
        build.ret(zero)
    build.ret(call_slow(build, context, [site, warp, bits, places, values]))
    return function


def call_slow(build: Any, context: Value, arguments: list[Value]) -> Value:
    """Call Python: (site, warp, mask, addresses, values) -> 0, or 1 if it raised."""
    slow = field(build, context, Context.SLOW, POINTER)
    signature = ir.FunctionType(WARP_MASK, [WORD, WORD, WARP_MASK, POINTER, POINTER])
    return call_pointer(build, slow, signature, arguments)
