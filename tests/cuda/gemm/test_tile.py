"""What a tile takes, how deep it can be, what is refused: against the published table and a count of bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from refmoe.chips import CHIPS, KERNEL_ARCHS, Mma, kernel_chip
from refmoe.cuda.gemm.grouped import OUT_DTYPES, GemmShape
from refmoe.cuda.gemm.kernel import GEMM
from refmoe.cuda.gemm.tile import (
    BARRIER_BYTES,
    K_ATOM,
    MAX_STAGES,
    MIN_STAGES,
    SINGLE_BLOCK,
    TILES,
    Tile,
    TileRefused,
    check_tile,
    k_bytes,
    max_stages,
    parse_cluster,
    parse_tile,
    stage_bytes,
    stage_capacity,
)
from refmoe.cuda.toolchain import CSRC
from refmoe.errors import ArgumentError
from refmoe.formats import E2M1, E4M3, E8M0
from refmoe.museum.cutlass.tiles import CUTLASS_RELEASES, CUTLASS_TILES, Evidence, cutlass_stage_bytes
from refmoe.reference.layout import SCALE_LAYOUTS
from refmoe.reference.tensor import IDENTITY_SCALE
from refmoe.views.weighed import PREFILL_CLUSTER, PREFILL_TILE

SM12X = ("sm_120a", "sm_121a")

#: tile: bytes of a stage, stages on SM12x.
TABLE = {
    (128, 8, 512): (40_960, 2),
    (128, 16, 256): (22_528, 4),
    (128, 32, 256): (26_624, 3),
    (128, 64, 128): (17_408, 5),
    (128, 128, 128): (25_600, 3),
    (128, 8, 256): (20_480, 4),
    (128, 8, 128): (10_240, 9),
    (128, 16, 128): (11_264, 8),
    (256, 8, 256): (37_888, 2),
    (256, 8, 512): (75_776, 1),
}


def refused(tile: Tile, **options: object) -> str:
    with pytest.raises(TileRefused) as caught:
        check_tile(tile, **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_the_archs_are_those_that_are_compiled_for() -> None:
    for name in SM12X:
        chip = kernel_chip(name)
        assert chip is kernel_chip(chip) is CHIPS[name]
        assert chip.shared_bytes == 101_376 == 99 * 1024
        assert stage_capacity(chip) == 100_352 == chip.shared_bytes - BARRIER_BYTES
        assert chip.cluster_blocks == 1
        assert Mma.SYNC_MX in chip.instructions
    assert kernel_chip("sm_90a").shared_bytes == 232_448 == 227 * 1024
    assert stage_capacity(kernel_chip("sm_90a")) == 100_352
    assert Mma.SYNC_MX not in kernel_chip("sm_90a").instructions
    with pytest.raises(ArgumentError, match="arch: found str 'sm_80'; needed one of sm_90a, sm_120a, sm_121a"):
        kernel_chip("sm_80")


def test_clusters() -> None:
    for name in SM12X:
        assert CHIPS[name].allows_cluster(SINGLE_BLOCK)
        assert not CHIPS[name].allows_cluster((2, 1, 1))
        assert not CHIPS[name].allows_cluster((1, 1, 2))
    assert CHIPS["sm_90a"].allows_cluster((2, 4, 1))
    assert not CHIPS["sm_90a"].allows_cluster((3, 3, 1))


def test_k_in_bytes() -> None:
    assert (k_bytes(256, E4M3), k_bytes(256, E2M1), k_bytes(8, E8M0), k_bytes(0, E2M1)) == (256, 128, 8, 0)
    with pytest.raises(ArgumentError, match="elements: found int 3; needed a whole number of bytes of e2m1"):
        k_bytes(3, E2M1)
    assert parse_tile("128x8x512") == Tile(128, 8, 512)


def test_identity_scale_and_atom() -> None:
    assert E8M0.decode(IDENTITY_SCALE) == 1
    assert IDENTITY_SCALE == 0x7F
    assert SCALE_LAYOUTS["128x4"].column_atom * 32 == K_ATOM == 128


@pytest.mark.parametrize("extents", TABLE, ids=str)
def test_stage_bytes_and_stages(extents: tuple[int, int, int]) -> None:
    tile = Tile(*extents)
    size, stages = TABLE[extents]
    assert stage_bytes(tile) == size
    for name in SM12X:
        assert max_stages(tile, name) == stages
        # No more fit, and the barriers still do.
        assert stages * size + BARRIER_BYTES <= 101_376 < (stages + 1) * size + BARRIER_BYTES
    assert max_stages(tile) == stages


def test_no_more_stages_than_the_kernel_has_barriers_for() -> None:
    source = (CSRC / "grouped_gemm.cuh").read_text()
    assert f"constexpr int kMaxStages = {MAX_STAGES};" in source
    small = Tile(16, 8, 128)
    assert stage_capacity(CHIPS["sm_120a"]) // stage_bytes(small) > MAX_STAGES == max_stages(small)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_stage_bytes_count_what_is_loaded(tile: Tile) -> None:
    """Arrays of exactly what a stage holds: nibbles, bytes, and 128x4 atoms of both operands' scales."""
    weights = np.empty((tile.m, tile.k // 2), np.uint8)
    tokens = np.empty((tile.n, tile.k), np.uint8)
    padded = -(-tile.n // 128) * 128
    scales = [np.empty((rows, tile.k // 32), np.uint8) for rows in (tile.m, padded)]
    assert stage_bytes(tile) == weights.nbytes + tokens.nbytes + sum(scale.nbytes for scale in scales)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("name", KERNEL_ARCHS)
def test_a_launch_at_the_most_stages_fits_with_barriers_and_scratch(name: str, tile: Tile) -> None:
    most = max_stages(tile, name)
    for out_dtype in OUT_DTYPES:
        shape = GemmShape(rows=1, experts=1, n=8, k=32)
        plan = GEMM.plan(tile, out_dtype, most, (), None, shape, multiprocessors=CHIPS[name].multiprocessors)
        warps = plan.block // 32
        assert warps == {64: 8, 128: 8}.get(tile.n, tile.m // 32)
        assert plan.shared_bytes == 1024 + most * stage_bytes(tile) + 512 * warps <= 101_376
        assert most <= MAX_STAGES  # barriers of each kind in the first 1024 bytes, kMaxStages


def test_the_table_is_the_kernels() -> None:
    assert {(tile.m, tile.n, tile.k) for tile in TILES} == set(TABLE) - {(256, 8, 512)}
    assert len(set(TILES)) == len(TILES)
    for tile in TILES:
        for name in KERNEL_ARCHS:
            assert check_tile(tile, arch=name) == max_stages(tile, name) >= MIN_STAGES
        for stages in range(MIN_STAGES, max_stages(tile) + 1):
            assert check_tile(tile, stages=stages) == stages


def test_every_extent_and_stage_count_around_the_table_is_allowed_or_refused_by_the_rules() -> None:
    for m in (64, 128, 256):
        for n in (4, 8, 12, 16, 32, 64, 128, 256):
            for k in (32, 64, 128, 192, 256, 512, 1024):
                tile = Tile(m, n, k)
                for stages in (1, 2, 3, 4, 6, 9, 10):
                    size = m * k // 2 + n * k + (m + max(n, 128)) * k // 32
                    allowed = tile in TILES and stages >= 2 and stages * size <= 101_376 - 1024
                    if allowed:
                        assert check_tile(tile, stages=stages) == stages
                    else:
                        refused(tile, stages=stages)


@pytest.mark.parametrize("name", KERNEL_ARCHS)
def test_128x128x64_is_refused_for_its_k(name: str) -> None:
    assert refused(Tile(128, 128, 64), arch=name) == (
        f"tile: found 128x128x64 on {name}, but a K of 64 elements is no whole number of atoms of the scale layout, "
        "128 rows x 128 elements; needed 128x128x128"
    )


def test_six_stages_of_128x128x128_are_refused_for_their_bytes() -> None:
    assert refused(Tile(128, 128, 128), stages=6) == (
        "stages: found 6 stages of 128x128x128 on sm_120a, 153,600 bytes where a block has 100,352 for stages; "
        "needed 2 to 3 stages"
    )
    # Four are refused too: 102,400 bytes, of which 101,376 exist.
    refused(Tile(128, 128, 128), stages=4)
    # Where there is more shared memory the kernel still keeps to what SM12x has.
    assert "6 stages of 128x128x128 on sm_90a" in refused(Tile(128, 128, 128), stages=6, arch="sm_90a")


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_fewer_than_two_stages_are_refused(tile: Tile) -> None:
    message = refused(tile, stages=1)
    assert f"1 stage of {tile}, with which nothing can be loaded while the tile is computed" in message
    most = max_stages(tile)
    assert message.endswith("needed 2 stages" if most == 2 else f"needed 2 to {most} stages")
    refused(tile, stages=0)


def test_256x8x512_is_refused_for_its_bytes_and_for_its_cluster() -> None:
    bytes_fault = "a stage takes 75,776 bytes and 2 of them must fit in 100,352"
    for name in SM12X:
        assert (
            refused(PREFILL_TILE, arch=name) == f"tile: found 256x8x512 on {name}, but {bytes_fault}; needed 256x8x256"
        )
        assert refused(PREFILL_TILE, arch=name, cluster=PREFILL_CLUSTER) == (
            f"tile: found 256x8x512 in a cluster of 2x1x1 on {name}, but {name} has no multicast between blocks, so a "
            f"cluster is 1x1x1, and {bytes_fault}; needed 256x8x256 in a cluster of 1x1x1"
        )
    assert bytes_fault in refused(PREFILL_TILE, arch="sm_90a")


@pytest.mark.parametrize(
    ("tile", "options", "words"),
    [
        (Tile(64, 8, 128), {}, "64 weight rows are no whole number of atoms"),
        (Tile(128, 12, 128), {}, "12 tokens are no multiple of the 8 columns"),
        (Tile(128, 24, 128), {}, "the kernel is not built for it; needed 128x32x256"),
        (Tile(128, 8, 1024), {}, "a stage takes 81,920 bytes"),
        (Tile(128, 8, 512), {"cluster": (2, 1, 1)}, "so a cluster is 1x1x1; needed 128x8x512 in a cluster of 1x1x1"),
        (Tile(128, 8, 512), {"cluster": (2, 1, 1), "arch": "sm_90a"}, "launches no clusters"),
        (Tile(128, 8, 512), {"cluster": (4, 4, 1), "arch": "sm_90a"}, "sm_90a has clusters of at most 8 blocks"),
        (Tile(128, 8, 1), {}, "a K of 1 elements"),
    ],
)
def test_other_refusals(tile: Tile, options: dict[str, object], words: str) -> None:
    assert words in refused(tile, **options)


def test_what_is_offered_instead_can_be_had() -> None:
    for m in (128, 192, 256, 384):
        for n in (8, 12, 24, 48, 96, 128, 256):
            for k in (64, 128, 384, 512, 1024):
                tile = Tile(m, n, k)
                if tile in TILES:
                    continue
                instead = parse_tile(refused(tile).rpartition("needed ")[2])
                check_tile(instead)
                assert instead.n >= min(n, 128)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Tile(0, 8, 128), "tile: found int 0; needed an integer of at least 1"),
        (lambda: Tile(128, 8, 12.8), "tile: found float 12.8"),  # type: ignore[arg-type]
        (lambda: parse_tile("128x8"), "tile: found str '128x8'; needed three positive integers"),
        (lambda: parse_tile("128x0x128"), "tile: found str '128x0x128'"),
        (lambda: parse_tile("128x-8x128"), "tile: found str '128x-8x128'"),
        (lambda: parse_tile("²x8x128"), "tile: found str"),
        (lambda: parse_cluster("2x1"), "cluster: found str '2x1'"),
        (lambda: check_tile(TILES[0], arch="sm_100a"), "arch: found str 'sm_100a'"),
        (lambda: check_tile(TILES[0], cluster=(0, 1, 1)), "cluster: found tuple"),
        (lambda: check_tile(TILES[0], stages="2"), "stages: found str '2'"),  # type: ignore[arg-type]
        (lambda: check_tile(TILES[0], stages=-1), "stages: found int -1"),
    ],
)
def test_malformed_requests_are_no_refusals(call: object, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()  # type: ignore[operator]
    assert str(caught.value).startswith(words)
    assert not isinstance(caught.value, TileRefused)


def test_a_chip_with_less_shared_memory_has_fewer_tiles() -> None:
    small = replace(CHIPS["sm_120a"], arch="sm_small", shared_bytes=49_152)
    assert check_tile(Tile(128, 16, 256), arch=small) == 2
    assert "2 of them must fit in 48,128" in refused(Tile(128, 8, 512), arch=small)


def test_cutlass_columns_cover_the_table_and_say_why() -> None:
    assert set(CUTLASS_TILES) == {*TILES, PREFILL_TILE}
    for releases in CUTLASS_TILES.values():
        assert tuple(releases) == CUTLASS_RELEASES
        for entry in releases.values():
            assert entry.note or entry.opens
            assert (entry.evidence is Evidence.COMPILED) == bool(entry.opens)


def test_compiled_cutlass_kernels_have_the_stages_that_their_bytes_allow() -> None:
    """A witness for the formula of unpacked stages: every compiled kernel got just the stages that fit."""
    seen = 0
    for tile, releases in CUTLASS_TILES.items():
        for entry in releases.values():
            fitting = 100_352 // cutlass_stage_bytes(tile)
            if entry.stages is not None:
                assert entry.stages == fitting
                seen += 1
            if entry.shared_bytes is not None:
                epilogue = entry.shared_bytes - fitting * cutlass_stage_bytes(tile)
                assert 0 < epilogue < cutlass_stage_bytes(tile)
            if entry.evidence is Evidence.DERIVED:
                assert fitting < MIN_STAGES
    assert seen == 10


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_packed_fp4_takes_less_than_unpacked(tile: Tile) -> None:
    assert cutlass_stage_bytes(tile) - stage_bytes(tile) == tile.m * tile.k // 2
