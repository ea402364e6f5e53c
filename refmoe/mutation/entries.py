"""The compiler's PTX, entry by entry; and whether two texts of an entry are the same code."""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path

from refmoe.cuda.launch import Entry
from refmoe.cuda.toolchain import (
    CSRC,
    FLAGS,
    Target,
    ToolchainError,
    build,
    cache_directory,
    find_toolchain,
    leaving_out,
)
from refmoe.files import write_atomic
from refmoe.mutation.reach import EntryKey

_ENTRY = re.compile(r"^\.visible \.entry (\w+)\(", re.MULTILINE)
_LINE_TABLE = re.compile(r"^\s*\.(?:file|section)\b", re.MULTILINE)
_NO_CODE = re.compile(r"^\s*(?://.*|\.loc\b.*)\n|[^\S\n]*//[^\n]*", re.MULTILINE)

#: Sections of a cubin that the chip reads: code, constants, initial data, and how many registers and bytes it needs.
_READ_BY_THE_CHIP = (".text.", ".nv.constant", ".nv.global", ".nv.shared", ".nv.info")

#: In front of a source, takes from bounds of launches all but the threads of a CTA.
_NO_HINTS = """
#include <cuda_runtime.h>
#undef __launch_bounds__
#define __launch_bounds__(threads, ...) __annotate__(launch_bounds(threads))
"""


class DoesNotBuild(Exception):
    """The compiler or the assembler refuses a mutant; the message is its first error."""


def entry_texts(text: str) -> Mapping[str, str]:
    """By name, each entry of a module as a module of its own, without line tables and comments."""
    end = _LINE_TABLE.search(text)
    code = _NO_CODE.sub("", text[: end.start()] if end else text)
    around, entries, at = [], {}, 0
    for match in _ENTRY.finditer(code):
        around.append(code[at : match.start()])
        at = _closed(code, code.index("{", match.end()))
        entries[match[1]] = code[match.start() : at]
    around.append(code[at:])
    head = re.sub(r"\s*\n\s*", "\n", "".join(around)).strip() + "\n"
    # The number of a label is that of its entry in the module, which says nothing.
    return {name: head + re.sub(r"\$L__BB\d+_", "$L__BB_", entry) for name, entry in entries.items()}


def _closed(code: str, opening: int) -> int:
    """Offset of the line after the bracket that closes the one at `opening`; assembly has brackets of its own."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, opening):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return code.index("\n", match.end()) + 1
    raise ValueError("an entry without an end")


@lru_cache(maxsize=64)
def sound_entries(source: str, arch: str) -> Mapping[str, str]:
    """The texts of the entries of a source as it is."""
    target = Target(Entry(source, "").path(), arch, "ptx")
    return entry_texts(build([target])[target].read_text())


def sound_text(key: EntryKey) -> str:
    """The text of one entry as it is."""
    source, entry, arch = key
    return sound_entries(source, arch)[entry]


def compiled_entries(
    csrc: Path, source: str, arch: str, wanted: Collection[str] | None = None, *, hints: bool = True
) -> Mapping[str, str]:
    """The texts of the entries of a changed source; of those in `wanted` alone, if it is given. Nothing is kept.

    Args:
        csrc: where the sources are.
        source: its name.
        arch: what to compile for.
        wanted: names of entries; None for all.
        hints: whether the compiler is told how many CTAs are to fit a multiprocessor.

    Raises:
        DoesNotBuild: the compiler refuses it.
    """
    others = set() if wanted is None else set(sound_entries(source, arch)) - set(wanted)
    with tempfile.TemporaryDirectory(prefix="refmoe-mutant-") as scratch:
        header, made = Path(scratch) / "left_out.h", Path(scratch) / "made.ptx"
        header.write_text(leaving_out(others) + ("" if hints else _NO_HINTS))
        flags = [flag for flag in FLAGS if flag != "-lineinfo"]
        _nvcc("-ptx", f"-arch={arch}", *flags, "-include", str(header), str(csrc / f"{source}.cu"), "-o", str(made))
        return entry_texts(made.read_text())


def changed_tree(file: str, text: str, folder: Path) -> Path:
    """A copy of the CUDA sources in `folder`, which must not exist yet, with another text of one file."""
    shutil.copytree(CSRC, folder)
    (folder / file).write_text(text, encoding="utf-8")
    return folder


def same_machine_code(text: str, key: EntryKey) -> bool:
    """Whether the assembler makes of a text the machine code that it makes of the entry as it is.

    Raises:
        DoesNotBuild: it refuses the text.
    """
    return machine_code_sha256(text, key[2]) == _sound_machine_code(key)


def on_one_arch(texts: Mapping[EntryKey, str]) -> list[EntryKey]:
    """Of entries whose text is the same on several archs, the first one: the assembler is told the same."""
    found = {
        (key[1], re.sub(r"^\.target .*", "", text, count=1, flags=re.MULTILINE)): key for key, text in texts.items()
    }
    return sorted(found.values())


@lru_cache(maxsize=1024)
def _sound_machine_code(key: EntryKey) -> str:
    text = sound_text(key)
    digest = hashlib.sha256(text.encode() + find_toolchain().build_id.encode()).hexdigest()
    path = cache_directory() / f"{key[0]}.{key[2]}.{digest[:16]}.sass"
    if not path.is_file():
        write_atomic(path, machine_code_sha256(text, key[2]))
    return path.read_text()


def machine_code_sha256(text: str, arch: str) -> str:
    """A hash of the sections of a module's cubin that the chip reads.

    Raises:
        DoesNotBuild: the assembler refuses it.
    """
    with tempfile.TemporaryDirectory(prefix="refmoe-mutant-") as scratch:
        source, made = Path(scratch) / "mutant.ptx", Path(scratch) / "mutant.cubin"
        source.write_text(text)
        _nvcc("-cubin", f"-arch={arch}", str(source), "-o", str(made))
        sections = sections_of(made.read_bytes())
    digest = hashlib.sha256()
    for name, held in sorted(sections.items()):
        if name.startswith(_READ_BY_THE_CHIP):
            digest.update(f"{name}\0{len(held)}\0".encode() + held)
    return digest.hexdigest()


def sections_of(elf: bytes) -> dict[str, bytes]:
    """The sections of a 64-bit ELF file, by name; of one without bytes in the file, its size as text."""
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError(f"found {elf[:5]!r}; needed a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + number * size) for number in range(count)]
    names = elf[headers[names_at][4] :]
    nobits = 8
    return {
        names[name : names.index(b"\0", name)].decode(): str(length).encode()
        if kind == nobits
        else elf[start : start + length]
        for name, kind, _, _, start, length in headers
    }


def _nvcc(*arguments: str) -> None:
    toolchain = find_toolchain()
    try:
        run = subprocess.run([toolchain.nvcc, *arguments], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired as error:
        raise DoesNotBuild("the compiler did not end in 300 s") from error
    except OSError as error:
        raise ToolchainError(f"{toolchain.nvcc}: {error.strerror}") from error
    if run.returncode:
        said = (run.stdout + run.stderr).splitlines()
        if any("No space left" in line for line in said):
            raise OSError(28, "No space left on device", tempfile.gettempdir())
        errors = [line for line in said if re.search(r"\berror\b|\bfatal\b", line)] or said or ["no word"]
        raise DoesNotBuild(re.sub(r"\S*/refmoe-[^/]*/(?:tree/)?", "", errors[0]).strip())
