"""Every kernel that refmoe has, by name: refmoe's own and those of the museum, which are other people's.

A case is found by its repro string, a case list by its level, and the kernel of a case by the name of its family.
"""

from __future__ import annotations

import copyreg
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from refmoe.chips import DEFAULT_ARCH, KERNEL_ARCHS
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.case import Fields, Shape, one_of, refused
from refmoe.families.family import LEVELS, SAMPLES, Case, Family
from refmoe.families.quantize import COMPILED_POLICIES
from refmoe.families.real_data import read_activations
from refmoe.museum import exhibits
from refmoe.verify.kernel import Devices, Kernel


def all_families() -> Mapping[str, Family]:
    """The families by name. An exhibit restates a family under its kernel's name, and stands behind that family."""
    listed = dict(FAMILIES)
    for name, exhibit in exhibits().items():
        # Behind the family whose contract it is under, so that lists show the two together.
        names = list(listed)
        at = names.index(exhibit.family.base) + 1
        listed = {each: listed.get(each, exhibit.family) for each in (*names[:at], name, *names[at:])}
    return listed


def family_named(name: str) -> Family:
    """The family of that name.

    Raises:
        ArgumentError: there is none.
    """
    if (family := FAMILIES.get(name)) is not None:
        return family
    if (exhibit := exhibits().get(name)) is not None:
        return exhibit.family
    raise refused("family", name, one_of(all_families()))


# A family holds functions; between processes its name goes, and a case goes with it.
copyreg.pickle(Family, lambda family: (family_named, (family.name,)))


def groups() -> Mapping[str, tuple[str, ...]]:
    """Names for several families together: {"moe": ("routing", "activation", "finalize", "moe")}."""
    named = {family.group: () for family in all_families().values() if family.group}
    return {name: tuple(each.name for each in all_families().values() if each.group == name) for name in named}


def parse_case(text: str, arch: str = "") -> Case:
    """The case of a repro string; `arch` is of one that names none, and "" means the family's leading one.

    Raises:
        ArgumentError: a malformed string; the message says which field is wrong and what it may be.
    """
    # In a report, a case of somebody's function has FILE::NAME/ in front. No repro string has two colons there.
    function = re.match(r"([^:]*::([^:/]*))/", text)
    if function is not None or text.strip().endswith("@host"):
        case = text[function.end() if function else 0 :]
        found = f"a case of the function {function[1]}" if function else "'host', the device of a function of yours"
        call = f"refmoe.check({function[2] if function else 'FUNCTION'}, {case.partition(':')[0]!r}, cases=[{case!r}])"
        raise refused(
            "device", found, f"ptx or cuda, for a kernel of refmoe's; a function of yours runs by pytest or {call}"
        )
    fields = Fields.read(text)
    return family_named(fields.family).read(replace(fields, arch=fields.arch or arch))


def kernel_of(case: Case, devices: Devices) -> Kernel:
    """The kernel that a case names: refmoe's own kernel of the family, or an exhibit."""
    exhibit = exhibits().get(case.family.name)
    return Kernel(case.family, devices) if exhibit is None else exhibit.kernel(case.family, devices)


def sound_kernel(case: Case) -> Kernel:
    """The kernel of a case without a fault; its devices stay open for the next case."""
    return kernel_of(case, _SOUND)


_SOUND = Devices()


def source_sha256(name: str) -> str:
    """The present hash of all that decides the result of a family's kernel; see `refmoe.verify.source`.

    Raises:
        ArgumentError: there is no such family.
    """
    family = family_named(name)
    exhibit = exhibits().get(name)
    kernel = Kernel(family) if exhibit is None else exhibit.kernel(family, Devices())
    return kernel.source_sha256() or hashlib.sha256().hexdigest()


