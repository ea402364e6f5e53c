"""Bytes that the launches of a layer read and write: what a plan says of them, against a count of its own.

A plan says what each launch moves (`refmoe.cuda.moe.launches.LaunchStep`), and benchmarks divide that by its time. Here
a launch is a list of buffers and of what it touches of each, a byte counted once: the rows of all tokens, the rows that
experts have, the experts that have rows. What a plan says has to be the same, however the rows are spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.errors import RefmoeError
from refmoe.families.family import Case, Inputs
from refmoe.formats import BLOCK_FP8, MX_BLOCK, Q8_1
from refmoe.reference.layout import SCALE_LAYOUTS
from refmoe.reference.moe.paths import path_steps

#: What a launch touches of a buffer, by its name.
Touched = Mapping[str, str]


@dataclass(frozen=True)
class LaunchTouches:
    """What a launch of a layer touches: of each buffer what `_counted` lists."""

    reads: Touched
    writes: Touched
    conversions: tuple[str, ...]


@dataclass(frozen=True)
class LayerTraffic:
    """The launches of a layer.

    Attributes:
        case: of the layer.
        unit: bytes by buffer: of a token, a choice, a row of an expert, an expert, or a first row.
        launches: by stage, in their order.
    """

    case: Case
    unit: Mapping[str, int]
    launches: Mapping[str, LaunchTouches]

    def check(self, steps: Sequence[Any]) -> None:
        """Hold what a plan says of its launches against this.

        Args:
            steps: `refmoe.cuda.moe.launches.LaunchStep`.

        Raises:
            RefmoeError: the first launch that says something else.
        """
        due = list(self.launches) if self.case.shape.m else []
        if (stages := [step.stage for step in steps]) != due:
            raise RefmoeError(f"the launches are {', '.join(stages) or 'none'}; due are {', '.join(due) or 'none'}")
        for step in steps:
            launch = self.launches[step.stage]
            for name, said, wanted in (
                ("outputs", step.outputs, tuple(launch.writes)),
                ("conversions", step.conversions, launch.conversions),
            ):
                if said != wanted:
                    raise RefmoeError(f"{step.stage} says that its {name} are {said}; they are {wanted}")
            for load in self.loads():
                traffic = step.traffic(load)
                for name, moved, touched in (
                    ("reads", traffic.reads, launch.reads),
                    ("writes", traffic.writes, launch.writes),
                ):
                    self._compare(f"{step.stage} {name}", load, moved, touched)

    def loads(self) -> tuple[tuple[int, ...], ...]:
        """Rows of each expert: of none, of the first or the last alone, of all as evenly as it goes."""
        size = self.case.shape
        alone = (size.m,) + (0,) * (size.e - 1)
        # A token has an expert once at most.
        even = tuple(min(size.m, rows) for rows in (np.bincount(np.arange(size.rows) % size.e, minlength=size.e)))
        return (0,) * size.e, alone, alone[::-1], tuple(map(int, even))

    def _compare(self, said: str, load: Sequence[int], moved: Mapping[str, int], touched: Touched) -> None:
        counts = _counted(self.case, load)
        due = {buffer: self.unit[buffer] * counts[what] for buffer, what in touched.items()}
        for buffer in (*due, *moved):
            if (found := moved.get(buffer, 0)) != due.get(buffer, 0):
                what = f"{found} bytes of {buffer} with experts of {', '.join(map(str, load))} rows"
                raise RefmoeError(f"a plan says that {said} {what}; it is {due.get(buffer, 0)}")


def _counted(case: Case, load: Sequence[int]) -> Mapping[str, int]:
    """How many of what there is under a load."""
    size, used = case.shape, sum(load)
    own = {expert for expert, rows in enumerate(load) if rows}
    atom = SCALE_LAYOUTS["128x4"].row_atom
    return {
        "all": 1,
        "both rows": 2,
        "tokens": size.m,
        "choices": size.rows,
        "tokens if any is here": size.m if used else 0,
        "rows": used,
        "experts": len(own),
        "atoms of rows": sum(-(-rows // atom) * atom for rows in load),
        "first rows": size.e + 1,
        "ends": size.e,
        # A token alone has the first row of its expert. What is not here looks up the first expert's.
        "first rows of choices": len(own | ({0} if used < size.rows else set())) if size.m > 1 else 0,
        # A row compares itself with all ends, and reads where its expert begins. No row reads the last end alone.
        "first rows of rows": len({*range(1, size.e + 1), *own}) if used else 1,
    }


def _present(touched: Touched, inputs: Inputs) -> Touched:
    """What a launch touches, without what the caller left out."""
    return {buffer: what for buffer, what in touched.items() if inputs.get(buffer, buffer) is not None}


def _padded(count: int, step: int) -> int:
    return -(-count // step) * step


_PERMUTED = {"offsets": "first rows", "permuted_to_unpermuted": "choices", "unpermuted_to_permuted": "choices"}
_SWIGLU = dict.fromkeys(("swiglu_alpha", "swiglu_beta", "swiglu_limit"), "experts")


def _common(case: Case) -> dict[str, int]:
    """Bytes of what every layer has."""
    choices = dict.fromkeys(("topk_ids", "topk_weights", "permuted_to_unpermuted", "unpermuted_to_permuted"), 4)
    factors = dict.fromkeys(("gate_up_alpha", "down_alpha", *_SWIGLU), 4)
    return {**choices, **factors, "offsets": 8, "gate_up_bias": 2 * 2 * case.shape.n, "down_bias": 2 * case.shape.k}


def mx_traffic(case: Case, inputs: Inputs) -> LayerTraffic:
    """A layer of MXFP8 tokens and MXFP4 weights, see the family `moe`."""
    k, n = case.shape.k, case.shape.n
    rows_of_scales, columns = SCALE_LAYOUTS["128x4"].row_atom, SCALE_LAYOUTS["128x4"].column_atom
    wide, narrow = _padded(k // MX_BLOCK, columns), _padded(n // MX_BLOCK, columns)
    unit = {
        **_common(case),
        **{"x": inputs["x"].itemsize * k, "input_sf": k // MX_BLOCK},
        **{"quantize_codes": k, "quantize_scales": k // MX_BLOCK, "expand_codes": k, "expand_scales": wide},
        **{"gate_up": 2 * n * k // 2, "gate_up_scales": _padded(2 * n, rows_of_scales) * wide, "gemm1_out": 2 * 2 * n},
        **{"activation_codes": n, "activation_scales": narrow},
        **{"down": k * n // 2, "down_scales": _padded(k, rows_of_scales) * narrow, "gemm2_out": 2 * k, "out": 2 * k},
    }
    converted = {step.stage: step.conversions for step in path_steps("cutlass", case.path)}
    separate = case.path == "separate"
    codes, scales = ("quantize_codes", "quantize_scales") if separate else ("x", "input_sf")
    quantized = {"quantize_codes": "tokens", "quantize_scales": "tokens"}
    maps = {"topk_ids": "choices", "unpermuted_to_permuted": "choices"}
    given = {**inputs, "quantize_scales": "of a launch"}
    touched: dict[str, tuple[Touched, Touched]] = {
        "permute": ({"topk_ids": "choices"}, _PERMUTED),
        **({"quantize": ({"x": "tokens"}, quantized)} if separate else {}),
        "expand": (
            {codes: "tokens", scales: "tokens", **maps, "offsets": "first rows of choices"},
            {"expand_codes": "rows", "expand_scales": "rows"},
        ),
        "gemm1": (_weights("gate_up", "expand") | {"gate_up_bias": "experts"}, {"gemm1_out": "rows"}),
        "activation": (
            {"gemm1_out": "rows", "offsets": "first rows of rows", **_SWIGLU},
            {"activation_codes": "rows", "activation_scales": "rows"},
        ),
        "gemm2": (_weights("down", "activation"), {"gemm2_out": "rows"}),
        "finalize": (_sums(inputs), {"out": "tokens"}),
    }
    launches = {
        stage: LaunchTouches(
            _present(reads, given),
            writes,
            tuple(word.replace("BF16 -> MXFP8", f"{case.dtype.upper()} -> MXFP8") for word in converted.get(stage, ())),
        )
        for stage, (reads, writes) in touched.items()
    }
    return LayerTraffic(case, unit, launches)


def _weights(name: str, source: str) -> dict[str, str]:
    """What a product of MX reads; scales of rows come by whole atoms."""
    weights = dict.fromkeys((name, f"{name}_scales", f"{name}_alpha"), "experts")
    return {**weights, f"{source}_codes": "rows", f"{source}_scales": "atoms of rows", "offsets": "first rows"}


def _sums(inputs: Inputs) -> dict[str, str]:
    """What finalize reads; ids only for the bias, which is an expert's."""
    reads = {"gemm2_out": "rows", "unpermuted_to_permuted": "choices", "topk_weights": "choices"}
    biased = {"topk_ids": "choices", "down_bias": "experts"}
    return reads if inputs["down_bias"] is None else {**reads, **biased}


