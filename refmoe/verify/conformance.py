"""The executor against silicon, one instruction at a time.

For every opcode that the executor knows and the GPU's ptxas accepts, one small kernel loads its operands, runs the
instruction, and stores the result. The same PTX runs on the GPU and on the executor, on random and on adversarial
operands, and the bytes are compared. Lanes whose result the executor does not claim to be exact (approximate
instructions, results that the manual leaves open) are compared too, and counted apart.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe import ptx
from refmoe.cuda.device import CudaDevice
from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.ptx.isa import DTYPES, Operation
from refmoe.verify.opcodes import known_opcodes

__all__ = ["Outcome", "isa_sha256", "run"]

LANES = 8192
CTA = 256
SEED = 11
PTX_VERSION = "9.0"

REGISTERS: Mapping[str, str] = {"b16": "%s", "b32": "%r", "b64": "%d", "pred": "%p"}
#: An 8-bit value lives in a 16-bit register; a predicate travels through memory as a byte.
HELD_IN: Mapping[str, str] = {"b8": "b16", "b16": "b16", "b32": "b32", "b64": "b64", "pred": "pred"}
MEMORY: Mapping[str, str] = {"b16": "u16", "b32": "u32", "b64": "u64"}


@dataclass(frozen=True)
class Outcome:
    """What became of one opcode.

    Attributes:
        opcode: the full spelling.
        differing: lanes whose result is claimed exact and differs.
        open_lanes: lanes whose result is not claimed exact.
        open_differing: those of them that differ.
        first: the first difference of either kind, operands and results in hexadecimal, or None.
    """

    opcode: str
    differing: int
    open_lanes: int
    open_differing: int
    first: str | None


def run() -> dict[str, Any]:
    """Compare every opcode on the current GPU with the executor and return a JSON-able document.

    Raises:
        DeviceUnavailable: no GPU that the kernels are built for.
        ToolchainError: no nvcc, or ptxas refuses more than single opcodes.
    """
    device = CudaDevice()
    operations = known_opcodes()
    legal, refused, cubin = _assemble(operations, device.arch)
    module = ptx.Module.parse(_module(legal, device.arch), name="conformance.ptx")
    handle = device.call("cuModuleLoadData", cubin)
    outcomes = []
    for index, (opcode, operation) in enumerate(legal.items()):
        sources = [_operands(kind, SEED + position) for position, kind in enumerate(_source_kinds(operation))]
        silicon = _run_on_gpu(device, handle, index, operation, sources)
        executor = _run_on_executor(module, index, operation, sources)
        outcomes.append(_compare(opcode, operation, sources, silicon, executor))
    return {
        "kind": "bench",
        "name": "conformance",
        "gpu": device.gpu_name,
        "arch": device.arch,
        "lanes": LANES,
        "isa_sha256": isa_sha256(),
        "opcodes": len(outcomes),
        "refused_by_ptxas": refused,
        "differing_opcodes": sum(outcome.differing > 0 for outcome in outcomes),
        "rows": [vars(outcome) for outcome in outcomes if outcome.differing or outcome.open_lanes],
    }


def isa_sha256() -> str:
    """SHA-256 over the sources of refmoe.ptx.isa: what the result of a run speaks for."""
    import hashlib

    from refmoe.ptx import isa

    digest = hashlib.sha256()
    for file in sorted(Path(isa.__file__).parent.glob("*.py")):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _source_kinds(operation: Operation) -> tuple[str, ...]:
    """Kinds of what is loaded: the sources, and the carry flag as a predicate."""
    return (*operation.sources, "pred") if operation.carry_in else operation.sources


def _result_kinds(operation: Operation) -> tuple[str, ...]:
    return (*operation.destinations, "b32") if operation.carry_out else operation.destinations


def _assemble(operations: Mapping[str, Operation], arch: str) -> tuple[dict[str, Operation], list[str], bytes]:
    """The opcodes that ptxas takes for `arch`, those that it refuses (an SM120 conversion on SM90, say), the cubin."""
    ptxas = find_toolchain().nvcc.resolve().parent / "ptxas"
    legal: dict[str, Operation] = dict(operations)
    refused: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "conformance.ptx", Path(folder) / "conformance.cubin"
        while True:
            text = _module(legal, arch)
            source.write_text(text)
            finished = subprocess.run([ptxas, f"-arch={arch}", source, "-o", cubin], capture_output=True, text=True)
            if finished.returncode == 0:
                return legal, sorted(refused), cubin.read_bytes()
            lines = text.splitlines()
            bad = set()
            for number in re.findall(r"line (\d+); (?:error|fatal)", finished.stdout + finished.stderr):
                # The entry that the line belongs to is named in the comment that ends the instruction's line.
                if found := re.search(r"// (\S+)$", lines[int(number) - 1]):
                    bad.add(found[1])
            if not bad:
                raise ToolchainError(f"ptxas refuses the conformance kernels: {finished.stderr[:2000]}")
            refused += bad
            legal = {opcode: operation for opcode, operation in legal.items() if opcode not in bad}


def _module(operations: Mapping[str, Operation], arch: str) -> str:
    entries = [_entry(index, opcode, operation) for index, (opcode, operation) in enumerate(operations.items())]
    return "\n".join([f".version {PTX_VERSION}", f".target {arch}", ".address_size 64", *entries]) + "\n"


def _entry(index: int, opcode: str, operation: Operation) -> str:
    """out[i] = opcode(in0[i], in1[i], ...)."""
    kinds, results = _source_kinds(operation), _result_kinds(operation)
    parameters = [f".param .u64 in{i}" for i in range(len(kinds))] + [
        f".param .u64 out{i}" for i in range(len(results))
    ]
    lines = [f".visible .entry k{index}({', '.join(parameters)}) {{"]
    lines += [".reg .b32 %index, %block; .reg .b64 %at, %base, %lane;"]
    lines += [".reg .pred %p<9>; .reg .b16 %s<9>; .reg .b32 %r<9>; .reg .b64 %d<9>;"]
    lines += ["mov.u32 %index, %tid.x; mov.u32 %block, %ctaid.x;"]
    lines += [f"mad.lo.u32 %index, %block, {CTA}, %index; cvt.u64.u32 %lane, %index;"]
    operands = []
    for i, kind in enumerate(kinds):
        held = HELD_IN[kind]
        operands.append(f"{REGISTERS[held]}{i}")
        lines += list(_load(i, kind, held))
    if operation.carry_in:  # 1 + 0xFFFFFFFF carries, 0 + 0xFFFFFFFF does not
        flag = operands.pop()
        lines += [f"selp.u32 %r8, 1, 0, {flag};", "add.cc.u32 %r8, %r8, 0xFFFFFFFF;"]
    if opcode.startswith("lop3"):
        operands[3] = "0x96"
    targets = [f"{REGISTERS[HELD_IN[kind]]}{5 + i}" for i, kind in enumerate(operation.destinations)]
    lines += [f"{opcode} {'|'.join(targets)}, {', '.join(operands)}; // {opcode}"]
    if operation.carry_out:
        targets.append("%r8")
        lines += ["addc.u32 %r8, 0, 0;"]
    for i, (kind, register) in enumerate(zip(results, targets, strict=True)):
        lines += list(_store(i, kind, register))
    return "\n".join([*lines, "ret;", "}"])


def _load(i: int, kind: str, held: str) -> Iterator[str]:
    size = 1 if kind in ("pred", "b8") else np.dtype(DTYPES[kind]).itemsize
    yield f"ld.param.u64 %base, [in{i}]; mad.lo.u64 %at, %lane, {size}, %base;"
    if kind == "pred":
        yield f"ld.global.u8 %s8, [%at]; setp.ne.u16 %p{i}, %s8, 0;"
    elif kind == "b8":
        yield f"ld.global.u8 %s{i}, [%at];"
    else:
        yield f"ld.global.{MEMORY[held]} {REGISTERS[held]}{i}, [%at];"


def _store(i: int, kind: str, register: str) -> Iterator[str]:
    held = HELD_IN[kind]
    size = 2 if held in ("pred", "b16") else np.dtype(DTYPES[held]).itemsize
    yield f"ld.param.u64 %base, [out{i}]; mad.lo.u64 %at, %lane, {size}, %base;"
    if kind == "pred":
        yield f"selp.u16 %s8, 1, 0, {register}; st.global.u16 [%at], %s8;"
    else:
        yield f"st.global.{MEMORY[held]} [%at], {register};"


def _result_dtype(kind: str) -> np.dtype[Any]:
    return np.dtype(np.uint16 if HELD_IN[kind] in ("pred", "b16") else DTYPES[HELD_IN[kind]])


def _operands(kind: str, seed: int) -> NDArray[Any]:
    """Bit patterns in which all that instructions distinguish occurs: a third random, a third corners of the integer
    and float formats of the width, a third close to those corners."""
    rng = np.random.default_rng(seed)
    if kind == "pred":
        return rng.integers(0, 2, LANES).astype(np.bool_)
    dtype = np.dtype(DTYPES[kind])
    bits = dtype.itemsize * 8
    random = np.frombuffer(rng.bytes(LANES * dtype.itemsize), dtype).copy()
    corners = np.array(sorted(_corners(bits)), dtype=np.uint64).astype(dtype)
    picked = corners[rng.integers(0, corners.size, LANES)]
    near = picked + rng.integers(-3, 4, LANES).astype(dtype)
    return np.choose(rng.integers(0, 3, LANES), [random, picked, near]).astype(dtype)


def _corners(bits: int) -> set[int]:
    """Zero, powers of two and their neighbours, and the limits, specials and small numbers of each float format."""
    mask = 2**bits - 1
    found = (
        {0, 1, mask, mask >> 1, (mask >> 1) + 1} | {1 << i for i in range(bits)} | {(1 << i) - 1 for i in range(bits)}
    )
    formats: Sequence[tuple[int, int]] = {8: [], 16: [(5, 10), (8, 7)], 32: [(8, 23)], 64: [(11, 52)]}[bits]
    for exponent_bits, fraction_bits in formats:
        top = (1 << exponent_bits) - 1
        bias = top >> 1
        for field in (0, 1, 2, bias - 10, bias - 1, bias, bias + 1, bias + 7, bias + fraction_bits, top - 1, top):
            for fraction in (0, 1, 1 << (fraction_bits - 1), (1 << fraction_bits) - 1, 3 << (fraction_bits - 2)):
                number = (max(field, 0) << fraction_bits) | fraction
                found |= {number & mask, (number | 1 << (bits - 1)) & mask}
    if bits == 32:  # pairs of halves, and the boundaries of narrow conversions
        halves = sorted(_corners(16))
        found |= {low | high << 16 for low in halves[:: len(halves) // 12] for high in halves[:: len(halves) // 12]}
        for value in (448.0, 464.0, 57344.0, 61440.0, 6.0, 0.25, 2**-9, 2**-10, 2**-16, 2**-17, 2147483648.0, 65520.0):
            found.add(int(np.float32(value).view(np.uint32)))
    return {number & mask for number in found}


def _run_on_executor(module: ptx.Module, index: int, operation: Operation, sources: Sequence[Any]) -> list[Any]:
    results = [np.zeros(LANES, _result_dtype(kind)) for kind in _result_kinds(operation)]
    inputs = [source.view(np.uint8) if source.dtype == np.bool_ else source for source in sources]
    ptx.launch(module, f"k{index}", grid=(LANES // CTA, 1, 1), block=(CTA, 1, 1), args=[*inputs, *results])
    return results


def _run_on_gpu(device: CudaDevice, handle: Any, index: int, operation: Operation, sources: Sequence[Any]) -> list[Any]:
    import ctypes

    torch = device.torch
    inputs = [device.upload("in", source) for source in sources]
    dtypes = [_result_dtype(kind) for kind in _result_kinds(operation)]
    results = [device.output("out", (LANES * dtype.itemsize,), 0) for dtype in dtypes]
    function = device.call("cuModuleGetFunction", handle, f"k{index}".encode())
    values = tuple(tensor.data_ptr() for tensor in (*inputs, *results))
    stream = torch.cuda.current_stream().cuda_stream
    shape = (LANES // CTA, 1, 1, CTA, 1, 1, 0)
    device.call("cuLaunchKernel", function, *shape, stream, (values, (ctypes.c_void_p,) * len(values)), 0)
    torch.cuda.synchronize()
    return [device.download(result).view(dtype) for result, dtype in zip(results, dtypes, strict=True)]


def _compare(
    opcode: str, operation: Operation, sources: Sequence[Any], silicon: Sequence[Any], executor: Sequence[Any]
) -> Outcome:
    differs = np.logical_or.reduce([a != b for a, b in zip(silicon, executor, strict=True)])
    claimed = np.ones(LANES, np.bool_)
    if operation.exact_when is not None:
        with np.errstate(all="ignore"):
            claimed = np.broadcast_to(operation.exact_when(*sources[: len(operation.sources)]), (LANES,))
    first = None
    if differs.any():
        places = np.flatnonzero(differs & claimed)
        place = int(places[0] if places.size else np.flatnonzero(differs)[0])
        found = [" ".join(f"{int(array[place]):#x}" for array in group) for group in (sources, silicon, executor)]
        first = f"operands {found[0]}: GPU {found[1]}, executor {found[2]}"
    return Outcome(
        opcode,
        differing=int((differs & claimed).sum()),
        open_lanes=int((~claimed).sum()),
        open_differing=int((differs & ~claimed).sum()),
        first=first,
    )