def list_cases(
    level: str = "default", suites: Sequence[str] = (), device: str = "ptx", arch: str | None = None
) -> list[Case]:
    """The cases of a level, without repetition.

    On ptx without an arch, a family's leading arch takes the level and the other archs the one below: the same C++
    compiles for all, so what can differ is the compiler's choice of instructions. A case whose instruction the leading
    arch lacks is taken from the level itself, for the first arch that has it. Where a kernel carries a tensor-core
    instruction in software, which the executor is too slow for, only that family's few small cases are taken. Cases
    whose instruction a chip lacks are not taken for it. From the default level on, the calls that refmoe's own
    host code has to refuse come last.

    Args:
        level: "quick", "default" or "full"; or "samples", the cases of "full" that have true sizes, each on the first
            arch that has its instruction.
        suites: kernel families, or names of `groups()`; none means all.
        device: "ptx" or "cuda".
        arch: one arch for all cases.

    Raises:
        ArgumentError: an unknown level, suite, device or arch.
    """
    families, named = all_families(), groups()
    if level not in (*LEVELS, SAMPLES):
        raise ArgumentError("level", repr(level), one_of((*LEVELS, SAMPLES)))
    if arch is not None and arch not in KERNEL_ARCHS:
        raise refused("arch", arch, one_of(KERNEL_ARCHS))
    for suite in suites:
        if suite not in families and suite not in named:
            raise ArgumentError("suite", repr(suite), one_of(dict.fromkeys((*families, *named))))
    wanted = {name for suite in suites for name in named.get(suite, (suite,))}
    chosen = [family for name, family in families.items() if not suites or name in wanted]
    below = LEVELS[max(LEVELS.index(level) - 1, 0)] if level in LEVELS else None
    if arch is not None or device == "cuda":
        places = [(arch or "", family, level) for family in chosen]
    else:
        archs = [DEFAULT_ARCH, *(other for other in KERNEL_ARCHS if other != DEFAULT_ARCH)]
        places = [
            (place, family, deep)
            for place in archs
            for family in chosen
            if (deep := level if place == family.leading_arch else below) is not None
        ]
    listed = (case.on(device, place) for place, family, deep in places for case in _listed(family, deep, device, place))
    elsewhere = [case for family in chosen for case in _lacking(family, level)] if not arch and device == "ptx" else []
    return _unique(itertools.chain(listed, elsewhere))


def _lacking(family: Family, level: str) -> Iterator[Case]:
    """The cases of a level that the family's leading arch cannot run, on the first arch that can."""
    for case in family.level(level):
        if family.lacks(case, family.leading_arch) is not None:
            able = (arch for arch in KERNEL_ARCHS if arch in family.archs and arch not in family.software)
            place = next((arch for arch in able if family.lacks(case, arch) is None), None)
            if place is not None:
                yield case.on("ptx", place)


def _listed(family: Family, level: str, device: str, arch: str) -> Iterable[Case]:
    if device == "cuda":
        return _with_wrong_calls(family, level)
    if arch not in family.archs:
        return ()
    if level == SAMPLES and arch in family.software:
        return ()
    cases = family.software[arch]() if arch in family.software else _with_wrong_calls(family, level)
    return (case for case in cases if family.lacks(case, arch) is None)


def _with_wrong_calls(family: Family, level: str) -> Iterator[Case]:
    """The cases of a level, and from the default level on the calls that refmoe's own host code has to refuse."""
    yield from family.level(level)
    if level in LEVELS[1:]:
        yield from family.wrong_calls()


def activation_cases(text: str, device: str = "ptx", arch: str | None = None, suites: Sequence[str] = ()) -> list[Case]:
    """Cases on a user's activations, `FILE` or `FILE:TENSOR`, at the tensor's own size, under every policy.

    Raises:
        ArgumentError: a file or tensor that cannot be used.
    """
    path, tensor = _split(text)
    data = read_activations(path, tensor)
    m, k = data.patterns.shape
    if m == 0:
        raise ArgumentError("activations", f"tensor {data.tensor!r} without rows in {path}", "at least one row")
    shapes = {"mxfp8_quantize": Shape(m, k), "expand": Shape(m, k, 16, 4)}
    file = {"file": str(path.resolve()), "tensor": data.tensor}
    return _unique(
        FAMILIES[name].case(
            "activations", shape, data.dtype, 0, device=device, arch=arch or "", mode=mode, edge=edge, **file
        )
        for mode, edge in COMPILED_POLICIES
        for name, shape in shapes.items()
        if not suites or name in suites
    )


def _split(text: str) -> tuple[Path, str | None]:
    """FILE:TENSOR; both may hold colons, so the file is what exists."""
    if Path(text).is_file():
        return Path(text), None
    colons = [place for place, letter in enumerate(text) if letter == ":"]
    for place in colons:
        if Path(text[:place]).is_file():
            return Path(text[:place]), text[place + 1 :]
    return (Path(text[: colons[-1]]), text[colons[-1] + 1 :]) if colons else (Path(text), None)


def _unique(cases: Iterable[Case]) -> list[Case]:
    return list(dict.fromkeys(cases))
