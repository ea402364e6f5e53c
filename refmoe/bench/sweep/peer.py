"""What a peer is: somebody else's code that takes what refmoe's kernels take; and what became of each in a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from refmoe.bench.gpu.kernels import MoeSizes
from refmoe.bench.gpu.timing import Calls, Contender
from refmoe.bench.sweep.operations import PeerOperation
from refmoe.cuda.device import CudaDevice
from refmoe.errors import RefmoeError


class PeerMissing(RefmoeError):
    """A peer that this machine cannot run; the message says why."""


@dataclass(frozen=True)
class ReadyPeer:
    """A peer that this machine has.

    Attributes:
        version: of its package.
        functions: by operation: of what `PeerOperation.inputs` makes; it returns results in the order of
            `PeerOperation.results`, None for one that the peer has in no form that can be compared.
    """

    version: str
    functions: Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class Peer:
    """Somebody else's code.

    Attributes:
        name: its rows' `of`, and what their names begin with.
        operations: those that it has.
        prepare: of torch; raises `PeerMissing` where it cannot run.
    """

    name: str
    operations: tuple[str, ...]
    prepare: Callable[[Any], ReadyPeer]


def installed(package: str, module: str | None = None) -> Any:
    """A module of a package, imported.

    Args:
        package: what is installed.
        module: what is imported; the package's own by default.

    Raises:
        PeerMissing: it is not installed, or it does not import here.
    """
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise PeerMissing(f"{package} is not installed")
    try:
        return importlib.import_module(module or package)
    except Exception as error:  # whatever a package does when it is imported
        raise PeerMissing(f"{module or package} does not import: {sentence(error)}") from error


def sentence(error: BaseException) -> str:
    """An error in a line: of what kind it is, unless it is one of refmoe's, and the first line that it says."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return said if said and isinstance(error, RefmoeError) else f"{type(error).__name__}: {said}".rstrip(": ")


def rehearse(torch: Any, one: Calls | Contender) -> None:
    """Run a contender once, then once in a CUDA graph, so that what it cannot do is known before its group is timed.

    Raises:
        Exception: what it or the driver says.
    """
    one.enqueue(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = one.enqueue(0)
    graph.replay()
    torch.cuda.synchronize()
    del made


@dataclass
class Rivals:
    """The peers of one sweep. An error of a peer is written down, and the sweep goes on without it.

    Attributes:
        versions: of those that take part, by name.
        absent: of those that do not, why.
        failed: by "peer: operation of model" what a peer said when it could not do that; it is not asked again.
    """

    versions: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    _functions: dict[str, list[tuple[str, Callable[..., Any]]]] = field(default_factory=dict)

    def prepare(self, torch: Any, peers: Sequence[Peer]) -> None:
        """Prepare peers, anew for each model: what one of them has compiled is for the sizes of one."""
        self._functions.clear()
        for peer in peers:
            if peer.name in self.absent:
                continue
            try:
                prepared = peer.prepare(torch)
            except Exception as error:
                self.versions.pop(peer.name, None)
                self.absent[peer.name] = sentence(error)
                continue
            self.versions[peer.name] = prepared.version
            for operation in peer.operations:
                self._functions.setdefault(operation, []).append((peer.name, prepared.functions[operation]))

    def contenders(
        self, device: CudaDevice, sizes: MoeSizes, tokens: int, operation: PeerOperation, traffic: int
    ) -> Iterator[tuple[str, Calls]]:
        """Each peer's name and its calls of an operation, which have been rehearsed."""
        for name, function in self._taking_part(operation, sizes):
            try:
                calls = operation.calls(device, sizes, tokens, name, function, traffic)
                rehearse(device.torch, calls)
            except Exception as error:
                self._fails(name, operation, sizes, error)
            else:
                yield name, calls

    def differing(
        self, device: CudaDevice, sizes: MoeSizes, tokens: int, operation: PeerOperation, ours: Contender
    ) -> Iterator[tuple[str, str, list[int]]]:
        """Each peer's name, a result of an operation, and how many of its bytes are not refmoe's, of how many."""
        for name, function in self._taking_part(operation, sizes):
            try:
                counts = operation.differing(device, sizes, tokens, function, ours)
            except Exception as error:
                self._fails(name, operation, sizes, error)
            else:
                yield from ((name, what, found) for what, found in counts.items())

    def _taking_part(self, operation: PeerOperation, sizes: MoeSizes) -> list[tuple[str, Callable[..., Any]]]:
        return [
            (name, function)
            for name, function in self._functions.get(operation.name, ())
            if _key(name, operation, sizes) not in self.failed
        ]

    def _fails(self, name: str, operation: PeerOperation, sizes: MoeSizes, error: Exception) -> None:
        self.failed[_key(name, operation, sizes)] = sentence(error)


def _key(name: str, operation: PeerOperation, sizes: MoeSizes) -> str:
    return f"{name}: {operation.name} of {sizes.model}"
