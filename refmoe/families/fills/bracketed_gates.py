"""Gates whose results an estimate of the sigmoid gives another code or scale than the defined operations.

The kernel makes results by an estimate and proves codes and scales with a margin for its error. Here the proof must
fail: each result lies beside a boundary between two codes of E4M3, or between two scales, and the estimate with
the nearest ex2 and rcp lies on the other side. A search found them among gates of BF16. In units of 2^-24 the estimates
are up to 55 off, relative, where a lane's sum of exponentials is below its bound or a little above, and up to 172 far
beyond it; others are off by little. They are too small and too large.

A row has one such gate, beside zeros, and blocks of ordinary gates: one lane of a warp, and one word of four codes, is
in doubt. Or a row has nothing else: all words of all lanes are in doubt. The fill of rare specials has rows whose only
doubt is a NaN or an Inf.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.formats import MX_BLOCK

_BF16 = np.dtype(ml_dtypes.bfloat16)

#: Fills of gpt-oss's activation with an alpha and a beta of each expert, and of silu with biases.
BRACKETED, BRACKETED_BY_BIAS = "bracketed", "bracketed-by-bias"
#: Rows of one gate, of gpt-oss's activation as `bracketed`.
BRACKETED_ROWS = "bracketed-rows"
#: Of every variant.
RARE_SPECIALS = "rare-specials"

#: FP32 bits of (alpha, gate, beta) of gpt-oss's activation with an up of 0.
_FIGURES = np.array(
    [
        *((0x4054AB9E, 0xC0C00000, 0xCC99FE8E), (0x3FCAC1AA, 0xC14F0000, 0x4C8B202C)),
        *((0x403C684B, 0xC0ED0000, 0x4DF8C4B1), (0x3FF361E2, 0xC11E0000, 0xCB9E8885)),
        *((0x3F409610, 0xC1B60000, 0x49E31A2D), (0x3ECB50EB, 0xC2470000, 0x4B44B3F1)),
        *((0x3FE84E5D, 0xC13A0000, 0xCD584FBF), (0x3EC5480E, 0xC2530000, 0x4BBC3D7C)),
        *((0x3FC3D2E6, 0xC1530000, 0x4C31AAEE), (0x3FEC3020, 0xC13C0000, 0xCD7B3B2E)),
        *((0x4054AB9E, 0xC0C00000, 0x4CFDA344), (0x3FCAC1AA, 0xC14F0000, 0x4CCD06FE)),
        *((0x403C684B, 0xC0ED0000, 0xCE25D876), (0x3ECB50EB, 0xC2470000, 0x4B4BFCFB)),
        *((0x3FE84E5D, 0xC13A0000, 0x4D50DA3D), (0x3EC5480E, 0xC2530000, 0xCBAA05FD)),
        *((0x4054AB9E, 0xC0C00000, 0x4C90EF94), (0x3FCAC1AA, 0xC14F0000, 0x4C6A5122)),
        *((0x403C684B, 0xC0ED0000, 0xCDBD89AB), (0x3ECB50EB, 0xC2470000, 0x4AE9211E)),
        *((0x3FE84E5D, 0xC13A0000, 0x4CEEB045), (0x3EC5480E, 0xC2530000, 0xCB424FFC)),
        *((0x3FD9DB23, 0xC0540000, 0x431A3A6A), (0x3FD9DB23, 0xBFA40000, 0x416E6138)),
        *((0x3FD9DB23, 0xBFAC0000, 0xC10936D5), (0x3FD9DB23, 0xC0290000, 0x4222CF50)),
        *((0x3F019DA7, 0x40990000, 0x3E99096D), (0x3EFE97A2, 0x40930000, 0xBEB08938)),
        *((0x3FD9DB23, 0xC0540000, 0x4314E8F3), (0x3FD9DB23, 0xBFA40000, 0x41574F8F)),
        *((0x3FD9DB23, 0xBFAC0000, 0xC161FFF5), (0x3FD9DB23, 0xC0290000, 0x426FEE26)),
        *((0x3F019DA7, 0x40990000, 0x3ECC0C91), (0x3EFE97A2, 0x40930000, 0xBED6E9D6)),
        *((0x3FD9DB23, 0xC0540000, 0x42AA2ECC), (0x3FD9DB23, 0xBFA40000, 0x40F611C7)),
        *((0x3FD9DB23, 0xC0290000, 0xC2091A5E), (0x3FD9DB23, 0xC00B0000, 0x4198273F)),
        *((0x3F019DA7, 0x40990000, 0x3E6932EE), (0x3EFE97A2, 0x40930000, 0xBE759D86)),
        *((0x3FC1F6A7, 0xC16B0000, 0x4D9FD396), (0x3F36A6B6, 0xC1FB0000, 0x4D3E4187)),
        *((0x3F36D0BA, 0xC1FA0000, 0xCD4504B2), (0x40490F52, 0xC0E30000, 0x4E666B0C)),
        *((0x405968E8, 0xC19B0000, 0x5C20075F), (0x3FB17F18, 0xC2440000, 0xDC0FD471)),
        *((0x3F390EA3, 0xC2BD0000, 0x5C669B6D), (0x3F5074AE, 0xC2A40000, 0x5C73568C)),
        *((0x3EB82AC5, 0xC3410000, 0xDBC8E4FC), (0x3FD66A37, 0xC21C0000, 0x5C1460CC)),
        *((0x3F54F907, 0xC2A80000, 0x5BE1A772), (0x3F7E5601, 0xC28C0000, 0xDBD3CA47)),
        *((0x3F342420, 0xC2C40000, 0x5C4D417B), (0x3F804238, 0xC2810000, 0x5C036A8E)),
        *((0x3F07FBC1, 0xC3030000, 0xDBA3ECE3), (0x3ECF56B9, 0xC32B0000, 0x5BB33DE5)),
    ],
    np.uint32,
)
#: No positive gate of these is clamped.
_LIMIT = 32.0
#: BF16 bits of (gate, up, bias of the up) of silu.
_BIASED = np.array(
    [
        *((0xC18C, 0x3F25, 0xB971), (0xC164, 0x3F4D, 0x3907), (0xC17E, 0x3F00, 0x3A0E), (0xC188, 0x3F28, 0x38DD)),
        *((0xC199, 0x3F68, 0xB92E), (0xC139, 0x3F17, 0xB9F6), (0xC142, 0x3F0D, 0x39E6), (0xC1A4, 0x3F07, 0xB9DA)),
        *((0xC1A8, 0xC059, 0xBADA), (0xC168, 0xC02F, 0xBB89), (0xC18E, 0xC03B, 0x3B32), (0xC15B, 0xC054, 0x3B0C)),
        *((0xC181, 0xC037, 0x3CFB), (0xC134, 0xC04F, 0x3AED), (0xC1AC, 0xC04D, 0x3A45), (0xC192, 0xC06E, 0x3AC1)),
        *((0x401D, 0x3F23, 0xB9A9), (0xC0BE, 0xBFB8, 0x385A), (0xC0F6, 0xBF4C, 0xB56F), (0xC058, 0x404E, 0xB9DE)),
        *((0xC0A9, 0x3F11, 0xB784), (0xC06F, 0xBF84, 0x3866), (0xC10D, 0xBF09, 0x37B1), (0xC136, 0x402C, 0x39AB)),
        *((0xC17E, 0x3F53, 0x3955), (0xC18C, 0x3F73, 0x3992), (0xC17A, 0x3F27, 0xB731), (0xC18A, 0x3F40, 0x3943)),
        *((0xC134, 0xC03B, 0x3B0C), (0xC19D, 0xC063, 0x3B15), (0xC185, 0xC057, 0x3CD7), (0xC19F, 0xC010, 0x3B41)),
        *((0xBFB8, 0x3F4B, 0xB8F9), (0xC0A9, 0xBF83, 0x3993), (0xC188, 0x3F2D, 0x3AE5), (0xC195, 0x3F49, 0xB765)),
        *((0x3F07, 0x3F41, 0xB848), (0xC0B5, 0x3F4B, 0x385E), (0xC168, 0xC006, 0x3BED), (0xC15B, 0xC07B, 0xBAC7)),
        *((0xC1AA, 0xC018, 0x38A9), (0xC138, 0xC006, 0xBB01), (0x3EB7, 0xBF18, 0xBA1E), (0x3F6F, 0x403F, 0x38BA)),
        *((0xC08F, 0x3F1E, 0xB896), (0xBF75, 0xBFF1, 0xB892), (0xC271, 0x5B99, 0x53B9), (0xC271, 0x5C19, 0x5439)),
        *((0xC275, 0xDC27, 0x56FF), (0xC275, 0xDCA7, 0x577F)),
    ],
    np.uint16,
)
#: Columns from one row's gate to the next one's: each lane of a warp and each word has its turn.
_STEP = 37


def _alone(rows: int, width: int, values: NDArray[Any]) -> NDArray[np.float64]:
    """One of `values` in each row, in turn, zeros in its block and where other rows have theirs, else ones."""
    row = np.arange(rows)
    columns = _columns(np.arange(len(values)), width)
    made = np.ones((rows, width))
    made[:, columns] = 0
    own = columns[row % len(values)]
    made[own[:, None] // MX_BLOCK == np.arange(width) // MX_BLOCK] = 0
    made[row, own] = values[row % len(values)]
    return made


def _columns(numbers: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    return numbers * _STEP % width


def bracketed_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Gates and ups [rows, width] of `bracketed`; row i is expert i's."""
    return _alone(rows, width, _FIGURES[:, 1].copy().view(np.float32)), np.zeros((rows, width))


