"""What an output byte depends on: sound kernels are proven, and kernels that look at a neighbour are told apart."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from support.selection.thinned import thinned

from refmoe.chips import DEFAULT_ARCH
from refmoe.cuda.expand import choice_kernel
from refmoe.cuda.launch import Entry
from refmoe.exhaustive.blockwise import Proof, launches_of, prove
from refmoe.exhaustive.pieces import SUBJECTS
from refmoe.exhaustive.run import ptx_of
from refmoe.exhaustive.terms import Terms
from refmoe.ptx import Module

QUANTIZE = SUBJECTS["mxfp8_quantize.128x4"]
KERNELS = {mode: QUANTIZE.entry("bf16", mode, "exact") for mode in ("rceil", "floor")}
KERNEL = KERNELS["rceil"]
assert KERNEL is not None
#: Its PTX comes from an older part of the compiler, which packs codes and takes elements apart in other ways.
OLDER_ARCH = "sm_90a"


def proof_of(module: Module, launches: str = "", kernel: Entry = KERNEL) -> Proof:
    """Of the launches whose names match, which is quicker than all."""
    followed = [each for each in launches_of(QUANTIZE, kernel, rows_followed=3) if re.match(launches, each.name)]
    return prove(module, kernel.entry, followed)


@pytest.mark.parametrize(
    ("subject", "dtype", "mode", "edge", "arch"),
    thinned(
        [
            ("mxfp8_quantize.linear", "fp16", "floor", "flashinfer", DEFAULT_ARCH),
            ("mxfp8_quantize.128x4", "bf16", "rceil", "exact", DEFAULT_ARCH),
            ("expand.8x4", "bf16", "rceil", "flashinfer", DEFAULT_ARCH),
            ("mxfp8_quantize.8x4", "fp16", "rceil", "flashinfer", OLDER_ARCH),
            ("expand.128x4", "bf16", "floor", "exact", OLDER_ARCH),
            ("expand.128x4", "fp16", "floor", "exact", DEFAULT_ARCH),
        ],
        2,
    ),
)
def test_kernels_are_proven(subject: str, dtype: str, mode: str, edge: str, arch: str) -> None:
    kernel = SUBJECTS[subject].entry(dtype, mode, edge)
    proof = prove(ptx_of(kernel, arch), kernel.entry, launches_of(SUBJECTS[subject], kernel, rows_followed=2))
    assert not proof.refusals
    assert proof.shapes == {"codes": 1, "scales": 1}
    maximum = {"exact": "u16x2", "flashinfer": {"bf16": "bf16x2", "fp16": "f16x2"}[dtype]}[edge]
    assert proof.maximum == f"max.{maximum}"


@dataclass(frozen=True)
class Plant:
    """An edit of the kernel's PTX, and a part of the sentence that has to name it."""

    name: str
    pattern: str
    replacement: str
    named: str
    arch: str = DEFAULT_ARCH
    mode: str = "rceil"


#: The amax as FP32 bits, where the compiler has it; and a word of codes before it is stored.
_AMAX = (
    r"(?P<all>shl\.b32\s+(?P<amax>%r\d+), %r\d+, 16;\s"
    r"(?:\s*(?:\.loc|//).*\n)*\s*setp\.gt\.u32\s+%p\d+, (?P=amax), 2139095039;)"
)
_LAST_LOAD = (
    r"(?P<all>ld\.global\.nc\.v4\.u32 \{(?P<a>%r\d+),(?P<b>%r\d+),(?P<c>%r\d+),(?P<d>%r\d+)\}, \[(?P<at>%rd\d+)\];)"
)
_FIRST_MASK = r"(?P<all>and\.b32\s+%r\d+, (?P<word>%r\d+), 2147450879;)"
_ADDRESS = r"(?P<all>shl\.b64\s+(?P<offset>%rd\d+), %rd\d+, 5;)"

