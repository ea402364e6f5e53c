"""`wgmma.mma_async` against the specification: every type, every N, every descriptor, A from both places."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.selection.thinned import thinned
from support.tensor_cores import wgmma_specification as specification

from refmoe import ptx
from refmoe.reference.mma import MODELS, AccumulationModel
from refmoe.reference.mma.half import HALF_MODELS
from refmoe.reference.scalar.mma import accumulate
from refmoe.silicon.wgmma import IMAGE_BYTES, InstructionKernel, descriptor, module_text_of

MNEMONIC = "wgmma.mma_async.sync.aligned"
FP8, BYTES = ("e4m3", "e5m2"), ("s8", "u8")
# (type of D, of A, of B, K, what stands in front of the types)
FLOATING = [
    ("f32", "f16", "f16", 16),
    ("f16", "f16", "f16", 16),
    ("f32", "bf16", "bf16", 16),
    ("f32", "tf32", "tf32", 8),
    *((d, a, b, 32) for d in ("f32", "f16") for a in FP8 for b in FP8),
]
INTEGERS = [("s32", a, b, 32, saturates) for a in BYTES for b in BYTES for saturates in ("", ".satfinite")]
ANY_N = list(range(8, 257, 8))
INTEGER_N = [8, 16, 24, *range(32, 257, 16)]
SIZES = {"f16": 2, "bf16": 2, "tf32": 4, **dict.fromkeys((*FP8, *BYTES), 1)}


def floating(d: str, a: str, b: str, k: int, n: int) -> str:
    return f"{MNEMONIC}.m64n{n}k{k}.{d}.{a}.{b}"


def model_of(d: str, a: str) -> AccumulationModel:
    if d == "f16":
        return HALF_MODELS[a]
    return MODELS["sm90_wgmma_fp8" if a in FP8 else "sm90_wgmma"]


@cache
def module(entry: InstructionKernel) -> ptx.Module:
    return ptx.Module.parse(module_text_of([entry]), name="wgmma.ptx")


def run(
    entry: InstructionKernel,
    image: np.ndarray,
    a: list[int],
    b: list[int],
    rows: np.ndarray,
    sums: np.ndarray,
    adds: list[int],
) -> np.ndarray:
    """The accumulators uint32 [cases, registers, 128] after each case of descriptors."""
    places = np.array([a, b, adds], np.uint64).T.copy()
    result = entry.packed(np.array(sums, np.uint32))
    held = np.ascontiguousarray(rows, np.uint32)
    ptx.launch(module(entry), "w0", (len(b), 1, 1), (128, 1, 1), [image, places, held, result])
    return entry.unpacked(result)


def bits_of(rng: np.random.Generator, size: int, kind: str) -> np.ndarray:
    """Bytes of operands: of floats half of them numbers of ordinary size, where sums do not drown in NaN."""
    any_bytes = rng.integers(0, 256, size).astype(np.uint8)
    if kind in (*BYTES, "b1"):
        return any_bytes
    width = SIZES[kind]
    # The last byte of an element holds its exponent: between 1/8 and 8, but for some.
    middle = {"f16": 0x3C, "bf16": 0x3F, "tf32": 0x3F, "e4m3": 0x38, "e5m2": 0x3C}[kind]
    near = rng.integers(-6, 7, size) if kind in FP8 else rng.integers(-1, 2, size)
    high = (middle + near + (rng.integers(0, 2, size) << 7)).astype(np.uint8)
    wild = rng.random(size) < 0.01
    return np.where((np.arange(size) % width == width - 1) & ~wild, high, any_bytes)


def accumulators(rng: np.random.Generator, registers: int, d: str) -> np.ndarray:
    """uint32 [registers, 128]."""
    if d == "s32":
        return rng.integers(0, 1 << 32, (registers, 128)).astype(np.uint32)
    values = rng.standard_normal((registers, 128, 2 if d == "f16" else 1)) * np.exp2(
        rng.integers(-4, 5, (registers, 128, 1))
    )
    return values.astype(np.float16 if d == "f16" else np.float32).view(np.uint32)[..., 0]


def expected(
    entry: InstructionKernel, rows: np.ndarray, columns: np.ndarray, before: np.ndarray, adds: bool, places: list
) -> dict:
    """D at some (row, column), of A [64, 32 bytes], B [N, 32 bytes] and D before, one at a time."""
    form = entry.form
    found = {}
    if form.d == "s32":
        signed = {"s8": np.int8, "u8": np.uint8, "b1": np.uint8}
        x, y = rows.view(signed[form.a]), columns.view(signed[form.b])
        for row, column in places:
            if form.a == "b1":
                total = sum((int(p) & int(q)).bit_count() for p, q in zip(x[row], y[column], strict=True))
            else:
                total = sum(int(p) * int(q) for p, q in zip(x[row], y[column], strict=True))
            total += int(before[row, column].view(np.int32)) if adds else 0
            if form.saturates:
                total = min(max(total, -(1 << 31)), (1 << 31) - 1)
            found[row, column] = total & 0xFFFFFFFF
        return found
    dtype = np.dtype(f"u{SIZES[form.a]}")
    x, y = rows.view(dtype).astype(np.int64), columns.view(dtype).astype(np.int64)
    if entry.a_sign * entry.b_sign < 0:
        x = x ^ (1 << 8 * SIZES[form.a] - 1)
    model = model_of(form.d, form.a)
    for row, column in places:
        c = int(before[row, column]) if adds else 0
        if form.d == "f16":
            c = int(np.uint16(c).view(np.float16).astype(np.float32).view(np.uint32))
        total = accumulate(x[row].tolist(), y[column].tolist(), c, model, form.a, form.b)
        if form.d == "f16":
            value = np.uint32(total).view(np.float32)
            total = 0x7FFF if np.isnan(value) else int(value.astype(np.float16).view(np.uint16))
        found[row, column] = total
    return found


def check(entry: InstructionKernel, seed: int, adds: bool = True, outputs: int = 150) -> None:
    """Run one case of random operands without a swizzle, and compare some outputs."""
    form, rng = entry.form, np.random.default_rng(seed)
    n = form.n
    image = bits_of(rng, IMAGE_BYTES, form.b)
    image[:8192] = bits_of(rng, 8192, form.a)
    a = descriptor(1024, 128, 256, 0) if not entry.a_across else descriptor(1024, 1024, 128, 0)
    b = descriptor(16384, 128, 256, 0) if not entry.b_across else descriptor(16384, 8192, 128, 0)
    rows = bits_of(rng, 64 * 32, form.a).reshape(64, 32)
    sums = accumulators(rng, form.accumulators, form.d)
    result = run(entry, image, [a], [b], specification.a_registers(rows)[None], sums[None], [int(adds)])[0]
    if not entry.held:
        read = specification.stored_columns if entry.a_across else specification.stored_rows
        rows = read(image, a, 64, form.k if entry.a_across else 32)
    read = specification.stored_columns if entry.b_across else specification.stored_rows
    columns = read(image, b, n, form.k if entry.b_across else 32)
    halves = form.d == "f16"
    before, after = (specification.d_matrix(each, n, halves) for each in (sums, result))
    places = [divmod(int(each), n) for each in rng.choice(64 * n, min(outputs, 64 * n), replace=False)]
    places += [(0, 0), (63, n - 1), (8, 1), (17, n - 2)]
    for (row, column), value in expected(entry, rows, columns, before, adds, places).items():
        assert int(after[row, column]) == value, (row, column, hex(int(after[row, column])), hex(value))


@pytest.mark.parametrize(
    "number", thinned(range(len(FLOATING)), 3), ids=lambda number: "-".join(map(str, FLOATING[number]))
)
@pytest.mark.parametrize("held", [False, True], ids=["shared", "registers"])
def test_floating_point(number: int, held: bool) -> None:
    n = (8, 24, 40, 72, 16, 56, 104, 32, 136, 64, 88, 48)[(number + 5 * held) % 12]
    check(InstructionKernel(floating(*FLOATING[number], n), held), number)


@pytest.mark.parametrize("number", range(len(INTEGERS)), ids=lambda number: "-".join(map(str, INTEGERS[number])))
def test_integers(number: int) -> None:
    d, a, b, k, saturates = INTEGERS[number]
    n = (8, 16, 24, 32, 48, 80, 64, 112)[number]
    check(
        InstructionKernel(f"{MNEMONIC}.m64n{n}k{k}{saturates}.{d}.{a}.{b}", held=number % 3 == 0), number, outputs=400
    )


@pytest.mark.parametrize("held", [False, True])
def test_bits(held: bool) -> None:
    check(InstructionKernel(f"{MNEMONIC}.m64n{48 if held else 8}k256.s32.b1.b1.and.popc", held), 7)


@pytest.mark.parametrize("n", thinned([112, 144, 176, 200, 248, 256], 2))
def test_wide(n: int) -> None:
    check(InstructionKernel(floating("f32", "e4m3", "e4m3", 32, n)), n)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("signs", [(1, -1), (-1, 1), (-1, -1)])
@pytest.mark.parametrize("kind", [("f32", "bf16", "bf16", 16), ("f32", "tf32", "tf32", 8), ("f16", "e5m2", "e4m3", 32)])
def test_negated_operands(kind: tuple[str, str, str, int], signs: tuple[int, int], held: bool) -> None:
    check(InstructionKernel(floating(*kind, 8), held, *signs), 3)


@pytest.mark.parametrize("across", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_operands_that_lie_across_k(kind: str, across: tuple[bool, bool]) -> None:
    check(InstructionKernel(floating("f32", kind, kind, 16, 24), a_across=across[0], b_across=across[1]), 4)


@pytest.mark.parametrize("kind", [FLOATING[1], FLOATING[3], FLOATING[4], FLOATING[8]])
def test_d_that_is_not_added(kind: tuple[str, str, str, int]) -> None:
    check(InstructionKernel(floating(*kind, 16)), 5, adds=False)
    check(InstructionKernel(floating(*kind, 16), held=True), 6, adds=False)


def test_integers_that_are_not_added() -> None:
    check(InstructionKernel(f"{MNEMONIC}.m64n8k32.s32.u8.s8"), 5, adds=False)


def test_sums_that_are_no_number_have_one_code() -> None:
    image = np.full(IMAGE_BYTES, 0x7E, np.uint8)
    for kind, nan in (("f32", 0x7FFFFFFF), ("f16", 0x7FFF7FFF)):
        entry = InstructionKernel(floating(kind, "e5m2", "e5m2", 32, 8))
        sums = np.zeros((1, entry.form.accumulators, 128))
        place = [descriptor(0, 128, 256, 0)]
        assert set(run(entry, image, place, place, np.zeros((1, 4, 128)), sums, [1]).ravel().tolist()) == {nan}


def test_each_product_of_a_chain_saturates_by_itself() -> None:
    opcode = f"{MNEMONIC}.m64n8k32.satfinite.s32.s8.s8"
    entry = InstructionKernel(opcode)
    text = module_text_of([entry])
    (line,) = [each for each in text.splitlines() if each.startswith(opcode)]
    image = np.zeros(IMAGE_BYTES, np.uint8)
    # A and B are all 100, then A is -100: by 8 rows of 16 bytes.
    image[:4096], image[8192:12288], image[16384:16640] = 100, 156, 100
    assert "%da" in line
    second = line.replace("%da", "%start")
    text = text.replace(line, f"{line} add.s64 %start, %da, {8192 >> 4}; {second}")
    sums = entry.packed(np.full((1, 4, 128), 0x7FFFFFF0, np.uint32))
    places = np.array([[descriptor(0, 128, 256, 0), descriptor(16384, 128, 256, 0), 1]], np.uint64)
    ptx.launch(ptx.Module.parse(text), "w0", (1, 1, 1), (128, 1, 1), [image, places, np.zeros(512, np.uint32), sums])
    assert set(entry.unpacked(sums).ravel().tolist()) == {0x7FFFFFFF - 32 * 100 * 100}


def test_what_is_claimed() -> None:
    assert list(SIZES) == ["f16", "bf16", "tf32", *FP8, *BYTES]
    for d, a, b, k in FLOATING:
        code = module(InstructionKernel(floating(d, a, b, k, 8))).compile("w0")
        assert code.models == {model_of(d, a).name: "hardware-checked"}


# Spellings


@pytest.mark.parametrize(
    "opcode",
    [
        "m64n12k16.f32.f16.f16",
        "m64n264k16.f32.f16.f16",
        "m64n0k16.f32.f16.f16",
        "m32n8k16.f32.f16.f16",
        "m64n8k8.f32.f16.f16",
        "m64n8k16.f32.f16.bf16",
        "m64n8k16.f16.bf16.bf16",
        "m64n8k8.f16.tf32.tf32",
        "m64n8k32.f32.e4m3.s8",
        "m64n40k32.s32.s8.s8",
        "m64n8k32.f32.s8.s8",
        "m64n8k32.s32.e4m3.e4m3",
        "m64n8k32.satfinite.f32.e4m3.e4m3",
        "m64n8k256.s32.b1.b1",
        "m64n8k256.s32.b1.b1.xor.popc",
        "m64n8k32.s32.s8.s8.and.popc",
        "m64n8k64.s32.s4.s4",
    ],
)
def test_spellings_that_ptx_does_not_have_are_refused_where_they_are_reached(opcode: str) -> None:
    text = module_text_of([InstructionKernel(floating("f32", "f16", "f16", 16, 8))])
    text = text.replace(floating("f32", "f16", "f16", 16, 8), f"{MNEMONIC}.{opcode}")
    image, words = np.zeros(IMAGE_BYTES, np.uint8), np.zeros(1 << 14, np.uint32)
    with pytest.raises(ptx.UnknownOpcode, match=f"unknown opcode {MNEMONIC}.{opcode}"):
        ptx.launch(ptx.Module.parse(text), "w0", (1, 1, 1), (128, 1, 1), [image, words, words, words.copy()])


@pytest.mark.parametrize("n", ANY_N)
def test_every_n_is_spelled(n: int) -> None:
    for kind in FLOATING:
        form = InstructionKernel(floating(*kind, n)).form
        assert (form.n, form.k, form.accumulators) == (n, kind[3], n // (4 if kind[0] == "f16" else 2))
    from refmoe.ptx.text.wgmma import form_of

    assert (form_of(f"{MNEMONIC}.m64n{n}k32.s32.s8.u8") is not None) == (n in INTEGER_N)
    assert (form_of(f"{MNEMONIC}.m64n{n}k256.s32.b1.b1.and.popc") is not None) == (n in INTEGER_N)


@pytest.mark.parametrize("target", ["sm_90", "sm_100a", "sm_120a"])
def test_other_targets_have_no_wgmma(target: str) -> None:
    text = module_text_of([InstructionKernel(floating("f32", "f16", "f16", 16, 8))]).replace("sm_90a", target)
    image, words = np.zeros(IMAGE_BYTES, np.uint8), np.zeros(1 << 14, np.uint32)
    with pytest.raises(ptx.UnknownOpcode, match=f"wgmma is of sm_90a alone, not of {target}"):
        ptx.launch(ptx.Module.parse(text), "w0", (1, 1, 1), (128, 1, 1), [image, words, words, words.copy()])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((", 1, 1, 0, 0;", ", 1, 1, 0;"), "8 operands needed, not 7"),
        ((", 1, 1, 0, 0;", ", 2, 1, 0, 0;"), "imm-scale-a: the constant 1 or -1 needed"),
        ((", 1, 1, 0, 0;", ", 1, 0, 0, 0;"), "imm-scale-b: the constant 1 or -1 needed"),
        ((", 1, 1, 0, 0;", ", 1, 1, 2, 0;"), "imm-trans: the constant 0 or 1 needed"),
        (("f16 {%acc0, ", "f16 {"), "D: a vector of 4 registers of 32 bits needed"),
        (("%da, %db, %adds, 1, 1, 0, 0;", "{%a0, %a1}, %db, %adds, 1, 1, 0;"), "A: a vector of 4 registers"),
    ],
)
def test_operands_that_do_not_fit_are_refused(change: tuple[str, str], message: str) -> None:
    text = module_text_of([InstructionKernel(floating("f32", "f16", "f16", 16, 8))])
    assert text.count(change[0]) == 1
    image, words = np.zeros(IMAGE_BYTES, np.uint8), np.zeros(1 << 14, np.uint32)
    with pytest.raises(ptx.UnknownOpcode, match=message):
        ptx.launch(ptx.Module.parse(text.replace(*change)), "w0", (1, 1, 1), (128, 1, 1), [image, words, words, words])


# Matrix descriptors: elements of A or B whose bits say where they lie

CODES = (np.arange(IMAGE_BYTES // 2) + 1).astype(np.uint16)
ONES = 46 * 1024
EYE = np.eye(16, dtype=np.float16)


def marked_image() -> np.ndarray:
    """FP16 numbers that are all different, and at `ONES` a unit matrix as B."""
    image = CODES.copy().view(np.uint8)
    for column in range(16):
        for byte in range(32):
            image[specification.address(descriptor(ONES, 128, 256, 0), column, byte, False)] = EYE.view(np.uint8)[
                column, byte
            ]
    return image


def descriptors(rng: np.random.Generator, count: int, swizzle: int) -> list[int]:
    """Such as stay inside the image, for operands of up to 64 rows or columns."""
    found: list[int] = []
    while len(found) < count:
        start, leading, stride = (int(rng.integers(0, most)) * 16 for most in (200, 400, 400))
        if rng.integers(2):
            leading, stride = leading // 8 // 128 * 128, stride // 8 // 128 * 128
        if start + 8 * max(leading, stride) + 2 * (leading + stride) < 44 * 1024:
            found.append(descriptor(start, leading, stride, swizzle, int(rng.integers(0, 8)) if len(found) % 2 else 0))
    return found


def marks(sums: np.ndarray, n: int) -> np.ndarray:
    """D as the FP16 bits of its numbers."""
    return specification.d_matrix(sums, n, False).view(np.float32).astype(np.float16).view(np.uint16)


@pytest.mark.parametrize("across", [False, True], ids=["along", "across"])
@pytest.mark.parametrize("swizzle", thinned([0, 32, 64, 128], 2))
def test_where_a_lies(swizzle: int, across: bool) -> None:
    entry, rng = (
        InstructionKernel(floating("f32", "f16", "f16", 16, 16), a_across=across),
        np.random.default_rng(swizzle),
    )
    places, image = descriptors(rng, 12, swizzle), marked_image()
    ones = [descriptor(ONES, 128, 256, 0)] * len(places)
    result = run(entry, image, places, ones, np.zeros((12, 4, 128)), np.zeros((12, 8, 128)), [0] * 12)
    for bits, sums in zip(places, result, strict=True):
        read = specification.stored_columns if across else specification.stored_rows
        rows = read(image, bits, 64, 16 if across else 32)
        np.testing.assert_array_equal(marks(sums, 16), rows.view(np.uint16))


@pytest.mark.parametrize("across", [False, True], ids=["along", "across"])
@pytest.mark.parametrize("swizzle", thinned([0, 32, 64, 128], 2))
def test_where_b_lies(swizzle: int, across: bool) -> None:
    entry = InstructionKernel(floating("f32", "f16", "f16", 16, 64), held=True, b_across=across)
    places, image = descriptors(np.random.default_rng(swizzle + 1), 12, swizzle), marked_image()
    ones = np.zeros((64, 16), np.float16)
    ones[:16] = EYE
    held = np.broadcast_to(specification.a_registers(ones.view(np.uint8)), (12, 4, 128))
    result = run(entry, image, [0] * 12, places, held, np.zeros((12, 32, 128)), [0] * 12)
    for bits, sums in zip(places, result, strict=True):
        read = specification.stored_columns if across else specification.stored_rows
        columns = read(image, bits, 64, 16 if across else 32)
        np.testing.assert_array_equal(marks(sums, 64)[:16].T, columns.view(np.uint16))


# Sparse rows of A

SPARSE = "wgmma.mma_async.sp.sync.aligned"
SPARSE_TYPES = [
    ("f32", "f16", "f16", 32),
    ("f32", "bf16", "bf16", 32),
    ("f16", "f16", "f16", 32),
    ("f32", "tf32", "tf32", 16),
    ("f32", "e4m3", "e5m2", 64),
    ("f16", "e5m2", "e4m3", 64),
    ("s32", "s8", "u8", 64),
    *((".satfinite", a, b, 64) for a in BYTES for b in BYTES),
]


def sparse(kind: tuple[str, str, str, int], n: int, **options: object) -> InstructionKernel:
    d, a, b, k = kind
    saturates, d = (".satfinite", "s32") if d.startswith(".") else ("", d)
    return InstructionKernel(f"{SPARSE}.m64n{n}k{k}{saturates}.{d}.{a}.{b}", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("held", [False, True])
def test_sparse_products_saturate_once_at_the_end(held: bool) -> None:
    entry, image = sparse((".satfinite", "s8", "s8", 64), 8, held=held), np.zeros(IMAGE_BYTES, np.uint8)
    # A is all 100. Of B the first half of K is 100, the second -100: what the first half lifts past 2^31 comes back.
    rows, columns = np.full((64, 32), 100, np.uint8), np.full((8, 64), 100, np.uint8)
    columns[:, 32:] = 156
    image[:2048], image[16384:16896] = 100, columns.reshape(8, 4, 16).transpose(1, 0, 2).ravel()
    metadata = np.full((1, 128), 0x44444444, np.uint32)
    registers = np.concatenate([specification.a_registers(rows), metadata])
    a, b = descriptor(0, 128, 256, 0), descriptor(16384, 128, 512, 0)
    for before, after in ((0x7FFFFFF0, 0x7FFFFFF0), (0x80000005, 0x80000005)):
        sums = np.full((1, 4, 128), before, np.uint32)
        assert set(run(entry, image, [a], [b], registers[None], sums, [1]).ravel().tolist()) == {after}
    image[16384:16896] = 100
    lifted = run(entry, image, [a], [b], registers[None], np.full((1, 4, 128), 0x7FFFFFF0, np.uint32), [1])
    assert set(lifted.ravel().tolist()) == {0x7FFFFFFF}


def check_sparse(kind: tuple[str, str, str, int], entry: InstructionKernel, seed: int, wild: bool = False) -> None:
    """One case: each product is of a stored element and of the one of B that its metadata name."""
    form, rng, n = entry.form, np.random.default_rng(seed), entry.form.n
    width = SIZES[form.a]
    image = bits_of(rng, IMAGE_BYTES, form.b)
    if wild:
        # Many a column has what is no number, which most rows do not multiply.
        places = rng.choice(IMAGE_BYTES // width, 400)
        image.view(f"u{width}")[places] = {2: 0x7C00, 1: 0x7C}[width]
    image[:8192] = bits_of(rng, 8192, form.a)
    a = descriptor(1024, 128, 256, 0) if not entry.a_across else descriptor(1024, 1024, 128, 0)
    b = descriptor(16384, 128, 512, 0) if not entry.b_across else descriptor(16384, 4096, 128, 0)
    rows = bits_of(rng, 64 * 32, form.a).reshape(64, 32)
    groups = [[0x4, 0xE] if width == 4 else [0x4, 0x8, 0xC, 0x9, 0xD, 0xE]][0]
    metadata = (rng.choice(groups, (128, 8)) << np.arange(0, 32, 4)).sum(axis=1).astype(np.uint32)
    sums = accumulators(rng, form.accumulators, form.d)
    held = np.concatenate([specification.a_registers(rows), metadata[None]])
    result = run(entry, image, [a], [b], held[None], sums[None], [1])[0]
    if not entry.held:
        read = specification.stored_columns if entry.a_across else specification.stored_rows
        rows = read(image, a, 64, form.k // 2 if entry.a_across else 32)
    read = specification.stored_columns if entry.b_across else specification.stored_rows
    columns = read(image, b, n, form.k if entry.b_across else 64).view(f"u{width}")
    before, after = (specification.d_matrix(each, n, form.d == "f16") for each in (sums, result))
    signs = {"a_sign": entry.a_sign, "b_sign": entry.b_sign}
    dense = InstructionKernel(f"{MNEMONIC}.m64n{n}k{form.k // 2}{entry.opcode.split(f'k{form.k}')[1]}", **signs)
    for row, column in [divmod(int(each), n) for each in rng.choice(64 * n, 150, replace=False)]:
        named = specification.sparse_places(metadata, row, width, entry.selector)
        beside = np.ascontiguousarray(columns[column][named])[None].view(np.uint8)
        value = expected(dense, rows[row : row + 1], beside, before[row : row + 1, column : column + 1], True, [(0, 0)])
        assert int(after[row, column]) == value[0, 0], (row, column)


@pytest.mark.parametrize(
    "number", thinned(range(len(SPARSE_TYPES)), 3), ids=lambda number: "-".join(map(str, SPARSE_TYPES[number]))
)
def test_sparse_rows(number: int) -> None:
    kind = SPARSE_TYPES[number]
    for held in (False, True):
        selector = int(held) if kind[3] < 64 else 0
        check_sparse(kind, sparse(kind, (8, 24, 16, 32)[number % 4], held=held, selector=selector), number)


@pytest.mark.parametrize("kind", [SPARSE_TYPES[0], SPARSE_TYPES[2], ("f32", "e5m2", "e5m2", 64)])
def test_what_sparse_rows_do_not_store_multiplies_nothing(kind: tuple[str, str, str, int]) -> None:
    check_sparse(kind, sparse(kind, 32, held=True), 1, wild=True)


@pytest.mark.parametrize("signs", [(1, -1), (-1, 1), (-1, -1)])
@pytest.mark.parametrize("kind", thinned(map(pytest.param, [SPARSE_TYPES[0], SPARSE_TYPES[3], SPARSE_TYPES[5]]), 3))
def test_sparse_rows_that_are_negated(kind: tuple[str, str, str, int], signs: tuple[int, int]) -> None:
    check_sparse(kind, sparse(kind, 16, held=signs[0] > 0, a_sign=signs[0], b_sign=signs[1]), 5)


@pytest.mark.parametrize("across", [(True, False), (False, True), (True, True)])
def test_sparse_rows_that_lie_across_k(across: tuple[bool, bool]) -> None:
    check_sparse(SPARSE_TYPES[0], sparse(SPARSE_TYPES[0], 16, a_across=across[0], b_across=across[1]), 2)


@pytest.mark.parametrize(("nibble", "places"), [(0x5, "1 and 1"), (0x1, "1 and 0"), (0xB, "3 and 2"), (0x0, "0 and 0")])
def test_metadata_in_disorder_are_refused(nibble: int, places: str) -> None:
    entry, image = sparse(SPARSE_TYPES[0], 8, held=True), np.zeros(IMAGE_BYTES, np.uint8)
    held = np.zeros((1, 5, 128), np.uint32)
    held[0, 4] = 0x44444444
    # Lane 5 of warp 1 holds groups 4 to 7 of rows 17 and 25.
    held[0, 4, 37] ^= np.uint32((nibble ^ 4) << 20)
    with pytest.raises(ptx.MisuseError, match=f"metadata that put row 25's elements of group 5 at places {places}"):
        run(entry, image, [0], [descriptor(0, 128, 512, 0)], held, np.zeros((1, 4, 128)), [1])
    # Those of lanes that are not chosen are not looked at.
    run(replace(entry, selector=1), image, [0], [descriptor(0, 128, 512, 0)], held, np.zeros((1, 4, 128)), [1])


def test_metadata_of_tf32_name_whole_elements() -> None:
    entry, image = sparse(SPARSE_TYPES[3], 8, held=True), np.zeros(IMAGE_BYTES, np.uint8)
    held = np.zeros((1, 5, 128), np.uint32)
    held[0, 4] = 0x99999999
    with pytest.raises(ptx.MisuseError, match="metadata that put row 0's elements of group 0 at places 1 and 2"):
        run(entry, image, [0], [descriptor(0, 128, 512, 0)], held, np.zeros((1, 4, 128)), [1])


@pytest.mark.parametrize("swizzle", thinned([0, 32, 64, 128], 2))
def test_where_b_of_sparse_products_lies(swizzle: int) -> None:
    entry, rng = sparse(SPARSE_TYPES[0], 16, held=True), np.random.default_rng(swizzle)
    places, image = descriptors(rng, 6, swizzle), marked_image()
    # Row g takes the element p of its group g.
    for p, nibble in enumerate((0xC, 0xD, 0xE, 0xC)):
        ones = np.zeros((64, 16), np.float16)
        ones[np.arange(8), 2 * np.arange(8) + (p == 3)] = 1
        held = np.concatenate([specification.a_registers(ones.view(np.uint8)), np.full((1, 128), nibble * 0x11111111)])
        result = run(entry, image, [0] * 6, places, np.broadcast_to(held, (6, 5, 128)), np.zeros((6, 8, 128)), [0] * 6)
        for bits, sums in zip(places, result, strict=True):
            columns = specification.stored_rows(image, bits, 16, 64).view(np.uint16)
            np.testing.assert_array_equal(marks(sums, 16)[:8].T, columns[:, p::4])


def test_chunks_beyond_shared_memory_are_faults() -> None:
    entry = InstructionKernel(floating("f32", "f16", "f16", 16, 8))
    image = np.zeros(IMAGE_BYTES, np.uint8)
    with pytest.raises(ptx.MemoryFault, match="out of bounds"):
        run(entry, image, [descriptor(0, 128, 256, 0)], [descriptor(IMAGE_BYTES - 128, 128, 256, 0)],
            np.zeros((1, 4, 128)), np.zeros((1, 4, 128)), [1])  # fmt: skip


def test_a_module_with_every_option_of_one_type() -> None:
    # Kernels of one module do not share what they are compiled to.
    kinds = [
        replace(InstructionKernel(floating("f32", "f16", "f16", 16, 8)), a_sign=sign, a_across=on)
        for sign in (1, -1)
        for on in (False, True)
    ]
    text = module_text_of(kinds)
    assert text.count(".visible .entry") == 4
    for number in range(4):
        ptx.Module.parse(text).compile(f"w{number}")