def bracketed_rows(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Gates and ups [rows, width] of `bracketed-rows`; row i is expert i's, and has its gate in every column."""
    own = _FIGURES[np.arange(rows) % len(_FIGURES), 1].view(np.float32)
    return np.tile(own[:, None], (1, width)), np.zeros((rows, width))


def figures_of_brackets(experts: int) -> dict[str, NDArray[np.float32]]:
    """alpha, beta and limit of each expert, float32 [experts]."""
    alphas, _, betas = _FIGURES[np.arange(experts) % len(_FIGURES)].T.copy().view(np.float32)
    return {"alpha": alphas, "beta": betas, "limit": np.full(experts, _LIMIT, np.float32)}


def _by_column(width: int, values: NDArray[np.uint16], other: float) -> NDArray[np.float64]:
    """`other`, [width], but for all `values`, each where the row of its gate has it."""
    made = np.full(width, other)
    made[_columns(np.arange(len(values)), width)] = values.view(_BF16)
    return made


def bracketed_by_bias(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Gates and ups [rows, width] of `bracketed-by-bias`; all rows have the same ups."""
    gates, ups, _ = _BIASED.T.copy()
    return _alone(rows, width, gates.view(_BF16)), np.tile(_by_column(width, ups, 1.0), (rows, 1))


def bracketed_terms(draw: Draw, experts: int, width: int) -> NDArray[Any]:
    """Its biases [2, experts, width], the same for every expert: of ups alone."""
    of_ups = np.tile(_by_column(width, _BIASED[:, 2].copy(), 0.0), (experts, 1))
    return np.stack([np.zeros_like(of_ups), of_ups])


#: What a row of rare specials has once, as a gate or as an up.
_SPECIALS = np.array([np.nan, np.inf, -np.inf])


def rare_specials(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Ordinary gates and ups [rows, width], with one NaN or Inf in three rows of four."""
    gates, ups = draw.normal((2, rows, width)) * 3
    row = np.arange(rows)
    columns, kind = draw.integers(width, (rows,)), row // 4 % _SPECIALS.size
    for side, values in ((1, gates), (2, ups), (3, ups)):
        chosen = row[row % 4 == side]
        values[chosen, columns[chosen]] = _SPECIALS[kind[chosen]]
    return gates, ups


#: Of silu, with biases: the last results whose scale is proved.
SCALE_EDGES = "scale-edges"
#: A gate whose sigmoid is 1. The result is the gate times an up and its bias: 32 * (1 + 45 * 2^-23). That times
#: 1 - 90 * 2^-24 lies just below 32 and is rounded to it, so that both have one exponent.
_EDGE_GATE, _EDGE_UP, _EDGE_TERM = 32.0, 1.0, 45 * 2.0**-23


def scale_edges(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Gates and ups [rows, width], all the same."""
    return np.full((rows, width), _EDGE_GATE), np.full((rows, width), _EDGE_UP)


def scale_edge_terms(draw: Draw, experts: int, width: int) -> NDArray[Any]:
    """Their biases [2, experts, width]."""
    terms = np.zeros((2, experts, width))
    terms[1] = _EDGE_TERM
    return terms
