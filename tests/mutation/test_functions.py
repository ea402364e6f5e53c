"""Entries that call functions: two of them are proven to be the same if the calls and the functions are."""

from __future__ import annotations

import pytest

from refmoe.mutation.proofs.equality import same_kernel
from refmoe.mutation.proofs.functions import CalledModule
from refmoe.mutation.proofs.program import NoProof

MODULE = """.version 9.0
.target sm_90a
.address_size 64
.func  (.param .align 4 .b8 func_retval0[8]) twice
(
.param .align 4 .b8 twice_param_0[8],
.param .b32 twice_param_1
)
;
.func  (.param .align 4 .b8 func_retval0[8]) twice(
.param .align 4 .b8 twice_param_0[8],
.param .b32 twice_param_1
)
{
.reg .b32 	%r<9>;
ld.param.u32 	%r1, [twice_param_0];
ld.param.u32 	%r2, [twice_param_0+4];
ld.param.u32 	%r3, [twice_param_1];
and.b32 	%r4, %r1, 255;
max.s32 	%r5, %r4, 1;
shr.u32 	%r6, %r2, 1;
add.s32 	%r7, %r6, %r3;
st.param.b32 	[func_retval0+0], %r5;
st.param.b32 	[func_retval0+4], %r7;
ret;
}
.visible .entry kernel(
	.param .u64 kernel_param_0,
	.param .u32 kernel_param_1
)
.maxntid 64, 1, 1
{
	.reg .b32 	%r<9>;
	.reg .b64 	%rd<3>;
	ld.param.u64 	%rd1, [kernel_param_0];
	ld.param.u32 	%r1, [kernel_param_1];
	mov.u32 	%r2, %tid.x;
	shr.u32 	%r3, %r1, 3;
	{
	.reg .b32 temp_param_reg;
	.param .align 4 .b8 param0[8];
	st.param.b32 	[param0+0], %r2;
	st.param.b32 	[param0+4], %r3;
	.param .b32 param1;
	st.param.b32 	[param1+0], 7;
	.param .align 4 .b8 retval0[8];
	call.uni (retval0),
	twice,
	(
	param0,
	param1
	);
	ld.param.b32 	%r4, [retval0+0];
	ld.param.b32 	%r5, [retval0+4];
	}
	st.global.u32 	[%rd1], %r4;
	st.global.u32 	[%rd1+4], %r5;
	ret;
}
"""


def changed(before: str, after: str) -> str:
    assert MODULE.count(before) == 1
    return MODULE.replace(before, after)


def test_a_call_becomes_one_instruction_and_a_function_a_module() -> None:
    module = CalledModule.of(MODULE)
    assert "{%r4, %r5}, %r2, %r3, 7;" in module.entry
    assert "call" not in module.entry.replace("callee.", "")
    assert list(module.functions) == ["twice"]
    assert ".maxntid 64" in module.functions["twice"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("max.s32 \t%r5, %r4, 1", "max.s32 \t%r5, 1, %r4"),
        ("max.s32 \t%r5, %r4, 1", "max.u32 \t%r5, %r4, 1"),
        ("add.s32 \t%r7, %r6, %r3", "add.s32 \t%r7, %r3, %r6"),
        ("shr.u32 \t%r3, %r1, 3", "shr.s32 \t%r3, %r1, 3"),  # an integer of a launch is not negative
    ],
)
def test_the_same_function_and_the_same_call_are_proven(before: str, after: str) -> None:
    assert same_kernel(MODULE, changed(before, after)) is not None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("max.s32 \t%r5, %r4, 1", "max.s32 \t%r5, %r4, 2"),
        ("and.b32 \t%r4, %r1, 255", "and.b32 \t%r4, %r1, 254"),
        ("shr.u32 \t%r6, %r2, 1", "shr.s32 \t%r6, %r2, 1"),  # an integer of a function may be
        ("[func_retval0+4], %r7", "[func_retval0+4], %r6"),
        ("[twice_param_0+4]", "[twice_param_0]"),
        ("[param0+0], %r2", "[param0+0], %r3"),
        ("[param1+0], 7", "[param1+0], 8"),
        ("%r4, [retval0+0]", "%r4, [retval0+4]"),
        ("shr.u32 \t%r3, %r1, 3", "shr.u32 \t%r3, %r1, 4"),
    ],
)
def test_another_function_or_another_call_is_told_apart(before: str, after: str) -> None:
    assert same_kernel(MODULE, changed(before, after)) is None


def test_functions_that_are_not_in_both_are_told_apart() -> None:
    assert same_kernel(MODULE, MODULE.replace("twice", "thrice")) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [("st.param.b32 \t[param1+0], 7", "mov.u32 \t%r2, 7"), ("%r5, [retval0+4]", "%r4, [retval0+4]")],
)
def test_a_call_of_another_form_is_not_followed(before: str, after: str) -> None:
    with pytest.raises(NoProof):
        CalledModule.of(changed(before, after))
    assert same_kernel(changed(before, after), changed(before, after)) is None
