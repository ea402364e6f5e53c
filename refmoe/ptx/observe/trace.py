"""Who waited on which barrier, when: a record of one launch's synchronisation.

    trace = Trace(block=(0, 0, 0))
    launch(module, entry, grid, block, args, trace=trace)
    print(trace.text())

An event is one warp's share of one step: its lanes that did the same thing to the same barrier. Steps are the
executor's (a group of lanes through one basic block), so that they order events but are no time of any chip.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from refmoe.errors import ArgumentError
from refmoe.ptx.engine.lanes import Tracer
from refmoe.ptx.engine.machine import Launch, Machine
from refmoe.ptx.errors import Index3
from refmoe.ptx.observe.events import KINDS, TraceEvent
from refmoe.ptx.observe.trace_view import render, render_timeline
from refmoe.ptx.state.spaces import OWN_BASE
from refmoe.ptx.text.syntax import Instruction

Array = Any


@dataclass
class Trace:
    """Events in order; give it to `refmoe.ptx.launch`, or to several. A launch that fails leaves what came before.

    Attributes:
        block: the only CTA to record, (x, y, z); None for all.
        names: names of mbarriers by their byte in shared memory; those without are named by the variable they lie in.
    """

    block: Index3 | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    _events: list[TraceEvent] = field(default_factory=list, repr=False)
    _launches: list[Launch] = field(default_factory=list, repr=False)

    def mark(self) -> Callable[[], None]:
        """What forgets all that is taken down from now on."""
        events, launches = len(self._events), len(self._launches)

        def forget() -> None:
            del self._events[events:], self._launches[launches:]

        return forget

    @property
    def events(self) -> tuple[TraceEvent, ...]:
        """All events so far."""
        return tuple(self._events)

    @property
    def entries(self) -> tuple[str, ...]:
        """The entry of each launch."""
        return tuple(launch.code.entry.name for launch in self._launches)

    def blocks(self, launch: int = 0) -> tuple[Index3, ...]:
        """The CTAs of a launch that events tell of, in order of their first."""
        return tuple(dict.fromkeys(event.block for event in self._events if event.launch == launch))

    def of(self, block: Index3 | None = None, launch: int = 0) -> tuple[TraceEvent, ...]:
        """The events of one CTA of a launch, by default of the first.

        Raises:
            ArgumentError: there are none.
        """
        known = self.blocks(launch)
        chosen = block if block is not None else known[0] if known else None
        if chosen not in known:
            raise ArgumentError("block", str(block), f"one of the {len(known)} that the trace tells of")
        return tuple(event for event in self._events if (event.launch, event.block) == (launch, chosen))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: `kinds`, what each means, `entries`, and `events`, each with the fields of `TraceEvent`."""
        return {
            "kinds": dict(KINDS),
            "entries": list(self.entries),
            "events": [asdict(event) for event in self._events],
        }

    def json(self) -> str:
        """`to_dict` as JSON text, an event a line."""
        lines = ",\n".join(f"  {json.dumps(asdict(event))}" for event in self._events)
        head = f' "kinds": {json.dumps(dict(KINDS))},\n "entries": {json.dumps(self.entries)}'
        return f'{{\n{head},\n "events": [\n{lines}\n ]\n}}\n'

    def text(self, block: Index3 | None = None, launch: int = 0, *, width: int = 100) -> str:
        """One CTA for people: the timeline, what its letters mean, and the table of events.

        Args:
            block: which CTA; the first by default.
            launch: which launch.
            width: columns of the timeline.

        Raises:
            ArgumentError: the trace does not tell of it.
        """
        return render(self.of(block, launch), width)

    def timeline(self, block: Index3 | None = None, launch: int = 0, *, width: int = 100) -> str:
        """The timeline of `text` and what its letters mean, without the table."""
        return render_timeline(self.of(block, launch), width)

    def tracer(self, machine: Machine) -> Recorder:
        """What a machine reports to."""
        # The CTAs of a launch run on several machines.
        if not self._launches or self._launches[-1] is not machine.launch:
            self._launches.append(machine.launch)
        return Recorder(self, machine)


