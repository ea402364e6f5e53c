"""Where an entry's parameters, shared variables and local variables lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from refmoe.ptx.program.provenance import Bounds, bounds_of
from refmoe.ptx.state.spaces import CODE_BYTES, CODE_WINDOW, OWN_BASE, PARAM_BASE
from refmoe.ptx.state.special_registers import RESERVED_BYTES, RESERVED_PARTS
from refmoe.ptx.text.parser import ParsedModule
from refmoe.ptx.text.syntax import Address, Function, Instruction, Operand, Register, Special, Symbol, Variable, parts

# How much dynamic shared memory there is the launch says.
_ANY_END = 1 << 32


@dataclass(frozen=True)
class Layout:
    """Addresses in their own spaces.

    Attributes:
        addresses: of parameters, shared and local variables, by unique name, and of functions whose address is taken.
        spaces: state space that an address of that name belongs to.
        parameters: byte offset of each kernel parameter.
        parameter_bytes, shared_bytes, local_bytes: sizes; shared without the dynamic part.
        reserved_bytes: of `shared_bytes`, at their begin: the reserved shared memory, if the entry uses it.
        dynamic_offset: where dynamic shared memory starts.
        dynamic: the variables that lie there, `extern __shared__` in CUDA.
        buffers: module variables that the entry names.
        bounds: of addresses in shared memory, see `refmoe.ptx.program.provenance`.
    """

    addresses: dict[str, int]
    spaces: dict[str, str]
    parameters: dict[str, int]
    parameter_bytes: int
    shared_bytes: int
    local_bytes: int
    reserved_bytes: int
    dynamic_offset: int
    dynamic: tuple[str, ...]
    buffers: tuple[Variable, ...]
    bounds: dict[str, Bounds]

    def bounded(self, instruction: Instruction) -> Bounds | None:
        """The shared variable that a load, a store or an atomic must stay in, if it is known."""
        if not self.bounds:
            return None
        where = next((each.base for each in instruction.operands if isinstance(each, Address)), None)
        return self.bounds.get(where.name) if isinstance(where, Register | Symbol) else None


def lay_out(entry: Function, module: ParsedModule) -> Layout:
    """The layout of an entry without calls."""
    addresses: dict[str, int] = {}
    spaces: dict[str, str] = {}

    def place(variables: Iterable[Variable], base: int, space: str, start: int = 0) -> int:
        end = start
        for variable in variables:
            begin = -(-end // variable.align) * variable.align
            addresses[variable.name] = base + begin
            spaces[variable.name] = space
            end = begin + variable.size
        return end

    used = _named(entry)
    module_shared = [v for name, v in module.variables.items() if v.space == "shared" and name in used]
    own = list(entry.variables.values())
    module_local = [v for name, v in module.variables.items() if v.space == "local" and name in used]
    shared = [v for v in own + module_shared if v.space == "shared"]
    parameter_bytes = place(entry.parameters, PARAM_BASE, "param")
    reserved_bytes = RESERVED_BYTES if _asks_for_reserved(entry) else 0
    shared_bytes = place((v for v in shared if v.size), OWN_BASE, "shared", reserved_bytes)
    # A device function's parameters are local: each lane has its own.
    local_bytes = place((v for v in own + module_local if v.space in ("local", "param")), OWN_BASE, "local")
    dynamic = [v for v in shared if not v.size]
    align = max([16, *(v.align for v in dynamic)])
    dynamic_offset = -(-shared_bytes // align) * align
    for variable in dynamic:
        addresses[variable.name] = OWN_BASE + dynamic_offset
        spaces[variable.name] = "shared"
    bounds = {
        v.name: Bounds(v.name, begin, begin + v.size if v.size else _ANY_END)
        for v in shared
        for begin in [addresses[v.name] - OWN_BASE]
    }
    buffers = {v.name: v for v in (*module.variables.values(), *own) if v.space in ("global", "const")}
    wanted = [name for name in buffers if name in used]
    for name in wanted:
        wanted.extend(s.name for _, _, s, _ in buffers[name].relocations if s.name in buffers and s.name not in wanted)
    used |= {symbol.name for name in wanted for _, _, symbol, _ in buffers[name].relocations}
    for name in module.declared:
        address = code_address(module.declared, name) if name in used and name not in addresses else None
        if address is not None:
            addresses[name] = address
            spaces[name] = "code"
    return Layout(
        addresses,
        spaces,
        {v.name: addresses[v.name] - PARAM_BASE for v in entry.parameters},
        parameter_bytes,
        shared_bytes,
        local_bytes,
        reserved_bytes,
        dynamic_offset,
        tuple(variable.name for variable in dynamic),
        tuple(buffers[name] for name in wanted),
        bounds_of(entry, bounds),
    )


def code_address(declared: Mapping[str, Function], name: str) -> int | None:
    """The address of a function of a module; None for what is no function."""
    if name not in declared:
        return None
    return CODE_WINDOW + CODE_BYTES * (list(declared).index(name) + 1)


def _named(entry: Function) -> set[str]:
    return {operand.name for operand in _operands(entry) if isinstance(operand, Symbol)}


def _asks_for_reserved(entry: Function) -> bool:
    return any(isinstance(operand, Special) and operand.name in RESERVED_PARTS for operand in _operands(entry))


def _operands(entry: Function) -> Iterator[Operand]:
    instructions = (statement for statement in entry.body or () if isinstance(statement, Instruction))
    return (part for instruction in instructions for operand in instruction.operands for part in parts(operand))
