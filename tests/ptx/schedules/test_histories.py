"""Which writes of a location a thread may still read."""

from __future__ import annotations

from refmoe.ptx.engine.order.histories import History, RecordedWrite
from refmoe.ptx.state.records import STEP_SHIFT


class First:
    """Takes the first of several."""

    def below(self, count: int) -> int:
        return 0


def record(step: int, thread: int) -> int:
    return step << STEP_SHIFT | thread


def test_who_knows_of_the_first_read_of_a_write_knows_of_the_write() -> None:
    history = History(4, RecordedWrite(b"0000", 0))
    assert history.write(RecordedWrite(b"1111", record(1, 0)), lambda _: False, First())
    # Another thread reads it twice, the second time by a record that comes late.
    for step in (3, 2, 5):
        history.last.is_read(record(step, 7))
    assert history.read(9, record(6, 9), lambda each: each == record(2, 7), First(), 2).value == b"1111"
    # Who knows of none may read what was there before.
    assert history.read(8, record(7, 8), lambda _: False, First(), 2).value == b"0000"


def test_an_atomic_comes_right_behind_what_it_reads() -> None:
    history = History(4, RecordedWrite(b"0000", 0))
    history.write(RecordedWrite(b"1111", record(1, 0)), lambda _: False, First())
    chosen = history.take(9, record(2, 9), lambda _: False, First(), 2, lambda _: True)
    assert chosen.value == b"0000"
    history.follow(chosen, RecordedWrite(b"2222", record(2, 9)))
    assert [each.value for each in history.writes] == [b"0000", b"2222", b"1111"]
    # Nothing comes between the two, be it another atomic or a store; one that would write nothing may read the first.
    assert history.take(8, record(3, 8), lambda _: False, First(), 3, lambda _: True).value == b"2222"
    assert history.take(7, record(4, 7), lambda _: False, First(), 3, lambda value: value != b"0000").value == b"0000"
    history.write(RecordedWrite(b"3333", record(5, 6)), lambda _: False, First())
    assert [each.value for each in history.writes] == [b"0000", b"2222", b"3333", b"1111"]


def test_of_the_first_writes_alone_one_is_read() -> None:
    history = History(4, RecordedWrite(b"0000", 0))
    for step in 1, 2:
        history.write(RecordedWrite(bytes([step] * 4), record(step, step)), lambda _: False, First(), last=True)
    # Its own later write, which a thread knows of, is none that it may read.
    assert history.read(9, record(6, 9), lambda _: True, First(), 2).value == bytes([1] * 4)
    assert [each.value[0] for each in history.readable(lambda _: False, 2)] == [ord("0"), 1]


def test_many_writes_are_kept_while_somebody_may_read_them_late() -> None:
    history = History(4, RecordedWrite(b"0000", 0))
    for step in range(1, 12):
        history.write(RecordedWrite(bytes(4), record(step, step)), lambda _: False, First(), keep=True, last=True)
    made = RecordedWrite(b"2222", record(20, 9))
    assert not history.write(made, lambda _: False, First())
    assert history.writes[0] is made
    assert len(history.writes) == 12


def test_so_many_reads_may_miss_one_last_write() -> None:
    def reads(history: History, lanes: range, count: int) -> list[int]:
        return [history.read(each, record(9, each), lambda _: False, First(), count).value[0] for each in lanes]

    free, bound = (History(4, RecordedWrite(bytes(4), 0), most) for most in (None, 3))
    for history in (free, bound):
        history.write(RecordedWrite(bytes([1] * 4), record(1, 100)), lambda _: False, First(), last=True)
    assert reads(free, range(6), 2) == [0] * 6
    assert reads(bound, range(6), 2) == [0, 0, 0, 1, 1, 1]
    # An atomic has no choice, either.
    assert bound.take(7, record(10, 7), lambda _: False, First(), 2, lambda _: True).value[0] == 1
    # The next write may be missed as often.
    bound.write(RecordedWrite(bytes([2] * 4), record(11, 101)), lambda _: False, First(), last=True)
    assert reads(bound, range(6, 12), 3) == [0, 0, 0, 2, 2, 2]
