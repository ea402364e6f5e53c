"""Runs small programs of one instruction each: what a thread leaves in `%r9`, or what a program stores by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

import refmoe

# (name, instructions, the words that are left, what else a launch needs). `OUT` stores `%r9` for each thread.
Program = tuple[str, str, list[int], dict[str, Any]]
TEXT = """.version 9.0
.target {target}
.address_size 64
{before}
.visible .entry k(.param .u64 out{parameters})
{{
    .reg .b64 %o, %rd<20>; .reg .b32 %r<40>; .reg .b16 %h<20>; .reg .f32 %f<20>; .reg .f64 %d<20>; .reg .pred %p<10>;
    .reg .b8 %c<4>; .reg .b128 %q<4>;
    ld.param.u64 %o, [out]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd0, %r0, 4, %o;
    {body}
    ret;
}}
"""


def left(body: str, words: int, options: dict[str, Any]) -> list[int]:
    """What a program leaves in its first words."""
    given = {"target": "sm_90a", "before": "", "parameters": "", **options}
    source = TEXT.format(body=body.replace("OUT", "st.global.u32 [%rd0], %r9;"), **given)
    out = np.zeros(words, np.uint64 if options.get("bits") == 64 else np.uint32)
    refmoe.run_ptx(source, block=options.get("block", 1), args=[out, *options.get("arguments", ())])
    return [int(word) for word in out]
