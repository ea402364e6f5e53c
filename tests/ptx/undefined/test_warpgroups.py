"""Undefined values in products of warpgroups: which elements of D they reach, by the layout of the manual."""

from __future__ import annotations

import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.silicon.wgmma import IMAGE_BYTES, InstructionKernel, descriptor, module_text_of

F32 = "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16"
F16 = "wgmma.mma_async.sync.aligned.m64n16k16.f16.f16.f16"
SPARSE = "wgmma.mma_async.sp.sync.aligned.m64n16k32.f32.f16.f16"
LANE = 71  # 4 g + t of warp 2: g = 1, t = 3


def text_of(entry: InstructionKernel, name: str, *, stores: int | None = None, lanes: str = "") -> str:
    """The entry, in which one lane does not load a register; only register `stores` is stored, in some lanes.

    Args:
        entry: a kernel.
        name: of the register that lane `LANE` does not load.
        stores: number of the register of D that is stored, None for none.
        lanes: sets the predicate %here of lanes that store, from their number %t.
    """
    text = module_text_of([entry])
    (load,) = [line for line in text.splitlines() if line.startswith("ld.global") and name in line]
    text = text.replace(load, f"setp.ne.u32 %more, %t, {LANE}; @%more {load}")
    lines = [line for line in text.splitlines() if not line.startswith("st.global")]
    text = "\n".join(lines).replace(".reg .pred %more", ".reg .pred %here, %more") + "\n"
    if stores is not None:
        store = f"{lanes} @%here st.global.u32 [%from], %acc{stores};"
        text = text.replace("\nret;", f"\n{store}\nret;")
    return text


def launched(entry: InstructionKernel, text: str, adds: bool = True) -> np.ndarray:
    image = np.zeros(IMAGE_BYTES, np.uint8)
    places = np.array([[descriptor(0, 128, 256, 0), descriptor(8192, 128, 512, 0), adds]], np.uint64)
    rows = np.zeros((1, entry.rows, 128), np.uint32)
    if entry.form.sparse:
        rows[:, 4] = 0x44444444
    sums = np.zeros((1, entry.form.accumulators, 128), np.uint32)
    ptx.launch(ptx.Module.parse(text), "w0", (1, 1, 1), (128, 1, 1), [image, places, rows, sums])
    return sums


def fails(entry: InstructionKernel, name: str, register: int, lane: int, adds: bool = True) -> bool:
    """Whether a lane may not store a register of D."""
    text = text_of(entry, name, stores=register, lanes=f"setp.eq.u32 %here, %t, {lane};")
    try:
        launched(entry, text, adds)
    except ptx.UndefinedError:
        return True
    return False


def reached(entry: InstructionKernel, name: str) -> set[tuple[int, int]]:
    """(lane, register of D) that may not be stored, each tried by itself in its quad and in the quad behind it."""
    lanes = range(LANE // 4 * 4, LANE // 4 * 4 + 5)
    registers = range(entry.form.accumulators)
    return {(lane, each) for each in registers for lane in lanes if fails(entry, name, each, lane)}


QUAD = range(68, 72)


@pytest.mark.parametrize("opcode", [F32, SPARSE])
@pytest.mark.parametrize("name", thinned(["%a0", "%a3"], 2))
def test_a_register_of_a_reaches_its_row_of_d(opcode: str, name: str) -> None:
    upper = int(name[-1]) % 2
    wanted = {(lane, register) for lane in QUAD for register in range(8) if register // 2 % 2 == upper}
    assert reached(InstructionKernel(opcode, held=True), name) == wanted


def test_of_halves_two_columns_are_in_a_register() -> None:
    wanted = {(lane, register) for lane in QUAD for register in (1, 3)}
    assert reached(InstructionKernel(F16, held=True), "%a1") == wanted


@pytest.mark.parametrize("adds", thinned([False, True], 2))
@pytest.mark.parametrize("opcode", [F32, F16])
def test_a_sum_that_nobody_wrote_matters_where_it_is_added(opcode: str, adds: bool) -> None:
    entry = InstructionKernel(opcode)
    # The load brings several registers at once.
    wanted = {(LANE, register) for register in range(entry.together)} if adds else set()
    found = {
        (lane, register)
        for register in range(entry.form.accumulators)
        for lane in (LANE - 1, LANE)
        if fails(entry, "%acc0,", register, lane, adds)
    }
    assert found == wanted


def test_what_is_not_used_is_no_finding() -> None:
    entry = InstructionKernel(F32, held=True)
    launched(entry, text_of(entry, "%a2"))
    launched(entry, text_of(entry, "%acc0,"))


def test_undefined_metadata_are_found_at_the_product() -> None:
    entry = InstructionKernel(SPARSE, held=True)
    with pytest.raises(ptx.UndefinedError, match="an operand of wgmma"):
        launched(entry, text_of(entry, "%meta"))


def test_products_that_follow_carry_it_on() -> None:
    entry = InstructionKernel(F32, held=True)
    text = text_of(entry, "%a0", stores=0, lanes=f"setp.eq.u32 %here, %t, {LANE};")
    (line,) = [each for each in text.splitlines() if each.startswith(F32)]
    from_memory = line.replace("{%a0, %a1, %a2, %a3}", "%da").replace("1, 1, 0;", "1, 1, 0, 0;")
    with pytest.raises(ptx.UndefinedError) as caught:
        launched(entry, text.replace(line, f"{line}\n{from_memory}"))
    assert caught.value.register == "%a0"
    # One that adds nothing writes all of D.
    from_zero = from_memory.replace("%adds", "%more")
    launched(entry, text.replace(line, f"{line}\nsetp.lt.u32 %more, %t, 0;\n{from_zero}"))
