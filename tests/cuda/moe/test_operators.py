"""The operators of torch: on the CPU they run the executor, and their fakes know what comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.moe_call import as_torch, case_of, keywords, positional

from refmoe.cuda.moe import fused_moe
from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.errors import ArgumentError
from refmoe.reference.moe.pipeline import moe_layer

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _compiler() -> None:
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))


def problem(tokens: int = 3, seed: int = 0) -> tuple[list[Any], dict[str, Any], np.ndarray]:
    """Torch arguments, and the reference's bits."""
    layer, x, ids, weights = case_of(seed, tokens, hidden=96, intermediate=64, experts=4, top_k=2)
    expected = moe_layer(x, layer, quantization="fused", topk_ids=ids, topk_weights=weights)
    return as_torch(positional(layer, x, ids, weights)), as_torch(keywords(layer)), expected.view(np.uint16)


def bits(tensor: Any) -> np.ndarray:
    return tensor.view(torch.uint16).numpy()


def test_tensors_of_the_cpu_give_the_references_bytes() -> None:
    tensors, named, expected = problem()
    assert np.array_equal(bits(fused_moe(*tensors, **named)), expected)
    output = torch.empty(3, 96, dtype=torch.bfloat16)
    assert fused_moe(*tensors, **named, output=output) is output
    assert np.array_equal(bits(output), expected)
    assert np.array_equal(bits(fused_moe(*tensors, **named, quantize_in_expand=False, backend="CUTLASS")), expected)


def test_opcheck() -> None:
    from refmoe.cuda.moe import operators as ops  # noqa: F401

    tensors, named, _ = problem()
    torch.library.opcheck(torch.ops.refmoe.fused_moe.default, tuple(tensors), named)
    output = torch.empty(3, 96, dtype=torch.bfloat16)
    torch.library.opcheck(torch.ops.refmoe.fused_moe_out.default, tuple(tensors), {**named, "output": output})


def test_fake_tensors_and_meta_tensors_need_no_kernel() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    tensors, named, _ = problem(5)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in tensors[:-1]]
        scales = [None if t is None else mode.from_tensor(t) for t in tensors[-1]]
        biases = {n: mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for n, t in named.items()}
        out = fused_moe(*fake, scales, **biases)
        assert (out.shape, out.dtype, out.device.type) == ((5, 96), torch.bfloat16, "cpu")
        with pytest.raises(ArgumentError, match="token_final_scales"):
            fused_moe(*fake[:2], fake[2][:, :1], *fake[3:], scales, **biases)
    meta = [t.to("meta") if isinstance(t, torch.Tensor) else t for t in tensors[:-1]]
    out = fused_moe(*meta, [None if t is None else t.to("meta") for t in tensors[-1]])
    assert (out.shape, out.dtype, out.device.type) == ((5, 96), torch.bfloat16, "meta")


def test_a_compiled_function_has_it_as_one_operator() -> None:
    from refmoe.cuda.moe import operators as ops  # noqa: F401

    tensors, named, expected = problem()

    def layer(x: Any) -> Any:
        return torch.ops.refmoe.fused_moe(x + 0, *tensors[1:], **named)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert np.array_equal(bits(compiled(tensors[0])), expected)


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({0: lambda t: t.float()}, "input"),
        ({0: lambda t: t.t().contiguous().t()}, "input"),
        ({1: lambda t: t.long()}, "token_selected_experts"),
        ({2: lambda t: t.double()}, "token_final_scales"),
        ({3: lambda t: t[..., :-8].contiguous()}, "fc1_expert_weights"),
        ({4: lambda t: t[:, :-1].contiguous()}, "fc2_expert_weights"),
        ({5: lambda t: torch.float16}, "output_dtype"),
        ({6: lambda t: t[:3]}, "quant_scales"),
        ({1: lambda t: t * 0}, "token_selected_experts"),
    ],
)
def test_refused_tensors(change: dict[int, Any], argument: str) -> None:
    tensors, named, _ = problem()
    changed = [change[index](value) if index in change else value for index, value in enumerate(tensors)]
    with pytest.raises(ArgumentError) as refused:
        fused_moe(*changed, **named)
    assert refused.value.argument == argument


def test_refused_places() -> None:
    tensors, named, _ = problem()
    with pytest.raises(ArgumentError, match=r"device: .*torch tensors"):
        fused_moe(*tensors, **named, device="ptx")
    with pytest.raises(ArgumentError, match="output: found bfloat16"):
        fused_moe(*tensors, **named, output=torch.empty(3, 64, dtype=torch.bfloat16))
    with pytest.raises(ArgumentError, match=r"fc1_expert_biases: found a tensor on meta"):
        fused_moe(*tensors, **{**named, "fc1_expert_biases": named["fc1_expert_biases"].to("meta")})
    with pytest.raises(ArgumentError, match="marlin is a reference here"):
        fused_moe(*tensors, **named, backend="marlin")
    # What the operator's schema has no place for, torch refuses by the argument's name.
    with pytest.raises(RuntimeError, match="token_selected_experts"):
        fused_moe(tensors[0], tensors[1].numpy(), *tensors[2:], **named)
