"""Gates and ups whose SwiGLU lies on the border of two codes, or an ulp or a few beside it: a last bit shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.family import Case, Fill, Lack
from refmoe.families.fills.sigmoid_gates import STEP_PAIRS, STEPS
from refmoe.formats import MX_BLOCK, Q8_1

#: BF16 bits of (gate, up) with a result within 24 ulps of the middle between two E4M3 numbers, on either side of it: of
#: all pairs with gates of 2^-3 to 8 the nearest ones. Half are gpt-oss's with its own figures, half are silu's.
_NEAR_E4M3 = np.array(
    [
        *((0x3FB9, 0x3EE9), (0xBFCA, 0x3FA0), (0xBF33, 0x4029), (0xBFAC, 0x3FD3)),
        *((0x3FDB, 0x3F6D), (0xBF84, 0x403A), (0xBEA1, 0x3F51), (0x403E, 0x3F73)),
        *((0x3E50, 0x3F98), (0xBE20, 0x3FEC), (0x3EE4, 0x3F8C), (0xBF7F, 0x3FC9)),
        *((0xBE18, 0x3FD3), (0x3F39, 0x3FDE), (0x3F2B, 0x3F9A), (0xBFAE, 0x3FB4)),
    ],
    np.uint32,
)
#: Beside a gate of 2^-31, whose sigmoid is 1/2: ups that are in the middle for silu, and for gpt-oss, which adds 1.
_MIDDLES = np.array([19, 23, 27, 31, 3, 7, 11, 15]) / 16
_LEAST_GATE = 2.0**-31
#: A gate whose sigmoid needs clamps; its result is next to nothing.
_FAR_GATE = -300.0

F32 = NDArray[np.float32]


def mixed_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Gates and ups [rows, width] beside the middle of two codes, and one of each 16 neighbours a far gate.

    A lane of the kernel has 16 neighbours. The far gate makes all take the way that clamps, and decides nothing.
    """
    shape = (rows * width // MX_BLOCK, MX_BLOCK)
    pairs = (_NEAR_E4M3[draw.integers(len(_NEAR_E4M3), shape)] << 16).view(np.float32).astype(np.float64)
    gates, ups = pairs[..., 0], pairs[..., 1]
    gates[::4] = _LEAST_GATE
    ups[::4] = _MIDDLES[draw.integers(_MIDDLES.size, ups[::4].shape)]
    lanes = gates.reshape(-1, MX_BLOCK // 2)
    lanes[np.arange(len(lanes)), draw.integers(MX_BLOCK // 2, (len(lanes),))] = _FAR_GATE
    return gates.reshape(rows, width), ups.reshape(rows, width)


def halved_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Gates of 2^-23, whose 1 + exp is the last number below 2, and ups that are halved to a tie of two codes.

    The reciprocal of that number lies next to the middle of two others, above. Rounded to the other one it is a half,
    and the tie goes to even; rounded right it goes up. A block begins with its largest element.
    """
    first = np.arange(width) % MX_BLOCK == 0
    ups = np.where(first, 256.0, 17.0 + 4 * draw.integers(4, (rows, width)))
    return np.full((rows, width), 2.0**-23), ups


#: The fill of `biased_gates`, whose biases are `biased_terms`.
BIASED = "biased-gates"
#: BF16 bits of (gate, its bias, up, its bias). With the first step of the polynomial rounded toward zero
#: silu has another sigmoid: the result lies on the other side of the middle between two E4M3 numbers. Of all FP32 gates
#: this holds for 297, of which ten are sums of two BF16 numbers; for these four there is an up. The third one is so
#: large that a lane of such gates takes the way that clamps.
_BIASED = np.array(
    [
        *((0xBE4A, 0xBA0B, 0x3F81, 0xB799), (0xC158, 0xBB7C, 0x3F8B, 0x3706)),
        *((0xC1B9, 0xBD2B, 0x3FC8, 0xB9E3), (0x3ED0, 0x38DD, 0x3FCD, 0x3783)),
    ],
    np.uint32,
)


def _biased(width: int) -> NDArray[np.float64]:
    """(gate, bias, up, bias) of each column, float64 [4, width]: one kind a block."""
    kinds = (_BIASED << 16).view(np.float32).astype(np.float64)
    columns: NDArray[np.float64] = kinds[np.arange(width) // MX_BLOCK % len(kinds)]
    return np.ascontiguousarray(columns.T)


def biased_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Gates and ups [rows, width], the same in every row."""
    gates, _, ups, _ = _biased(width)
    return np.tile(gates, (rows, 1)), np.tile(ups, (rows, 1))


def biased_terms(draw: Draw, experts: int, width: int) -> NDArray[Any]:
    """Their biases [2, experts, width], the same for every expert."""
    _, of_gates, _, of_ups = _biased(width)
    return np.tile(np.stack([of_gates, of_ups])[:, None], (1, experts, 1))


#: FP32 bits of (gate, up) whose result lies on 2.625 or on the number below. With one operation of the exponential
#: rounded toward zero it is the other one: two pairs for each operation, from the first of the polynomial to 1 + exp.
#: For the first one gpt-oss has a single pair.
_ON_2_625: Mapping[str, NDArray[np.uint32]] = MappingProxyType(
    {
        "gpt_oss": np.array(
            [
                *((0x3FEAC0AF, 0x3EFD2248), (0x404375B6, 0xBE0AFEB8), (0x400A8331, 0x3E793638)),
                *((0x40145D9C, 0x3E1DF020), (0x3FE60C58, 0x3F077462), (0x3FC55262, 0x3F5388BC)),
                *((0x3FEE9BB1, 0x3EEF2E94), (0x4008E7E8, 0x3E84C404), (0x4011114A, 0x3E3AE978)),
                *((0x3FCB0424, 0x3F442DF2), (0x3FE83371, 0x3F0355B4), (0x40035D14, 0x3EA2B23C)),
                (0x4041D298, 0xBE034D24),
            ],
            np.uint32,
        ),
        "silu": np.array(
            [
                *((0x401FBE05, 0x3F91B622), (0x3FCCCF97, 0x3FFC6196), (0x401557A3, 0x3F9DF3D6)),
                *((0x406BBF8B, 0x3F3B045B), (0x3FDB5324, 0x3FE76FAB), (0x3FCC5C8C, 0x3FFD15EB)),
                *((0x3FEE6B32, 0x3FD06556), (0x3FD8FCBA, 0x3FEA967A), (0x3FFE4390, 0x3FC059EB)),
                *((0x3FCF9EE8, 0x3FF80EC0), (0x3FF56113, 0x3FC90B4E), (0x400D070D, 0x3FA950F5)),
                *((0x40210A0C, 0x3F905130), (0x4080149A, 0x3F2AF638)),
            ],
            np.uint32,
        ),
    }
)
#: And a pair whose result is 31.75: the largest of a block of Q8_1, whose d is then 1/4, so that 2.625 is a tie.
_ON_31_75 = MappingProxyType({"gpt_oss": (0x40E00000, 0x406249A4), "silu": (0x42000000, 0x3F7E0000)})


def q8_1_ties(variant: str, rows: int, width: int) -> F32:
    """FP32 rows [rows, 2 * width] as the variant lays them out: blocks of a largest element and ties."""
    return _blocks(_ON_2_625[variant], variant, rows, width)


def q8_1_steps(variant: str, rows: int, width: int) -> F32:
    """The same of the pairs of `STEP_PAIRS`, whose results lie on 2.875, or on the number below."""
    return _blocks(STEP_PAIRS[variant], variant, rows, width)


def _blocks(pairs: NDArray[np.uint32], variant: str, rows: int, width: int) -> F32:
    """As many blocks as there are pairs have each pair in each place but the first, which is the largest."""
    places = np.arange(rows * width)
    chosen = pairs[(places + places // Q8_1.block) % len(pairs)]
    chosen[places % Q8_1.block == 0] = _ON_31_75[variant]
    gate_up = chosen.reshape(rows, width, 2)
    if variant == "silu":
        gate_up = gate_up.transpose(0, 2, 1)
    return np.ascontiguousarray(gate_up).reshape(rows, -1).view(np.float32)


#: The fill that has `q8_1_ties`.
SIGMOID_TIES = "sigmoid-ties"


def tied_fill(gates: Fill) -> Fill:
    """A fill of gates under the name and the limits of `q8_1_ties`, which BF16 cannot hold."""
    return dataclasses.replace(
        gates, name=SIGMOID_TIES, catches="an operation of the sigmoid that rounds toward zero", lack=_lacks_fp32
    )


def _lacks_fp32(case: Case) -> Lack | None:
    return None if case.dtype == "f32" else Lack("dtype", f"f32 for the fill {SIGMOID_TIES}")


def lacks_figures(case: Case) -> Lack | None:
    """What a case lacks for the steps of the sigmoid in Q8_1: in BF16 they choose an alpha and a beta for each gate."""
    of_experts = case.variant, case.params, case.routing, case.shape.m
    if case.dtype == "f32" or of_experts == ("gpt_oss", "distinct", "all-one-token", case.shape.e):
        return None
    needed = "variant=gpt_oss, params=distinct, routing=all-one-token and a row for each expert"
    return Lack("dtype", f"f32 for the fill {STEPS}, or {needed}")
