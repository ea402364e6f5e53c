"""`refmoe bench sweep` on a CPU: what peers compute is what refmoe's references say, and the host code runs whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from support.sweep.idle_gpu import IdleGpu

from refmoe.bench import sweep
from refmoe.bench.gpu import timing
from refmoe.bench.gpu.kernels import DEEPSEEK_V3, GPT_OSS_120B, MoeSizes, drawn_logits, drawn_weights
from refmoe.bench.page import page_text, read_reports
from refmoe.bench.page.sweep import PEERS
from refmoe.bench.sweep import TOKENS, deepgemm, deepseek_layer, operations
from refmoe.bench.sweep.operations import OPERATIONS, PeerOperation
from refmoe.bench.sweep.peer import Peer, PeerMissing, ReadyPeer, Rivals, installed, sentence
from refmoe.bench.sweep.peers import peers as all_peers
from refmoe.bench.sweep.peers import torch_compile as peers
from refmoe.bench.sweep.peers.torchao import quantizer
from refmoe.errors import RefmoeError
from refmoe.museum.deepgemm import DeepGemmMissing
from refmoe.museum.deepgemm import gemm as museum
from refmoe.reference import build_permutation, finalize, quantize_mxfp8, route_softmax_topk, swiglu
from refmoe.reports import bench_figures
from refmoe.reports.bench import BENCH as BENCH_KIND

torch = pytest.importorskip("torch")
BF16 = ml_dtypes.bfloat16
SMALL = MoeSizes("small", 256, 128, 8, 2, "gpt_oss", biased=True)
M = 37
BENCH = Path(__file__).parent.parent.parent / "reports" / "bench"


def _normal(shape: tuple[int, int], seed: int, scale: float = 1.0) -> tuple[NDArray[Any], Any]:
    """BF16 numbers as an array and as a tensor."""
    values = (np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)).astype(BF16)
    return values, torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)


def _bytes(found: Any) -> bytes:
    array = found if isinstance(found, np.ndarray) else found.contiguous().view(torch.uint8).numpy()
    return np.ascontiguousarray(array).tobytes()


def test_quantize_is_that_of_the_kernels() -> None:
    values, x = _normal((M, SMALL.hidden), 1)
    values[3] = x[3] = 0
    values[4, :3] = [448.0, -448.0, 450.0]
    x[4, :3] = torch.tensor([448.0, -448.0, 450.0])
    codes, scales = peers.quantize(torch, x)
    wanted = quantize_mxfp8(values)
    assert _bytes(codes) == _bytes(wanted.codes)
    assert _bytes(scales) == _bytes(wanted.scales)


def test_expand_is_the_rows_of_the_experts() -> None:
    values, x = _normal((M, SMALL.hidden), 2)
    _, permutation = SMALL.choices(M, 5)
    token = permutation.permuted_to_unpermuted % M
    codes, scales = peers.expand(torch, x, torch.from_numpy(token))
    wanted = quantize_mxfp8(values)
    assert _bytes(codes) == _bytes(wanted.codes[token])
    assert _bytes(scales) == _bytes(wanted.scales[token])


@pytest.mark.parametrize("variant", ["gpt_oss", "silu"])
def test_activation_differs_in_few_codes(variant: str) -> None:
    """torch's sigmoid is another one, by units of its last place: a code in a thousand is the next one."""
    values, gate_up = _normal((M, 2 * SMALL.intermediate), 3, scale=3.0)
    codes, _ = peers.activation(torch, gate_up, variant)
    wanted = quantize_mxfp8(swiglu(values, variant=variant)).codes
    apart = np.abs(codes.view(torch.uint8).numpy().astype(int) - wanted.astype(int))
    assert apart.max() <= 1
    assert (apart != 0).mean() < 1e-3


def test_finalize_is_that_of_the_kernels() -> None:
    values, rows = _normal((M * SMALL.top_k, SMALL.hidden), 4)
    bias, bias_tensor = _normal((SMALL.experts, SMALL.hidden), 5)
    ids, permutation = SMALL.choices(M, 6)
    weights = drawn_weights(SMALL, M, 7)
    places, factors, chosen = (torch.from_numpy(each) for each in (permutation.unpermuted_to_permuted, weights, ids))
    found = peers.finalize(torch, rows, places, factors, chosen, bias_tensor)
    wanted = finalize(values, permutation.unpermuted_to_permuted, weights, topk_ids=ids, bias=bias)
    assert _bytes(found) == _bytes(wanted)


