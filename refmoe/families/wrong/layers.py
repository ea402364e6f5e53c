"""The calls of a whole layer that have to be refused, by the names of FlashInfer's `cutlass_fused_moe`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from refmoe.families.wrong import ARRAY, BYTE, AnyCase, Arguments, Change, huge, wrong_calls

#: FlashInfer's arguments that say nothing here, at the values that turn them off.
TURNED_OFF: Mapping[str, object] = {
    **{"cluster_size": 1, "cluster_rank": 0, "enable_alltoall": False},
    **{"use_deepseek_fp8_block_scale": False, "use_w4_group_scaling": False, "use_packed_weights": False},
}


class _Tensor:
    """What stands for a tensor of torch, which need not be installed."""

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = f"torch.{dtype}", shape

    def is_contiguous(self) -> bool:
        """Yes."""
        return True


_Tensor.__module__ = "torch"


def _first_twice(given: Arguments) -> Arguments:
    """This rank's first expert twice in a token."""
    ids = given["token_selected_experts"].copy()
    ids[0, :2] = 4
    return {"token_selected_experts": ids}


def _last_twice(given: Arguments) -> Arguments:
    """This rank's last expert twice in a token."""
    ids = given["token_selected_experts"].copy()
    ids[-1, :2] = 7
    return {"token_selected_experts": ids}


def _past_32(given: Arguments) -> Arguments:
    """More experts a token than a warp has lanes, of ranks that have as many."""
    return {
        "token_selected_experts": np.tile(np.arange(33, dtype=np.int32), (3, 1)),
        "token_final_scales": np.zeros((3, 33), np.float32),
        "ep_size": 16,
    }


def _many_choices(given: Arguments) -> Arguments:
    """2^30 tokens of two choices each: more rows than int32 counts."""
    names = ("input", "token_selected_experts", "token_final_scales")
    return {name: huge((1 << 30, given[name].shape[1]), given[name]) for name in names}


def _no_choices(given: Arguments) -> Arguments:
    """No expert a token."""
    return {"token_selected_experts": np.zeros((3, 0), np.int32), "token_final_scales": np.zeros((3, 0), np.float32)}


def _half_a_block(given: Arguments) -> Arguments:
    """I of a block and a half, of both weights."""
    return {
        "fc1_expert_weights": np.zeros((4, 96, 32), np.uint8),
        "fc2_expert_weights": np.zeros((4, 64, 24), np.uint8),
        "fc1_expert_biases": None,
    }


def _longer_scales(given: Arguments) -> Arguments:
    """Block scales of the second product with an atom too many."""
    gate_up, one, down, other = given["quant_scales"]
    return {"quant_scales": [gate_up, one, np.zeros(down.nbytes + 512, np.uint8), other]}


def _second_limit(given: Arguments) -> Arguments:
    """A limit below 0 behind one of 0."""
    limit = given["swiglu_limit"].copy()
    limit[:2] = 0, -1
    return {"swiglu_limit": limit}


def _crowded(given: Arguments) -> Arguments:
    """More experts a token than there are, each once."""
    return {
        "token_selected_experts": np.tile(np.arange(5, dtype=np.int32), (3, 1)),
        "token_final_scales": np.zeros((3, 5), np.float32),
        "ep_size": 1,
        "ep_rank": 0,
    }


LAYER_CHANGES: Mapping[str, Change] = {
    **{f"{name}-on": lambda given, name=name: {name: 2} for name in TURNED_OFF},  # type: ignore[misc]
    "nonesuch-given": lambda given: {"nonesuch": 1},
    "device-word": lambda given: {"device": "nonesuch"},
    "device-with_tensors": lambda given: {"input": _Tensor("bfloat16", (3, 64))},
    "fc1_expert_biases-tensor": lambda given: {"fc1_expert_biases": _Tensor("bfloat16", (4, 64))},
    "output-tensor": lambda given: {"output": _Tensor("bfloat16", (3, 64))},
    "output-of_float": lambda given: {"output": np.zeros((3, 64), np.float32)},
    "token_selected_experts-first_twice": _first_twice,
    "token_selected_experts-last_twice": _last_twice,
    "token_selected_experts-past_32": _past_32,
    "token_selected_experts-no_choices": _no_choices,
    "token_selected_experts-many": _many_choices,
    "fc1_expert_weights-half_a_block": _half_a_block,
    "quant_scales-more": lambda given: {"quant_scales": [*given["quant_scales"], None]},
    "token_selected_experts-crowded": _crowded,
    "swiglu_limit-second": _second_limit,
    "swiglu_alpha-with_silu": lambda given: {"activation": "silu"},
    "swiglu_beta-with_silu": lambda given: {"activation": "silu", "swiglu_alpha": None},
    "swiglu_limit-with_silu": lambda given: {"activation": "silu", "swiglu_alpha": None, "swiglu_beta": None},
    "fc2_expert_weights-turned": lambda given: {"fc2_expert_weights": np.zeros((4, 16, 64), np.uint8)},
    "quant_scales[2]-longer": _longer_scales,
    "ep_size-many": lambda given: {"ep_size": 1 << 30},
    "input_sf-given": lambda given: {"input_sf": np.zeros((3, 2), np.uint8)},
    "input_sf-of_words": lambda given: {"input_sf": np.zeros(given["input_sf"].shape, np.int32)},
    "use_mxfp8_act_scaling-off": lambda given: {"use_mxfp8_act_scaling": False},
    "backend-reference": lambda given: {"backend": "trtllm"},
}