def integer_traffic(case: Case, inputs: Inputs, quantization: str) -> LayerTraffic:
    """A layer by integer products, see the family `integer_moe`.

    Args:
        case: the case.
        inputs: its inputs.
        quantization: of its tokens, "separate" or "ready".
    """
    k, n, ready = case.shape.k, case.shape.n, quantization == "ready"
    product = {"dp4a": 2, "llama_cpp": 4}[case.path]
    halves = {name: 2 * width // Q8_1.block for name, width in (("quantize", k), ("activation", n), ("out", k))}
    unit = {
        **_common(case),
        **{"x": inputs["x"].itemsize * k, "input_sf": 2 * k // Q8_1.block, "quantize_codes": k, "activation_codes": n},
        **{f"{name}_{half}": size for name, size in halves.items() for half in ("d", "s")},
        **{"gate_up": 2 * n * k // 2, "gate_up_scales": 2 * n * k // MX_BLOCK, "gemm1_out": product * 2 * n},
        **{"down": k * n // 2, "down_scales": k * n // MX_BLOCK, "gemm2_out": product * k},
        "out": k if case.output == "q8_1" else 2 * k,
    }
    codes, d = ("x", "input_sf") if ready else ("quantize_codes", "quantize_d")
    here = {"topk_ids": "choices", "unpermuted_to_permuted": "rows"}
    first = dict.fromkeys((codes, d), "tokens if any is here")
    second = {"activation_codes": "rows", "activation_d": "rows"}

    def blocks(name: str, count: str) -> Touched:
        return dict.fromkeys((f"{name}_codes", f"{name}_d", f"{name}_s"), count)

    def weights(name: str) -> dict[str, str]:
        return dict.fromkeys((name, f"{name}_scales", f"{name}_alpha"), "experts")

    out = {"out": "tokens", **({"out_d": "tokens", "out_s": "tokens"} if case.output == "q8_1" else {})}
    touched: dict[str, tuple[Touched, Touched]] = {
        "permute": ({"topk_ids": "choices"}, _PERMUTED),
        **({} if ready else {"quantize": ({"x": "tokens"}, blocks("quantize", "tokens"))}),
        "gemm1": ({**weights("gate_up"), "gate_up_bias": "experts", **first, **here}, {"gemm1_out": "rows"}),
        "activation": ({"gemm1_out": "rows", "offsets": "ends", **_SWIGLU}, blocks("activation", "rows")),
        "gemm2": ({**weights("down"), **second, **here}, {"gemm2_out": "rows"}),
        "finalize": (_sums(inputs), out),
    }
    converted = {step.stage: step.conversions for step in path_steps(case.path, quantization, case.output)}
    launches = {
        stage: LaunchTouches(_present(reads, inputs), writes, converted.get(stage, ()))
        for stage, (reads, writes) in touched.items()
    }
    return LayerTraffic(case, unit, launches)


def block_fp8_traffic(case: Case, inputs: Inputs, shared: int) -> LayerTraffic:
    """A DeepSeek-V3 layer in block FP8, see the family `deepseek_moe`.

    Args:
        case: the case.
        inputs: its inputs.
        shared: intermediate size of the shared expert, 0 without one.
    """
    k, n, experts = case.shape.k, case.shape.n, case.shape.e * case.ranks
    logits = inputs["logits"]
    tile = BLOCK_FP8["128x128"].columns
    unit = _common(case)
    unit |= {"x": 2 * k, "out": 2 * k, "token_rows": 8, "correction_bias": 4 * experts}
    unit |= {"logits": 0 if logits is None else logits.itemsize * experts}
    for prefix, source, width in (("", "expand", n), ("shared_", "expand_token", shared)):
        for name, size in ((source, k), (f"{prefix}activation", width)):
            unit |= {f"{name}_codes": size, f"{name}_scales": 4 * size // tile}
        for name, n_, k_ in ((f"{prefix}gate_up", 2 * width, k), (f"{prefix}down", k, width)):
            unit |= {name: n_ * k_, f"{name}_scales": 4 * (n_ // tile) * (k_ // tile)}
        unit |= {f"{prefix}gemm1_out": 2 * 2 * width, f"{prefix}gemm2_out": 2 * k}

    def rows(name: str, count: str) -> Touched:
        return {f"{name}_codes": count, f"{name}_scales": count}

    def layer(prefix: str, source: str) -> dict[str, tuple[Touched, Touched]]:
        count, each, starts = ("tokens", "all", "token_rows") if prefix else ("rows", "experts", "offsets")
        ends, last = "both rows" if prefix else "first rows", "all"
        stages = {}
        for stage, weights, read in (("gemm1", "gate_up", source), ("gemm2", "down", f"{prefix}activation")):
            operand = dict.fromkeys((f"{prefix}{weights}", f"{prefix}{weights}_scales"), each)
            stages[stage] = {**operand, **rows(read, count), starts: ends}, {f"{prefix}{stage}_out": count}
        activation = {f"{prefix}gemm1_out": count, starts: last}, rows(f"{prefix}activation", count)
        return {
            f"{prefix}gemm1": stages["gemm1"],
            f"{prefix}activation": activation,
            f"{prefix}gemm2": stages["gemm2"],
        }

    chosen = {"topk_ids": "choices", "topk_weights": "choices"}
    router = {"logits": "tokens", **({} if inputs["bias"] is None else {"correction_bias": "all"})}
    maps = {"unpermuted_to_permuted": "choices"}
    tokens = rows("expand_token", "tokens") if shared else {}
    always = {"shared_gemm2_out": "tokens"} if shared else {}
    touched: dict[str, tuple[Touched, Touched]] = {
        **({} if logits is None else {"route": (router, chosen)}),
        "permute": ({"topk_ids": "choices"}, _PERMUTED),
        "expand": ({"x": "tokens", **maps}, {**rows("expand", "rows"), **tokens}),
        **layer("", "expand"),
        **(layer("shared_", "expand_token") if shared else {}),
        "finalize": ({"gemm2_out": "rows", **maps, "topk_weights": "choices", **always}, {"out": "tokens"}),
    }
    converted = {step.stage: step.conversions for step in path_steps("deepseek_fp8")}
    launches = {
        stage: LaunchTouches(reads, writes, converted.get(stage.removeprefix("shared_"), ()))
        for stage, (reads, writes) in touched.items()
    }
    return LayerTraffic(case, unit, launches)
