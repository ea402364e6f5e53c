"""Declarations, arithmetic and floating point in small programs, with results worked out by hand."""

from __future__ import annotations

import pytest
from support.selection.thinned import thinned
from support.small_programs import Program, left

PROGRAMS: list[Program] = [
    (
        "multi-dim const row pad",
        "ld.const.u32 %r9,[c+12];OUT",
        [4],
        {"before": ".const .u32 c[2][3]={{1,2},{4}};"},
    ),
    (
        "array unsized",
        "ld.global.u32 %r9,[g+8];OUT",
        [7],
        {"before": ".global .u32 g[]={5,6,7};"},
    ),
    (
        "f32 init mix",
        "ld.global.u32 %r9,[g+4];OUT",
        [3217031168],
        {"before": ".global .f32 g[2]={0f3f800000,-1.5};"},
    ),
    (
        "b8 string-like",
        "ld.global.u32 %r9,[g];OUT",
        [1684234849],
        {"before": ".global .align 4 .b8 g[4]={0x61,0x62,99,0144};"},
    ),
    (
        "shared two names",
        ".shared .u32 a,b; st.shared.u32 [a],3; st.shared.u32 [b],4; ld.shared.u32 %r1,[a]; "
        "ld.shared.u32 %r2,[b]; mad.lo.u32 %r9, %r1,10, %r2;OUT",
        [34],
        {},
    ),
    (
        "local array",
        ".local .align 8 .b8 l[16]; mov.u32 %r1,7; st.local.u32 [l+12], %r1; mov.u64 %rd1,l; "
        "cvta.local.u64 %rd2, %rd1; ld.u32 %r9,[%rd2+12];OUT",
        [7],
        {},
    ),
    (
        "param u8",
        "ld.param.u8 %r9,[s];OUT",
        [200],
        {"parameters": ",.param .u8 s", "arguments": (200,)},
    ),
    (
        "param s16 sign",
        "ld.param.s16 %r9,[s];OUT",
        [4294967291],
        {"parameters": ",.param .s16 s", "arguments": (-5,)},
    ),
    (
        "param f64",
        "ld.param.f64 %d1,[s]; cvt.rn.f32.f64 %f1, %d1; mov.b32 %r9, %f1;OUT",
        [1075838976],
        {"parameters": ",.param .f64 s", "arguments": (2.5,)},
    ),
    (
        "param b64 in u32 halves",
        "ld.param.u32 %r9,[s+4];OUT",
        [287454020],
        {"parameters": ",.param .u64 s", "arguments": (1234605616436508552,)},
    ),
    (
        "generic label/bra.uni",
        "bra.uni L1; mov.u32 %r9,1; L1: mov.u32 %r9,2;OUT",
        [2],
        {},
    ),
    (
        "nested scopes",
        "mov.u32 %r9,1; { .reg .u32 %r9; mov.u32 %r9,5; { .reg .u32 x; mov.u32 x, %r9; } } OUT",
        [1],
        {},
    ),
    (
        "dollar labels",
        "bra $L__BB0_1; $L__BB0_2: mov.u32 %r9,4; bra $E; $L__BB0_1: bra $L__BB0_2; $E: OUT",
        [4],
        {},
    ),
    (
        "negated guard",
        "setp.eq.u32 %p1, %r0,0; mov.u32 %r9,1; @!%p1 mov.u32 %r9,2;OUT",
        [1, 2],
        {"block": 2},
    ),
    (
        "reg list",
        "{.reg .u32 a,b,c; mov.u32 a,1; mov.u32 b,2; add.u32 c,a,b; mov.u32 %r9,c;}OUT",
        [3],
        {},
    ),
    (
        "loc/pragma/file",
        '.pragma "nounroll"; .loc 1 3 4\nmov.u32 %r9,3;OUT',
        [3],
        {},
    ),
    (
        "addc chain 128",
        "mov.u64 %rd1,-1; mov.u64 %rd2,1; add.cc.u64 %rd3, %rd1, %rd2; addc.u64 %rd9,5,0;st.global.u64 [%o], %rd9;",
        [6],
        {"bits": 64},
    ),
    (
        "subc chain",
        "mov.u32 %r1,0; mov.u32 %r2,1; sub.cc.u32 %r3, %r1, %r2; subc.u32 %r9,5,0;OUT",
        [4],
        {},
    ),
    (
        "madc",
        "mov.u32 %r1,-1; mad.lo.cc.u32 %r2, %r1, %r1,-1; madc.hi.u32 %r9, %r1, %r1,0;OUT",
        [4294967295],
        {},
    ),
    (
        "sad u32",
        "mov.u32 %r1,3; mov.u32 %r2,10; sad.u32 %r9, %r1, %r2,100;OUT",
        [107],
        {},
    ),
    (
        "mul24",
        "mov.s32 %r1,-3; mul24.lo.s32 %r9, %r1,5;OUT",
        [4294967281],
        {},
    ),
    (
        "mul.hi.u16",
        "mov.u16 %h1,0xffff; mul.hi.u16 %h2, %h1, %h1; cvt.u32.u16 %r9, %h2;OUT",
        [65534],
        {},
    ),
    (
        "mul.wide.s16",
        "mov.s16 %h1,-2; mul.wide.s16 %r9, %h1,300;OUT",
        [4294966696],
        {},
    ),
    (
        "div.s16",
        "mov.s16 %h1,-7; div.s16 %h2, %h1,2; cvt.s32.s16 %r9, %h2;OUT",
        [4294967293],
        {},
    ),
    (
        "rem.u64",
        "mov.u64 %rd1,0xffffffffffffffff; rem.u64 %rd9, %rd1,10;st.global.u64 [%o], %rd9;",
        [5],
        {"bits": 64},
    ),
    (
        "abs.s64",
        "mov.s64 %rd1,-9; abs.s64 %rd9, %rd1;st.global.u64 [%o], %rd9;",
        [9],
        {"bits": 64},
    ),
    (
        "min.s64",
        "mov.s64 %rd1,-9; min.s64 %rd9, %rd1,4;st.global.u64 [%o], %rd9;",
        [18446744073709551607],
        {"bits": 64},
    ),
    (
        "popc.b64/clz",
        "mov.u64 %rd1,0x00f0000000000000; clz.b64 %r9, %rd1;OUT",
        [8],
        {},
    ),
    (
        "bfind.s64 neg",
        "mov.s64 %rd1,-1; bfind.s64 %r9, %rd1;OUT",
        [4294967295],
        {},
    ),
    (
        "brev.b32",
        "mov.u32 %r1,0x1; brev.b32 %r9, %r1;OUT",
        [2147483648],
        {},
    ),
    (
        "bfe len 0",
        "mov.u32 %r1,0x1234; bfe.u32 %r9, %r1,4,0;OUT",
        [0],
        {},
    ),
    (
        "bfe.s32 past end",
        "mov.u32 %r1,0x80000000; bfe.s32 %r9, %r1,28,16;OUT",
        [4294967288],
        {},
    ),
    (
        "bfi len0",
        "mov.u32 %r1,0xff; bfi.b32 %r9, %r1,0x1234,4,0;OUT",
        [4660],
        {},
    ),
    (
        "fns neg from top",
        "mov.u32 %r1,0x88; fns.b32 %r9, %r1,31,-2;OUT",
        [3],
        {},
    ),
    (
        "lop3",
        "mov.u32 %r1,0xf0f0; mov.u32 %r2,0xff00; mov.u32 %r3,0xaaaa; lop3.b32 %r9, %r1, %r2, %r3,0xe8;OUT",
        [64160],
        {},
    ),
    (
        "lop3 pred",
        "mov.u32 %r1,0; setp.eq.u32 %p2, %r1,0; lop3.or.b32 %r9|%p1, %r1, %r1, %r1,0x80, %p2; selp.u32 "
        "%r9,7,8, %p1;OUT",
        [7],
        {},
    ),
    (
        "shf.l.clamp 32",
        "mov.u32 %r1,0x11; mov.u32 %r2,0x22; shf.l.clamp.b32 %r9, %r1, %r2,32;OUT",
        [17],
        {},
    ),
    (
        "shr.b16",
        "mov.b16 %h1,0x8000; shr.u16 %h2, %h1,15; cvt.u32.u16 %r9, %h2;OUT",
        [1],
        {},
    ),
    (
        "shl big",
        "mov.u32 %r1,1; mov.u32 %r2,64; shl.b32 %r9, %r1, %r2;OUT",
        [0],
        {},
    ),
    (
        "prmt sign replicate",
        "mov.u32 %r1,0x0000ff80; prmt.b32 %r9, %r1,0,0x9988;OUT",
        [4294967295],
        {},
    ),
    (
        "not.pred xor.pred",
        "setp.eq.u32 %p1, %r0,0; not.pred %p2, %p1; xor.pred %p3, %p1, %p2; or.pred %p4, %p2, %p2; "
        "selp.u32 %r9,1,0, %p3; @%p4 add.u32 %r9, %r9,10;OUT",
        [1, 11],
        {"block": 2},
    ),
    (
        "selp f64",
        "setp.ne.u32 %p1, %r0,0; mov.f64 %d1,1.0; mov.f64 %d2,2.0; selp.f64 %d3, %d1, %d2, %p1; "
        "st.global.f64 [%o], %d3;",
        [4611686018427387904],
        {"bits": 64},
    ),
    (
        "slct",
        "mov.s32 %r1,-1; mov.u32 %r2,5; mov.u32 %r3,6; slct.u32.s32 %r9, %r2, %r3, %r1;OUT",
        [6],
        {},
    ),
    (
        "setp f16 num",
        "mov.b16 %h1,0x7e00; mov.b16 %h2,0x3c00; setp.nan.f16 %p1, %h1, %h2; selp.u32 %r9,1,0, %p1;OUT",
        [1],
        {},
    ),
    (
        "set.f32 out",
        "mov.u32 %r1,3; set.eq.f32.u32 %f1, %r1,3; mov.b32 %r9, %f1;OUT",
        [1065353216],
        {},
    ),
    (
        "set xor",
        "mov.u32 %r1,3; setp.eq.u32 %p1, %r1,3; set.eq.xor.u32.u32 %r9, %r1,3, %p1;OUT",
        [0],
        {},
    ),
    (
        "setp lo/hs",
        "mov.s32 %r1,-1; setp.hi.u32 %p1, %r1,5; setp.ls.u32 %p2, %r1,5; selp.u32 %r9,1,0, %p1; @%p2 mov.u32 %r9,9;OUT",
        [1],
        {},
    ),
    (
        "fma.rz",
        "mov.f32 %f1,0f3f800001; fma.rz.f32 %f2, %f1, %f1,0f00000000; mov.b32 %r9, %f2;OUT",
        [1065353218],
        {},
    ),
    (
        "fma.rp",
        "mov.f32 %f1,0f3f800001; fma.rp.f32 %f2, %f1, %f1,0f00000000; mov.b32 %r9, %f2;OUT",
        [1065353219],
        {},
    ),
    (
        "add.sat nan",
        "mov.b32 %f1,0x7fc00000; add.sat.f32 %f2, %f1, %f1; mov.b32 %r9, %f2;OUT",
        [0],
        {},
    ),
    (
        "mul.ftz",
        "mov.b32 %f1,0x00400000; mul.ftz.f32 %f2, %f1,0f40000000; mov.b32 %r9, %f2;OUT",
        [0],
        {},
    ),
    (
        "sqrt.rz",
        "mov.f32 %f1,2.0; sqrt.rz.f32 %f2, %f1; mov.b32 %r9, %f2;OUT",
        [1068827891],
        {},
    ),
    (
        "rcp.rn",
        "mov.f32 %f1,3.0; rcp.rn.f32 %f2, %f1; mov.b32 %r9, %f2;OUT",
        [1051372203],
        {},
    ),
    (
        "div.rm f64",
        "mov.f64 %d1,1.0; mov.f64 %d2,3.0; div.rm.f64 %d3, %d1, %d2; st.global.f64 [%o], %d3;",
        [4599676419421066581],
        {"bits": 64},
    ),
    (
        "copysign",
        "mov.f32 %f1,-1.0; mov.f32 %f2,5.0; copysign.f32 %f3, %f1, %f2; mov.b32 %r9, %f3;OUT",
        [3231711232],
        {},
    ),
    (
        "testp",
        "mov.b32 %f1,0x00000001; testp.subnormal.f32 %p1, %f1; testp.infinite.f32 %p2, %f1; selp.u32 "
        "%r9,1,0, %p1; @%p2 mov.u32 %r9,5;OUT",
        [1],
        {},
    ),
    (
        "abs.f64 neg",
        "mov.f64 %d1,-2.5; abs.f64 %d2, %d1; neg.f64 %d3, %d2; st.global.f64 [%o], %d3;",
        [13836183955189006336],
        {"bits": 64},
    ),
    (
        "min NaN loses",
        "mov.b32 %f1,0x7fc00000; min.f32 %f2, %f1,0f40000000; mov.b32 %r9, %f2;OUT",
        [1073741824],
        {},
    ),
    (
        "max3",
        "mov.f32 %f1,1.0; mov.f32 %f2,-4.0; mov.f32 %f3,2.0; max.f32 %f4, %f1, %f2, %f3; mov.b32 %r9, %f4;OUT",
        [1073741824],
        {"target": "sm_100a"},
    ),
    (
        "f32x2",
        "mov.f32 %f1,1.0; mov.f32 %f2,2.0; mov.b64 %rd1,{%f1, %f2}; fma.rn.f32x2 %rd2, %rd1, %rd1, %rd1; "
        "mov.b64 {%r1, %r2}, %rd2; st.global.v2.u32 [%o],{%r1, %r2};",
        [1073741824, 1086324736],
        {"target": "sm_100a"},
    ),
    (
        "add mixed f16",
        "mov.b16 %h1,0x3c00; mov.f32 %f1,2.0; add.f32.f16 %f2, %h1, %f1; mov.b32 %r9, %f2;OUT",
        [1077936128],
        {"target": "sm_100a"},
    ),
    (
        "bf16 fma",
        "mov.b16 %h1,0x3f80; mov.b16 %h2,0x4000; fma.rn.bf16 %h3, %h1, %h2, %h1; cvt.u32.u16 %r9, %h3;OUT",
        [16448],
        {},
    ),
    (
        "hmax nan",
        "mov.b32 %r1,0x7e003c00; mov.b32 %r2,0x40004000; max.NaN.f16x2 %r9, %r1, %r2;OUT",
        [2147434496],
        {},
    ),
    (
        "tanh 0",
        "mov.f32 %f1,0f00000000; tanh.approx.f32 %f2, %f1; mov.b32 %r9, %f2;OUT",
        [0],
        {},
    ),
    (
        "ex2 f16",
        "mov.b16 %h1,0x4000; ex2.approx.f16 %h2, %h1; cvt.u32.u16 %r9, %h2;OUT",
        [17408],
        {},
    ),
    (
        "lg2",
        "mov.f32 %f1,1024.0; lg2.approx.ftz.f32 %f2, %f1; mov.b32 %r9, %f2;OUT",
        [1092616192],
        {},
    ),
    (
        "rsqrt",
        "mov.f32 %f1,16.0; rsqrt.approx.f32 %f2, %f1; mov.b32 %r9, %f2;OUT",
        [1048576000],
        {},
    ),
    (
        "cvt.rn.f32.s64 %f1,%rd1",
        "mov.s64 %rd1,-3;cvt.rn.f32.s64 %f1, %rd1;mov.b32 %r9, %f1;OUT",
        [3225419776],
        {"target": "sm_100a"},
    ),
    (
        "cvt.rz.f32.u32 %f1,%r1",
        "mov.u32 %r1,0xffffffff;cvt.rz.f32.u32 %f1, %r1;mov.b32 %r9, %f1;OUT",
        [1333788671],
        {"target": "sm_100a"},
    ),
    (
        "cvt.rmi.s32.f32 %r9,%f1",
        "mov.f32 %f1,-1.5;cvt.rmi.s32.f32 %r9, %f1;OUT",
        [4294967294],
        {"target": "sm_100a"},
    ),
    (
        "cvt.rpi.s32.f32 %r9,%f1",
        "mov.f32 %f1,-1.5;cvt.rpi.s32.f32 %r9, %f1;OUT",
        [4294967295],
        {"target": "sm_100a"},
    ),
    (
        "cvt.rni.s32.f64 %r9,%d1",
        "mov.f64 %d1,3.5;cvt.rni.s32.f64 %r9, %d1;OUT",
        [4],
        {"target": "sm_100a"},
    ),
    (
        "cvt.rzi.u32.f32 %r9,%f1",
        "mov.f32 %f1,-1.5;cvt.rzi.u32.f32 %r9, %f1;OUT",
        [0],
        {"target": "sm_100a"},
    ),
    (
        "cvt.rzi.s32.f32 %r9,%f1",
        "mov.f32 %f1,1e20;cvt.rzi.s32.f32 %r9, %f1;OUT",
        [2147483647],
        {"target": "sm_100a"},
    ),
    (
        "cvt.sat.u8.s32 %r9,%r1",
        "mov.s32 %r1,300;cvt.sat.u8.s32 %r9, %r1;OUT",
        [255],
        {"target": "sm_100a"},
    ),
    (
        "cvt.sat.s8.u32 %r9,%r1",
        "mov.u32 %r1,200;cvt.sat.s8.u32 %r9, %r1;OUT",
        [127],
        {"target": "sm_100a"},
    ),
]


@pytest.mark.parametrize("program", thinned([pytest.param(each, id=each[0]) for each in PROGRAMS], 3))
def test_program(program: Program) -> None:
    _, body, words, options = program
    assert left(body, len(words), options) == words