def test_route_is_that_of_the_kernels_but_for_the_last_bits_of_weights() -> None:
    logits = drawn_logits(SMALL, M, 8)
    ids, weights, offsets, permuted, unpermuted = peers.route(torch, torch.from_numpy(logits), SMALL.top_k)
    wanted_ids, wanted_weights = route_softmax_topk(logits, SMALL.top_k)
    maps = build_permutation(wanted_ids, SMALL.experts)
    assert _bytes(ids) == _bytes(wanted_ids)
    assert np.abs(weights.numpy().view(np.int32) - wanted_weights.view(np.int32)).max() <= 4
    assert offsets.tolist() == maps.offsets.tolist()
    assert _bytes(permuted) == _bytes(maps.permuted_to_unpermuted)
    assert _bytes(unpermuted) == _bytes(maps.unpermuted_to_permuted)


def test_torchao_gives_the_bytes_of_the_kernels() -> None:
    tensors = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    modes = pytest.importorskip("torchao.prototype.mx_formats.config").ScaleCalculationMode
    values, x = _normal((M, SMALL.hidden), 1)
    codes, scales = quantizer(torch, tensors.to_mx, modes.RCEIL)(x)
    wanted = quantize_mxfp8(values)
    assert _bytes(codes) == _bytes(wanted.codes)
    assert _bytes(scales) == _bytes(wanted.scales)
    assert _bytes(quantizer(torch, tensors.to_mx, modes.FLOOR)(x)[1]) != _bytes(wanted.scales)


def test_each_operation_has_a_peer_and_tokens_reach_from_one_to_thousands() -> None:
    assert set(peers.PEER.operations) == {one.name for one in OPERATIONS}
    assert {peer.name for peer in all_peers()} == set(bench_figures.RIVALS) - {"DeepGEMM"}
    optional = {peer.name: peer.operations for peer in all_peers() if peer is not peers.PEER}
    assert optional == bench_figures.OPTIONAL_RIVALS
    assert set(TOKENS) == {1, 2, 4, 8, 16, 32, 64, 128, 512, 4096}
    assert (GPT_OSS_120B.experts, GPT_OSS_120B.top_k) == (128, 4)
    assert (DEEPSEEK_V3.experts, DEEPSEEK_V3.top_k, DEEPSEEK_V3.hidden) == (256, 8, 7168)


def test_a_package_that_is_not_there_or_does_not_import_is_missing() -> None:
    with pytest.raises(PeerMissing, match="no_such_package is not installed"):
        installed("no_such_package")
    with pytest.raises(PeerMissing, match=r"refmoe.no_such_module does not import: ModuleNotFoundError"):
        installed("refmoe", "refmoe.no_such_module")
    assert sentence(RefmoeError("of ours\nmore")) == "of ours"
    assert sentence(ValueError("  \n of theirs\nmore")) == "ValueError: of theirs"
    assert sentence(ValueError()) == "ValueError"


def _doubled(wanted: str = "") -> tuple[PeerOperation, Any]:
    """An operation that doubles numbers, and refmoe's contender of it, whose result is 2, 4, 6, 8."""
    given = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    ours = SimpleNamespace(
        enqueue=lambda turn: None, sets=[[SimpleNamespace(arguments=(torch.tensor([2, 4, 6, 8], dtype=torch.uint8),))]]
    )
    results = {"doubles": (0, 0, 0), "others": (1, 0, 0)}
    return PeerOperation("double", lambda *of: ours, lambda sizes: (1, 1), lambda *of: (given,), results), ours


def test_what_a_peer_cannot_do_is_written_down_and_not_asked_again() -> None:
    calls: list[str] = []

    def fails(x: Any) -> Any:
        calls.append("fails")
        raise TypeError("no kernel for this chip\nand more")

    def absent(torch: Any) -> ReadyPeer:
        calls.append("absent")
        raise PeerMissing("it is not installed")

    def peer(name: str, function: Callable[..., Any]) -> Peer:
        return Peer(name, ("double",), lambda torch: ReadyPeer("1.0", {"double": function}))

    found = (
        peer("good", lambda x: (x * 2, None)),
        peer("wrong", lambda x: (x + 2, x)),
        peer("bad", fails),
        peer("short", lambda x: (x[:2], None)),
        Peer("gone", ("double",), absent),
    )
    device: Any = IdleGpu(torch)
    (operation, ours), rivals = _doubled(), Rivals()
    for _ in range(2):
        rivals.prepare(device.torch, found)
        entered = [name for name, _ in rivals.contenders(device, SMALL, M, operation, 4)]
        assert entered == ["good", "wrong", "short"]
    counts = list(rivals.differing(device, SMALL, M, operation, ours))
    assert counts == [("good", "doubles", [0, 4]), ("wrong", "doubles", [3, 4]), ("wrong", "others", [4, 4])]
    assert calls == ["absent", "fails"]
    assert rivals.absent == {"gone": "it is not installed"}
    assert set(rivals.versions) == {"good", "wrong", "bad", "short"}
    assert rivals.failed == {
        "bad: double of small": "TypeError: no kernel for this chip",
        "short: double of small": "doubles of double: found 2 bytes of the peer; needed 4",
    }
    assert [name for name, _ in rivals.contenders(device, SMALL, M, operation, 4)] == ["good", "wrong"]


