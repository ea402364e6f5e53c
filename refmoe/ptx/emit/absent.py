"""Instructions of PTX that the executor does not have, and why: for the message of the lane that reaches one."""

from __future__ import annotations

import re

_ABSENT = [
    (r"tcgen05\..*", "tensor memory of SM100 is not here"),
    (r"multimem\..*", "memory that several GPUs hold in common is not here"),
    (r"mma\.sp(::\w+)?\..*", "sparse products are here by wgmma alone"),
    (r"mma\..*\.m8n8k4\..*\.f16\..*", "products of Volta's tensor cores are not here"),
    (r"w?mma\..*", "no model here says how products of these types and this shape add up"),
    (r"cvt\.(.*\.)?rs\..*x4\.f32", "random bits round two elements here, f16x2 or bf16x2, not four"),
    (r"(st|red)\.async\..*\.global\..*", "asynchronous writes reach shared memory of the cluster alone here"),
    (r"cp\.async\.bulk\..*cp_mask.*", "copies that leave bytes out by a mask are not here"),
    (r"cp\.async\.bulk\..*(gather4|scatter4).*", "copies of rows by their numbers are not here"),
    (r"cp\.async\.bulk\..*im2col::w.*", "im2col along the width alone is not here"),
    (r"(tex|tld4)\..*\.f16(x2)?\..*", "a fetch gives 32 bits an element here"),
    (r"tex\.(.*\.)?(2dms|a2dms)\..*", "textures with samples are not here"),
    (r"tld4\..*\.(a2d|cube|acube)\..*", "tld4 gathers from .2d alone here"),
    (r"sust\.p\..*", "sust.p stores 32-bit elements without converting them here"),
    (r"suld\.p\..*", "loads that convert are not here"),
    (r"(txq|suq)\..*", "only sizes, levels and normalized_coords can be asked here"),
    (r"cp\.async\.bulk\..*cta_group::[12].*", "pairs of blocks, which share tensor memory on SM100, are not here"),
]


def why_absent(opcode: str) -> str:
    """A reason to name beside an opcode that is refused, or `""` for one that PTX does not have either."""
    return next((reason for pattern, reason in _ABSENT if re.fullmatch(pattern, opcode)), "")