class Recorder(Tracer):
    """Writes what one machine reports into a trace."""

    def __init__(self, trace: Trace, machine: Machine) -> None:
        self.trace = trace
        self.machine = machine
        self._launch = len(trace._launches) - 1
        self._labels: dict[int, str] = {}
        variables = machine.code.layout
        self._variables = sorted(
            (address - OWN_BASE, name) for name, address in variables.addresses.items()
            if variables.spaces[name] == "shared"
        )  # fmt: skip

    def mbarrier(self, kind: str, instruction: Instruction, lanes: Array, ids: Array, amounts: Array | int = 0) -> None:
        """See `Tracer`."""
        objects = self.machine.mbarriers
        totals = np.broadcast_to(amounts, np.shape(lanes))
        for warp, number, which in self._shares(lanes, ids):
            total = int(totals[which].sum())
            if kind == "expect" and total <= 0:
                if not total:
                    continue  # an arrival without bytes
                kind, total = "complete", -total
            _, byte = objects.place_of(number)
            # Who passes has seen the phase before the present one.
            phase = int(objects.phase[number]) - (kind == "pass")
            self._add(warp, len(which), kind, self._name(byte), OWN_BASE + byte, phase, total, instruction)

    def completed(self, ids: Array) -> None:
        """See `Tracer`."""
        objects = self.machine.mbarriers
        for number in ids.tolist():
            cta, byte = objects.place_of(number)
            phase = int(objects.phase[number])
            self._add(cta * self.machine.warps, 0, "phase", self._name(byte), OWN_BASE + byte, phase, 0, None)

    def woken(self, kind: str, lanes: Array) -> None:
        """See `Tracer`."""
        objects = self.machine.mbarriers
        for instruction, who, ids in objects.awaited(lanes):
            for warp, number, which in self._shares(who, ids):
                _, byte = objects.place_of(number)
                phase = int(objects.phase[number]) - (kind == "wake")
                self._add(warp, len(which), kind, self._name(byte), OWN_BASE + byte, phase, 0, instruction)

    def named(self, kind: str, instruction: Instruction | None, lanes: Array, numbers: Array | int) -> None:
        """See `Tracer`."""
        which = np.flatnonzero(lanes)
        for warp, number, mine in self._shares(which, np.broadcast_to(numbers, lanes.shape)[which]):
            self._add(warp, len(mine), kind, f"barrier {number}", None, None, 0, instruction)

    def copies(self, kind: str, instruction: Instruction, lanes: Array, amounts: Array | int = 0) -> None:
        """See `Tracer`."""
        totals = np.broadcast_to(amounts, np.shape(lanes))
        for warp, _, which in self._shares(lanes, np.zeros_like(lanes)):
            self._add(warp, len(which), kind, None, None, None, int(totals[which].sum()), instruction)

    def _shares(self, lanes: Array, keys: Array) -> Iterator[tuple[int, int, Array]]:
        """(warp of the machine, key, positions) of lanes of one warp with one key."""
        warps = np.asarray(lanes) >> 5
        pairs, group = np.unique(np.stack([warps, keys]), axis=1, return_inverse=True)
        for index in range(pairs.shape[1]):
            yield int(pairs[0, index]), int(pairs[1, index]), np.flatnonzero(group.reshape(-1) == index)

    def _add(
        self,
        warp: int,
        lanes: int,
        kind: str,
        barrier: str | None,
        address: int | None,
        phase: int | None,
        amount: int,
        instruction: Instruction | None,
    ) -> None:
        machine = self.machine
        block, _ = machine.place_of(warp * 32)
        if self.trace.block not in (None, block):
            return
        line, text = (instruction.line, instruction.text) if instruction is not None else (0, "")
        number = warp % machine.warps if lanes else None
        self.trace._events.append(
            TraceEvent(
                self._launch, machine.launch.steps, block, number, lanes, kind, barrier, address, phase, amount,
                line, text,
            )
        )  # fmt: skip

    def _name(self, byte: int) -> str:
        """The caller's name of an mbarrier, or the shared variable that it lies in and how far."""
        known = self._labels.get(byte)
        if known is None:
            below = [(start, name) for start, name in self._variables if start <= byte]
            start, variable = below[-1] if below else (0, "shared")
            known = self.trace.names.get(byte) or f"{variable}+{byte - start}"
            self._labels[byte] = known
        return known