def wrong_layer_calls(base: AnyCase) -> Iterator[AnyCase]:
    """The calls of the layer's function that are refused.

    Args:
        base: a sound call of 3 tokens by the entry `function`, tokens of 64 BF16, this rank's experts 4 to 7.
    """
    yield from wrong_calls(
        base,
        {
            "nonesuch-given": "unexpected keyword argument 'nonesuch'",
            "device-with_tensors": "device: found",
            "swiglu_limit-second": "swiglu_limit: found -1.0 for expert 1",
            # Other refusals of the same argument would hide these.
            "token_selected_experts-past_32": "token_selected_experts: found k = 33",
            "token_selected_experts-no_choices": "token_selected_experts: found k = 0",
            "token_selected_experts-many": "token_selected_experts: found 2147483648 rows",
            "token_selected_experts-crowded": "token_selected_experts: found 5 experts a token of 4",
            "token_selected_experts-first_twice": "expert 4 twice in token 0",
            "token_selected_experts-last_twice": "expert 7 twice in token 2",
            "fc1_expert_weights-half_a_block": "I a multiple of 32",
        },
        input=f"{ARRAY} flat narrow no_columns",
        token_selected_experts=(
            f"{ARRAY} none flat short no_columns no_choices many first_twice last_twice past_32 crowded"
        ),
        token_final_scales=f"{ARRAY} none short narrow",
        fc1_expert_weights=f"{ARRAY} flat no_rows no_middle narrow half_a_block",
        fc2_expert_weights=f"{ARRAY} flat short narrow turned",
        output_dtype="word number",
        quant_scales="none fewer more",
        quant_scales__0="list dtype strided none short",
        quant_scales__1=f"{ARRAY} short",
        quant_scales__2="list dtype strided none short longer",
        quant_scales__3=f"{ARRAY} short",
        fc1_expert_biases=f"{ARRAY} short narrow tensor",
        fc2_expert_biases=f"{ARRAY} short narrow",
        input_sf="given",
        swiglu_alpha=f"{ARRAY} short with_silu",
        swiglu_beta=f"{ARRAY} short with_silu",
        swiglu_limit=f"{ARRAY} short negative nan second with_silu",
        tp_size="zero flag text",
        tp_rank="negative flag text",
        ep_size="zero flag text many",
        ep_rank="negative flag text past",
        output="tensor of_float",
        use_mxfp8_act_scaling="off",
        **dict.fromkeys(("activation", "scale_mode", "edge_policy"), "word"),
        device="word with_tensors",
        backend="word reference",
        nonesuch="given",
        **dict.fromkeys(TURNED_OFF, "on"),
    )
    ready = base.having(path="ready")
    yield from wrong_calls(ready, input_sf=f"{ARRAY} none short narrow of_words")
    yield from wrong_calls(ready.having(input_sf="128x4"), input_sf="dtype rank short strided")
    yield from wrong_calls(base.having(entry="output"), output=f"{ARRAY} short narrow read_only")
    # A batch of no tokens is no reason to look at nothing.
    nobody = base.having(entry="output", shape=dataclasses.replace(base.shape, m=0))
    arrays = "output input token_selected_experts token_final_scales fc1_expert_weights fc2_expert_weights"
    yield from wrong_calls(nobody, **dict.fromkeys(arrays.split(), "dtype"), fc1_expert_biases="short")
    sizes = dict.fromkeys(("hidden", "intermediate"), "zero past negative")
    sizes |= {"tokens": "negative", "first_expert": "negative", **dict.fromkeys(("top_k", "experts"), "zero")}
    words = dict.fromkeys(("quantization", "dtype", "variant", "mode", "edge", "input_sf_layout"), "word")
    yield from wrong_calls(base.having(entry="launches"), fill=BYTE, **words, **sizes)
