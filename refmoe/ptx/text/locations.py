"""Where in a source an instruction stands: what the `.loc` directives in front of it say."""

from __future__ import annotations

#: (file number, line, column), as `.loc` has it.
Place = tuple[int, int, int]


class Locations:
    """The `.loc` directives of a text, in order.

    Attributes:
        location: (file number, line) of the one in force, or None.
        caller: where the function of that line is inlined in the end, or None where it is not.
    """

    def __init__(self) -> None:
        self.location: tuple[int, int] | None = None
        self.caller: tuple[int, int] | None = None
        # Where the function of each place is inlined, as the last `.loc` of it says.
        self._inlined: dict[Place, Place | None] = {}

    def put(self, place: Place, at: Place | None) -> None:
        """A directive; `at`: its `inlined_at`, or None.

        A compiler tells of the functions on the way before it tells of the innermost one.
        """
        self._inlined[place] = at
        self.location, self.caller = place[:2], None if at is None else self._outermost(at)[:2]

    def _outermost(self, place: Place) -> Place:
        passed = {place}
        while (at := self._inlined.get(place)) is not None and at not in passed:
            passed.add(at)
            place = at
        return place
