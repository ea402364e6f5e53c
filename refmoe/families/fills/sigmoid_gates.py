"""Gates that try the sigmoid: alone in a block, or with another last bit if one step of the exponential is another one.

A step is an operation that rounds toward zero instead of to nearest, a constant whose last bit is one more, or the
remainder before its last correction in place of the remainder: from the first operation of x / ln 2 to the reciprocal.
Each step has two gates, found by a search among FP32 numbers from 1/4 to 8. The subtraction that leaves the remainder
is exact, and 1 / ln 2 and the lower part of ln 2 have no gate: these three have no place here.

The product of the sigmoid lies on 2.875 for one of the two sigmoids, and on the number below for the other. 2.875 is
the middle of two codes of E4M3 under a scale of 2^-7, and of Q8_1 under a d of 1/4.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.formats import MX_BLOCK

#: The name of the fills.
STEPS = "sigmoid-steps"

#: FP32 bits of (gate, up) of SiLU.
_SILU = np.array(
    [
        *((0x3F708654, 0x40882FBB), (0x3F68FBA5, 0x408DC6A8), (0x3EBE643D, 0x4150FD7C), (0x3EB7F184, 0x41596F64)),
        *((0x3F75DE64, 0x408473FB), (0x3EA46524, 0x41772EF1), (0x3F7DCC1E, 0x407E76D6), (0x3EAB4603, 0x416BECE3)),
        *((0x3F802BA9, 0x407B43CF), (0x3E88F378, 0x4197CB05), (0x3EABB458, 0x416B4025), (0x3EA92C8E, 0x416F4336)),
        *((0x3EBA4B27, 0x415649B4), (0x3F8CBF2C, 0x405F0F7B), (0x3EA03E96, 0x417E741E), (0x3EFEFAD0, 0x41148104)),
        *((0x3EC9C742, 0x41436D2B), (0x3F122DB2, 0x40FC247A), (0x3F1BD844, 0x40E956F2), (0x3F6FBB8B, 0x4088C164)),
        *((0x3E88D898, 0x4197EC49), (0x3F71381C, 0x4087B0E6), (0x3F7D343D, 0x407F3878), (0x3EC9711A, 0x4143CE05)),
        *((0x3F91F4EA, 0x4054F47F), (0x3E822593, 0x41A0A7C9), (0x3F829E40, 0x40754D45), (0x3E995174, 0x4185BD48)),
        *((0x3EB4B758, 0x415DE4B8), (0x3EA308E9, 0x41798645), (0x3EF37DED, 0x411CD81C), (0x3F206128, 0x40E156D9)),
        *((0x3ECFD3FB, 0x413CD715), (0x3F3175E6, 0x40C71245), (0x407CD2F7, 0x3F3DE5BB), (0x3FD59F20, 0x40030726)),
        *((0x402A6A00, 0x3F93D870), (0x4068A4BA, 0x3F4FD08D), (0x4021F5FD, 0x3F9CFE87), (0x406390D7, 0x3F54E70C)),
        *((0x405F7644, 0x3F59360B), (0x3FA256C4, 0x4039E476), (0x3F3DE2FC, 0x40B71B27), (0x3F21F1B9, 0x40DEB039)),
        *((0xC0232170, 0x4178ECC0), (0xC0239B46, 0x4179EB41)),
    ],
    np.uint32,
)
#: FP32 bits of (gate, up) of gpt-oss's activation with its own figures.
_GPT_OSS = np.array(
    [
        *((0x3F708654, 0x402B69A3), (0x4002FF0C, 0x3EE53D54), (0x3F231422, 0x40A1426A), (0x3F8722AE, 0x400B2EF4)),
        *((0x3F788331, 0x4021DD6E), (0x3F1F8328, 0x40A6C73C), (0x3F83C15E, 0x4011C233), (0x3FB5CDB3, 0x3F9A3100)),
        *((0x3F1C1BF1, 0x40AC4EA1), (0x3F1EEAC1, 0x40A7B9F8), (0x3F1AD8A9, 0x40AE6D74), (0x3F0C2435, 0x40CA40C1)),
        *((0x3F197DAE, 0x40B0BF1C), (0x3F616AC8, 0x403FA6DC), (0x3F3AAA13, 0x4082A5E4), (0x3F902F60, 0x3FF6B862)),
        *((0x3F7D7CF7, 0x401C45D8), (0x40615713, 0xBE39C590), (0x3F364832, 0x4087A9A0), (0x3F41EF5B, 0x4075C98C)),
        *((0x3F086758, 0x40D26217), (0x3F1C5D43, 0x40ABE222), (0x3F190DE1, 0x40B180DF), (0x3F19476D, 0x40B11CFD)),
        *((0x3F077C8E, 0x40D47406), (0x3F20B153, 0x40A4EBE4), (0x3F1070EF, 0x40C17845), (0x3FB02393, 0x3FA521B6)),
        *((0x3F14FC53, 0x40B8CA9A), (0x3F0DCC64, 0x40C6CC82), (0x3F2B25C0, 0x4095B7AE), (0x3F5EF0D4, 0x40434672)),
        *((0x3F2C440F, 0x40943690), (0x400B7AB3, 0x3EB3F89C), (0x3F762A05, 0x402498BD)),
    ],
    np.uint32,
)
#: FP32 bits of (gate, up), by variant.
STEP_PAIRS = MappingProxyType({"gpt_oss": _GPT_OSS, "silu": _SILU})
#: FP32 bits of (alpha, beta) of gpt-oss's activation of a gate of 1 and an up of 0; of the last two the gate is -1.
_OF_ONE = np.array(
    [
        *((0x3F708654, 0x407FE86A), (0x3FC6E297, 0x405EE7E8), (0x3F213817, 0x408D0296), (0x3EBE643D, 0x409B6DF7)),
        *((0x3EA74EE5, 0x409E5ACE), (0x3F75DE64, 0x407E6C20), (0x3EA0A887, 0x409F38DE), (0x3EA693DA, 0x409E7310)),
        *((0x3EA97124, 0x409E1429), (0x3EF0FCC7, 0x40957611), (0x3ECDBC4A, 0x40998E8F), (0x404AD195, 0x403FBC6F)),
        *((0x3EE03B96, 0x40975F67), (0x3EB84C30, 0x409C3064), (0x3ED17959, 0x40991BE9), (0x3EA36642, 0x409EDCFC)),
        *((0x404056A3, 0x40411CCD), (0x4028DEDE, 0x40452619), (0x4067B4C9, 0x403CED0E), (0x3FC06146, 0x4060EF2B)),
        *((0x3EA74EE5, 0x409E5ACE), (0x3E88D898, 0x40A26C21), (0x3E97844A, 0x40A06EE3), (0x3EAAD4F5, 0x409DE64D)),
        *((0x3E8943ED, 0x40A25D5F), (0x3F8276D3, 0x407A662F), (0x3EA677A8, 0x409E76B9), (0x3E91D45E, 0x40A13291)),
        *((0x3FD9C962, 0x40599095), (0x3F7BBC23, 0x407CD3B6), (0x3EA58CF9, 0x409E9537), (0x3E92F0F1, 0x40A10C26)),
        *((0x3EEFCDB6, 0x4095981F), (0x3EE4291C, 0x4096EB3F), (0x3F498FEE, 0x4085DD4A), (0x3FA23196, 0x406BD234)),
        *((0x3FC10063, 0x4060BC68), (0x403DB51F, 0x40417EB2), (0x3FA9B391, 0x4068DE76), (0x408B9721, 0x403A5897)),
        *((0x407DC482, 0x403B7D5D), (0x4026FC02, 0x40458AC7), (0x3FB9C4F4, 0x40631A96), (0x3F3C4B7A, 0x4088175D)),
        *((0x40232170, 0x421E9F42), (0x40239B46, 0x421FB860)),
    ],
    np.uint32,
)

#: How many of these, the last ones, are of a gate of -1.
_NEGATIVE = 2
#: FP32 bits of a beta and BF16 bits of an up, for each alpha of `_OF_ONE`. A block begins with a gate of 128 and this
#: up, its largest result. The others are gates of 1 or -1 and ups of 0, whose code in Q8_1 is another one under either
#: quantizer if the step is another one.
_OF_ONE_BY_LARGEST = np.array(
    [
        *((0x3FBEE505, 0xBFB4), (0x403C0CB7, 0xC037), (0x3FD9A221, 0xBFD7), (0x405A631E, 0xC05E)),
        *((0x401D1900, 0xC01C), (0x4024A657, 0xC026), (0x40754D27, 0xC07F), (0x407C2071, 0xC080)),
        *((0x4042184D, 0xC040), (0x40262661, 0xC020), (0x4009F87E, 0xC005), (0x401EBA2C, 0xC01D)),
        *((0x40062847, 0xC004), (0x400AE442, 0xC00D), (0x402040D9, 0xC024), (0x4068D1F1, 0xC067)),
        *((0x40472D9F, 0xC03D), (0x404EE96A, 0xC046), (0x4015C1A5, 0xC013), (0x3FA64206, 0xBFAC)),
        *((0x4070F611, 0xC068), (0x402BDA7A, 0xC026), (0x40601638, 0xC055), (0x406C6062, 0xC06A)),
        *((0x3FDA14F6, 0xBFD1), (0x3F9DC1AE, 0xBF9F), (0x402441E7, 0xC027), (0x4079887A, 0xC082)),
        *((0x404D81E2, 0xC047), (0x4003F04A, 0xC003), (0x3FCE40AB, 0xBFCB), (0x400EF44A, 0xC016)),
        *((0x407FBE5D, 0xC07E), (0x3FAA1403, 0xBFA8), (0x403E983C, 0xC03D), (0x3FD8711C, 0xBFDB)),
        *((0x3FBACE26, 0xBFBE), (0x3FAC3DD4, 0xBFAA), (0x404C6ED0, 0xC047), (0x404649D7, 0xC048)),
        *((0x40055548, 0xBFFE), (0x4024A7D6, 0xC028), (0x404F5B95, 0xC051), (0x403CC556, 0xC03B)),
        *((0x3FDA81D4, 0xBFDE), (0x40091533, 0xC00D)),
    ],
    np.uint32,
)

#: A gate whose sigmoid is 1, and an up that makes 3.5 of it, the largest of a tile of block FP8: its scale is 2^-7.
_LARGEST_OF_TILE = 32.0, 3.5 / 32
#: A gate whose sigmoid needs clamps, whichever alpha of `_OF_ONE` it has; its result is next to nothing.
_FAR_GATE = -300.0
#: Results that a lane makes at once.
_AT_ONCE = 4


def step_logits() -> NDArray[np.float32]:
    """Logits whose sigmoid a step changes, float32 [46]."""
    return np.ascontiguousarray(_SILU[:, 0]).view(np.float32)


def silu_steps(rows: int, width: int, tile: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gates and ups [rows, width] of SiLU, FP32 numbers; a tile of `tile` elements begins with its largest result.

    Each tile has a power of two of its own in its results. As many tiles as there are pairs have
    each pair in each place but the first.
    """
    places = np.arange(rows * width)
    pairs = _SILU[(places + places // tile) % len(_SILU)].view(np.float32).astype(np.float64)
    pairs[places % tile == 0] = _LARGEST_OF_TILE
    pairs[:, 1] *= 2.0 ** (places // tile % 5)
    gates, ups = pairs.T.reshape(2, rows, width)
    return gates, ups


def figures_of_steps(experts: int) -> dict[str, NDArray[np.float32]]:
    """alpha, beta and limit of each expert, float32 [experts]: one pair each, and no limit."""
    alphas, betas = _OF_ONE[np.arange(experts) % len(_OF_ONE)].T.copy().view(np.float32)
    return {"alpha": alphas, "beta": betas, "limit": np.full(experts, np.inf, np.float32)}


def gates_of_one(draw: Draw, rows: int, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gates of 1 or -1, a sign a block, and ups of 0, [rows, width]: the figures are the expert's.

    In two blocks of three a far gate is the first or the last of those whose sigmoids a lane makes at once, so that it
    takes the way that clamps.
    """
    places = np.arange(width)
    block, inside = places // MX_BLOCK, places % _AT_ONCE
    far = ((block % 3 == 1) & (inside == 0)) | ((block % 3 == 2) & (inside == _AT_ONCE - 1))
    gates = np.where(far, _FAR_GATE, np.where(block % 6 < 3, 1.0, -1.0))
    return np.tile(gates, (rows, 1)), np.zeros((rows, width))


#: A gate whose sigmoid is 1 for every alpha of `_OF_ONE`.
_WHOLE = 128.0


def steps_in_q8_1(experts: int, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gates and ups [experts, width] of blocks in Q8_1, BF16 numbers; row i is expert i's.

    The largest of a block is the first of a lane's four results, or the second, and so on: each meets the gates.
    """
    each, places = np.arange(experts) % len(_OF_ONE), np.arange(width)
    largest = places % MX_BLOCK == places // MX_BLOCK % _AT_ONCE
    of_largest = (_OF_ONE_BY_LARGEST[each, 1] << 16).view(np.float32).astype(np.float64)
    signs = np.where(each < len(_OF_ONE) - _NEGATIVE, 1.0, -1.0)
    return np.where(largest, _WHOLE, signs[:, None]), np.where(largest, of_largest[:, None], 0.0)


def figures_in_q8_1(experts: int) -> dict[str, NDArray[np.float32]]:
    """Their alpha, beta and limit of each expert, float32 [experts]."""
    betas = _OF_ONE_BY_LARGEST[np.arange(experts) % len(_OF_ONE), 0].view(np.float32)
    return {**figures_of_steps(experts), "beta": betas}


#: Gates around the places where 1 / (1 + exp) leaves its fast way, for silu, and by gpt-oss's factor; and far beyond.
_LONELY = (60.0, 63.5, 64.0, 64.5, 75.0, 86.0, 87.0, 87.5, 88.0, 88.5, 89.0, 96.0, 104.0, 300.0)
_LONELY_BY_ALPHA = (35.0, 37.5, 37.75, 40.0, 45.0, 50.5, 51.0, 51.25, 51.5, 51.75, 52.0, 52.25, 61.0, 180.0)


def lonely_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """One gate a block, all others zeros, so that the tail of its sigmoid decides scale and codes.

    A lane makes several results at once, on a fast way if none of them needs clamps. So in every other block a NaN
    stands beside the gate, in the same lane: its neighbours need clamps all the same.
    """
    blocks = np.arange(rows * width // MX_BLOCK)
    gates = np.where(draw.integers(2, (rows, width)) == 0, 0.0, -0.0)
    ups = draw.normal((rows, width))
    sizes = np.array([size for pair in zip(_LONELY, _LONELY_BY_ALPHA, strict=True) for size in pair])
    places = blocks * MX_BLOCK + draw.integers(MX_BLOCK, blocks.shape)
    gates.reshape(-1)[places] = sizes[blocks // 4 % sizes.size] * np.where(blocks % 2 == 0, -1, 1)
    gates.reshape(-1)[(places ^ 1)[blocks % 4 >= 2]] = np.nan
    return gates, ups
