"""The pytest plugin: `--refmoe-report`, `--refmoe-schedules`, two fixtures and two marks.

The fixtures are `refmoe_case` and `refmoe_device`; the marks are `refmoe` and `refmoe_schedules(N)`, which runs every
launch of a test on the executor under N legal schedules.

pytest loads it in every session of an environment that has refmoe, so that everything heavy is imported by what needs
it: without a test of refmoe's it costs this file.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from refmoe.cuda import Device
    from refmoe.testing import RefmoeCase
    from refmoe.verify.verdict import Result

_SESSION = pytest.StashKey["_Session"]()
_OUTCOMES = pytest.StashKey["list[dict[str, Any]]"]()

#: Attribute of a test report in which outcomes travel; xdist carries it from the worker to the controller.
_ATTRIBUTE = "refmoe_outcomes"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("refmoe", "refmoe: kernels under a contract")
    group.addoption(
        "--refmoe-report",
        metavar="PATH",
        help="write the results of all refmoe cases to PATH, one JSON report that `refmoe gate` reads",
    )
    group.addoption(
        "--refmoe-schedules",
        metavar="N",
        help="run every launch on refmoe's executor under N legal schedules, and fail if one gives other bytes; 0,7 "
        "names them; a test's own mark refmoe_schedules goes first",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marks; and what collects outcomes, except on a worker of xdist, whose controller does."""
    config.addinivalue_line("markers", "refmoe: a case of a kernel under a refmoe contract (see refmoe.testing)")
    config.addinivalue_line(
        "markers", "refmoe_schedules(N): launches on refmoe's executor run under N legal schedules, or those named"
    )
    path = config.getoption("--refmoe-report")
    if path is not None and Path(path).is_dir():
        raise pytest.UsageError(f"--refmoe-report: {path} is a folder; needed the name of a file")
    if not hasattr(config, "workerinput"):
        config.stash[_SESSION] = _Session(Path(path) if path is not None else None)
        config.pluginmanager.register(config.stash[_SESSION], "refmoe-session")


@pytest.fixture
def refmoe_case(request: pytest.FixtureRequest) -> Iterator[RefmoeCase]:
    """The case of a test that `refmoe.testing.refmoe_cases` decorates."""
    from refmoe.reports.parity import record_of
    from refmoe.testing import RefmoeCase, UserKernel

    if not hasattr(request, "param"):
        pytest.fail("refmoe_case: the test has no cases; decorate it with refmoe.testing.refmoe_cases", pytrace=False)
    of, case = request.param
    taken: list[dict[str, Any]] = request.node.stash.setdefault(_OUTCOMES, [])

    def record(result: Result) -> None:
        taken.append({"record": record_of(result).model_dump(mode="json"), "policies": list(result.policies)})

    kernel = of if isinstance(of, UserKernel) else None
    yield RefmoeCase(case, kernel, request.node.nodeid, request.config.rootpath, record)
    called = getattr(request.node, "_refmoe_called", False)
    if called and not taken:
        pytest.fail("refmoe_case: the test never called check(), so it proves nothing", pytrace=False)


@pytest.fixture
def refmoe_device(request: pytest.FixtureRequest) -> Device:
    """A device to run refmoe's own kernels on, beside yours: the executor, which needs no GPU.

    Parametrize it indirectly with "cuda" for the machine's GPU. The test is skipped where there is no such device, or
    neither a compiler nor PTX in the package.
    """
    from refmoe.cuda import DeviceUnavailable, ToolchainError
    from refmoe.driver import opened

    try:
        return opened(getattr(request, "param", "ptx"))
    except (DeviceUnavailable, ToolchainError) as error:
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test's launches under the schedules that its mark or the command line asks for."""
    mark = item.get_closest_marker("refmoe_schedules")
    asked = item.config.getoption("--refmoe-schedules") if mark is None else _only_argument(mark)
    if asked is None:
        return (yield)
    from refmoe.ptx import ArgumentMismatch, under_schedules

    try:
        schedules = under_schedules(asked)
        schedules.__enter__()
    except ArgumentMismatch as error:
        pytest.fail(str(error), pytrace=False)
    try:
        return (yield)
    finally:
        schedules.__exit__(None, None, None)


def _only_argument(mark: pytest.Mark) -> Any:
    if len(mark.args) != 1 or mark.kwargs:
        pytest.fail("refmoe_schedules: one argument needed, a number of schedules or their numbers", pytrace=False)
    return mark.args[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Hand a test's outcomes to its report; a test that ran to its end is one that had to check something."""
    report = yield
    if call.when == "call":
        if report.passed:
            item._refmoe_called = True  # type: ignore[attr-defined]
        outcomes = item.stash.get(_OUTCOMES, None)
        if outcomes:
            setattr(report, _ATTRIBUTE, outcomes)
    return report


class _Session:
    """Collects outcomes where the reports of all tests arrive: in the only process, or in xdist's controller."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.outcomes: list[dict[str, Any]] = []
        self.start = time.perf_counter()
        self.written: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the outcomes of a test that ended."""
        self.outcomes += getattr(report, _ATTRIBUTE, [])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the report, unless the run was broken off: half of the cases are no report."""
        if self.path is None or session.config.option.collectonly:
            return
        broken_off = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR)
        if exitstatus in broken_off or session.shouldfail or session.shouldstop:
            self.written = "refmoe: no report was written: the run did not end"
            return
        from refmoe.testing.session import write_report

        command = "pytest " + " ".join(map(str, session.config.invocation_params.args))
        try:
            self.written = write_report(self.path, self.outcomes, command, time.perf_counter() - self.start)
        except OSError as error:
            self.written = f"refmoe: cannot write {self.path}: {error.strerror}"
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """A line a kernel, and where the report is."""
        if not self.outcomes and self.written is None:
            return
        terminalreporter.section("refmoe", sep="-")
        if self.outcomes:
            from refmoe.testing.session import summary_lines

            for line in summary_lines(self.outcomes):
                terminalreporter.write_line(line)
        if self.written is not None:
            terminalreporter.write_line(self.written)
