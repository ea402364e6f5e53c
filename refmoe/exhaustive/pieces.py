"""The pieces of the exhaustive sweep: a subject, a dtype, a policy and a range of amax; and how one is done.

A *subject* is what is held against the definition: an entry of the quantize or the expand kernel by its layout of
scales, or a fast reference. All blocks of a piece go through it in launches of one shape, `ROWS` by `WIDTH`, for which
`refmoe.exhaustive.blockwise` proves what a byte depends on; every output byte is compared.

    mxfp8_quantize.128x4:bf16:rceil/exact:0000-1fff      a kernel
    reference.mxfp4:fp16:even/llama_cpp_cuda:0000-1fff   a fast reference
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.cuda.expand import EXPAND_LAYOUTS, expand_kernel
from refmoe.cuda.launch import Entry
from refmoe.cuda.quantize import EDGES, LAYOUTS, MODES, mxfp8_quantize_kernel
from refmoe.errors import ArgumentError, describe
from refmoe.exhaustive.definition import MAGNITUDES, definition
from refmoe.exhaustive.pairs import Blocks, Domain, Maker, batches
from refmoe.families.quantize import INPUT_FORMATS
from refmoe.formats import MX_BLOCK, MX_FORMATS
from refmoe.policy import EDGE_FORMATS, ScaleMode
from refmoe.reference.expand import build_permutation, expand
from refmoe.reference.layout import swizzle_scales
from refmoe.reference.quantize import quantize

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

#: The shape of every launch: rows, and elements of a row: 90 blocks, no multiple of the 4 of a scale word.
ROWS, WIDTH = 1456, 2880
#: Of expand: experts, and rows that each token is copied to.
EXPERTS, TOP_K = 8, 2
#: Output buffers hold this before a launch: a byte that is not written is seen, since it is no code of a number.
FILL = 0xA5
#: Into how many pieces the amaxes of a subject are cut, of equally many blocks.
RANGES = 16

FORMATS_SWEPT = ("mxfp8", "mxfp4")


@dataclass(frozen=True)
class Subject:
    """What is held against the definition.

    Attributes:
        family: "mxfp8_quantize", "expand", or "reference" for the fast reference.
        variant: the layout of scales, or the format of a reference.
    """

    family: str
    variant: str

    @property
    def name(self) -> str:
        """As in the name of a piece."""
        return f"{self.family}.{self.variant}"

    @property
    def format(self) -> str:
        """The MX format that comes out."""
        return self.variant if self.family == "reference" else "mxfp8"

    def policies(self) -> list[tuple[str, str]]:
        """(mode, edge) of every policy, by edge."""
        if self.family != "reference":
            return [(mode, edge) for edge, mode in product(EDGES, MODES)]
        edges = [edge.value for edge, formats in EDGE_FORMATS.items() if self.format in formats]
        return [(mode.value, edge) for edge, mode in product(edges, ScaleMode)]

    def entry(self, dtype: str, mode: str, edge: str) -> Entry | None:
        """The kernel's entry; None for a reference."""
        if self.family == "mxfp8_quantize":
            return mxfp8_quantize_kernel(dtype, mode, edge, self.variant)
        return expand_kernel(f"{dtype}_{mode}_{edge}", self.variant) if self.family == "expand" else None


SUBJECTS: Mapping[str, Subject] = {
    subject.name: subject
    for subject in (
        *(Subject("mxfp8_quantize", layout) for layout in LAYOUTS),
        *(Subject("expand", layout) for layout in EXPAND_LAYOUTS),
        *(Subject("reference", format) for format in FORMATS_SWEPT),
    )
}


