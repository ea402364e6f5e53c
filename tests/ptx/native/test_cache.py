"""Machine code on disk: found by what it was made of and by nothing less."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numpy as np
import pytest
from support.ptx_kernel import line_of, run, text
from support.ptx_ways import Way

from refmoe import ptx
from refmoe.errors import ArgumentError
from refmoe.native import cache, compiler
from refmoe.ptx.engine.code import View
from refmoe.ptx.native import batch, kernel


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: Callable[[], None]) -> Path:
    """A cache of each test's own."""
    monkeypatch.setenv("REFMOE_CACHE_DIR", str(tmp_path))
    forget()
    return tmp_path / "native"


def test_code_is_found_by_its_own_key() -> None:
    cache.store("one", b"first")
    cache.store("other", b"second")
    assert (cache.load("one"), cache.load("other"), cache.load("third")) == (b"first", b"second", None)


@pytest.mark.parametrize("place", [0, 31, 32, -1])
def test_a_damaged_file_is_removed(folder: Path, place: int) -> None:
    cache.store("key", b"some code")
    content = bytearray((folder / "key").read_bytes())
    content[place] ^= 1
    (folder / "key").write_bytes(content)
    assert cache.load("key") is None
    assert not (folder / "key").exists()


@pytest.mark.parametrize("size", [0, 16, 32, 40])
def test_a_file_that_ends_early_is_removed(folder: Path, size: int) -> None:
    cache.store("key", b"some code")
    (folder / "key").write_bytes((folder / "key").read_bytes()[:size])
    assert cache.load("key") is None
    assert not (folder / "key").exists()


def test_a_write_that_fails_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    cache.store("key", b"some code")
    assert list(folder.iterdir()) == []


_MIB = 1 << 20


def _bytes_kept(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _age(folder: Path, hours: dict[str, float]) -> None:
    """Make files look as if they had been used so many hours ago."""
    now = time.time()
    for name, age in hours.items():
        os.utime(folder / name, (now, now - 3600 * age))


def test_all_files_stay_below_the_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFMOE_NATIVE_CACHE_MIB", "2")
    for number in range(100):
        cache.store(f"{number}", bytes(60_000))
        assert _bytes_kept(folder) <= 2 * _MIB
    # No more goes than has to.
    assert _bytes_kept(folder) > _MIB
    assert cache.load("99") == bytes(60_000)


def test_what_nobody_used_for_the_longest_time_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number}" for number in range(12)]
    for name in names:
        cache.store(name, bytes(100_000))
    _age(folder, {name: 50 - number for number, name in enumerate(names)})
    assert cache.load("0") == bytes(100_000)
    monkeypatch.setenv("REFMOE_NATIVE_CACHE_MIB", "1")
    for number in range(3):
        cache.store(f"new {number}", bytes(50_000))
    left = {file.name for file in folder.iterdir()}
    # The oldest was used again.
    assert {"0", "11", "new 2"} <= left
    assert not {"1", "2", "3", "4"} & left


def test_a_folder_that_nobody_has_counted_is_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    for number in range(30):
        (folder / f"of an earlier release {number}").write_bytes(bytes(100_000))
    monkeypatch.setenv("REFMOE_NATIVE_CACHE_MIB", "1")
    cache.store("key", b"some code")
    assert _bytes_kept(folder) <= _MIB


def test_processes_count_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFMOE_NATIVE_CACHE_MIB", "1")
    # Each stores less than makes it count by itself.
    body = "import sys; from refmoe.native import cache; cache.store(sys.argv[1], bytes(110_000))"
    for number in range(12):
        subprocess.run([sys.executable, "-c", body, f"{number}"], check=True)
    assert _bytes_kept(folder) <= _MIB


def test_files_that_others_remove_at_the_same_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFMOE_NATIVE_CACHE_MIB", "1")
    cache.store("first", bytes(600_000))
    unlink = os.unlink

    def twice(path: str) -> None:
        unlink(path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", twice)
    cache.store("second", bytes(600_000))
    assert [file.name for file in folder.iterdir()] == ["second"]
    assert cache.load("second") == bytes(600_000)


@pytest.mark.parametrize("given", ["0", "-1", "many", "1.5"])
def test_a_limit_that_is_none_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFMOE_NATIVE_CACHE_MIB", given)
    with pytest.raises(ArgumentError, match=f"REFMOE_NATIVE_CACHE_MIB: found '{given}'; needed a whole number of MiB"):
        cache.store("key", b"some code")


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("REFMOE_CACHE_DIR", str(tmp_path / "file"))
    cache.store("key", b"some code")
    assert cache.load("key") is None


def test_parts_of_a_key_are_told_apart() -> None:
    keys = [
        cache.key_of(*parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("c", "ab"))
    ]
    assert len(set(keys)) == len(keys)


def test_a_key_holds_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache.key_of("part")
    monkeypatch.setattr(cache, "_sources", lambda: "other sources")
    assert cache.key_of("part") != before


@pytest.mark.parametrize("changed", ["native/a.py", "ptx/a.py", "ptx/deep/a.py", "reference/mma/a.py"])
def test_every_writer_of_code_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    for name in ("native/a.py", "ptx/a.py", "ptx/deep/a.py", "reference/mma/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("value = 1\n")
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "native" / "cache.py"))
    digest = cache._sources.__wrapped__
    before = digest()
    (tmp_path / changed).write_text("value = 2\n")
    edited = digest()
    (tmp_path / changed).write_text("value = 1\n")
    (tmp_path / changed).rename((tmp_path / changed).with_name("b.py"))
    assert len({before, edited, digest()}) == 3


