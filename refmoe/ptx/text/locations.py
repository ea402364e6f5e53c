"""Where in a source an instruction stands: what the `.loc` directives in front of it say."""

from __future__ import annotations

#: (file number, line, column), as `.loc` has it.
Place = tuple[int, int, int]


class Locations:
    """The `.loc` directives of a function's body, in order. A compiler says of each body anew what is inlined in it.

    A compiler inlines `g` into `f`, and `f` into the kernel. It says so with one directive a function, outermost first:

        .loc 1 7 3                                        line 7 of the kernel calls f,
        .loc 2 5 1, function_name f, inlined_at 1 7 3     line 5 of f calls g,
        .loc 2 4 9, function_name g, inlined_at 2 5 1     and the next instruction is of line 4 of g.

    It says this once. Later the last directive may stand alone. If `f` has then been inlined at two lines, nothing
    tells from which of them this `g` comes. Only the innermost caller is told then, so that none looks like the last.

    Attributes:
        location: (file number, line) of the directive in force, or None.
        callers: where the function of that line is inlined, the function there, and so on, innermost first, as far as
            the text says; empty where it is not inlined.
    """

    def __init__(self) -> None:
        self.location: tuple[int, int] | None = None
        self.callers: tuple[tuple[int, int], ...] = ()
        # Where the function of each place is inlined, as all directives say, and as the last ones say that stand
        # together. None: it is not inlined.
        self._said: dict[Place, set[Place | None]] = {}
        self._together: dict[Place, Place | None] = {}

    def put(self, place: Place, at: Place | None, follows: bool) -> None:
        """A directive.

        Args:
            place: of the instructions behind it.
            at: its `inlined_at`, or None.
            follows: whether nothing but white space stands between it and the directive before.
        """
        if not follows:
            self._together = {}
        self._together[place] = at
        self._said.setdefault(place, set()).add(at)
        self.location = place[:2]
        self.callers = tuple(each[:2] for each in self._outwards(at))

    def _outwards(self, at: Place | None) -> list[Place]:
        passed: list[Place] = []
        while at is not None and at not in passed:
            passed.append(at)
            if at in self._together:
                at = self._together[at]
                continue
            said = self._said.get(at, {None})
            if len(said) > 1:
                return passed[:1]
            (at,) = said
        return passed
