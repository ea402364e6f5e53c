"""Modules of LLVM IR to functions in this process.

Code is compiled for the host's own features: without them a fused multiply-add would be a call of libm, and vectors
would be cut into small pieces. The results do not depend on it, because no operation here has a fast-math flag.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from refmoe.native import cache as kept


class Native:
    """Machine code of one module; its functions live as long as this object.

    Args:
        text: LLVM IR whose functions call nothing but intrinsics and pointers that they are given.
        level: of optimisation, 0 to 3.
    """

    def __init__(self, text: str, level: int = 1) -> None:
        key = kept.key_of(text, str(level), *_host(), llvmlite.__version__, str(llvm.llvm_version_info))
        code = kept.load(key)
        machine = _machine(level)
        if code is None:
            module = llvm.parse_assembly(text)
            module.verify()
            if level > 1:
                # Below, code is as it was written: what builds it leaves little to improve, and passes cost as much
                # time as code generation itself.
                builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=level))
                builder.getModulePassManager().run(module, builder)
            code = machine.emit_object(module)
            kept.store(key, code)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Of a function of the module."""
        return int(self._engine.get_function_address(name))


@cache
def _host() -> tuple[str, str]:
    """(processor, its features) that code is made for."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return str(llvm.get_host_cpu_name()), str(llvm.get_host_cpu_features().flatten())


@cache
def _machine(level: int) -> Any:
    cpu, features = _host()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=level, jit=True)
