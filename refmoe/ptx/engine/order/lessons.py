"""What threads have known since an earlier step, as it turned out when they had gone on.

A *lesson* is a record and what whoever knows of its access has come to know. See `refmoe.ptx.engine.order.hindsight`.
"""

from __future__ import annotations

from refmoe.ptx.engine.order.knowledge import Knowledge, Pool
from refmoe.ptx.state.records import THREAD


class Lessons:
    """The lessons of a launch.

    Args:
        pool: of the launch.

    Attributes:
        by_record: them.
        by_thread: what those of the steps of each thread tell together.
        every: what they tell together; None before the first one.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.by_record: dict[int, Knowledge] = {}
        self.by_thread: dict[int, Knowledge] = {}
        self.every: Knowledge | None = None

    def __bool__(self) -> bool:
        return bool(self.by_record)

    def add(self, record: int, knowledge: Knowledge) -> bool:
        """Whoever knows of the access of a record has that knowledge, too. Returns whether that is new."""
        before = self.by_record.get(record)
        known = self._pool.join(before, knowledge)
        assert known is not None
        thread = record & int(THREAD)
        together = self._pool.join(self.by_thread.get(thread), knowledge)
        assert together is not None
        self.by_record[record], self.by_thread[thread] = known, together
        self.every = self._pool.join(self.every, knowledge)
        return known is not before
