"""Check a user's kernel: one case in a test, or a whole level by `refmoe.check`; and run any one case again."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refmoe.catalog import kernel_of, parse_case
from refmoe.errors import ArgumentError, describe
from refmoe.families import family_called
from refmoe.families.family import Case
from refmoe.testing.elements import mismatch_text
from refmoe.testing.kernel import UserKernel
from refmoe.testing.kernel import kernel as registered
from refmoe.verify.kernel import Devices
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Result, Verdict, exit_status


@dataclass(frozen=True)
class RefmoeCase:
    """The case of a test: the value of the fixture `refmoe_case`.

    Attributes:
        case: the case.
        kernel: the registered kernel that the test's cases were made for; None if they were made for a family.
        node: the test's pytest id, which is how to run it again.
        root: the project's root folder.
        record: adds a result to the report.
    """

    case: Case
    kernel: UserKernel | None
    node: str
    root: Path
    record: Callable[[Result], None]

    def check(self, kernel: UserKernel | None = None) -> None:
        """Run a registered kernel on the case; fail the test unless every byte equals the reference.

        A case that the kernel's contract leaves out is skipped with the reason, and is UNSUPPORTED in the report.

        Args:
            kernel: the kernel; that of `refmoe_cases` if left out.

        Raises:
            AssertionError: MISMATCH, OUT_OF_BOUND, MISTRUSTED, or a refusal that is not declared.
            Exception: whatever the kernel raised.
            refmoe.errors.ArgumentError: no kernel, or none that `refmoe.testing.kernel` made.
        """
        __tracebackhide__ = True
        import pytest

        chosen = self.kernel if kernel is None else kernel
        if not isinstance(chosen, UserKernel):
            raise ArgumentError("kernel", describe(chosen), "one made by refmoe.testing.kernel")
        placed = dataclasses.replace(chosen, root=self.root, node=self.node)
        result = run_case(placed, self.case)
        self.record(result)
        if result.error is not None:
            raise result.error
        if result.fails:
            raise AssertionError(result_text(placed, result))
        if not result.verdict.ran:
            pytest.skip(result_text(placed, result))


@dataclass(frozen=True)
class Checked:
    """The results of a kernel's cases. Printed are the failing ones, and how many there are of each verdict.

    Why cases did not run is printed too, each reason once.

    Attributes:
        kernel: the kernel.
        results: one for each case.
    """

    kernel: UserKernel
    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        """Whether no case fails and at least one ran."""
        return exit_status(self.results) == 0

    def __bool__(self) -> bool:
        """Whether it passed, so that `assert refmoe.check(...)` fails for a wrong kernel."""
        return self.passed

    def __str__(self) -> str:
        failing = [result_text(self.kernel, result) for result in self.results if result.fails]
        counts = {verdict: sum(result.verdict is verdict for result in self.results) for verdict in Verdict}
        summary = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
        idle = Counter(
            f"{result.verdict.value}{'' if result.verdict is Verdict.SKIPPED else ' as declared'}: {result.reason}"
            for result in self.results
            if not result.verdict.ran and not result.fails
        )
        lines = [summary, *(f"{count} {why}" for why, count in idle.items())]
        if exit_status(self.results) == 3:
            lines.append("no case ran, so nothing has passed")
        return "\n\n".join([*failing, "\n".join(lines)])

    __repr__ = __str__


def check(
    kernel: UserKernel | Callable[..., Any],
    family: str | None = None,
    *,
    level: str = "quick",
    dtypes: tuple[str, ...] | None = None,
    cases: Sequence[str] | None = None,
    **contract: Any,
) -> Checked:
    """Hold a kernel against a family's contract, byte for byte, on the family's cases.

    >>> import refmoe
    >>> def my_quantize(x):
    ...     made = refmoe.quantize(x, "mxfp8")
    ...     return made.codes, made.scales
    >>> refmoe.check(my_quantize, "quantize", arrays="numpy")
    13 PASS

    Args:
        kernel: a function, or a kernel that `refmoe.testing.kernel` registered.
        family: the family that a function is held against, such as "quantize"; `print(refmoe.families)` lists them. A
            registered kernel knows its family and its contract, so leave both out.
        level: "quick", "default" or "full".
        dtypes: run only the cases of these dtypes.
        cases: repro strings to run instead of a level.
        contract: for a function, the arguments of `refmoe.testing.kernel`: `mode`, `layout`, `arrays`, `device`, ...

    Raises:
        ArgumentError: an unknown family, level, dtype, case or option; or no case at all.
    """
    if isinstance(kernel, UserKernel):
        again = family is not None and family_called(family) is kernel.family and contract == dict(kernel.given)
        if (family is not None or contract) and not again:
            raise ArgumentError("kernel", f"{kernel.label}, registered already, with another contract", "either")
        chosen = kernel
    elif family is None:
        raise ArgumentError("family", "nothing", "the family of the function, such as 'quantize'")
    else:
        chosen = registered(family, **contract)(kernel)
    listed = chosen.cases(level, dtypes) if cases is None else cases_of(chosen.family.name, cases)
    if not listed:
        raise ArgumentError("cases", "none", "at least one case")
    return Checked(chosen, tuple(run_case(chosen, case) for case in listed))


def repro(case: Case | str) -> Result:
    """Run one case on the kernel that its string names, refmoe's own or the museum's; `refmoe repro` does the same.

    >>> import refmoe
    >>> refmoe.repro("mxfp8_quantize:bf16:m4k416:tiny:seed7@ptx")
    PASS mxfp8_quantize:bf16:m4k416:tiny:seed7@ptx
    repro: refmoe repro 'mxfp8_quantize:bf16:m4k416:tiny:seed7@ptx'

    Args:
        case: a repro string, as printed under every mismatch and as a report's `id`; or a case.

    Returns:
        The result; printed, the verdict, the first mismatch and the command that runs the case again. Where the device
        or the compiler is not here, the verdict is SKIPPED, and its reason says what is missing.

    Raises:
        ArgumentError: a malformed string; the message says which field is wrong and what it may be.
    """
    if not isinstance(case, (str, Case)):
        raise ArgumentError("case", describe(case), "a repro string, or a case")
    chosen = parse_case(case) if isinstance(case, str) else case
    return run_case(kernel_of(chosen, Devices()), chosen)


def cases_of(family: str, texts: Sequence[str]) -> list[Case]:
    """The cases of repro strings; ids of tests and of reports, with a kernel's name in front, are repro strings too.

    Raises:
        ArgumentError: a malformed string, or a case of another family.
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise ArgumentError("cases", describe(texts), "a list of repro strings")
    chosen = []
    for text in texts:
        case = parse_case(re.sub("@host$", "@ptx", re.sub("^.*?::[^/]*/", "", text)))
        if case.family.name != family:
            raise ArgumentError("cases", text, f"cases of {family}")
        chosen.append(case)
    return list(dict.fromkeys(chosen))


def result_text(kernel: UserKernel, result: Result) -> str:
    """A result in words: the first difference, a map, the contract, how to run it again."""
    lines = [result.line if result.reason else f"{result.verdict.value} {kernel.case_text(result.case)}"]
    if result.verdict is Verdict.MISMATCH:
        lines = [mismatch_text(result.first_mismatch, result.maps), *([result.reason] if result.reason else [])]
    if result.verdict is Verdict.UNSUPPORTED and not result.expected:
        lines.append("a kernel that does not take a case says so when it is registered: kernel(..., refuses=...)")
    elif not result.verdict.ran:
        return lines[0]
    lines.append(f"contract: {result.case.family.name}{f', {kernel.policy}' if kernel.policy else ''}")
    lines.append(f"repro: {result.repro}")
    if kernel.rule is None:
        lines.append(f"refmoe's own kernel on the same case: refmoe repro '{result.case}'")
    return "\n".join(lines)
