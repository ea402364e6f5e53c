"""The paths that can be set side by side, and their names.

    BACKEND[:separate|fused][:POLICY][:ARCH]     cutlass:fused, cutlass:fused:even/flashinfer, marlin:sm_120a
    deepseek_fp8[:SYSTEM][:ARCH]                 by the rules of a system, deepseek_fp8:trtllm:sm_100a
    llama_cpp:q8_1[:ARCH]                        the experts' output is Q8_1, and the decoder adds what that stands for
    formula                                      `moe_float64`, rounded to FP32, then BF16

What is left out is separate, RCEIL with exact edges, an output in BF16, and the backend's first architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.chips import CHIPS
from refmoe.errors import ArgumentError
from refmoe.policy import EdgePolicy, ScaleMode, as_policy
from refmoe.reference.backends import BACKENDS, choose_backend
from refmoe.reference.deepseek.layer import SYSTEMS
from refmoe.reference.fp32 import bf16
from refmoe.reference.moe import moe_float64, moe_layer, path_steps
from refmoe.reference.moe.paths import PathStep, accumulation
from refmoe.reference.moe.pipeline import AnyLayer
from refmoe.reference.q8_1 import dequantize_q8_1

Array = NDArray[Any]

StagedMoE = Callable[[int, Array, AnyLayer], Mapping[str, Mapping[str, Array]]]
"""Layer number, BF16 [T, H] and the weights to every intermediate by stage and name, in the order in which they come;
the last stage is "finalize" with "out", BF16 [T, H]."""

FORMULA = "formula"
DEFAULT_PATHS = (
    *("cutlass:separate", "cutlass:fused", "marlin", "dp4a", "llama_cpp", "llama_cpp:q8_1"),
    *("cutlass:separate:floor", "nvfp4"),
)
#: Of a checkpoint whose experts are in NVFP4, gpt-oss's or DeepSeek's.
NVFP4_PATHS = ("nvfp4", "marlin", FORMULA)
#: Of a checkpoint of DeepSeek in FP8: the instructions of three chips, TensorRT-LLM's rules, and no rounding.
DEEPSEEK_PATHS = ("deepseek_fp8", "deepseek_fp8:sm_120a", "deepseek_fp8:trtllm:sm_100a", FORMULA)

_QUANTIZATIONS = ("separate", "fused")
_Q8_1 = "q8_1"
_SEPARATE = "separate"


class DriftPathError(ArgumentError):
    """A path whose name says nothing, or something that does not go together."""


@dataclass(frozen=True, eq=False)
class DriftPath:
    """One way to compute the mixtures of experts.

    Attributes:
        name: what it is called.
        run: computes one, stage by stage.
        arithmetic: paths of one arithmetic must give the same bits; None for one that need not equal any other.
        facts: what it is, as JSON values.
    """

    name: str
    run: StagedMoE
    arithmetic: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def named_paths(
    paths: Sequence[str] | None,
    policies: Sequence[str] | None,
    base: str | None,
    default: Sequence[str] = DEFAULT_PATHS,
) -> tuple[list[DriftPath], int]:
    """The paths of a command, and which of them is the base.

    Args:
        paths: names; None for the default, or for the base alone if there are policies.
        policies: scale policies; each adds the base's path with that policy.
        base: name of the base, added in front if it is not among the paths; None for the first path.
        default: the names where none are given.

    Raises:
        DriftPathError: a name that means nothing, two names of one path, or nothing to compare.
    """
    usual = default if policies is None else default[:1]
    found = [drift_path(name) for name in (usual if paths is None else paths)]
    if base is not None:
        chosen = drift_path(base)
        if chosen.name not in [path.name for path in found]:
            # A base alone says what the policies are varied on.
            found = [chosen] if paths is None and policies is not None else [chosen, *found]
        base = chosen.name
    if not found:
        raise DriftPathError("paths", "none", "at least two")
    first = next(index for index, path in enumerate(found) if base in (None, path.name))
    for policy in policies or ():
        facts = found[first].facts
        if facts.get("policy") is None:
            raise DriftPathError("policies", f"{policy} with {found[first].name}", "a base that quantizes activations")
        found.append(drift_path(f"{facts['backend']}:{facts['quantization']}:{policy}:{facts['arch']}"))
    names = [path.name for path in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DriftPathError("paths", f"{twice[0]} twice", "different paths")
    if len(found) < 2:
        raise DriftPathError("paths", f"{names[0]} alone", "at least two")
    return found, first


def drift_path(name: str) -> DriftPath:
    """The path of that name.

    Raises:
        DriftPathError: no such backend, a part that is none of quantization, policy and architecture or comes twice,
            or parts that do not go together.
    """
    if name.strip().lower() == FORMULA:
        return DriftPath(FORMULA, _formula, None, {"computes": "moe_float64, rounded to FP32 and then to BF16"})
    head, *parts = (part.strip().lower() for part in name.split(":"))
    if head not in BACKENDS:
        raise DriftPathError("paths", repr(name), f"{FORMULA}, or BACKEND[:...] with one of {', '.join(BACKENDS)}")
    given: dict[str, Any] = {}
    for part in parts:
        kind, value = _part(part, name)
        if kind in given:
            raise DriftPathError("paths", f"{name}, where {part} is a second {kind}", f"one {kind}")
        given[kind] = value
    try:
        return _path(head, given)
    except DriftPathError:
        raise
    except ArgumentError as error:
        raise DriftPathError("paths", f"{name}: {error.found}", error.needed) from None


def check_weights(path: DriftPath, weights: str) -> None:
    """Refuse a backend that does not take experts in that format, "mxfp4", "nvfp4" or "block_fp8".

    Raises:
        DriftPathError: it does not.
    """
    backend = path.facts.get("backend")
    if backend is not None and weights not in BACKENDS[backend].weights:
        taking = ", ".join(name for name, other in BACKENDS.items() if weights in other.weights)
        raise DriftPathError("paths", f"{path.name} with {weights} weights", f"{taking} or {FORMULA}")


def steps_told(steps: Sequence[PathStep]) -> dict[str, Any]:
    """Steps as a document tells them: the stages, and what becomes of the numbers."""
    return {
        "steps": [step.stage for step in steps],
        "conversions": [conversion for step in steps for conversion in step.conversions],
    }


def _path(backend: str, given: Mapping[str, Any]) -> DriftPath:
    quantization, arch = given.get("quantization", _SEPARATE), given.get("architecture")
    choose_backend(backend, arch)
    output = given.get("output", "bf16")
    steps = path_steps(backend, quantization, output)
    chosen, adds = accumulation(backend, arch)
    facts = {
        "backend": backend,
        "arch": chosen,
        "model": adds.model,
        "evidence": adds.evidence.value,
        **steps_told(steps),
    }
    where = [] if chosen == BACKENDS[backend].architectures[0] else [chosen]
    activations = BACKENDS[backend].activations
    system = given.get("system")
    if activations == "block_fp8":
        if given.keys() - {"system", "architecture"}:
            found = f"{backend} with a policy, a quantization or an output"
            raise DriftPathError("paths", found, f"none of them, or a system: {', '.join(SYSTEMS)}")
        named = [] if system in (None, "refmoe") else [system]
        rules = named[0] if named else "refmoe"
        run = _runner(backend, arch, rules=rules)
        return DriftPath(":".join([backend, *named, *where]), run, f"{adds.model} {rules}", {**facts, "system": rules})
    if system is not None:
        raise DriftPathError("paths", f"{backend} with {system}", "a system of deepseek_fp8 alone")
    if activations != "mxfp8":
        if given.keys() & {"policy", "quantization"}:
            found = f"{backend} with a policy or a quantization"
            raise DriftPathError("paths", found, f"neither: its activations are {activations.upper()}")
        if output == _Q8_1:
            name = ":".join([backend, _Q8_1, *where])
            return DriftPath(name, _q8_1_runner(backend, arch), f"{backend} {_Q8_1}", {**facts, "output": _Q8_1})
        arithmetic = f"bf16 {adds.model}" if activations == "bf16" else backend
        return DriftPath(":".join([backend, *where]), _runner(backend, arch), arithmetic, facts)
    mode, edge = given.get("policy", (ScaleMode.RCEIL, EdgePolicy.EXACT))
    policy = mode.value if edge is EdgePolicy.EXACT else f"{mode.value}/{edge.value}"
    named = [] if (mode, edge) == (ScaleMode.RCEIL, EdgePolicy.EXACT) else [policy]
    run = _runner(backend, arch, quantization=quantization, mode=mode, edge=edge)
    facts = {**facts, "quantization": quantization, "policy": policy}
    name = ":".join([backend, quantization, *named, *where])
    return DriftPath(name, run, f"mxfp8 {adds.model} {mode.value}/{edge.value}", facts)


def _runner(backend: str, arch: str | None, **options: Any) -> StagedMoE:
    def run(layer: int, x: Array, weights: AnyLayer) -> Mapping[str, Mapping[str, Array]]:
        return moe_layer(x, weights, path=backend, arch=arch, stages=True, **options).stages

    return run


def _q8_1_runner(backend: str, arch: str | None) -> StagedMoE:
    """The output in Q8_1, and as the decoder reads it: code times scale, rounded to BF16."""

    def run(layer: int, x: Array, weights: AnyLayer) -> Mapping[str, Mapping[str, Array]]:
        found = moe_layer(x, weights, path=backend, output=_Q8_1, arch=arch, stages=True)
        return {**found.stages, "finalize": {**found.stages["finalize"], "out": bf16(dequantize_q8_1(found.q8_1))}}

    return run


def _formula(layer: int, x: Array, weights: AnyLayer) -> Mapping[str, Mapping[str, Array]]:
    # A row at a time: a BLAS may add up a row differently when there are others.
    rows = np.concatenate([moe_float64(row[None], weights) for row in x])
    return {"finalize": {"out": bf16(rows.astype(np.float32))}}


def _part(part: str, name: str) -> tuple[str, Any]:
    """What a part of a name is, and its value."""
    if part in _QUANTIZATIONS:
        return "quantization", part
    if part in CHIPS:
        return "architecture", part
    if part == _Q8_1:
        return "output", part
    if part in SYSTEMS:
        return "system", part
    try:
        policy = as_policy(part, "mxfp8")
    except ArgumentError as error:
        words = (
            f"{' or '.join(_QUANTIZATIONS)}; {_Q8_1} of llama_cpp; trtllm of deepseek_fp8; one of {', '.join(CHIPS)}"
        )
        needed = f"{words}; or a policy: {error.needed}"
        raise DriftPathError("paths", f"{part!r} in {name}", needed) from None
    if policy.edge is None:
        found = f"{part!r} in {name}, whose rules are its own"
        raise DriftPathError("paths", found, "a policy with a mode and an edge")
    return "policy", (policy.mode, policy.edge)