PLANTS = [
    Plant(
        "the neighbour's amax under one rare amax, by a predicate",
        _AMAX,
        r"{ .reg .b32 near; .reg .pred rare; shfl.sync.bfly.b32 near, \g<word>, 2, 31, -1;"
        r" setp.eq.u32 rare, \g<word>, 1111638594; @rare mov.b32 \g<word>, near; } \g<all>",
        "of the block 1",
    ),
    Plant(
        "the neighbour's word under one rare word, by selp",
        _FIRST_MASK,
        r"{ .reg .b32 near; .reg .pred rare; shfl.sync.bfly.b32 near, \g<word>, 4, 31, -1;"
        r" setp.eq.u32 rare, \g<word>, 1111638594; selp.b32 \g<word>, near, \g<word>, rare; } \g<all>",
        "of the block 2",
    ),
    Plant(
        "the neighbour's word behind a branch that one word takes",
        _FIRST_MASK,
        r"{ .reg .b32 near; .reg .pred rare; shfl.sync.bfly.b32 near, \g<word>, 2, 31, -1;"
        r" setp.ne.u32 rare, \g<word>, 1111638594; @rare bra $L_common; mov.b32 \g<word>, near; $L_common: } \g<all>",
        "of the block 1",
    ),
    Plant(
        "an amax over the next block instead of the own half",
        r"shfl\.sync\.bfly\.b32(?P<rest>\s+%r\d+\|%p\d+, %r\d+), 1, 31, -1;",
        r"shfl.sync.bfly.b32\g<rest>, 2, 31, -1;",
        "of the block 1",
    ),
    Plant(
        "row 40,000 alone reads the next block: no launch has it",
        _ADDRESS,
        r"\g<all> { .reg .b32 row; .reg .pred rare; mov.u32 row, %ctaid.x; setp.eq.u32 rare, row, 40000;"
        r" @rare add.s64 \g<offset>, \g<offset>, 64; }",
        "past the end of x",
    ),
    Plant(
        "row 40,000 alone reads the block before",
        _ADDRESS,
        r"\g<all> { .reg .b32 row; .reg .pred rare, inside; mov.u32 row, %ctaid.x; setp.eq.u32 rare, row, 40000;"
        r" setp.ge.s64 inside, \g<offset>, 64; and.pred rare, rare, inside;"
        r" @rare add.s64 \g<offset>, \g<offset>, -64; }",
        "an address outside of every buffer",
    ),
    Plant(
        "an address that depends on a word",
        r"(?P<all>add\.s64\s+(?P<next>%rd\d+), %rd\d+, 16;)",
        r"\g<all> { .reg .b32 bit; .reg .b64 wide; and.b32 bit, \g<word>, 0; cvt.u64.u32 wide, \g<word>;"
        r" and.b64 wide, wide, 16; add.s64 \g<next>, \g<next>, wide; }",
        "an address that depends on the input",
    ),
    Plant(
        "a scale whose upper bits reach the neighbour's byte",
        r"(?P<all>add\.s32\s+(?P<scale>%r\d+), %r\d+, -8;)",
        r"\g<all> { .reg .pred rare; setp.eq.u32 rare, \g<scale>, 77; @rare add.s32 \g<scale>, \g<scale>, 256; }",
        "of its own",
    ),
    Plant(
        "a word of the row before, where this word is rare",
        _FIRST_MASK,
        r"{ .reg .pred rare; setp.eq.u32 rare, \g<word>, 1111638594; @rare mov.b32 \g<word>, %kept; }"
        r" mov.b32 %kept, \g<word>; \g<all>",
        "to the left of its own",
    ),
    Plant(
        "an element that depends on another of its block",
        r"(?P<all>cvt\.u32\.u16\s+(?P<code>%r\d+), %rs1;)",
        r"\g<all> { .reg .pred rare; setp.eq.u32 rare, \g<word>, 1111638594; @rare xor.b32 \g<code>, \g<code>, 1; }",
        "of its block beside amax",
    ),
    Plant(
        "a loop whose end depends on a word",
        _FIRST_MASK,
        r"{ .reg .pred more; $L_again: shr.u32 \g<word>, \g<word>, 1; setp.gt.u32 more, \g<word>, 65535;"
        r" @more bra $L_again; } \g<all>",
        "a loop whose end depends on the input",
    ),
    Plant(
        "shared memory",
        _FIRST_MASK,
        r"{ .shared .b32 cell; st.shared.u32 [cell], \g<word>; ld.shared.u32 \g<word>, [cell]; } \g<all>",
        "that the proof does not follow",
    ),
    Plant(
        "a code that is not written where a word is rare",
        r"(?P<all>st\.global\.v4\.u32(?P<rest>.*);)",
        r"{ .reg .pred rare; setp.ne.u32 rare, \g<word>, 1111638594; @rare st.global.v4.u32\g<rest>; }",
        "beside amax",
    ),
    Plant(
        "two pairs of codes change their places",
        r"mov\.b32\s+(?P<four>%r\d+), \{(?P<low>%rs\d+), (?P<high>%rs\d+)\};",
        r"mov.b32 \g<four>, {\g<high>, \g<low>};",
        "of its block beside amax",
        OLDER_ARCH,
    ),
    Plant(
        "an exponent with bits of the maximum that stands above amax",
        r"and\.b32\s+(?P<exponent>%r\d+), (?P<shifted>%r\d+), 511;",
        r"and.b32 \g<exponent>, \g<shifted>, 1023;",
        "of its block beside amax",
        OLDER_ARCH,
        "floor",
    ),
]


