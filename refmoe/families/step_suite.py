"""The case lists of routing, activation and finalize, and why each case is there."""

from __future__ import annotations

from collections.abc import Iterator

from refmoe.families.case import Case, Shape
from refmoe.families.step_fills import GATE_FILLS, LOGIT_FILLS, MIDPOINTS, ROW_FILLS

__all__ = ["activation_step_cases", "finalize_cases", "routing_cases"]

#: Tokens that one CTA still routes and sorts, and one more, which takes two launches.
_FEW, _MANY = 16, 17

#: (experts, experts per token) of gpt-oss-20b, gpt-oss-120b and DeepSeek-V3.
_ROUTERS = ((32, 4), (128, 4), (256, 8))

#: (mode, edge) of every compiled variant.
_POLICIES = tuple((mode, edge) for mode in ("rceil", "floor") for edge in ("exact", "flashinfer"))

#: Fills that go with every variant and parameters.
_GATES = tuple(fill for fill in GATE_FILLS if fill != MIDPOINTS)

#: Width of the intermediate rows of gpt-oss and DeepSeek-V3.
_WIDTHS = (2880, 2048)

#: More rows of finalize and activation than the largest grid, 64 CTAs on each of 170 multiprocessors.
_LOOPING_ROWS = 11008


def _route(fill: str, m: int, e: int, t: int, dtype: str = "f32", seed: int = 7, **options: str | int) -> Case:
    options.setdefault("poison", 0x7F)  # of 0xFF the bytes of -1 consist: what is left unwritten would look right
    return Case("routing", dtype, Shape(m, e=e, t=t), fill, seed, **options)  # type: ignore[arg-type]


def _activate(fill: str, m: int, k: int, e: int, seed: int = 7, **options: str | int) -> Case:
    return Case("activation", "bf16", Shape(m, k, e), fill, seed, **options)  # type: ignore[arg-type]


def _finalize(
    fill: str, m: int, k: int, e: int, t: int, dtype: str = "bf16", seed: int = 7, **options: str | int
) -> Case:
    return Case("finalize", dtype, Shape(m, k, e, t), fill, seed, **options)  # type: ignore[arg-type]


def routing_cases(level: str) -> Iterator[Case]:
    """The cases of a level; see `refmoe.families.suites`."""
    yield from _routing_quick()
    if level in ("default", "full"):
        yield from _routing_default()
    if level == "full":
        yield from _routing_full()


def _routing_quick() -> Iterator[Case]:
    yield _route("gaussian", 1, 128, 4, bias="distinct")  # decode
    for fill in LOGIT_FILLS:
        for m in (_FEW, _MANY):
            yield _route(fill, m, 40, 4, dtype="bf16" if m == _MANY else "f32")
    yield _route("close", 5, 250, 3, bias="distinct")  # a k that is no multiple of 4, experts that are none of 32
    # As many choices a token as there may be, and experts for as many logits a lane; nearly all live on other ranks, as
    # each one here takes a CTA, and few tokens compare every choice with every other.
    yield _route("gaussian", 17, 25, 32, dtype="bf16", bias="distinct", first_expert=250, ranks=40)
    yield _route("ties", 3, 25, 32, first_expert=975, ranks=40)
    yield _route("gaussian", 9, 16, 4, first_expert=16, ranks=3, bias="distinct")
    yield _route("gaussian", 40, 16, 4, first_expert=32, ranks=3)
    yield _route("gaussian", 3, 1, 1)
    for m in (1, 9, 70):
        yield _route("given", m, 16, 2, dtype="ids")
    yield _route("given", 70, 16, 4, dtype="ids", routing="empty-experts")
    yield _route("given", 70, 16, 3, dtype="ids", routing="same-experts")
    yield _route("given", 9, 4, 3, dtype="ids", first_expert=4, ranks=3)
    yield _route("given", 9, 4, 2, dtype="ids", routing="elsewhere", first_expert=4, ranks=2)


