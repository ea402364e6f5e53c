"""Texts that old compilers wrote: what they leave out, and what the first chips' single precision means today."""

from __future__ import annotations

import numpy as np
import pytest

import refmoe
from refmoe import ptx
from refmoe.ptx.text.legacy import modernised
from refmoe.ptx.text.syntax import Instruction


def spelled(opcode: str, target: str = "sm_10") -> str:
    return modernised(Instruction(opcode, (), None, False, 1, None, (), opcode), target).opcode


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("add.f32", "add.ftz.f32"),
        ("add.rz.f32", "add.rz.ftz.f32"),
        ("mul.sat.f32", "mul.ftz.sat.f32"),
        ("mad.f32", "mad.rn.ftz.f32"),
        ("mad.sat.f32", "mad.rn.ftz.sat.f32"),
        ("div.f32", "div.approx.ftz.f32"),
        ("div.full.f32", "div.full.ftz.f32"),
        ("rcp.f32", "rcp.approx.ftz.f32"),
        ("sin.ftz.f32", "sin.approx.ftz.f32"),
        ("setp.gt.and.f32", "setp.gt.and.ftz.f32"),
        ("set.gt.u32.f32", "set.gt.ftz.u32.f32"),
        ("mad.lo.s32", "mad.lo.s32"),
        ("add.f64", "add.f64"),
        ("mov.f32", "mov.f32"),
    ],
)
def test_spellings_of_the_first_chips(old: str, new: str) -> None:
    assert spelled(old) == new
    for target in ("sm_20", "sm_100", "sm_13a"):
        assert spelled(old, target) == old


OLD = """
	.version 1.4
	.target sm_10, map_f64_to_f32
	.visible .func (.param .s32 result) unused (.param .s32 argument)

	.visible .func nothing (.param .u64 one, .param .align 16 .b8 two[16])

	.file	1	"<command-line>"
	.global .texref image;
	.tex .u64 picture;
	.local .u32 %kept;
	.entry multiply (
		.param .u64 out,
		.param .f32 a)
	{
	.reg .u32 %r<4>;
	.reg .u64 %rd<4>;
	.reg .f32 %f<8>;
	.loc	1	3	0
	ld.param.f32 %f1, [a];
	ld.param.u64 %rd1, [out];
	mov.f32 %f2, 0f3f800001;
	mad.f32 %f3, %f1, %f2, 0fbf800000;
	st.global.f32 [%rd1], %f3;
	mov.f32 %f4, 0f00400000;
	add.f32 %f5, %f4, %f4;
	st.global.f32 [%rd1+4], %f5;
	st.local.u32 [%kept], 7;
	ld.local.u32 %r1, [%kept];
	st.global.u32 [%rd1+8], %r1;
	mov.u32 %r2, %kept;
	ld.local.u32 %r3, [%r2];
	st.global.u32 [%rd1+12], %r3;
	exit;
	}
"""


def test_a_text_of_an_old_compiler() -> None:
    out = np.zeros(4, np.float32)
    a = np.float32(1.0000001)
    refmoe.run_ptx(OLD, block=1, args=[out, float(a)])
    # One rounding of a (1 + 2^-23) - 1, and a sum of subnormals, which is 0 although it would be the least normal.
    assert float(out[0]) == np.float32(float(a) * (1 + 2.0**-23) - 1)
    assert out.view(np.uint32)[1:].tolist() == [0, 7, 7]


def test_the_same_text_for_a_later_chip_keeps_subnormals() -> None:
    out = np.zeros(4, np.float32)
    text = OLD.replace("sm_10, map_f64_to_f32", "sm_20").replace("mad.f32", "mad.rn.f32")
    refmoe.run_ptx(text, block=1, args=[out, 1.0])
    assert float(out[1]) == 2.0**-126


def test_double_precision_that_the_module_takes_for_single_is_refused() -> None:
    text = OLD.replace("exit;", ".reg .f64 %d<2>; cvt.f64.f32 %d1, %f1; exit;")
    with pytest.raises(ptx.ParseError, match="map_f64_to_f32"):
        refmoe.run_ptx(text, block=1, args=[np.zeros(4, np.float32), 1.0])


TEXTURE = """
.version 8.0
.target sm_90
.address_size 64
.global .texref image;
.global .samplerref filter;
.visible .entry k(.param .u64 out, .param .u32 reads) {
    .reg .u32 %r<4>;
    .reg .f32 %f<8>;
    .reg .u64 %rd<2>;
    .reg .pred %p;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [reads];
    setp.eq.u32 %p, %r1, 0;
    @%p bra DONE;
    tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [image, filter, {%f4, %f5}];
    sust.b.1d.v2.b32.trap [%rd1, {%r1}], {%r2, %r3};
DONE:
    st.global.u32 [%rd1], 5;
    ret;
}
"""


def test_texture_references_are_refused_where_they_are_reached() -> None:
    out = np.zeros(1, np.uint32)
    refmoe.run_ptx(TEXTURE, block=32, args=[out, 0], checks=ptx.Checks(races=False))
    assert out[0] == 5
    with pytest.raises(ptx.UnknownOpcode, match="there are texture objects alone here"):
        refmoe.run_ptx(TEXTURE, block=32, args=[out, 1])
