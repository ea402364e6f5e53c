"""Faults in the use of CUTLASS's grouped GEMM: in a copy of its PTX, and in what its host code is given or hands over.

The kernel is not refmoe's, so a fault is no patch of a source. An edit of the PTX finds its instruction by the text
around it, because register numbers change with the compiler. It also says how often that text must occur. Any other
count is an error, because the fault could not be planted.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refmoe.cuda.toolchain import ToolchainError
from refmoe.families.case import Fields
from refmoe.families.family import Case
from refmoe.museum.cutlass.builds import build as build_kernel
from refmoe.museum.cutlass.gemm import Prepared
from refmoe.museum.cutlass.host import CutlassLaunch
from refmoe.museum.cutlass.kernel import CUTLASS_GEMM, Cutlass, Tampering, check_supported
from refmoe.museum.edits import Edit, EditError
from refmoe.verify.kernel import Devices

#: What all faults are planted in: three tiles of weight rows and five steps of K for each of three experts of four. On
#: two multiprocessors each CTA computes several tiles, of several experts.
CASE = "cutlass_gemm:bf16:m9k640n264e4:wide-range:alpha=distinct:poison=0x7F:seed7@ptx.sm_121a"
MULTIPROCESSORS = 2
#: A whole tile of tokens, so that the last of a tile's stores has something to store.
WHOLE_TILE = "cutlass_gemm:bf16:m128k128n72e2:wide-range:routing=same-experts:alpha=distinct:seed7@ptx.sm_121a"


@dataclass(frozen=True)
class CutlassFault:
    """A fault, planted in the PTX, in the problem, or in the launch.

    Attributes:
        name: a short name.
        fault: what is wrong, in a sentence.
        kind: the class of faults that it stands for.
        edit: changes the PTX.
        given: changes the problem in device memory, before the host code sees it.
        launched: changes the launch that the host code made.
        case: the case that must catch it.
    """

    name: str
    fault: str
    kind: str
    edit: Edit | None = None
    given: Callable[[Prepared], Prepared] | None = None
    launched: Callable[[CutlassLaunch], CutlassLaunch] | None = None
    case: str = CASE

    def plant(self, scratch: Path) -> Sequence[Cutlass]:
        """CUTLASS's kernel with the fault, on a chip of few multiprocessors.

        Raises:
            EditError: the edit does not fit the PTX.
        """
        changed = Tampering(self.given, self.launched, self._changed_ptx(scratch))
        return [Cutlass(CUTLASS_GEMM, Devices(multiprocessors=MULTIPROCESSORS), changed)]

    def cases(self) -> Sequence[Case]:
        """The one case that must catch it."""
        return [CUTLASS_GEMM.read(Fields.read(self.case))]

    def _changed_ptx(self, scratch: Path) -> Path | None:
        """The file of the changed PTX, None where the fault is not in the PTX."""
        if self.edit is None:
            return None
        case = self.cases()[0]
        built = build_kernel(check_supported(case, case.arch))
        path = scratch / f"{self.name}.ptx"
        try:
            path.write_text(self.edit(built.ptx.read_text()))
        except EditError as error:
            raise EditError(f"mutant {self.name}: {error}") from error
        return path

    def __reduce__(self) -> tuple[Any, ...]:
        # Its functions cannot be pickled; its name can.
        return _named, (self.name,)


# The PTX of inline assembly lies between two comments, in braces or bare.
_NEXT = r"[\s}]*// end inline asm(?:\s*(?!//|\$|@)[^;\n]*;)*\s*// begin inline asm[\s{]*"
_WAIT = r"mbarrier\.try_wait\.parity\.shared::cta\.b64 P1, \[%r\d+\], (%r\d+), %r\d+;"
_WAIT_LOOP = r"(\s*@P1 bra DONE;\s*bra\s+LAB_WAIT;\s*DONE:"
_NO_WAIT = r"setp.eq.u32 P1, \1, \1;\2"
_ACQUIRE = r"fence\.proxy\.tensormap::generic\.acquire\.gpu \[%rd\d+\], 128;"
_PUBLISH = r"tensormap\.cp_fenceproxy\.[^;]*;"
_ADDRESS = r"tensormap\.replace\.tile\.global_address\.[^;]*;"
_STORE_FENCE = rf"fence\.proxy\.async\.shared::cta;(?={_NEXT}bar\.sync %r)"
_STORE_BARRIER = rf"(fence\.proxy\.async\.shared::cta;{_NEXT})bar\.sync %r\d+, %r\d+;"
_EXPECT = r"(mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, \[%r\d+\], )%r\d+;"
_RELEASE = rf"(bar\.sync %r\d+, %r\d+;{_NEXT}(?:\.reg \.b32 remAddr32;\s*mapa[^;]*;\s*))mbarrier\.arrive[^;]*;"
_EDITS: tuple[CutlassFault, ...] = (
    CutlassFault(
        "expects-too-few-bytes", "a stage counts as full before all of its copies have landed", "transaction count",
        Edit(_EXPECT, r"\g<1>16384;"),
    ),
    CutlassFault(
        "expects-too-many-bytes", "a stage waits for bytes that nobody copies", "transaction count",
        Edit(_EXPECT, r"\g<1>65536;"),
    ),
    CutlassFault(
        "full-wait-dropped", "consumers read a stage without waiting for it", "barrier wait",
        Edit(rf"{_WAIT}{_WAIT_LOOP}{_NEXT}ldmatrix\.sync\.aligned\.m8n16)", _NO_WAIT, 2, 2),
    ),
    CutlassFault(
        "first-full-wait-dropped", "consumers read a tile's first stage without waiting for it", "barrier wait",
        Edit(rf"{_WAIT}{_WAIT_LOOP}{_NEXT}ldmatrix\.sync\.aligned\.m8n16)", _NO_WAIT, 1, 2),
    ),
    CutlassFault(
        "empty-wait-dropped", "the producer fills a stage that consumers still read", "barrier wait",
        Edit(rf"{_WAIT}{_WAIT_LOOP}[\s}}]*// end inline asm\s*@%p\d+ bra[^;]*;\s*add[^;]*;\s*// begin inline asm[\s{{]*"
             r"mbarrier\.arrive\.expect_tx)", _NO_WAIT),
    ),
    CutlassFault(
        "release-dropped", "consumers do not give a stage back", "barrier arrival",
        Edit(_RELEASE, r"\1", 1, 2),
    ),
    CutlassFault(
        "setup-barrier-dropped", "warps use barriers before they are initialised", "barrier",
        Edit(r"\tbar\.sync \t0;", ""),
    ),
    CutlassFault(
        "store-fence-dropped", "what warps wrote is not fenced before a bulk store reads it", "proxy fence",
        # Only before the last of a tile's stores: the others follow a fence that releases another barrier, too.
        Edit(_STORE_FENCE, "", 8, 8), case=WHOLE_TILE,
    ),
    CutlassFault(
        "store-barrier-dropped", "a bulk store starts before all warps have written their part", "barrier",
        Edit(_STORE_BARRIER, r"\1", 1, 8),
    ),
    CutlassFault(
        "store-wait-dropped", "warps overwrite what a bulk store still reads", "bulk group",
        Edit(r"cp\.async\.bulk\.wait_group\.read 1;", "", 3, 8),
    ),
    CutlassFault(
        "map-not-acquired", "an edited tensor map is used without the proxy's acquire", "proxy fence",
        Edit(_ACQUIRE, "", 1, 5),
    ),
    CutlassFault(
        "output-map-not-acquired", "the output's edited tensor map is used without the proxy's acquire", "proxy fence",
        Edit(_ACQUIRE, "", 5, 5),
    ),
    CutlassFault(
        "stale-map", "the tensor map of the tokens stays that of the group before", "stale tensor map",
        Edit(_PUBLISH, "", 6, 10),
    ),
    CutlassFault(
        "stale-output-map", "the output's tensor map stays that of the group before", "stale tensor map",
        Edit(_PUBLISH, "", 10, 10),
    ),
    CutlassFault(
        "stale-scale-address", "a group's weight scales are read where those of the group before lie",
        "stale tensor map", Edit(_ADDRESS, "", 7, 10),
    ),
    CutlassFault(
        "scale-of-next-block", "a weight scale is read one byte further", "scale",
        Edit(r"(ld\.shared\.u8 \t%rs\d+, \[%r\d+)\];", r"\1+1];", 1, 4),
    ),
)  # fmt: skip


def _operands(**names: str) -> Callable[[Prepared], Prepared]:
    """The host code is given other addresses: each of `names` gets the one that belongs to its value."""

    def change(prepared: Prepared) -> Prepared:
        values = {name: getattr(prepared.operands, source) for name, source in names.items()}
        return dataclasses.replace(prepared, operands=dataclasses.replace(prepared.operands, **values))

    return change


def _content(name: str, change: Callable[[Any], Any], dtype: str) -> Callable[[Prepared], Prepared]:
    """One of the arrays that describe the groups holds something else: `change` of it as [groups, ...] of `dtype`."""

    def changed(prepared: Prepared) -> Prepared:
        array = prepared.buffers[name].array
        words = array.view(dtype).reshape(-1) if array.ndim == 1 else array.view(dtype)
        words[...] = change(words.copy())
        return prepared

    return changed


def _next_expert(words: Any) -> Any:
    """Each expert's pointer, one expert's stride too far."""
    return words + (words[1] - words[0])


def _one_less(column: int, by: int) -> Callable[[Any], Any]:
    """One number of the first group is less."""

    def change(words: Any) -> Any:
        words[0, column] -= by
        return words

    return change


# The 128 bytes of a tensor map begin with these (refmoe.ptx.state.tensormap); the swizzle is byte 111, NONE 0, 32B 1,
# 64B 2, 128B 3.
_MAP, _SWIZZLE = b"refmoeTM", 111


def _swizzle(number: int, value: int) -> Callable[[CutlassLaunch], CutlassLaunch]:
    """The tensor map `number` of the parameters has another swizzle."""

    def change(launch: CutlassLaunch) -> CutlassLaunch:
        places = [match.start() for match in re.finditer(_MAP, launch.parameters)]
        content = bytearray(launch.parameters)
        content[places[number] + _SWIZZLE] = value
        if content == launch.parameters:
            raise EditError(f"tensor map {number} has swizzle {value} already")
        return dataclasses.replace(launch, parameters=bytes(content))

    return change


def _less_shared(launch: CutlassLaunch) -> CutlassLaunch:
    return dataclasses.replace(launch, shared_bytes=launch.shared_bytes - 2048)


_HANDED: tuple[CutlassFault, ...] = (
    CutlassFault(
        "scales-swapped", "the host code is given the scales of weights and tokens the wrong way round", "pointer",
        given=_operands(ptr_sfa="ptr_sfb", ptr_sfb="ptr_sfa"),
    ),
    CutlassFault(
        "weights-of-next-expert", "each expert gets the weights of the next", "stride off by one expert",
        given=_content("ptr_a", _next_expert, "u8"),
    ),
    CutlassFault(
        "alpha-of-next-expert", "each expert gets the factor of the next", "stride off by one expert",
        given=_content("ptr_alpha", _next_expert, "u8"),
    ),
    CutlassFault(
        "group-one-row-short", "the first group's shape has a token too few", "problem shape",
        given=_content("problems", _one_less(1, 1), "i4"),
    ),
    CutlassFault(
        "group-one-step-short", "the first group's shape has a step of K too few", "problem shape",
        given=_content("problems", _one_less(2, 128), "i4"),
    ),
    CutlassFault(
        "group-one-row-long", "the first group has a token too many, which is the next group's", "problem shape",
        given=_content("problems", _one_less(1, -1), "i4"),
    ),
    CutlassFault(
        "weights-swizzled-otherwise", "the tensor map of the weights has another swizzle than the kernel reads with",
        "swizzle", launched=_swizzle(0, 2),
    ),
    CutlassFault(
        "tokens-not-swizzled", "the tensor map of the tokens has no swizzle", "swizzle", launched=_swizzle(1, 0),
    ),
    CutlassFault(
        "shared-memory-short", "the launch asks for less shared memory than the kernel uses", "launch",
        launched=_less_shared,
    ),
)  # fmt: skip

#: Every fault, in the order in which it is shown.
CUTLASS_FAULTS = _EDITS + _HANDED


def _named(name: str) -> CutlassFault:
    return next(fault for fault in CUTLASS_FAULTS if fault.name == name)


def faults_missing() -> str | None:
    """Why the faults cannot be planted here, in a sentence, or None."""
    case = CUTLASS_GEMM.read(Fields.read(CASE))
    kernel = Cutlass(CUTLASS_GEMM)
    try:
        return kernel.missing(case, kernel.place(case))
    except ToolchainError as error:
        return str(error)