def _routing_default() -> Iterator[Case]:
    for e, t in _ROUTERS:
        for m in (1, 2, 8, _FEW, _MANY, 64):
            yield _route("gaussian", m, e, t, bias="distinct")
            if m > 2:  # fewer tokens may all have the same weights
                yield _route("ties", m, e, t, dtype="bf16")
        yield _route("gaussian", 9, e // 4, t, first_expert=e // 4, ranks=4)
    for fill in LOGIT_FILLS:
        for dtype in ("f32", "bf16"):
            for m in (_FEW, 100):
                yield _route(fill, m, 72, 6, dtype=dtype, bias="distinct" if fill != "signed-zeros" else "none")
    yield _route("gaussian", 0, 128, 4)
    yield _route("given", 0, 128, 4, dtype="ids")
    yield _route("given", 1100, 8, 4, dtype="ids")  # more tokens than a CTA has threads
    yield _route("given", 1500, 8, 5, dtype="ids", first_expert=8, ranks=4)
    yield _route("given", 32, 128, 4, dtype="ids", routing="all-one-token")
    yield _route("same", 1100, 12, 4)


def _routing_full() -> Iterator[Case]:
    for seed in (1, 2, 3):
        for fill in LOGIT_FILLS:
            for dtype in ("f32", "bf16"):
                for e, t in (*_ROUTERS, (512, 10), (1024, 32), (33, 32), (64, 1)):
                    # Fewer tokens of nearly equal logits may all have the same weights.
                    for m in (3 if fill in ("ties", "close") else 1, _FEW, _MANY, 130):
                        yield _route(fill, m, e, t, dtype=dtype, seed=seed)
    for t in range(1, 33):
        yield _route("gaussian", 33, 64, t, bias="distinct")
        yield _route("given", 33, 16, t, dtype="ids", first_expert=16, ranks=4)
    for e, t in _ROUTERS:
        yield _route("gaussian", 8192, e, t)


def activation_step_cases(level: str) -> Iterator[Case]:
    """The cases of a level."""
    yield from _activation_quick()
    if level in ("default", "full"):
        yield from _activation_default()
    if level == "full":
        yield from _activation_full()


def _activation_quick() -> Iterator[Case]:
    yield _activate("gaussian", 4, 2880, 128)  # decode
    for variant in ("gpt_oss", "silu"):
        for fill in _GATES:
            yield _activate(fill, 9, 416, 3, variant=variant)
        for mode, edge in _POLICIES:
            yield _activate("gaussian", 5, 416, 2, variant=variant, mode=mode, edge=edge, layout="8x4", bias="distinct")
        yield _activate("tiny", 5, 416, 2, variant=variant, edge="flashinfer")
        yield _activate("specials", 5, 416, 2, variant=variant, edge="flashinfer")
    yield _activate(MIDPOINTS, 64, 32, 64, params="distinct", routing="all-one-token")
    yield _activate("clamps", 12, 160, 6, params="distinct", bias="distinct", routing="all-one-token", ranks=2)
    yield _activate("fingerprint", 9, 416, 9, routing="empty-experts", params="distinct", poison=0x7F)
    yield _activate("fingerprint", 130, 96, 3, routing="same-experts")  # past one tile of 128 rows
    yield _activate("gaussian", 9, 416, 4, first_expert=4, ranks=2, bias="distinct")
    yield _activate("gaussian", 3, 416, 4, routing="elsewhere", first_expert=4, ranks=2)


def _activation_default() -> Iterator[Case]:
    for variant, width in zip(("gpt_oss", "silu"), _WIDTHS, strict=True):
        for m in (1, 8):
            yield _activate("fingerprint", m, width, 128, variant=variant)
            yield _activate("gaussian", m, width, 32, variant=variant, bias="distinct", layout="8x4")
        for mode, edge in _POLICIES:
            for fill in _GATES:
                bias = "none" if fill in ("fingerprint", "tiny") else "distinct"  # a bias would hide either
                yield _activate(fill, 7, 736, 3, variant=variant, mode=mode, edge=edge, bias=bias, poison=0x7F)
    yield _activate("clamps", 30, 736, 15, params="distinct", routing="all-one-token", ranks=2)
    yield _activate("gaussian", _LOOPING_ROWS, 32, 8)
    yield _activate("gaussian", 2, 8224, 2, bias="distinct")  # a row wider than a CTA, by one block
    yield _activate("gaussian", 0, 2880, 8)


def _activation_full() -> Iterator[Case]:
    for seed in (1, 2, 3):
        for variant in ("gpt_oss", "silu"):
            for mode, edge in _POLICIES:
                for fill in _GATES:
                    for layout in ("128x4", "8x4"):
                        options = {"variant": variant, "mode": mode, "edge": edge, "layout": layout}
                        yield _activate(fill, 33, 2880, 16, seed=seed, **options)
    for k in range(32, 1056, 32):
        yield _activate("fingerprint", 9, k, 3)
        yield _activate("fingerprint", 9, k, 3, variant="silu", layout="8x4")
    yield _activate("gaussian", 2048, 2880, 128, bias="distinct", params="distinct")


def finalize_cases(level: str) -> Iterator[Case]:
    """The cases of a level."""
    yield from _finalize_quick()
    if level in ("default", "full"):
        yield from _finalize_default()
    if level == "full":
        yield from _finalize_full()


def _finalize_quick() -> Iterator[Case]:
    yield _finalize("gaussian", 1, 2880, 128, 4, bias="distinct")  # decode
    for dtype in ("bf16", "f32"):
        for fill in ROW_FILLS:
            yield _finalize(fill, 5, 416, 8, 4, dtype=dtype)
            yield _finalize(fill, 5, 416, 8, 4, dtype=dtype, out="f32", bias="distinct")
    yield _finalize("gaussian", 3, 32, 4, 1, bias="distinct")  # a row of four threads
    yield _finalize("cancelling", 6, 160, 16, 11, bias="distinct")  # ranks in three rounds, the last one short
    yield _finalize("gaussian", 9, 416, 4, 3, bias="distinct", first_expert=4, ranks=3)
    yield _finalize("gaussian", 3, 416, 4, 2, routing="elsewhere", first_expert=4, ranks=2)
    yield _finalize("gaussian", 9, 416, 12, 2, routing="empty-experts", bias="distinct", poison=0x7F)


def _finalize_default() -> Iterator[Case]:
    for k, e, t in ((2880, 32, 4), (2880, 128, 4), (7168, 256, 8)):
        for m in (1, 2, 8):
            yield _finalize("gaussian", m, k, e, t, bias="distinct" if k == 2880 else "none")
            yield _finalize("cancelling", m, k, e // 4, t, first_expert=e // 4, ranks=4)
    for dtype in ("bf16", "f32"):
        for fill in ROW_FILLS:
            for out in ("bf16", "f32"):
                yield _finalize(fill, 17, 736, 16, 6, dtype=dtype, out=out, bias="distinct", poison=0x7F)
    yield _finalize("gaussian", _LOOPING_ROWS, 32, 8, 2, bias="distinct")
    yield _finalize("gaussian", 2, 8224, 4, 3, dtype="f32")  # a row wider than two rounds of a CTA
    yield _finalize("cancelling", 3, 96, 40, 32)  # as many ranks as there may be
    yield _finalize("gaussian", 0, 2880, 8, 2)


def _finalize_full() -> Iterator[Case]:
    for seed in (1, 2, 3):
        for dtype in ("bf16", "f32"):
            for fill in ROW_FILLS:
                for out in ("bf16", "f32"):
                    for bias in ("none", "distinct"):
                        yield _finalize(fill, 33, 2880, 16, 4, dtype=dtype, seed=seed, out=out, bias=bias)
    for t in range(3, 33):
        yield _finalize("cancelling", 9, 416, 40, t, bias="distinct")
    for k in range(32, 1056, 32):
        yield _finalize("gaussian", 9, k, 8, 4, bias="distinct")
    yield _finalize("gaussian", 2048, 2880, 128, 4, bias="distinct")