@dataclass(frozen=True)
class Piece:
    """A part of the sweep: `subject` for input of `dtype` under a policy, with the amaxes `first` to `last` as bits."""

    subject: Subject
    dtype: str
    mode: str
    edge: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.subject.name}:{self.dtype}:{self.mode}/{self.edge}:{self.first:04x}-{self.last:04x}"

    @classmethod
    def parse(cls, text: str) -> Piece:
        """The piece of a name.

        Raises:
            ArgumentError: there is none of this name.
        """
        match = re.fullmatch(r"([\w.]+):(\w+):(\w+)/(\w+):([0-9a-f]{4})-([0-9a-f]{4})", text)
        needed = "SUBJECT:DTYPE:MODE/EDGE:FIRST-LAST, as mxfp8_quantize.linear:bf16:rceil/exact:0000-1fff"
        if match is None:
            raise ArgumentError("piece", describe(text), needed)
        name, dtype, mode, edge = match.group(1, 2, 3, 4)
        first, last = int(match[5], 16), int(match[6], 16)
        subject = SUBJECTS.get(name)
        if subject is None:
            raise ArgumentError("piece", f"subject {name} in {text}", f"one of {', '.join(SUBJECTS)}")
        if dtype not in INPUT_FORMATS:
            raise ArgumentError("piece", f"dtype {dtype} in {text}", f"one of {', '.join(INPUT_FORMATS)}")
        if (mode, edge) not in subject.policies():
            named = ", ".join("/".join(policy) for policy in subject.policies())
            raise ArgumentError("piece", f"policy {mode}/{edge} in {text}", f"of {name} one of {named}")
        if not first <= last < MAGNITUDES:
            raise ArgumentError("piece", f"amaxes {match[5]}-{match[6]} in {text}", "FIRST <= LAST <= 7fff")
        return cls(subject, dtype, mode, edge, first, last)

    @property
    def domain(self) -> Domain:
        """Which pairs there are."""
        return Domain.of(self.dtype, self.edge)

    @property
    def amaxes(self) -> range:
        """Its amaxes, as bits."""
        return range(self.first, self.last + 1)


@lru_cache(maxsize=16)
def ranges(domain: Domain, count: int = RANGES) -> tuple[tuple[int, int], ...]:
    """The amaxes of a domain cut into `count` ranges (first, last) of about equally many blocks."""
    total = list(accumulate(map(domain.blocks, range(MAGNITUDES))))
    cuts = [int(np.searchsorted(total, total[-1] * part / count)) for part in range(1, count)]
    starts = [0, *(cut + 1 for cut in cuts)]
    return tuple(zip(starts, [start - 1 for start in starts[1:]] + [MAGNITUDES - 1], strict=True))


def list_pieces(subjects: Iterable[str] = (), dtypes: Iterable[str] = ()) -> list[Piece]:
    """All pieces, or those of some subjects and dtypes, in the order of the report.

    Args:
        subjects: names of subjects, or of families for all of theirs; none for all.
        dtypes: likewise.

    Raises:
        ArgumentError: no such subject or dtype.
    """
    wanted = [
        subject for subject in SUBJECTS.values() if not subjects or {subject.name, subject.family} & set(subjects)
    ]
    known = {name for each in SUBJECTS.values() for name in (each.name, each.family)}
    for given, there, what in ((subjects, known, "suite"), (dtypes, set(INPUT_FORMATS), "dtype")):
        for name in given:
            if name not in there:
                raise ArgumentError(what, describe(name), f"one of {', '.join(sorted(there))}")
    return [
        Piece(subject, dtype, mode, edge, first, last)
        for dtype in INPUT_FORMATS
        if not dtypes or dtype in dtypes
        for mode, edge, subject in _in_order(wanted)
        for first, last in ranges(Domain.of(dtype, edge))
    ]


def _in_order(subjects: Iterable[Subject]) -> list[tuple[str, str, Subject]]:
    """(mode, edge, subject) of every policy of `subjects`: kernels first, and those of one table side by side."""
    triples = [(mode, edge, subject) for subject in subjects for mode, edge in subject.policies()]
    kernels = [triple for triple in triples if triple[2].family != "reference"]
    policies = list(dict.fromkeys(triple[:2] for triple in kernels))
    # A sort is stable: within a policy, subjects keep their order.
    kernels.sort(key=lambda triple: policies.index(triple[:2]))
    return kernels + [triple for triple in triples if triple[2].family == "reference"]


