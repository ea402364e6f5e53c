"""The options of a layer in pairs: few cases in which any two values of two options meet.

Launch code that ignores one option beside another, or looks it up at the wrong launch, shows only in a case that has
both. All options of a layer together would be thousands of cases; every two of them are some thirty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Choices = Mapping[str, Sequence[Any]]
#: Whether values go together; of some options alone too.
Allowed = Callable[[Mapping[str, Any]], bool]
Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairs_of(chosen: Mapping[str, Any], names: Sequence[str]) -> Iterator[Pair]:
    """Any two of `names` that are chosen, each with its value, in their order."""
    return combinations([(name, chosen[name]) for name in names if name in chosen], 2)


def allowed_pairs(choices: Choices, allowed: Allowed) -> Iterator[Pair]:
    """Every two values of different options that go together."""
    for one, other in combinations(choices, 2):
        for values in product(choices[one], choices[other]):
            pair = ((one, values[0]), (other, values[1]))
            if allowed(dict(pair)):
                yield pair


def pairwise(choices: Choices, allowed: Allowed = lambda _: True) -> Iterator[dict[str, Any]]:
    """Values of all options, so often that every two that go together have come; the same ones each time.

    Each begins with the first pair that is missing, and takes of the next option the value that meets most of what is
    missing.

    Args:
        choices: the values of each option.
        allowed: whether values go together. What it refuses, it has to refuse for a pair among them.

    Raises:
        ValueError: an option has no value that goes with those of the others.
    """
    names = tuple(choices)
    missing = dict.fromkeys(allowed_pairs(choices, allowed))
    while missing:
        chosen: dict[str, Any] = dict(next(iter(missing)))
        for name in names:
            if name in chosen:
                continue
            fitting = [{**chosen, name: value} for value in choices[name] if allowed({**chosen, name: value})]
            if not fitting:
                raise ValueError(f"no {name} goes with {chosen}")
            chosen = max(fitting, key=lambda each: sum(pair in missing for pair in pairs_of(each, names)))
        for pair in pairs_of(chosen, names):
            missing.pop(pair, None)
        yield {name: chosen[name] for name in names}


def gates_agree(chosen: Mapping[str, Any]) -> bool:
    """SiLU has no parameters."""
    return chosen.get("variant") != "silu" or chosen.get("params", "none") == "none"


#: Of `moe`: how tokens come and are quantized, what an expert has of its own, and which rank this is.
MOE: Choices = {
    "path": ("separate", "fused", "ready"),
    "dtype": ("bf16", "fp16"),
    "variant": ("gpt_oss", "silu"),
    "mode": ("rceil", "floor"),
    "edge": ("exact", "flashinfer"),
    "params": ("none", "distinct", "alpha", "beta", "limit"),
    "bias": ("none", "distinct", "first", "second"),
    "input_sf": ("linear", "128x4"),
    "global_scales": ("none", "distinct", "first", "second"),
    "tp_rank": (0, 1),
    "min_latency": ("no", "yes"),
    "entry": ("launches", "function", "output"),
    "first_expert": (0, 3),
}

#: The same for tokens that are infinities and NaN, which global scales are not for: the reference multiplies block
#: scales by them, so a sum that overflows before its factor does not overflow there.
ODD_MOE: Choices = {name: values for name, values in MOE.items() if name != "global_scales"}


def moe_agrees(chosen: Mapping[str, Any]) -> bool:
    """Scales in atoms come with ready tokens, which are MXFP8 and no FP16."""
    ready = chosen.get("path", "ready") == "ready"
    of_ready = chosen.get("input_sf", "linear") == "linear" or (ready and chosen.get("dtype") != "fp16")
    return gates_agree(chosen) and of_ready and not (chosen.get("path") == "ready" and chosen.get("dtype") == "fp16")


#: Of `integer_moe`: the products' path, whether the layer begins or ends in the middle of a chain, and as above.
INTEGER_MOE: Choices = {
    "path": ("dp4a", "llama_cpp"),
    "dtype": ("bf16", "q8_1"),
    "output": ("bf16", "q8_1"),
    "variant": ("gpt_oss", "silu"),
    "params": MOE["params"],
    "bias": MOE["bias"],
    "global_scales": MOE["global_scales"],
    "first_expert": (0, 3),
}


def integer_moe_agrees(chosen: Mapping[str, Any]) -> bool:
    """Q8_1 outside of a layer is llama.cpp's alone."""
    chain = "q8_1" in (chosen.get("dtype"), chosen.get("output"))
    return gates_agree(chosen) and not (chain and chosen.get("path") == "dp4a")


#: Of `deepseek_moe`: the instruction, the router, what systems do differently, and the shared expert.
DEEPSEEK_MOE: Choices = {
    "model": ("sm120", "sm90_mma_fp8", "sm90_wgmma_fp8"),
    "router": ("logits", "given", "bf16", "unbiased", "biased-bf16"),
    "rule": ("deepseek", "trtllm"),
    "policy": ("deepgemm", "exact"),
    "scales": ("fp32", "ue8m0"),
    "order": ("fp32", "bf16"),
    "shared": ("added", "none", "one"),
    "layout": ("k_major", "mn_major"),
    "entry": ("launches", "function", "layer"),
    "first_expert": (0, 4),
}
