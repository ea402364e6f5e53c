"""Modules of LLVM IR to functions in this process.

Code is compiled for the host's own features: without them a fused multiply-add would be a call of libm, and vectors
would be cut into small pieces. The results do not depend on it, because no operation here has a fast-math flag.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from refmoe.native import cache as kept

# Of optimisation, unless something else is asked for: blocks are short, and what they wait for is memory.
LEVEL = 0


class Native:
    """Machine code of one module; its functions live as long as this object.

    Args:
        code: of an object file, as `compiled` gives it.
        level: that it was compiled with.
    """

    def __init__(self, code: bytes, level: int = LEVEL) -> None:
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(level))
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    @classmethod
    def of(cls, build: Callable[[], str], *key: str, level: int = LEVEL, briefly: bool = False) -> Native:
        """The module that `build` writes, or what an earlier process compiled of it.

        Args:
            build: gives LLVM IR whose functions call nothing but intrinsics and pointers that they are given.
            key: all that the text depends on, but for the sources of refmoe.
            level: of optimisation, 0 to 3.
            briefly: see `compiled`.
        """
        name = key_of(*key, f"{briefly=}", level=level)
        code = kept.load(name)
        if code is None:
            code = compiled(build(), level, briefly)
            kept.store(name, code)
        return cls(code, level)

    def address(self, name: str) -> int:
        """Of a function of the module."""
        return int(self._engine.get_function_address(name))


def key_of(*parts: str, level: int) -> str:
    """A name for machine code: what it is made of, for which host, by which LLVM and which sources."""
    return kept.key_of(*parts, str(level), *_host(), llvmlite.__version__, str(llvm.llvm_version_info))


def compiled(text: str, level: int = LEVEL, briefly: bool = False) -> bytes:
    """An object file of LLVM IR.

    Args:
        text: the module.
        level: of optimisation, 0 to 3.
        briefly: from level 2 on, variables become registers and no other pass runs. LLVM's own list of passes takes
            longer than code generation, and code over whole vectors is no faster for it.
    """
    module = llvm.parse_assembly(text)
    module.verify()
    machine = _emitter(level, *_host())
    if level > 1:
        # Below, code is as it was written: what builds it leaves little to improve, and passes cost as much time as
        # code generation itself.
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=level))
        passes = _few_passes() if briefly else builder.getModulePassManager()
        passes.run(module, builder)
    return bytes(machine.emit_object(module))


def _few_passes() -> Any:
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    return passes


def has_feature(name: str) -> bool:
    """Whether code is made for a host with this feature, by LLVM's name for it: `avx512f`."""
    return f"+{name}" in _host()[1].split(",")


@cache
def _host() -> tuple[str, str]:
    """(processor, its features) that code is made for."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return str(llvm.get_host_cpu_name()), str(llvm.get_host_cpu_features().flatten())


@cache
def _emitter(level: int, cpu: str, features: str) -> Any:
    """The machine that writes object files: a new one takes longer for its first than for most modules."""
    return _machine_of(level, cpu, features)


def _machine(level: int) -> Any:
    """A new one each time: an execution engine takes its machine with it when it goes."""
    return _machine_of(level, *_host())


def _machine_of(level: int, cpu: str, features: str) -> Any:
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=level, jit=True)