@dataclass(frozen=True)
class Difference:
    """The first byte of a piece that differs.

    Attributes:
        output: "codes" or "scales".
        amax: bits of the largest magnitude of the block, None for a byte of no block.
        element: bits of the element, None for a scale byte.
        position: of the element in its block, or None.
        expected, found: the bytes, of MXFP4 the codes.
    """

    output: str
    amax: int | None
    element: int | None
    position: int | None
    expected: int
    found: int


def do_piece(piece: Piece, device: Device | None) -> dict[str, Any]:
    """Hold every block of a piece against the definition.

    Args:
        piece: what to do.
        device: where kernels run; of no use to a reference.

    Returns:
        `pairs` (amax, element), `blocks`, `bytes` that were compared, how many were `differing`, and the `first`
        difference or None.
    """
    table = definition(piece.dtype, piece.subject.format, piece.mode, piece.edge)
    holder = _Holder(piece, device)
    blocks = 0
    for batch, used in batches(Maker(piece.domain, table), piece.amaxes, ROWS * WIDTH // MX_BLOCK):
        holder.hold(batch)
        blocks += used
        if device is not None:
            device.launches.clear()
    first = holder.first
    return {
        "pairs": sum(map(piece.domain.pairs, piece.amaxes)),
        "blocks": blocks,
        "launches": holder.launches,
        "bytes": holder.compared,
        "differing": holder.differing,
        "first": None if first is None else asdict(first),
    }


def do_named(name: str, device: str, arch: str | None) -> dict[str, Any]:
    """`do_piece` of a piece by its name, in a process that keeps its device.

    Args:
        name: of the piece.
        device: "ptx" or "cuda", see `refmoe.cuda.device.open_device`.
        arch: likewise.
    """
    piece = Piece.parse(name)
    return do_piece(piece, None if piece.subject.family == "reference" else _device(device, arch))


@lru_cache(maxsize=1)
def _device(name: str, arch: str | None) -> Device:
    from refmoe.cuda.device import open_device

    return open_device(name, arch)


@lru_cache(maxsize=1)
def routing() -> NDArray[np.int32]:
    """The experts of each token, int32 [ROWS, TOP_K]: every expert has rows, of odd and different number."""
    token = np.arange(ROWS)
    first = token * token % EXPERTS
    return np.stack([first, (first + 1 + token % (EXPERTS - 1)) % EXPERTS], axis=1).astype(np.int32)


class _Holder:
    """Runs batches through the subject of a piece and counts what differs."""

    def __init__(self, piece: Piece, device: Device | None) -> None:
        self.piece, self.device = piece, device
        self.launches = self.compared = self.differing = 0
        self.first: Difference | None = None

    def hold(self, batch: Blocks) -> None:
        """Compare all that comes out for a batch."""
        self.launches += 1
        x = batch.elements.view(INPUT_FORMATS[self.piece.dtype].dtype).reshape(ROWS, WIDTH)
        run = {"reference": self._reference, "mxfp8_quantize": self._quantize, "expand": self._expand}
        for output, found, expected in run[self.piece.subject.family](x, batch):
            self._compare(output, found, expected, batch)

    def _reference(self, x: NDArray[Any], batch: Blocks) -> list[tuple[str, NDArray[np.uint8], NDArray[np.uint8]]]:
        made = quantize(x, self.piece.subject.format, policy=f"{self.piece.mode}/{self.piece.edge}")
        codes = batch.codes.reshape(-1)
        packed = codes if MX_FORMATS[self.piece.subject.format].element.bits == 8 else codes[0::2] | codes[1::2] << 4
        return [("codes", made.codes, packed), ("scales", made.scales, batch.scales)]  # type: ignore[list-item]

    def _quantize(self, x: NDArray[Any], batch: Blocks) -> list[tuple[str, NDArray[np.uint8], NDArray[np.uint8]]]:
        from refmoe.cuda.quantize import quantize_mxfp8

        assert self.device is not None
        piece, layout = self.piece, self.piece.subject.variant
        made = quantize_mxfp8(x, device=self.device, mode=piece.mode, edge=piece.edge, layout=layout, fill=FILL)
        scales = swizzle_scales(batch.scales.reshape(ROWS, -1), layout, fill=FILL)
        return [("codes", made.codes, batch.codes), ("scales", made.scales, scales)]

    def _expand(self, x: NDArray[Any], batch: Blocks) -> list[tuple[str, NDArray[np.uint8], NDArray[np.uint8]]]:
        from refmoe.cuda.expand import expand as launch

        assert self.device is not None
        piece, layout = self.piece, self.piece.subject.variant
        permutation = build_permutation(routing(), EXPERTS)
        made = launch(
            *(x, routing(), permutation.unpermuted_to_permuted, permutation.offsets),
            device=self.device, mode=piece.mode, edge=piece.edge, layout=layout, fill=FILL,
        )  # fmt: skip
        # Rows that are MXFP8 already are copied: the reference moves the definition's bytes, and computes none.
        moved = expand(
            *(batch.codes.reshape(ROWS, WIDTH), routing(), EXPERTS),
            layout=layout, input_sf=batch.scales.reshape(ROWS, -1), fill=FILL,
        )  # fmt: skip
        return [("codes", made.codes, moved.codes), ("scales", made.scales, moved.scales)]

    def _compare(self, output: str, found: NDArray[np.uint8], expected: NDArray[np.uint8], batch: Blocks) -> None:
        found, expected = found.reshape(-1), expected.reshape(-1)
        self.compared += expected.size
        if np.array_equal(found, expected):
            return
        if found.size != expected.size:
            raise ArgumentError(output, f"{found.size} bytes", f"{expected.size}")
        wrong = np.flatnonzero(found != expected)
        self.differing += wrong.size
        if self.first is None:
            self.first = self._difference(output, int(wrong[0]), found, expected, batch)

    def _difference(
        self, output: str, byte: int, found: NDArray[np.uint8], expected: NDArray[np.uint8], batch: Blocks
    ) -> Difference:
        block, position = self._place(output, byte)
        if block is None:
            return Difference(output, None, None, None, int(expected[byte]), int(found[byte]))
        amax = int((batch.elements[block] & np.uint16(MAGNITUDES - 1)).max())
        element = None if position is None else int(batch.elements[block, position])
        return Difference(output, amax, element, position, int(expected[byte]), int(found[byte]))

    def _place(self, output: str, byte: int) -> tuple[int | None, int | None]:
        """Which block of the batch and which of its elements an output byte belongs to; None for neither."""
        subject = self.piece.subject
        if output == "scales":
            return self._block_of_scale(byte), None
        element = byte * (2 if subject.format == "mxfp4" else 1)
        if subject.family == "expand":
            row = int(build_permutation(routing(), EXPERTS).permuted_to_unpermuted[element // WIDTH]) % ROWS
            element = row * WIDTH + element % WIDTH
        return divmod(element, MX_BLOCK)

    def _block_of_scale(self, byte: int) -> int | None:
        """The block of the batch whose scale lies at `byte`, None in padding: scales that number the blocks show it."""
        subject = self.piece.subject
        if subject.family == "reference" or subject.variant == "linear":
            return byte
        number = np.arange(ROWS * WIDTH // MX_BLOCK).reshape(ROWS, -1) + 1
        block = 0
        for shift in (0, 8, 16):
            digit = (number >> shift & 0xFF).astype(np.uint8)
            if subject.family == "expand":
                codes = np.zeros((ROWS, WIDTH), np.uint8)
                moved = expand(codes, routing(), EXPERTS, layout=subject.variant, input_sf=digit).scales
            else:
                moved = swizzle_scales(digit, subject.variant)
            block |= int(moved[byte]) << shift
        return block - 1 if block else None