def planted(plant: Plant) -> Module:
    """The kernel's module with an edit; `word` in a replacement is the first word that a lane loads."""
    kernel = KERNELS[plant.mode]
    text = ptx_of(kernel, plant.arch).text
    start = text.index(f".entry {kernel.entry}(")
    end = text.index("\n}\n", start)
    body = re.sub(r"^\s*(\.loc|//).*\n", "", text[start:end], flags=re.MULTILINE)
    word = re.search(_LAST_LOAD, body)["a"]
    match = re.search(plant.pattern, body)
    assert match is not None, f"the compiler writes something else: {plant.pattern}"
    replacement = plant.replacement
    if "word" not in match.groupdict():
        replacement = replacement.replace(r"\g<word>", word)
    changed = body[: match.start()] + match.expand(replacement) + body[match.end() :]
    changed = changed.replace("{\n", "{\n.reg .b32 %kept;\nmov.b32 %kept, 0;\n", 1) if "%kept" in changed else changed
    return Module.parse(text[:start] + changed + text[end:], name="planted.ptx", strict=True)


@pytest.mark.parametrize("plant", thinned(PLANTS, 3), ids=lambda plant: plant.name)
def test_planted_kernels_are_refused(plant: Plant) -> None:
    # What no launch does by itself is looked for after all of them.
    proof = proof_of(planted(plant), "" if "40,000" in plant.name else "9 x|131 x", KERNELS[plant.mode])
    assert proof.refusals
    assert any(plant.named in each for each in proof.refusals), proof.refusals


def of_a_lone_token(change: Callable[[str, str], str]) -> Proof:
    """Expand's proof with the body of the entry for a token alone changed, given that of the floor mode too."""
    subject = SUBJECTS["expand.8x4"]
    kernel = subject.entry("bf16", "rceil", "exact")
    assert kernel is not None
    text = ptx_of(kernel, DEFAULT_ARCH).text
    bodies = []
    for entry in (choice_kernel(kernel).entry, choice_kernel(kernel).entry.replace("rceil", "floor")):
        start = text.index("{", text.index(f".entry {entry}("))
        bodies.append(text[start : text.index("\n}\n", start)])
    parameters = [re.search(r"refmoe_expand_choice_\w+(?=_param)", body)[0] for body in bodies]
    changed = change(bodies[0], bodies[1].replace(parameters[1], parameters[0]))
    # Labels are of a function, and the compiler numbers them through the module.
    module = Module.parse(text.replace(bodies[0], changed), strict=True)
    return prove(module, kernel.entry, launches_of(subject, kernel, rows_followed=1))


