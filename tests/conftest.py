from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest
import typer.testing
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from support import quick_fractions

from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.ptx import Checks
from refmoe.ptx.findings import unexplained
from refmoe.verify.kernel import Devices

#: Rooms whose tests ask which races are found. To explain one takes a hundred launches, which tests/ptx/findings judge;
#: `make explained` runs these rooms with explanations too, so that none of them ends in another error.
UNEXPLAINED = ("ptx/engine", "ptx/bulk", "ptx/tensor_cores", "ptx/async_copies")
#: Rooms whose tests ask which accesses race: their kernels read, and throw away what they read. What becomes of the
#: values is the subject of tests/ptx/undefined/test_racing_reads.py.
UNFOLLOWED = (
    "ptx/engine", "ptx/bulk", "ptx/tensor_cores", "ptx/async_copies", "ptx/schedules/test_elements.py",
    "ptx/findings/test_exact.py", "ptx/native/test_ways.py",
)  # fmt: skip
# Its tests are of a package with the toy family laid over it, see tests/families/test_toy_family.py.
collect_ignore = ["support/toy"]

# The same examples on every run: a red test is reproduced by running it again.
settings.register_profile("refmoe", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("refmoe")
quick_fractions.install()


def pytest_sessionstart() -> None:
    """Ctrl-C works, and CI has its compilers.

    A shell that starts a command with `&` lets it ignore Ctrl-C, and what it starts ignores it too; some tests send it.
    On a user's machine a test that needs a missing compiler is skipped; in CI that would hide what it proves.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not os.environ.get("CI"):
        return
    missing = [name for name in ("gcc", "g++") if shutil.which(name) is None]
    if missing:
        pytest.exit(f"CI without {' and '.join(missing)}: the tests that need a host compiler would be skipped", 1)
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.exit(f"CI without nvcc, so that no kernel would be tested: {error}", 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for garbage less often: in what 18,000 tests keep until the end it took a tenth of their time."""
    gc.disable()
    try:
        return (yield)
    finally:
        # What is imported and collected is garbage never. Freshly made cycles still go, a few thousand at a time.
        gc.freeze()
        gc.set_threshold(5000, 10, 20)
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> None:
    """`CliRunner` makes all commands of an app anew for each line that it runs, which takes longer than most lines."""
    build = getattr(typer.testing, "_get_command", None)
    if build is not None:
        typer.testing._get_command = cache(build)


@pytest.fixture(scope="session", autouse=True)
def examples_depend_on_no_import() -> None:
    """Hypothesis also tries constants that it finds in every module of the package that is imported by then.

    What a test is given would depend on those that ran before it; and each process reads 400 files to find them.
    """
    none = getattr(providers, "_local_constants", None)
    if none is not None:
        providers._get_local_constants = lambda: none


@pytest.fixture(autouse=True)
def races_are_not_explained(request: pytest.FixtureRequest) -> Iterator[None]:
    """In the rooms of `UNEXPLAINED`."""
    room = request.path.relative_to(Path(__file__).parent).as_posix()
    silent = room.startswith(UNEXPLAINED) and not os.environ.get("REFMOE_TEST_EXPLAINED")
    with unexplained() if silent else nullcontext():
        yield


@pytest.fixture(autouse=True)
def races_are_faults_whoever_uses_the_value(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the rooms of `UNFOLLOWED`."""
    room = request.path.relative_to(Path(__file__).parent).as_posix()
    if room.startswith(UNFOLLOWED):
        monkeypatch.setattr(Checks, "follows_races", False)


@pytest.fixture(scope="module")
def devices() -> Devices:
    """Devices whose compiled kernels the tests of a module share."""
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))
    return Devices()
