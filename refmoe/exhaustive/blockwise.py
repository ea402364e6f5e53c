"""The proof that an output byte is a function of its own block, and in it of amax and its own element alone.

`refmoe.exhaustive.follow` follows a launch for all inputs at once. Of every byte that it stores this proves:

1. *Own block*: the byte depends on words of the block that it belongs to, and on no other: through values, predicates,
   branches, packing and shuffles. Addresses depend on no input at all.
2. *Pairs*: a scale byte depends on amax alone, the maximum of all 32 magnitudes; a code on amax and on its own element.
   So a sweep over all pairs (amax, element) is a sweep over all blocks.
3. *One function*: wherever a block lies, its bytes are the same functions of amax and element (`shapes` counts them).
4. *All paths*: every instruction of the entry ran in one of the launches, and every predicate that does not depend on
   the input had both values. Both ways of those that do are followed anyway. Where no launch gives a predicate one of
   its values, a launch is followed once more as if it had it, and has to pass 1 and 2 as well.

The row of a token alone is expanded by an entry of its own, which the sweep does not launch. It is followed with the
other one: by 3 its bytes are the functions that the sweep went through.

Launches are followed whole, every thread of every CTA: `ROWS_FOLLOWED` rows of the sweep's width, and other shapes for
4. What is computed of sizes and thread numbers without a predicate is known of the launches that are followed; every
byte of the sweep's own launches is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.cuda.expand import expand_plan
from refmoe.cuda.launch import Entry, LaunchPlan
from refmoe.cuda.quantize import mxfp8_quantize_plan
from refmoe.exhaustive.follow import Follower, Launch, NotFollowed, Seen, Stored
from refmoe.exhaustive.pieces import EXPERTS, WIDTH, Subject, routing
from refmoe.exhaustive.terms import AMAX, WORD_ELEMENTS, Terms
from refmoe.formats import MX_BLOCK
from refmoe.ptx import Module
from refmoe.ptx.text.syntax import Function, Instruction
from refmoe.reference.expand import Permutation, build_permutation, expand
from refmoe.reference.layout import swizzle_scales

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

#: Rows of the sweep's width that are followed: more than any K-group or tile of scale rows of the 8x4 layout.
ROWS_FOLLOWED = 24
#: Threads that are followed side by side.
_THREADS = 1 << 13
#: Predicates of an entry that may be forced, and steps of a launch in which one is.
_FORCED = 32
_FORCED_STEPS = 20_000


@dataclass(frozen=True)
class Followed:
    """A launch that is followed, and where each output byte belongs.

    Attributes:
        name: of its shape, for reports.
        entry: what is launched: that of the sweep, or the one for a token alone.
        launch: how the entry is launched.
        block: int64 by output, [bytes]: the block of the input that a byte belongs to, -1 for none.
        element: likewise the element of its block, -1 for a scale.
    """

    name: str
    entry: str
    launch: Launch
    block: dict[str, Numbers]
    element: dict[str, Numbers]

    @property
    def threads(self) -> int:
        """Of the launch."""
        return self.launch.grid * self.launch.block


@dataclass
class _Paths:
    """What the launches of one entry showed of its paths.

    Attributes:
        function: the entry.
        smallest: its launch of the fewest threads, the last such.
        seen: what ran.
    """

    function: Function
    smallest: Followed
    seen: Seen = field(default_factory=Seen)

    @property
    def code(self) -> list[Instruction]:
        return [each for each in self.function.body or () if isinstance(each, Instruction)]

    @property
    def conditional(self) -> set[int]:
        """Places of the instructions that have a predicate or choose by one."""
        return {place for place, each in enumerate(self.code) if _is_conditional(each)}


@dataclass
class Proof:
    """What was found of an entry.

    Attributes:
        entry: its name.
        launches: names of the shapes that were followed.
        instructions: of the entry.
        predicates: instructions of it that have a predicate or choose by one.
        forced: those of them that had a value only because they were taken to have it.
        bytes: output bytes that were looked at.
        shapes: by output, how many different functions its bytes are.
        maximum: the opcode that makes the amax, None if no byte depends on one.
        refusals: why it is no proof, a sentence each; none if it is one.
    """

    entry: str
    launches: list[str] = field(default_factory=list)
    instructions: int = 0
    predicates: int = 0
    forced: int = 0
    bytes: int = 0
    shapes: dict[str, int] = field(default_factory=dict)
    maximum: str | None = None
    refusals: list[str] = field(default_factory=list)


def prove(module: Module, entry: str, launches: Iterator[Followed] | Sequence[Followed]) -> Proof:
    """Prove an entry of `module` and those that are launched in its place, or find out why they cannot be proven."""
    proof, judge = Proof(entry), _Judge()
    paths: dict[str, _Paths] = {}
    try:
        for each in launches:
            proof.launches.append(each.name)
            judge.begin(each)
            of = paths.setdefault(each.entry, _Paths(module.function(each.entry), each))
            step = max(_THREADS // each.launch.block, 1)
            for first in range(0, each.launch.grid, step):
                ctas = range(first, min(first + step, each.launch.grid))
                Follower(of.function, each.launch, ctas, judge.terms, of.seen, judge.store).run()
            judge.end()
            if each.threads <= of.smallest.threads:
                of.smallest = each
        for of in paths.values():
            if not judge.refusals:
                proof.forced += _force(of, judge)
    except NotFollowed as error:
        judge.refusals.setdefault(f"{entry}: {error}", None)
    proof.instructions = sum(len(of.code) for of in paths.values())
    proof.predicates, proof.bytes = sum(len(of.conditional) for of in paths.values()), judge.bytes
    proof.shapes = {output: len(shapes) for output, shapes in judge.shapes.items()}
    proof.maximum = ", ".join(sorted(judge.maxima)) or None
    if not judge.refusals:
        proof.refusals += [sentence for of in paths.values() for sentence in _untaken(of)]
    proof.refusals[:0] = judge.refusals
    return proof


def _force(paths: _Paths, judge: _Judge) -> int:
    """Follow the smallest launch again for each value that a predicate never had, as if it had it.

    Returns for how many. What such a path reaches first may have values that were never seen either; these are forced
    on the same path.

    Raises:
        NotFollowed: a path does what the proof does not understand.
    """
    seen, followed, conditional = paths.seen, paths.smallest, sorted(paths.conditional)
    # What was forced on the way to a place that no launch reached by itself.
    way: dict[int, dict[int, bool]] = {}
    for count in range(_FORCED):
        unseen = [
            (place, side)
            for place in conditional
            if place in seen.ran
            for side in (False, True)
            if (place, side) not in seen.sides
        ]
        if not unseen:
            return count
        place, side = unseen[0]
        forced = {**way.get(place, {}), place: side}
        before = frozenset(seen.ran)
        judge.begin(followed)
        ctas = range(followed.launch.grid)
        Follower(paths.function, followed.launch, ctas, judge.terms, seen, judge.store, forced).run(_FORCED_STEPS)
        way |= dict.fromkeys(seen.ran - before, forced)
        # A place that is not reached this way any more has shown nothing, and never will.
        seen.sides.add((place, side))
    raise NotFollowed(f"more than {_FORCED} predicates never have one of their values")


def _is_conditional(instruction: Instruction) -> bool:
    return instruction.guard is not None or instruction.opcode.startswith("selp.")


def _untaken(paths: _Paths) -> list[str]:
    """A sentence for what no launch showed."""
    code, seen = paths.code, paths.seen
    found = [
        f"line {each.line}: no launch that was followed runs this: {each.text}"
        for place, each in enumerate(code)
        if place not in seen.ran
    ]
    for place in sorted(paths.conditional & seen.ran):
        for side in (False, True):
            if (place, side) not in seen.sides:
                each = code[place]
                found.append(f"line {each.line}: its predicate is {str(not side).lower()} in all launches: {each.text}")
    return found


class _Judge:
    """Looks at every store of the launches of one entry."""

    def __init__(self) -> None:
        self.terms = Terms()
        self.refusals: dict[str, None] = {}
        self.shapes: dict[str, set[Hashable]] = {}
        self.maxima: set[str] = set()
        self.bytes = 0
        self._verdicts: dict[tuple[Any, ...], str | None] = {}

    def begin(self, followed: Followed) -> None:
        """The next launch."""
        self.followed = followed
        self.written = {name: np.zeros(size, np.bool_) for name, size in followed.launch.outputs.items()}

    def end(self) -> None:
        """All threads of the launch are done: every byte that belongs to a block has to be there."""
        for name, block in self.followed.block.items():
            missing = np.flatnonzero((block >= 0) & ~self.written[name])
            if missing.size:
                text = f"{missing.size} bytes of {name} that belong to blocks are not written, byte {missing[0]} first"
                self.refusals.setdefault(f"{self.followed.name}: {text}", None)

    def store(self, stored: Stored) -> None:
        """One store of some threads."""
        value = stored.value
        for byte in range(stored.size):
            at = stored.offset + byte
            self.written[stored.buffer][at] = True
            self.bytes += at.size
            owner, element = self.followed.block[stored.buffer][at], self.followed.element[stored.buffer][at]
            table = np.stack([value.terms, value.blocks - owner, owner < 0, element], axis=1)
            table[value.terms == 0, 1] = 0
            rows, first = np.unique(table, axis=0, return_index=True)
            for (term, away, ownerless, position), thread in zip(rows.tolist(), first.tolist(), strict=True):
                self._judge(stored, byte, (term, 0 if ownerless else away, ownerless, position), int(at[thread]))

    def _judge(self, stored: Stored, byte: int, what: tuple[int, int, int, int], at: int) -> None:
        term, away, ownerless, position = what
        if not term:
            if not ownerless:
                self._refuse(stored, at, "depends on no input")
            return
        key = (stored.buffer, byte, *what)
        if key not in self._verdicts:
            self._verdicts[key] = self._problem(stored.buffer, byte, term, away, bool(ownerless), position)
        problem = self._verdicts[key]
        if problem is not None:
            self._refuse(stored, at, problem)

    def _problem(self, output: str, byte: int, term: int, away: int, ownerless: bool, position: int) -> str | None:
        """Why byte `byte` of a term is not what it should be; None if it is."""
        own = self.terms.moved(term, away)
        needs = self.terms.needs(own, 0xFF << 8 * byte)
        if ownerless:
            return "belongs to no block and depends on the input" if needs else None
        others = sorted(need for need in needs if need[0] != 0)
        if others:
            block, word, half = others[0]
            return (
                f"depends on element {word * WORD_ELEMENTS + half} of the block {abs(block)} {_side(block)} of its own"
            )
        element = None if position < 0 else (0, *divmod(position, WORD_ELEMENTS))
        beside = sorted(need for need in needs if need[1] != AMAX and need != element)
        if beside:
            _, word, half = beside[0]
            what = "amax" if element is None else f"amax and its own element {position}"
            return f"depends on element {word * WORD_ELEMENTS + half} of its block beside {what}"
        self.maxima |= {str(need[2]) for need in needs if need[1] == AMAX}
        self.shapes.setdefault(output, set()).add(self.terms.shape(own, byte, element or ()))
        return None

    def _refuse(self, stored: Stored, at: int, problem: str) -> None:
        instruction = stored.instruction
        where = f"line {instruction.line}" + (f" ({instruction.source})" if instruction.source else "")
        sentence = f"{where}: a byte of {stored.buffer} {problem}"
        if not any(each.startswith(sentence) for each in self.refusals):
            self.refusals[f"{sentence}: byte {at} of {self.followed.name}: {instruction.text}"] = None


def _side(block: int) -> str:
    return "to the right" if block > 0 else "to the left"


# The launches


def launches_of(subject: Subject, kernel: Entry, rows_followed: int = ROWS_FOLLOWED) -> Iterator[Followed]:
    """The launches that are followed for an entry of a subject: of the sweep's width, and shapes for all paths.

    Args:
        subject: whose entry it is.
        kernel: the entry.
        rows_followed: rows of the sweep's width; `ROWS` for its own launch, which takes minutes.
    """
    if subject.family == "mxfp8_quantize":
        # A row of less than a warp, of no whole scale word, wider than a CTA; CTAs that take several rows.
        for rows, width, multiprocessors in (
            *((rows_followed, WIDTH, 170), (9, 416, 170), (2, 8224, 170)),
            (131, 32, 1),
        ):
            yield _quantize_launch(subject.variant, kernel, rows, width, multiprocessors)
        yield _with_idle_threads(_quantize_launch(subject.variant, kernel, 3, 32, 170))
        return
    # More ranks than a group has lanes, and every number of ranks modulo 4; experts of other ranks.
    for tokens, width, experts, first, choices, multiprocessors in (
        (rows_followed, WIDTH, EXPERTS, 0, routing()[:rows_followed], 170),
        (5, 416, 16, 0, _choices(5, 16, 11), 170),
        (3, 416, 16, 0, _choices(3, 16, 6), 170),
        (3, 416, 16, 0, _choices(3, 16, 5), 170),
        (4, 416, 8, 8, _choices(4, 24, 12), 170),
        (2, 8224, 8, 0, _choices(2, 8, 1), 170),
        (131, 32, 8, 0, _choices(131, 8, 3), 1),
    ):
        yield _expand_launch(subject.variant, kernel, tokens, width, experts, first, choices, multiprocessors)
    yield _with_idle_threads(_expand_launch(subject.variant, kernel, 3, 32, 8, 0, _choices(3, 8, 2), 170))
    # No rank at all: nothing may be written.
    yield _expand_launch(subject.variant, kernel, 2, 32, 8, 0, np.zeros((2, 1), np.int32), 170, ranks=0)
    # A token alone: the sweep's width, less than a warp, wider than a CTA, experts of other ranks.
    for width, experts, first, choices in (
        (WIDTH, EXPERTS, 0, routing()[:1]),
        (32, 8, 0, _choices(1, 8, 3)),
        (8224, 8, 0, _choices(1, 8, 1)),
        (416, 8, 8, _choices(1, 24, 12)),
    ):
        yield _expand_launch(subject.variant, kernel, 1, width, experts, first, choices, 170)


def _with_idle_threads(followed: Followed) -> Followed:
    """The same with a CTA and a warp too many, which have nothing to do."""
    launch = replace(followed.launch, grid=followed.launch.grid + 1, block=followed.launch.block + 32)
    return replace(followed, name=f"{followed.name}, idle threads", launch=launch)


def _choices(tokens: int, experts: int, ranks: int) -> NDArray[np.int32]:
    """Different experts for every token, int32 [tokens, ranks]."""
    return ((np.arange(tokens)[:, None] * 5 + np.arange(ranks)[None, :]) % experts).astype(np.int32)


def _numbered(place: Callable[[Bytes], Bytes], blocks: int) -> Numbers:
    """Which block every byte of a buffer of scales belongs to: `place` writes scales, which number the blocks."""
    number = np.arange(blocks) + 1
    found: Any = 0
    for shift in (0, 8, 16):
        found = found | place((number >> shift & 0xFF).astype(np.uint8)).astype(np.int64) << shift
    return np.asarray(found - 1)


def _launch(plan: LaunchPlan, size: int, known: dict[str, NDArray[Any]], outputs: dict[str, int]) -> Launch:
    arguments: tuple[Any, ...] = tuple(0 if each is None else each for each in plan.arguments)
    return Launch(plan.grid, plan.block, arguments, ("x", size), known, outputs)


def _quantize_launch(layout: str, kernel: Entry, rows: int, width: int, multiprocessors: int) -> Followed:
    plan = mxfp8_quantize_plan(kernel, "x", "codes", "scales", rows=rows, k=width, multiprocessors=multiprocessors)
    scales = _numbered(lambda digit: swizzle_scales(digit.reshape(rows, -1), layout), rows * width // MX_BLOCK)
    byte = np.arange(rows * width)
    launch = _launch(plan, 2 * byte.size, {}, {"codes": byte.size, "scales": scales.size})
    return Followed(
        f"{rows} x {width}, grid {plan.grid}",
        plan.kernel.entry,
        launch,
        {"codes": byte // MX_BLOCK, "scales": scales},
        {"codes": byte % MX_BLOCK, "scales": np.full(scales.size, -1)},
    )


def _expand_launch(
    layout: str,
    kernel: Entry,
    tokens: int,
    width: int,
    experts: int,
    first: int,
    choices: NDArray[np.int32],
    multiprocessors: int,
    ranks: int | None = None,
) -> Followed:
    maps = build_permutation(choices, experts, first)
    known: dict[str, NDArray[Any]] = {
        "topk_ids": choices,
        "unpermuted_to_permuted": maps.unpermuted_to_permuted,
        "offsets": maps.offsets,
    }
    top_k = choices.shape[1] if ranks is None else ranks
    plan = expand_plan(  # type: ignore[misc]
        kernel, "x", None, *known, "codes", "scales",  # type: ignore[arg-type]
        tokens=tokens, top_k=top_k, k=width, first_expert=first, multiprocessors=multiprocessors,
    )  # fmt: skip

    def moved(digit: Bytes) -> Bytes:
        codes = np.zeros((tokens, width), np.uint8)
        scales = digit.reshape(tokens, -1)
        return expand(codes, choices, experts, layout=layout, input_sf=scales, first_expert=first).scales

    scales = _numbered(moved, tokens * width // MX_BLOCK)
    block = _code_blocks(maps, choices.size, tokens, width)
    if ranks == 0:
        scales, block = np.full_like(scales, -1), np.full_like(block, -1)
    launch = _launch(plan, 2 * tokens * width, known, {"codes": block.size, "scales": scales.size})
    return Followed(
        f"{tokens} x {width}, top {top_k} of {experts} experts from {first} on, grid {plan.grid}",
        plan.kernel.entry,
        launch,
        {"codes": block, "scales": scales},
        {"codes": np.arange(block.size) % MX_BLOCK, "scales": np.full(scales.size, -1)},
    )


def _code_blocks(maps: Permutation, rows: int, tokens: int, width: int) -> Numbers:
    """The block of every byte of expanded codes, -1 behind the last row."""
    blocks = width // MX_BLOCK
    used = int(maps.offsets[-1])
    row = np.full(rows, -1, np.int64)
    row[:used] = maps.permuted_to_unpermuted[:used] % tokens
    block = row[:, None] * blocks + np.arange(width)[None, :] // MX_BLOCK
    block[row < 0] = -1
    return block.reshape(-1)