def test_the_entry_of_a_lone_token_is_followed() -> None:
    sound = of_a_lone_token(lambda body, floor: body)
    assert not sound.refusals
    assert sound.shapes == {"codes": 1, "scales": 1}
    assert of_a_lone_token(lambda body, floor: floor).shapes == {"codes": 2, "scales": 2}
    near = of_a_lone_token(
        lambda body, floor: re.sub(r"(shfl\.sync\.bfly\.b32.*), 1, 31, -1;", r"\1, 2, 31, -1;", body)
    )
    assert any("of the block 1" in each for each in near.refusals)
    missing = of_a_lone_token(lambda body, floor: re.sub(r"st\.global\.u32\s+\[.*?\], %r\d+;", "", body))
    assert any("that belong to blocks are not written" in each for each in missing.refusals)


def test_a_byte_that_is_not_written_is_missed() -> None:
    module = ptx_of(KERNEL, DEFAULT_ARCH)
    start = module.text.index(f".entry {KERNEL.entry}(")
    end = module.text.index("\n}\n", start)
    body = re.sub(r"st\.global\.u32\s+\[.*?\], %r\d+;", "", module.text[start:end])
    proof = proof_of(Module.parse(module.text[:start] + body + module.text[end:], strict=True), "9 x")
    assert any("that belong to blocks are not written" in each for each in proof.refusals)


def test_masks_follow_bits_of_terms() -> None:
    terms = Terms()
    word, other = terms.word(0, 3), terms.word(1, 0)
    upper = terms.make("and.b32", word, terms.value(0xFFFF0000))
    both = terms.make("or.b32", upper, terms.make("shr.u32", other, terms.value(16)))
    assert terms.needs(upper) == {(0, 3, 1)}
    assert terms.needs(both, 0xFFFF0000) == {(0, 3, 1)}
    assert terms.needs(both, 0xFF) == {(1, 0, 1)}
    # 64 bits are not followed: what is cut out of them depends on all.
    wide = terms.make("and.b64", word, terms.value(0xFFFFFFFF00000000))
    assert terms.needs(terms.make("cvt.u32.u64", wide)) == {(0, 3, 0), (0, 3, 1)}
    packed = terms.make("pack.b32", terms.make("cvt.u16.u32", word), terms.make("cvt.u16.u32", other))
    assert terms.needs(packed, 0xFF00) == {(0, 3, 0)}
    assert terms.needs(packed, 0x10000) == {(1, 0, 0)}
    assert terms.moved(both, -1) != both
    assert terms.needs(terms.moved(both, -1), 0xFF) == {(0, 0, 1)}


def test_amax_is_the_maximum_of_all_words_and_of_no_fewer() -> None:
    for missing in (None, 0, 15):
        terms = Terms()
        masked = [
            terms.make("and.b32", terms.word(0, word), terms.value(0x7FFF7FFF)) for word in range(16) if word != missing
        ]
        largest = masked[0]
        for each in masked[1:]:
            largest = terms.make("max.u16x2", largest, each)
        amax = terms.make("max.u16x2", largest, terms.make("shr.u32", largest, terms.value(16)))
        found = terms.needs(amax, 0xFFFF)
        assert (found == {(0, "amax", "max.u16x2")}) is (missing is None)


@pytest.mark.parametrize(
    ("kind", "less", "most", "highest"),
    [
        ("max.s32", -8, 0, 0x7FFF - 8),
        ("max.s32", -8, -8, 0xFFFFFFFF),
        ("min.s32", -8, 100, 0xFFFFFFFF),
        ("min.s32", 0, 100, 100),
        ("max.s32", 0x7FFFFFFF, 0, 0x7FFFFFFF),
    ],
)
def test_bounds_of_signed_numbers(kind: str, less: int, most: int, highest: int) -> None:
    terms = Terms()
    magnitude = terms.make("and.b32", terms.word(0, 0), terms.value(0x7FFF))
    total = terms.make("add.s32", magnitude, terms.value(less & 0xFFFFFFFF))
    assert terms.highest(terms.make(kind, total, terms.value(most & 0xFFFFFFFF))) == highest