@pytest.mark.parametrize("tile_m", [64, 128])
def test_deepgemm_gets_the_numbers_of_the_kernel_in_its_own_layouts(tile_m: int) -> None:
    rng = np.random.default_rng(tile_m)
    counts = np.array([3, 0, tile_m, 1, tile_m + 5, 0])
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    rows = int(offsets[-1])
    codes = rng.integers(0, 127, (rows, 256)).astype(np.uint8)
    scales = rng.random((2, rows), np.float32)
    weights = np.zeros((6, 128, 256), np.uint8), np.zeros((6, 1, 2), np.float32)
    each = -(-int(counts.max()) // tile_m) * tile_m
    batch = np.zeros((6, each, 256), np.uint8), np.zeros((6, 2, each), np.float32)
    for expert, (first, count) in enumerate(zip(offsets, counts, strict=False)):
        batch[0][expert, :count] = codes[first : first + count]
        batch[1][expert, :, :count] = scales[:, first : first + count]
    for layout, wanted in (
        (deepgemm.contiguous_layout(offsets, tile_m), museum.contiguous(codes, scales, *weights, offsets, tile_m)),
        (deepgemm.masked_layout(offsets, tile_m), museum.masked(*batch, *weights, counts)),
    ):
        moved = deepgemm.laid_out(torch, layout, torch.from_numpy(codes), torch.from_numpy(scales))
        found_codes, found_scales = (each.numpy() for each in moved)
        used = layout.source >= 0
        assert found_codes.shape == wanted.tokens.shape
        assert np.array_equal(found_codes[used], wanted.tokens[used])
        assert np.array_equal(found_codes[layout.place], codes)
        assert np.array_equal(layout.grouped, wanted.grouped)
        # Row by row: contiguous rows are a batch of one.
        theirs, ours = (
            np.moveaxis(of.reshape(wanted.token_scales.shape), 1, 2).reshape(-1, 2)
            for of in (wanted.token_scales, found_scales)
        )
        assert np.array_equal(ours[used], theirs[used])
        if wanted.source is not None:
            assert np.array_equal(layout.source, wanted.source)


def test_each_number_of_tokens_has_both_layouts_and_the_masked_tile_holds_an_expert() -> None:
    for tokens in TOKENS:
        offsets = DEEPSEEK_V3.choices(tokens, 0)[1].offsets
        layouts = deepgemm.chosen_layouts(offsets)
        assert [(tile_m, layout.grouping) for tile_m, layout in layouts][:2] == [
            (64, "contiguous"),
            (128, "contiguous"),
        ]
        ((tile_m, masked),) = layouts[2:]
        assert (masked.grouping, masked.rows_each % tile_m) == ("masked", 0)
        assert masked.rows_each >= np.diff(offsets).max()
        assert tile_m == (64 if np.diff(offsets).max() <= 64 else 128)
        for _, layout in layouts:
            assert np.array_equal(layout.source[layout.place], np.arange(tokens * DEEPSEEK_V3.top_k))


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that computes nothing, models of its size, and DeepGEMM's launches without its code."""
    for module in (timing, operations, sweep.layer):
        monkeypatch.setattr(module, "set_count", lambda traffic: 2)
    monkeypatch.setattr(timing.interleaved, "__defaults__", (2,))
    small = replace(GPT_OSS_120B, hidden=64, intermediate=64)
    deepseek = replace(DEEPSEEK_V3, hidden=256, intermediate=128, experts=16)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(sweep, "CudaDevice", lambda: IdleGpu(torch))
    monkeypatch.setattr(sweep, "floor_device", lambda: IdleGpu(torch))
    monkeypatch.setattr(sweep, "clocks", lambda floors: "")
    monkeypatch.setattr(sweep, "current_environment", lambda gpu: SimpleNamespace(model_dump=dict))
    monkeypatch.setattr(sweep, "SIZES", (small, deepseek))
    monkeypatch.setattr(sweep, "DEEPGEMM_PROBLEM", (16, 2048))
    monkeypatch.setattr(sweep.layer, "GPT_OSS_120B", small)
    for module in (deepseek_layer, deepgemm):
        monkeypatch.setattr(module, "DEEPSEEK_V3", deepseek)
    for module in (deepgemm, sweep.deepseek_gemm):
        monkeypatch.setattr(module, "N", 256)
        monkeypatch.setattr(module, "K", 256)
        monkeypatch.setattr(module, "find_headers", lambda: SimpleNamespace(release="0.2.5"))
    monkeypatch.setattr(deepgemm, "MANY_NODES", 2)
    monkeypatch.setattr(deepgemm, "FEW_NODES", 2)
    monkeypatch.setattr(museum, "compile_ptx", lambda build, stages: "text")
    monkeypatch.setattr(museum, "assemble", lambda text: "cubin")
    monkeypatch.setattr(
        *(museum, "load"),
        lambda device, build, stages, buffers, sizes: museum.launch_plan(build, stages, "gemm", buffers, sizes),
    )


#: Peers whose code is not asked for here.
def _optional(name: str, *, there: bool) -> Peer:
    def prepare(module: Any) -> ReadyPeer:
        if not there:
            raise PeerMissing(f"{name.lower()} is not installed")
        functions = {"quantize": lambda x: peers.quantize(module, x)}
        return ReadyPeer("9.9", {**functions, "activation": lambda x, kind: peers.activation(module, x, kind)})

    return Peer(name, bench_figures.OPTIONAL_RIVALS[name], prepare)


@pytest.mark.usefixtures("idle")
def test_a_whole_sweep_is_one_that_the_gate_and_the_page_take(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (
        peers.PEER,
        *(_optional(name, there=there) for name, there in (("FlashInfer", False), ("Triton", True), ("torchao", True))),
    )
    monkeypatch.setattr(sweep, "peers", lambda: found)
    document = {"kind": "bench", "name": "sweep", **sweep.run(), "digest": "0"}
    assert document["peers"].keys() == {"torch.compile", "Triton", "torchao", "DeepGEMM"}
    assert document["absent"] == {"FlashInfer": "flashinfer is not installed"}
    assert document["failed"] == {}
    assert list(BENCH_KIND.judge(json.loads(json.dumps(document)), lambda name: None)) == []
    rows = document["rows"]
    drawn = [row for row in rows if row["operation"] == deepgemm.OPERATION]
    for tokens in TOKENS:
        whose = [row["of"] for row in drawn if row["tokens"] == tokens]
        assert whose == ["floor", "refmoe", *["DeepGEMM"] * 3]
    # Neither kernel writes anything here, and that is not taken for equal bytes.
    assert [row["bits_are_deepgemms"] for row in drawn if row["of"] != "floor"] == [False] * 4 * len(TOKENS)
    page = " ".join(page_text({**read_reports(BENCH), "sweep": document}).split())
    assert "| quantize, Triton | " in page
    assert "| activation, Triton | " in page
    assert "| quantize, torchao | " in page
    assert "| DeepGEMM, contiguous, 128 x 128 | " in page
    assert "beside torch 2" in page
    assert "Triton 9.9, torchao 9.9" in page
    assert set(PEERS) == set(bench_figures.OPTIONAL_RIVALS)
    assert [name for name, told in PEERS.items() if told in page] == ["Triton", "torchao"]
    unlike, whole = document["differing"]["Triton: codes of activation, DeepSeek-V3"]
    said = f"{unlike:,} of {whole:,} bytes of Triton's codes of activation, DeepSeek-V3 are others"
    assert said in page
    assert unlike  # this GPU writes nothing
    assert "FlashInfer could not run on this machine: flashinfer is not installed." in page
    lost = [row for row in rows if row["of"] != "Triton" or row["tokens"] != 16]
    said = {text for _, text in bench_figures.derived({**document, "rows": lost})}
    assert said == {"has no row of Triton at 16 tokens, and no failure of it"}
    lost = [row for row in rows if row["of"] != "DeepGEMM" or row["tokens"] != 8]
    said = {text for _, text in bench_figures.derived({**document, "rows": lost})}
    assert said == {"has no row of DeepGEMM at 8 tokens, and no failure of it"}
    unknown = {**document, "absent": {}}
    assert {where for where, _ in bench_figures.derived(unknown)} == {"FlashInfer"}
    both = {**document, "absent": {**document["absent"], "Triton": "it is not installed"}}
    assert ("Triton", "is said to be both") in set(bench_figures.derived(both))
    unsaid = {**document, "absent": ["FlashInfer"]}
    assert list(bench_figures.derived(unsaid)) == [("absent", "is no text for each name")]
    wrong = [{**row, "deepgemm_over_this": 1.5} if row is drawn[1] else row for row in rows]
    assert [where for where, _ in bench_figures.derived({**document, "rows": wrong})] == [drawn[1]["name"]]


@pytest.mark.usefixtures("idle")
def test_a_sweep_without_deepgemm_and_with_a_failing_peer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise DeepGemmMissing("no headers of DeepGEMM")

    def fails(x: Any) -> Any:
        raise RuntimeError("no kernel image is available")

    torchao = Peer("torchao", ("quantize",), lambda torch: ReadyPeer("0.1", {"quantize": fails}))
    others = (_optional("FlashInfer", there=False), _optional("Triton", there=False))
    monkeypatch.setattr(sweep, "peers", lambda: (peers.PEER, torchao, *others))
    for module in (deepgemm, sweep.deepseek_gemm):
        monkeypatch.setattr(module, "find_headers", missing)
    document = {"kind": "bench", "name": "sweep", **sweep.run(), "digest": "0"}
    assert document["absent"].keys() == {"FlashInfer", "Triton", "DeepGEMM"}
    assert document["absent"]["DeepGEMM"] == "no headers of DeepGEMM"
    failed = {f"torchao: quantize of {model}" for model in ("gpt-oss-120b", "DeepSeek-V3")}
    assert document["failed"] == dict.fromkeys(failed, "RuntimeError: no kernel image is available")
    assert list(bench_figures.derived(document)) == []
    assert not any(row["of"] in ("torchao", "DeepGEMM") for row in document["rows"])
    page = " ".join(page_text({**read_reports(BENCH), "sweep": document}).split())
    assert "DeepGEMM could not run on this machine: no headers of DeepGEMM." in page
    assert "torchao: quantize of DeepSeek-V3 failed: RuntimeError: no kernel image is available." in page


@pytest.mark.usefixtures("idle")
def test_a_product_of_deepgemm_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    right = museum.load

    def load(device: Any, build: museum.DeepGemmBuild, *given: Any) -> Any:
        if build.grouping == "masked":
            raise RefmoeError("cuModuleLoadData failed")
        return right(device, build, *given)

    monkeypatch.setattr(museum, "load", load)
    device: Any = IdleGpu(torch)
    weights: Any = torch.zeros(1), torch.zeros(1)
    products = deepgemm.DrawnProducts(device, device, weights, rivals=True)
    rows = list(products.rows_at(4))
    assert [row["of"] for row in rows] == ["floor", "refmoe", "DeepGEMM", "DeepGEMM"]
    name = "DeepGEMM, masked, 64 x 128, M = 4 of DeepSeek-V3"
    assert products.failed == {name: "cuModuleLoadData failed"}
    assert set(products.differing) == {
        f"DeepGEMM: output of GEMM1, contiguous {tile_m} x 128, M = 4" for tile_m in (64, 128)
    }


@pytest.mark.usefixtures("idle")
def test_bytes_of_deepgemm_that_are_others_show(monkeypatch: pytest.MonkeyPatch) -> None:
    right = museum.load

    def load(device: Any, build: museum.DeepGemmBuild, stages: int, buffers: Any, sizes: Any) -> Any:
        buffers.out.fill_(float("nan"))  # as refmoe's output is before its launch
        if (build.grouping, build.tile_m) == ("contiguous", 128):
            buffers.out[0, 0] = 1.0
        return right(device, build, stages, buffers, sizes)

    monkeypatch.setattr(museum, "load", load)
    device: Any = IdleGpu(torch)
    weights: Any = torch.zeros(1), torch.zeros(1)
    products = deepgemm.DrawnProducts(device, device, weights, rivals=True)
    same = {row["name"].rpartition(",")[0]: row["bits_are_deepgemms"] for row in products.rows_at(2)}
    assert [each for name, each in same.items() if "DeepGEMM" in name] == [True, False, True]
    assert [each for name, each in same.items() if "wgmma" in name] == [False]
    assert [counts[0] for counts in products.differing.values()] == [0, 2, 0]


def test_the_committed_report_is_still_taken() -> None:
    document = json.loads((BENCH / "sweep.json").read_text())
    assert list(bench_figures.derived(document)) == []
