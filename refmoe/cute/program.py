"""Compiling a CuTe DSL function without a GPU, and launching its kernels on the executor."""

from __future__ import annotations

import copy
import ctypes
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from refmoe.chips import CHIPS, DEFAULT_ARCH, Chip
from refmoe.cute.host import HostCode, HostLaunch
from refmoe.cute.package import CompileError, imported
from refmoe.cute.tensor_maps import of_executor
from refmoe.cute.tensors import Memory, Packed, address_of, as_tensor, pack_tensor
from refmoe.errors import ArgumentError, describe
from refmoe.ptx import DeviceMemory, LaunchResult, Module
from refmoe.ptx import launch as launch_entry


class Program:
    """A compiled function: host code that launches kernels, and their PTX. Made by `compile`.

    Attributes:
        ptx: the text of the kernels.
        cubin: the same kernels as machine code of the chip, by the same compiler; None of a program whose PTX was
            edited.
        arch: the chip that they were compiled for.
        module: the kernels for the executor.
        compiled: what `cute.compile` returned; on a machine with that GPU it can be called.
    """

    def __init__(
        self,
        compiled: Any,
        ptx: str,
        cubin: bytes,
        arch: str,
        strict: bool,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
    ) -> None:
        self.compiled = compiled
        self.ptx = ptx
        self.cubin: bytes | None = cubin
        self.arch = arch
        self.module = Module.parse(ptx, name=f"{compiled.function_name}.ptx", strict=strict)
        execution = compiled.execution_args
        whole = execution.original_signature
        # Of a method, the object is compiled in.
        bound = whole.bind(*([None] if next(iter(whole.parameters), "") == "self" else []), *arguments, **keywords)
        bound.apply_defaults()
        # Constants of the code are no arguments of a launch.
        self._known = {name: bound.arguments[name] for name in execution.signature.parameters}
        self._host = HostCode(compiled.ir_module, compiled.function_name, self.module, CHIPS[arch])

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of its kernels."""
        return self.module.entries

    def edited(self, edit: Callable[[str], str]) -> Program:
        """The same program with other kernels, whose entries and parameters are the same: `edit` of the PTX text.

        Raises:
            ParseError: it is no PTX.
        """
        other = copy.copy(self)
        other.ptx = edit(self.ptx)
        other.cubin = None
        other.module = Module.parse(other.ptx, name=self.module.name, strict=self.module.strict)
        return other

    def host_launches(self, *arguments: Any, memory: Memory, **keywords: Any) -> tuple[HostLaunch, ...]:
        """What the host code launches when it is called; nothing is executed.

        Args:
            arguments: those of the function, without those that are compiled in (`cutlass.Constexpr`): NumPy arrays or
                `refmoe.cute.tensor` for tensors, arrays for pointers, numbers, a stream.
            memory: where arrays have their addresses: a `refmoe.ptx.DeviceMemory`, or a `refmoe.cute.GpuMemory`.
            keywords: likewise.

        Raises:
            ArgumentError: an argument that does not fit what the function was compiled for.
            HostError: the host code ended with an error.
        """
        execution = self.compiled.execution_args
        try:
            bound = execution.signature.bind(*arguments, **keywords)
        except TypeError as error:
            taken = ", ".join(self._known)
            if len(arguments) > len(self._known):
                taken += ": what is compiled in, as a cutlass.Constexpr is, is no argument of a launch"
            raise ArgumentError("arguments", str(error), taken) from error
        bound.apply_defaults()
        lowered = iter(self._host.parameter_types)
        packed = [_packed(name, bound.arguments[name], known, lowered, memory) for name, known in self._known.items()]
        pointers, _alive = execution.generate_execution_args(tuple(packed), {})
        if len(pointers) != len(self._host.parameter_types):
            found, needed = len(pointers), len(self._host.parameter_types)
            raise ArgumentError("arguments", f"{found} lowered values", f"{needed}, as it was compiled for")
        return self._host.run([_address(each) for each in pointers])

    def launch(
        self,
        *arguments: Any,
        memory: DeviceMemory | None = None,
        options: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> tuple[LaunchResult, ...]:
        """Call the function on the executor: its host code runs, and each kernel that it launches is executed.

        Results lie in the arrays of the arguments afterwards.

        Args:
            arguments: as in `host_launches`.
            memory: where arrays have their addresses; by default one of this call alone.
            options: of `refmoe.ptx.launch`, such as checks or blocks.
            keywords: as in `host_launches`.

        Raises:
            ArgumentError: an argument that does not fit what the function was compiled for.
            HostError: the host code ended with an error.
            PtxError: what went wrong in a kernel.
        """
        place = DeviceMemory() if memory is None else memory
        launches = self.host_launches(*arguments, memory=place, **keywords)
        return tuple(execute(self.module, each, place, options) for each in launches)


def _packed(where: str, value: Any, known: Any, lowered: Iterator[str], memory: Memory) -> Any:
    """An argument that CuTe DSL can lower by itself; every tensor and pointer in it is lowered here.

    Args:
        where: the argument, for messages.
        value: of this launch.
        known: what the function was compiled with in its place.
        lowered: the types of the host function's parameters, from this one on.
        memory: where arrays get their addresses.
    """
    if isinstance(known, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(known) != len(value):
            raise ArgumentError(where, describe(value), f"{len(known)} values, as it was compiled for")
        pairs = enumerate(zip(value, known, strict=True))
        return [_packed(f"{where}[{number}]", *pair, lowered, memory) for number, pair in pairs]
    if known is None:
        if value is not None:
            raise ArgumentError(where, describe(value), "None, as it was compiled for")
        return None
    kind = next(lowered, "")
    array = as_tensor(value)
    if hasattr(known, "_typed_tensor"):
        if array is None:
            raise ArgumentError(where, describe(value), "a NumPy array, a refmoe.ptx.Buffer or a refmoe.cute.tensor")
        return pack_tensor(where, array, known, kind, memory)
    if array is None:
        return value
    if not kind.startswith("!llvm.ptr"):
        raise ArgumentError(where, describe(array.array), f"a {type(known).__name__}, as it was compiled for")
    return Packed(address_of(where, array, memory).to_bytes(8, "little"))


def compile(
    function: Any, *arguments: Any, arch: str = DEFAULT_ARCH, options: str = "", strict: bool = False, **keywords: Any
) -> Program:
    """Compile a function under `cute.jit` with its kernels, without a GPU.

    Args:
        function: the function.
        arguments: what it is compiled for: NumPy arrays or `refmoe.cute.tensor` for tensors, or CuTe DSL's own fake
            tensors; numbers; streams.
        arch: the chip, a key of `refmoe.chips.CHIPS`.
        options: more options of `cute.compile`, such as "--opt-level 2".
        strict: refuse kernels with FP arithmetic that ptxas may fuse, when they are launched.
        keywords: arguments by name.

    Raises:
        CuteMissing: CuTe DSL is not installed.
        ArgumentError: an unknown chip.
        CompileError: CuTe DSL refuses the function, or its compiler fails.
        HostError: the host code cannot be loaded.
    """
    if arch not in CHIPS:
        raise ArgumentError("arch", describe(arch), f"one of {', '.join(CHIPS)}")
    cute = imported("cutlass.cute")
    args = tuple(_compile_time(each) for each in arguments)
    named = {name: _compile_time(each) for name, each in keywords.items()}
    with tempfile.TemporaryDirectory(prefix="refmoe-cute-") as folder:
        flags = f"--gpu-arch {arch} --keep-ptx --keep-cubin --dump-dir {folder} {options}".strip()
        try:
            with _asked_of(CHIPS[arch]):
                compiled = cute.compile(function, *args, options=flags, **named)
        except Exception as error:
            said = f"CuTe DSL refuses {getattr(function, '__name__', function)}: {error}"
            if "dynamic layout" in str(error).lower():
                # The package's own from_dlpack makes static ones.
                said += "; sizes are dynamic by default, and refmoe.cute.tensor(array, static=(0, 1)) compiles those in"
            raise CompileError(said) from error
        ptx = [path.read_text() for path in sorted(Path(folder).glob("*.ptx"))]
        cubins = [path.read_bytes() for path in sorted(Path(folder).glob("*.cubin"))]
    if (len(ptx), len(cubins)) != (1, 1):
        found = f"{len(ptx)} files of PTX and {len(cubins)} cubins"
        raise CompileError(f"CuTe DSL left {found}; one of each is needed, so a function that launches a kernel")
    # A file of text ends with a zero byte.
    return Program(compiled, ptx[0].rstrip("\0"), cubins[0], arch, strict, args, named)


@contextmanager
def _asked_of(chip: Chip) -> Iterator[None]:
    """Answer for a chip what the compiler asks the driver: the shared memory of a multiprocessor.

    It asks where a kernel wants several blocks on one. A multiprocessor has 1 KiB more than a block may use (CUDA C++
    Programming Guide, "Technical Specifications per Compute Capability").
    """
    helpers = imported("cutlass.cutlass_dsl.cutlass").cuda_helpers
    driver = helpers.get_device_attribute

    def answer(attribute: Any, device_id: int = 0) -> Any:
        if getattr(attribute, "name", "") == "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR":
            return chip.shared_bytes + 1024
        return driver(attribute, device_id)

    helpers.get_device_attribute = answer
    try:
        yield
    finally:
        helpers.get_device_attribute = driver


def execute(
    module: Module, launch: HostLaunch, memory: DeviceMemory, options: Mapping[str, Any] | None = None
) -> LaunchResult:
    """Execute one launch that host code made.

    Args:
        module: where its entry is.
        launch: what the host code made.
        memory: where its pointers lead.
        options: of `refmoe.ptx.launch`.

    Raises:
        HostError: a tensor map that refmoe does not know.
        PtxError: what went wrong in it.
    """
    variables = module.function(launch.entry).parameters
    return launch_entry(
        module,
        launch.entry,
        launch.grid,
        launch.block,
        tuple(of_executor(*each) for each in zip(launch.parameters, variables, strict=True)),
        launch.shared_bytes,
        memory=memory,
        cluster=launch.cluster,
        cooperative=launch.cooperative,
        **(options or {}),
    )


def _compile_time(value: Any) -> Any:
    """An argument as CuTe DSL compiles with it."""
    if isinstance(value, (list, tuple)):
        return type(value)(_compile_time(each) for each in value)
    array = as_tensor(value)
    return value if array is None else array.fake()


def _address(pointer: Any) -> int:
    return int(pointer.value or 0) if isinstance(pointer, ctypes.c_void_p) else int(pointer)
