"""Builds of CUTLASS: names, headers, what the cache keeps, which tiles are refused and why."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from refmoe.cuda.gemm.tile import Tile, TileRefused
from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.errors import ArgumentError
from refmoe.museum.cutlass import (
    Build,
    CutlassMissing,
    build,
    find_built,
    find_headers,
    refused,
    static_assertions,
)
from refmoe.museum.cutlass.builds import compile_command
from refmoe.museum.cutlass.cache import alone, checked_run, intact, placed
from refmoe.museum.cutlass.tiles import CUTLASS_RELEASES, CUTLASS_TILES


def tree(root: Path, release: str = "4.2.1") -> Path:
    """A folder that looks like CUTLASS."""
    (root / "include" / "cutlass").mkdir(parents=True)
    names = zip(("MAJOR", "MINOR", "PATCH"), release.split("."), strict=True)
    text = "".join(f"#define CUTLASS_{name} {number}\n" for name, number in names)
    (root / "include" / "cutlass" / "version.h").write_text(text)
    return root


@pytest.fixture
def toolchain() -> None:
    try:
        find_toolchain()
        find_headers()
    except (ToolchainError, CutlassMissing) as error:
        pytest.skip(str(error))


def test_a_build_has_a_short_name() -> None:
    assert str(Build()) == "cooperative-swapped-128x128x128-sm_121a"
    assert str(Build("pingpong", False, "sm_120a", Tile(128, 64, 128))) == "pingpong-unswapped-128x64x128-sm_120a"


@pytest.mark.parametrize(
    ("schedule", "arch"), [("stream-k", "sm_121a"), ("pingpong", "sm_90a"), ("pingpong", "sm_121")]
)
def test_a_build_that_is_none_is_refused(schedule: str, arch: str) -> None:
    with pytest.raises(ArgumentError, match="one of"):
        Build(schedule, True, arch)


def test_headers_come_from_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFMOE_CUTLASS_DIR", str(tree(tmp_path / "here", "4.6.0")))
    found = find_headers()
    assert (found.origin, found.version, found.release) == ("REFMOE_CUTLASS_DIR", (4, 6, 0), "4.6")
    before = found.sha256
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("REFMOE_CUTLASS_DIR", str(tree(tmp_path / "there" / "x", "4.6.1")))
    assert find_headers().sha256 != before


def test_a_folder_without_headers_is_refused_and_not_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFMOE_CUTLASS_DIR", str(tmp_path))
    with pytest.raises(CutlassMissing, match=r"there is no include/cutlass/version\.h in it"):
        find_headers()


def test_flashinfer_comes_before_nvidia_cutlass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFMOE_CUTLASS_DIR", raising=False)
    for package, below in (("cutlass_library", "source"), ("flashinfer", "data/cutlass")):
        tree(tmp_path / package / below, "4.5.0" if package == "flashinfer" else "4.2.0")
        (tmp_path / package / "__init__.py").write_text("raise RuntimeError('imported')")
        monkeypatch.syspath_prepend(str(tmp_path))
        found = find_headers()
        assert found.root.is_relative_to(tmp_path)
    assert (found.origin, found.release) == ("flashinfer", "4.5")


def test_no_headers_at_all_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFMOE_CUTLASS_DIR", raising=False)
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setattr("sys.path_importer_cache", {})
    with pytest.raises(CutlassMissing, match="pip install 'nvidia-cutlass"):
        find_headers()


def test_a_header_more_is_another_build(toolchain: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from refmoe.museum.cutlass.builds import _Place

    root = tree(tmp_path / "cutlass")
    monkeypatch.setenv("REFMOE_CUTLASS_DIR", str(root))
    directories = {
        _Place.of(Build(schedule, swapped)).directory
        for schedule in ("cooperative", "pingpong")
        for swapped in (True, False)
    }
    assert len(directories) == 4
    assert find_built(Build()) is None


def test_weights_are_on_m_only_when_swapped(toolchain: None) -> None:
    for swapped, extents in ((True, (128, 64)), (False, (64, 128))):
        command = compile_command(
            Build("pingpong", swapped, "sm_120a", Tile(128, 64, 256)), find_headers(), find_toolchain()
        )
        assert f"-DREFMOE_TILE_M={extents[0]}" in command
        assert f"-DREFMOE_TILE_N={extents[1]}" in command
        assert f"-DREFMOE_SWAPPED={int(swapped)}" in command
        assert "-DREFMOE_SCHEDULE=KernelPtrArrayTmaWarpSpecializedPingpong" in command
        assert "-fmad=false" not in command


# The cache ----------------------------------------------------------------------------------------------------------


def write(text: str, target: Path):
    def make(scratch: Path) -> dict[str, Path]:
        (scratch / "made").write_text(text)
        return {"made": target}

    return make


def test_a_damaged_file_counts_as_not_made(tmp_path: Path) -> None:
    target = tmp_path / "entry" / "file"
    target.parent.mkdir()
    assert not intact(target)
    placed(target.parent, write("whole", target))
    assert intact(target)
    target.write_text("whol")
    assert not intact(target)
    placed(target.parent, write("whole", target))
    assert intact(target)
    target.with_name("file.sha256").unlink()
    assert not intact(target)


@pytest.mark.parametrize("error", [ToolchainError, KeyboardInterrupt, OSError])
def test_what_fails_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "entry" / "file"
    target.parent.mkdir()

    def fail(scratch: Path) -> dict[str, Path]:
        (scratch / "half").write_text("half")
        raise error

    with pytest.raises(error):
        placed(target.parent, fail)
    assert list(tmp_path.rglob("*")) == [target.parent]


def hold(directory: Path, log: Path) -> None:
    with alone(directory), log.open("a") as file:
        file.write("in ")
        file.flush()
        (directory.parent / f".build.{os.getpid()}").mkdir()
        file.write("out ")


def test_two_compilers_wait_for_each_other_and_remove_leftovers(tmp_path: Path) -> None:
    log = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=hold, args=(tmp_path / "cache" / "entry", log)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert log.read_text() == "in out " * 4
    assert len(list((tmp_path / "cache").glob(".build.*"))) == 1  # each removed what the one before had left


def compile_for_two_seconds(directory: Path, started: Path) -> None:
    with alone(directory):
        checked_run(["sh", "-c", f"touch {started}; sleep 2"], directory, "sh")


def test_a_compiler_that_outlives_a_killed_process_keeps_the_lock(tmp_path: Path) -> None:
    """Two of them would need 12 GB."""
    entry, started = tmp_path / "cache" / "entry", tmp_path / "started"
    process = multiprocessing.get_context("fork").Process(target=compile_for_two_seconds, args=(entry, started))
    process.start()
    while not started.exists():
        time.sleep(0.02)
    process.kill()
    process.join()
    with (entry.parent / ".lock").open("w") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(lock, fcntl.LOCK_EX)  # once it is done


def test_what_is_built_waits_for_nobody(toolchain: None, monkeypatch: pytest.MonkeyPatch) -> None:
    built = find_built(Build())
    if built is None:
        pytest.skip("not built: make cutlass")
    monkeypatch.setattr("refmoe.museum.cutlass.builds.alone", None)  # whoever asks for the lock fails
    assert build(Build()) == built


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ToolchainError, match=r"cannot write to .*/file/cache/entry: .*Not a directory"),
        alone(tmp_path / "file" / "cache" / "entry"),
    ):
        pass


def test_a_compiler_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"cannot start g\+\+: .*no-such-compiler"):
        checked_run(["no-such-compiler"], tmp_path, "g++")


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"g\+\+ failed:\n(.|\n)*nothing\.cpp"):
        checked_run(["g++", "nothing.cpp"], tmp_path, "g++")


def test_an_interrupted_compiler_leaves_no_process(tmp_path: Path) -> None:
    """nvcc is a chain of processes: here a shell whose child would write a file half a second later."""
    late = tmp_path / "late"
    script = f"(sleep 0.5; touch {late}) & wait"

    def interrupt(signal_number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            checked_run(["sh", "-c", script], tmp_path, "sh")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    time.sleep(0.7)
    assert not late.exists()


# Refused tiles ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", CUTLASS_RELEASES)
def test_what_the_table_refuses_is_refused_with_its_reason(release: str) -> None:
    for tile, entries in CUTLASS_TILES.items():
        why = refused(tile, release)
        assert (why is not None) == (entries[release].opens is False)
        assert why is None or why == entries[release].note


@pytest.mark.parametrize(
    ("tile", "release", "why"),
    [
        (Tile(128, 128, 64), "4.2", "K is no multiple of 128"),
        (Tile(64, 128, 128), "4.2", "M is no multiple of 128"),
        (Tile(128, 24, 128), "4.2", "asserts N >= 32"),
        (Tile(128, 96, 128), "4.2", "whole 128 rows"),
        (Tile(256, 128, 128), "4.2", "one stage of unpacked FP4 fits"),
        (Tile(128, 256, 128), "4.6", "one stage of unpacked FP4 fits"),
    ],
)
def test_a_tile_outside_the_table_is_judged_by_rules(tile: Tile, release: str, why: str) -> None:
    assert why in (refused(tile, release) or "")


def test_a_refused_tile_is_not_compiled(toolchain: None) -> None:
    if find_headers().release != "4.2":
        pytest.skip("of release 4.2")
    with pytest.raises(TileRefused, match=r"128x8x512 with CUTLASS 4\.2: asserts N >= 32"):
        build(Build(tile=Tile(128, 8, 512)))


@pytest.mark.skipif(
    not os.environ.get("REFMOE_CUTLASS_BUILD"), reason="REFMOE_CUTLASS_BUILD is not set: 30 s of compiling"
)
@pytest.mark.parametrize(
    ("tile", "says"),
    [
        (Tile(128, 8, 512), "Invalid tile shape N."),
        (Tile(128, 32, 256), "TMA requires CTA_Tile and SLayout top-level size equivalence."),
        (Tile(128, 64, 128), "TMA requires CTA_Tile and SLayout top-level size equivalence."),
        (Tile(256, 128, 128), "Specialization requires Stages set to value 2 or more."),
    ],
    ids=str,
)
def test_the_compiler_confirms_a_refusal(toolchain: None, tile: Tile, says: str) -> None:
    assert refused(tile, find_headers().release) is not None
    assert says in static_assertions(Build(tile=tile))
