"""Registers that nothing wrote, where a changed source numbers its registers anew; and near misses."""

from __future__ import annotations

import pytest

from refmoe.mutation.proofs.declarations import namings
from refmoe.mutation.proofs.equality import same_kernel
from tests.mutation.test_proofs import small

#: Two loops of no round leave what nobody wrote to be chosen where the number is not 0.
SOUND = (
    "ld.global.nc.u32 %r1, [%rd1]", "setp.eq.u32 %p1, %r1, 0", "selp.b32 %r2, %r1, %r11, %p1",
    "selp.b32 %r3, %r1, %r12, %p1", "st.global.u32 [%rd2], %r2", "st.global.u32 [%rd2+4], %r3",
)  # fmt: skip


def text(*, first: str = "%r11", second: str = "%r12", registers: int = 20, lines: tuple[str, ...] = SOUND) -> str:
    body = [each.replace("%r11", "FIRST").replace("%r12", "SECOND") for each in lines]
    made = small(*(each.replace("FIRST", first).replace("SECOND", second) for each in body))
    return made.replace("%r<20>", f"%r<{registers}>")


@pytest.mark.parametrize(("first", "second"), [("%r12", "%r13"), ("%r13", "%r12"), ("%r12", "%r11"), ("%r14", "%r14")])
def test_registers_that_nothing_wrote_may_have_other_numbers(first: str, second: str) -> None:
    assert same_kernel(text(), text(first=first, second=second, registers=21)) is not None


def test_with_as_many_registers_a_name_is_what_it_was() -> None:
    assert same_kernel(text(), text(first="%r12", second="%r13")) is None


@pytest.mark.parametrize(("first", "second"), [("%r1", "%r13"), ("%r12", "%r1"), ("5", "%r13")])
def test_what_was_written_is_no_such_register(first: str, second: str) -> None:
    assert same_kernel(text(first="%r14"), text(first=first, second=second, registers=21)) is None


def test_one_register_is_not_two() -> None:
    one, other = text(second="%r11"), text(first="%r12", second="%r13", registers=21)
    assert same_kernel(one, other) is None


def test_what_the_sound_entry_wrote_is_not_left_open() -> None:
    assert same_kernel(text(first="%r1"), text(first="%r12", registers=21)) is None


def test_names_of_its_own_are_the_same_text() -> None:
    sound, other = text(), text(registers=21)
    assert namings(sound, sound) == [sound]
    own, plain = namings(sound, other)
    assert plain == other
    assert own.replace("_other_", "") == other
    assert "%r_other_11," in own
    assert "%r_other_<21>" in own
    assert same_kernel(sound, own) is not None
