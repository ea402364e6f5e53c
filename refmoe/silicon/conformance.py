"""The executor against silicon, one instruction at a time.

For every instruction that the executor knows and the GPU's ptxas accepts, one small kernel runs it on random and on
adversarial operands, on the GPU and, from the same PTX, on the executor. The bytes are compared. Lanes whose result the
executor does not claim to be exact (approximate instructions, results that the manual leaves open) are compared too,
and counted apart. On a Hopper GPU the products of warpgroups follow: every type, with A from shared memory and from
registers, and matrix descriptors of any fields.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refmoe import ptx
from refmoe.cuda.device import CudaDevice
from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.reports.conformance import CONFORMANCE, isa_sha256
from refmoe.reports.documents import digest_of
from refmoe.silicon.operands import operands
from refmoe.silicon.probes import CTA, Probe, all_probes, module_text, stored_dtype
from refmoe.silicon.wgmma import TARGET, Draw, all_draws, module_text_of

#: Differing lanes that a row of the document shows.
_EXAMPLES = 6

Progress = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Outcome:
    """What became of one instruction.

    Attributes:
        opcode: the full spelling, and a constant operand after it.
        lanes: lanes compared.
        differing: those whose result is claimed exact and differs.
        open_lanes: those whose result is not claimed exact.
        open_differing: those of them that differ.
        examples: some of the lanes that differ, claimed ones if there are any: operands and results in hexadecimal.
    """

    opcode: str
    lanes: int
    differing: int
    open_lanes: int
    open_differing: int
    examples: tuple[str, ...]


def run(progress: Progress = iter) -> dict[str, Any]:
    """Compare every instruction on the current GPU with the executor and return a JSON-able document.

    Args:
        progress: wraps the instructions that are gone through, to show how far it is.

    Raises:
        DeviceUnavailable: no GPU that the kernels are built for.
        ToolchainError: no nvcc, or ptxas refuses more than single instructions.
    """
    device = CudaDevice()
    probes, refused, cubin = _assemble(all_probes(), device.arch)
    module = ptx.Module.parse(module_text(probes, device.arch), name="conformance.ptx")
    handle = device.call("cuModuleLoadData", cubin)
    outcomes = []
    for index, probe in progress(list(enumerate(probes))):
        sources = operands(probe.name, probe.sources)
        silicon = _run_on_gpu(device, handle, f"k{index}", probe, sources)
        executor = run_on_executor(module, f"k{index}", probe, sources)
        outcomes.append(compare(probe, sources, silicon, executor))
    if device.arch == TARGET:
        outcomes += _products(device, progress)
    return document_of(outcomes, refused, gpu=device.gpu_name, arch=device.arch)


def _products(device: CudaDevice, progress: Progress) -> list[Outcome]:
    """What became of the products of warpgroups, all of which ptxas takes."""
    drawn = all_draws()
    text = module_text_of(list(drawn))
    handle = device.call("cuModuleLoadData", assembled(text, device.arch))
    module = ptx.Module.parse(text, name="products.ptx")
    return [
        compare_products(
            str(entry),
            [(draw, _multiply_on_gpu(device, handle, f"w{index}", draw)) for draw in draws],
            lambda draw, name=f"w{index}": multiply_on_executor(module, name, draw),  # type: ignore[misc]
        )
        for index, (entry, draws) in progress(list(enumerate(drawn.items())))
    ]


def multiply_on_executor(module: ptx.Module, entry: str, draw: Draw) -> Any:
    """The accumulators of all blocks of a draw on the executor, uint32 [blocks, registers, 128]."""
    sums = draw.entry.packed(draw.sums)
    arguments = [draw.image, draw.places, np.ascontiguousarray(draw.rows), sums]
    # What the blocks do with each other is none of a product's: looking for races takes half of the time.
    checks = ptx.Checks(races=False)
    ptx.launch(module, entry, grid=(len(draw.places), 1, 1), block=(CTA // 2, 1, 1), args=arguments, checks=checks)
    return draw.entry.unpacked(sums)


def _multiply_on_gpu(device: CudaDevice, handle: Any, entry: str, draw: Draw) -> Any:
    arrays = [draw.image, draw.places, np.ascontiguousarray(draw.rows), draw.entry.packed(draw.sums)]
    tensors = [device.upload("in", array.reshape(-1)) for array in arrays]
    _launch(device, handle, entry, len(draw.places), CTA // 2, tensors)
    return draw.entry.unpacked(device.download(tensors[-1]).view(np.uint32))


def compare_products(name: str, silicon: Sequence[tuple[Draw, Any]], executor: Callable[[Draw], Any]) -> Outcome:
    """Count the registers of D that differ, each of one lane, over all draws of an entry."""
    lanes, differing = 0, 0
    examples: list[str] = []
    for draw, expected in silicon:
        found = executor(draw)
        lanes += found.size
        differs = np.argwhere(found != expected)
        differing += len(differs)
        for block, register, lane in differs[: max(0, _EXAMPLES - len(examples))].tolist():
            a, b, adds = (int(value) for value in draw.places[block])
            words = [f"{int(each[block, register, lane]):#x}" for each in (expected, found)]
            where = f"descriptors {a:#x} {b:#x}, D {'added' if adds else 'not added'}, register {register} lane {lane}"
            examples.append(f"{where}: GPU {words[0]}, executor {words[1]}")
    return Outcome(name, lanes, differing, 0, 0, tuple(examples))


def document_of(outcomes: Sequence[Outcome], refused: Sequence[str], *, gpu: str, arch: str) -> dict[str, Any]:
    """The document of a run: totals, and a row for each instruction with differing or open lanes."""
    document: dict[str, Any] = {
        "kind": CONFORMANCE.name,
        "gpu": gpu,
        "arch": arch,
        "isa_sha256": isa_sha256(),
        "opcodes": len(outcomes),
        "lanes": sum(outcome.lanes for outcome in outcomes),
        "open_lanes": sum(outcome.open_lanes for outcome in outcomes),
        "refused_by_ptxas": list(refused),
        "differing_opcodes": sum(outcome.differing > 0 for outcome in outcomes),
        "rows": [
            {**asdict(outcome), "examples": list(outcome.examples)}
            for outcome in outcomes
            if outcome.differing or outcome.open_lanes
        ],
    }
    return {**document, "digest": digest_of(document)}


def summary(document: Mapping[str, Any]) -> str:
    """What a run found, in lines: every instruction that differs with an example, and the totals."""
    lines = [
        f"MISMATCH {row['opcode']}: {row['differing']} of {row['lanes']} lanes differ; {row['examples'][0]}"
        for row in document["rows"]
        if row["differing"]
    ]
    refused, still_open = len(document["refused_by_ptxas"]), sum(row["open_lanes"] > 0 for row in document["rows"])
    lines.append(
        f"{document['opcodes']} instructions on {document['gpu']} ({document['arch']}), {document['lanes']:,} lanes: "
        f"{document['differing_opcodes']} differ; of {still_open} some results are not claimed exact "
        f"({document['open_lanes']:,} lanes); {refused} are not of this arch"
    )
    return "\n".join(lines) + "\n"


def _assemble(probes: Sequence[Probe], arch: str) -> tuple[list[Probe], list[str], bytes]:
    """The probes that ptxas takes for `arch`, those that it refuses (an SM120 conversion on SM90, say), the cubin."""
    legal, refused = list(probes), set[str]()
    while True:
        text = module_text(legal, arch)
        cubin, said = _ptxas(text, arch)
        if cubin is not None:
            return legal, sorted(refused), cubin
        lines = text.splitlines()
        found = (
            re.search(r"// (.+)$", lines[int(number) - 1])
            for number in re.findall(r"line (\d+); (?:error|fatal)", said)
        )
        bad = {match[1] for match in found if match}
        if not bad:
            raise ToolchainError(f"ptxas refuses the conformance kernels: {said[:2000]}")
        refused |= bad
        legal = [probe for probe in legal if probe.name not in bad]


def assembled(text: str, arch: str) -> bytes:
    """A cubin of PTX that ptxas has to take.

    Raises:
        ToolchainError: it does not.
    """
    cubin, said = _ptxas(text, arch)
    if cubin is None:
        raise ToolchainError(f"ptxas refuses the conformance kernels: {said[:2000]}")
    return cubin


def _ptxas(text: str, arch: str) -> tuple[bytes | None, str]:
    """The cubin of PTX, or None, and what ptxas said."""
    ptxas = find_toolchain().nvcc.resolve().parent / "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "conformance.ptx", Path(folder) / "conformance.cubin"
        source.write_text(text)
        finished = subprocess.run([ptxas, f"-arch={arch}", source, "-o", cubin], capture_output=True, text=True)
        return (cubin.read_bytes() if finished.returncode == 0 else None), finished.stdout + finished.stderr


def run_on_executor(module: ptx.Module, entry: str, probe: Probe, sources: Sequence[Any]) -> list[Any]:
    """The results of a probe's entry on the executor, one array each."""
    lanes = len(sources[0])
    results = [np.zeros(lanes, stored_dtype(kind)) for kind in probe.results]
    inputs = [source.view(np.uint8) if source.dtype == np.bool_ else source for source in sources]
    ptx.launch(module, entry, grid=(lanes // CTA, 1, 1), block=(CTA, 1, 1), args=[*inputs, *results])
    return results


def _run_on_gpu(device: CudaDevice, handle: Any, entry: str, probe: Probe, sources: Sequence[Any]) -> list[Any]:
    lanes = len(sources[0])
    inputs = [device.upload("in", source) for source in sources]
    dtypes = [stored_dtype(kind) for kind in probe.results]
    results = [device.output("out", (lanes * dtype.itemsize,), 0) for dtype in dtypes]
    _launch(device, handle, entry, lanes // CTA, CTA, [*inputs, *results])
    return [device.download(result).view(dtype) for result, dtype in zip(results, dtypes, strict=True)]


def _launch(device: CudaDevice, handle: Any, entry: str, blocks: int, threads: int, tensors: Sequence[Any]) -> None:
    """Launch an entry of a loaded module on the GPU with the addresses of tensors, and wait for its end."""
    function = device.call("cuModuleGetFunction", handle, entry.encode())
    values = tuple(tensor.data_ptr() for tensor in tensors)
    stream = device.torch.cuda.current_stream().cuda_stream
    arguments = (values, (ctypes.c_void_p,) * len(values))
    device.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, 0)
    device.torch.cuda.synchronize()


def compare(probe: Probe, sources: Sequence[Any], silicon: Sequence[Any], executor: Sequence[Any]) -> Outcome:
    """Count the lanes in which any result differs, claimed and open ones apart."""
    differs = np.logical_or.reduce([a != b for a, b in zip(silicon, executor, strict=True)])
    claimed = np.ones_like(differs)
    if probe.exact_when is not None:
        with np.errstate(all="ignore"):
            claimed = np.broadcast_to(probe.exact_when(*sources), differs.shape)
    wrong = differs & claimed
    places = np.flatnonzero(wrong if wrong.any() else differs)
    spread = places[np.linspace(0, places.size - 1, min(places.size, _EXAMPLES)).astype(int)] if places.size else places

    def show(lane: int) -> str:
        found = [" ".join(f"{int(array[lane]):#x}" for array in group) for group in (sources, silicon, executor)]
        return f"operands {found[0]}: GPU {found[1]}, executor {found[2]}"

    return Outcome(
        probe.name,
        lanes=differs.size,
        differing=int(wrong.sum()),
        open_lanes=int((~claimed).sum()),
        open_differing=int((differs & ~claimed).sum()),
        examples=tuple(show(int(lane)) for lane in spread),
    )
