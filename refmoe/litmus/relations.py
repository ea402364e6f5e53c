"""Relations between events, as lists of bit sets: bit j of `relation[i]` says that i is related to j."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Relation = list[int]


def empty(size: int) -> Relation:
    """No event is related to any."""
    return [0] * size


def of(size: int, pairs: Iterable[tuple[int, int]]) -> Relation:
    """The relation of these pairs."""
    relation = empty(size)
    for one, other in pairs:
        relation[one] |= 1 << other
    return relation


def members(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set, in order."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def union(*relations: Relation) -> Relation:
    """What any of them relates."""
    result = list(relations[0])
    for relation in relations[1:]:
        result = [one | other for one, other in zip(result, relation, strict=True)]
    return result


def closed(relation: Relation) -> Relation:
    """The transitive closure."""
    result = list(relation)
    for middle in range(len(result)):
        bit, beyond = 1 << middle, result[middle]
        if beyond:
            for each, row in enumerate(result):
                if row & bit:
                    result[each] = row | beyond
    return result


def closed_with(relation: Relation, one: int, other: int) -> Relation:
    """The transitive closure of a closed relation with one more pair."""
    new = relation[other] | 1 << other
    bit = 1 << one
    return [row | new if row & bit or each == one else row for each, row in enumerate(relation)]


def cyclic(relation: Relation) -> bool:
    """Whether some event is related to itself, directly or not."""
    return any(row >> each & 1 for each, row in enumerate(closed(relation)))


def has(relation: Relation, one: int, other: int) -> bool:
    """Whether the two are related, in this direction."""
    return bool(relation[one] >> other & 1)
