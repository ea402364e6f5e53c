"""Alphas, betas and limits that no model has: of SwiGLU's clamps and exponents, one for each expert in turn."""

from __future__ import annotations

import numpy as np

#: FP32 bits that experts have in turn, of which the numbers are coprime: 0, -0, subnormal, negative, ordinary factors;
EDGE_ALPHAS = np.array([0x3FD9DB23, 0, 0xBFD9DB23, 1, 0x80000000], np.uint32).view(np.float32)
#: the same, and 1;
EDGE_BETAS = np.array([0x3F800000, 0, 0xBF800000, 0x80000000, 0x00400000, 0x3F800001], np.uint32).view(np.float32)
#: and clamps of a subnormal number, and those of models one ulp to either side.
EDGE_LIMITS = np.array(
    [0x40E00000, 0x00000003, 0x40DFFFFF, 0x40E00001, 0x007FFFFF, 0x40AFFFFF, 0x40B00001], np.uint32
).view(np.float32)
#: Alphas and betas of `specials`: each is a special where the other one is ordinary.
SPECIAL_ALPHAS = np.array([np.nan, 1.702, np.inf, 1.702, -np.inf, *[1.702] * 5], np.float32)
SPECIAL_BETAS = np.array([1, np.nan, 1, np.inf, 1, -np.inf, *[1] * 4], np.float32)
#: Limits of `closed`; seven, a number that is coprime to those of alphas and betas.
ZERO_LIMITS = np.array([0.0, -0.0, 0.0, 0.0, -0.0, -0.0, 0.0], np.float32)
#: Alphas of `open`, with which a subnormal gate has an ordinary exponent, and its limits, most of them none.
OPEN_ALPHAS = np.array([2.0**127, 1.702, -(2.0**127), 1.702, 2.0**126], np.float32)
OPEN_LIMITS = np.array([np.inf, 7, np.inf], np.float32)
#: A beta and a limit of `bounds`: the largest ones with which activation.cu estimates.
BOUND = 2.0**59