def test_a_key_holds_level_host_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [compiler.key_of("part", level=0), compiler.key_of("part", level=2)]
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "_host", lambda: ("another processor", compiler.llvm.get_host_cpu_features().flatten()))
        keys.append(compiler.key_of("part", level=0))
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "_host", lambda: (compiler.llvm.get_host_cpu_name(), "+other,-features"))
        keys.append(compiler.key_of("part", level=0))
    with monkeypatch.context() as patch:
        patch.setattr(llvmlite, "__version__", "0.0")
        keys.append(compiler.key_of("part", level=0))
    with monkeypatch.context() as patch:
        patch.setattr(compiler.llvm, "llvm_version_info", (0, 0, 0))
        keys.append(compiler.key_of("part", level=0))
    assert len(set(keys)) == len(keys)


# What runs between the prelude and the store of %r3, declarations, and what the store leaves.
BASE = "setp.lt.u32 %p1, %r1, 2; mov.u32 %r3, 7; mov.u32 %r4, sh; @%p1 add.u32 %r3, %r1, 1; "
PADDED = ".shared .align 4 .b8 pad[64]; .shared .align 4 .b8 sh[4];"
# Whole blocks, natively, for an observer.
ALONE = Way(View("observed", lambda _: True, False, lambda work: work))
UNPADDED = ".shared .align 4 .b8 sh[4]; .shared .align 4 .b8 pad[64];"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("add.u32", "sub.u32", [0xFFFFFFFF, 0, 7, 7]),
        ("%r1, 1;", "%r1, 3;", [3, 4, 7, 7]),
        ("%r1, 1;", "%r0, 1;", [1, 1, 7, 7]),
        ("@%p1", "@!%p1", [7, 7, 3, 4]),
        ("@%p1", "", [1, 2, 3, 4]),
    ],
)
def test_kernels_that_differ_in_one_thing(old: str, new: str, expected: list[int]) -> None:
    end = "st.global.u32 [%d2], %r3; ret;"
    out = np.zeros(4, np.uint32)
    run(BASE + end, out, block=(4, 1, 1), declarations=PADDED)
    assert out.tolist() == [1, 2, 7, 7]
    run(BASE.replace(old, new) + end, out, block=(4, 1, 1), declarations=PADDED)
    assert out.tolist() == expected


def test_kernels_that_differ_in_where_a_variable_lies() -> None:
    body, out = BASE + "st.global.u32 [%d2], %r4; ret;", np.zeros(4, np.uint32)
    run(body, out, block=(4, 1, 1), declarations=PADDED)
    padded = out.copy()
    run(body, out, block=(4, 1, 1), declarations=UNPADDED)
    assert (padded - out).tolist() == [64] * 4


def test_the_same_kernel_at_other_lines_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, texts = batch.compiled, []

    def counting(text: str) -> bytes:
        texts.append(text)
        return compiled(text)

    monkeypatch.setattr(batch, "compiled", counting)
    # Nor are its templates made again, to find that they are compiled.
    made, imaged = [], kernel._imaged

    def imaging(*arguments: Any) -> Any:
        made.append(arguments)
        return imaged(*arguments)

    monkeypatch.setattr(kernel, "_imaged", imaging)
    body, out = BASE + "st.global.u32 [%d2], %r3; ret;", np.zeros(4, np.uint32)
    run(body, out, block=(4, 1, 1), declarations=PADDED)
    run("\n\n" + body.replace("; ", ";\n"), out, block=(4, 1, 1), declarations=PADDED)
    assert (len(texts), len(made)) == (1, 1)


# FP8 in one pass of 32 products on sm_120, in two of 16 on sm_90, which cut the sum twice: the last bit differs.
PRODUCT = """
    mov.b32 %r3, 0xB8811050;
    mov.b32 %r4, 0x010101B8;
    mov.b32 %r5, 0x3EAAAAAB;
    mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32
        {%r6, %r7, %r8, %r9}, {%r3, %r3, %r4, %r4}, {%r3, %r4}, {%r5, %r5, %r5, %r5};
    st.global.u32 [%d2], %r6;
    ret;
"""


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_tensor_cores_of_two_chips(order: list[int]) -> None:
    chips = [("sm_120a", 0x43842B2C), ("sm_90a", 0x43842B2B)]
    for target, expected in [chips[number] for number in order]:
        module, out = ptx.Module.parse(text(PRODUCT).replace("sm_120a", target)), np.zeros(32, np.uint32)
        ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [out, None, 0])
        assert out.tolist() == [expected] * 32


@pytest.mark.parametrize("ways", [[None, ALONE], [ALONE, None]], ids=["plain first", "observed first"])
def test_code_for_an_observer_is_other_code(ways: list[Way | None]) -> None:
    # A block that native code counts itself must not be counted by who observes it, nor the other way round.
    module, out = ptx.Module.parse(text(BASE + "st.global.u32 [%d2], %r3; ret;", declarations=PADDED)), np.zeros(4, int)
    counts = [
        ptx.launch(module, "k", (1, 1, 1), (4, 1, 1), [out, None, 0], profile=way).lane_instructions for way in ways
    ]
    assert counts == [4 * (9 + 4 + 2)] * 2


def test_code_that_is_found_names_its_own_lines() -> None:
    body = "mov.u32 %r3, 1; st.global.u32 [%d2+4], %r3; ret;"
    for lines in (0, 3):
        own = "\n" * lines + body
        with pytest.raises(ptx.MemoryFault, match="out of bounds") as caught:
            run(own, np.zeros(4, np.uint32), block=(4, 1, 1))
        assert caught.value.line == line_of(own, "st.global.u32 [%d2+4]")
