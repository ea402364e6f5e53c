"""The case list of whole layers, and why each case is there."""

from __future__ import annotations

from collections.abc import Iterator

from refmoe.families.case import Case, Shape

__all__ = ["moe_cases", "moe_software_cases"]

_PATHS = ("separate", "fused", "ready")

#: Hidden and intermediate size of gpt-oss, and of the real block.
_GPT_OSS = 2880
_REAL = (384, 768)


def _layer(
    fill: str, m: int, k: int, n: int, e: int, t: int, path: str = "separate", seed: int = 7, **options: str | int
) -> Case:
    options.setdefault("poison", 0x7F)  # of 0xFF the bytes of -1 consist
    options.setdefault("bias", "distinct")
    return Case("moe", "bf16", Shape(m, k, e, t, n), fill, seed, path=path, **options)  # type: ignore[arg-type]


def moe_software_cases() -> Iterator[Case]:
    """What an arch without the instruction takes, which the executor then computes lane by lane."""
    yield _layer("gaussian", 1, 32, 32, 2, 1, "fused")


def moe_cases(level: str) -> Iterator[Case]:
    """The cases of a level; see `refmoe.families.suites`."""
    yield from _quick()
    if level in ("default", "full"):
        yield from _default()
    if level == "full":
        yield from _full()


def _quick() -> Iterator[Case]:
    for path in _PATHS:
        yield _layer("gaussian", 3, 160, 96, 6, 4, path)  # sizes that are no multiple of 128
    yield _layer("gaussian", 5, 96, 64, 4, 1, "fused", variant="silu", bias="none")
    yield _layer("gaussian", 4, 96, 64, 6, 2, "fused", routing="empty-experts", params="distinct")


def _default() -> Iterator[Case]:
    for path in _PATHS:
        yield _layer("real", 4, *_REAL, 8, 4, path)
        yield _layer("gaussian", 1, 416, 160, 4, 1, path)
        yield _layer("gaussian", 9, 96, 64, 6, 2, path, routing="padded")  # a batch as a graph pads it
    # Both GEMMs at full width, one expert at work.
    for m in (1, 8):
        yield _layer("gaussian", m, _GPT_OSS, _GPT_OSS, 2, 1, "fused", routing="same-experts")
    yield _layer("gaussian", 5, 96, 64, 3, 2, "ready", input_sf="128x4")
    yield _layer("gaussian", 6, 96, 64, 4, 4, "fused", first_expert=4, ranks=3)  # a rank in the middle
    yield _layer("gaussian", 3, 96, 64, 4, 2, "fused", first_expert=4, ranks=2, routing="elsewhere")
    yield _layer("gaussian", 4, 160, 96, 3, 2, "fused", mode="floor", edge="flashinfer", variant="silu")
    for m in (16, 40, 130):
        yield _layer("gaussian", m, 96, 64, 5, 2, "fused")  # every width of tile
    yield _layer("gaussian", 512, 32, 32, 4, 2, "separate")
    yield _layer("gaussian", 0, 96, 64, 4, 2)


def _full() -> Iterator[Case]:
    for m in (2, 4, 7):
        yield _layer("gaussian", m, _GPT_OSS, _GPT_OSS, 2, 1, "fused", routing="same-experts")
    for path in _PATHS:
        for m in (1, 8):
            yield _layer("gaussian", m, _GPT_OSS, _GPT_OSS, 4, 4, path, routing="same-experts")
        for m in (16, 64, 256, 512):
            yield _layer("gaussian", m, 416, 160, 8, 4, path)
        for m in (1, 2, 7, 33, 64):
            yield _layer("real", m, *_REAL, 8, 4, path, seed=m)
        for variant in ("gpt_oss", "silu"):
            for mode in ("rceil", "floor"):
                for edge in ("exact", "flashinfer"):
                    yield _layer("gaussian", 9, 224, 160, 6, 3, path, variant=variant, mode=mode, edge=edge)
    yield _layer("gaussian", 1, _GPT_OSS, _GPT_OSS, 8, 4, "fused")
