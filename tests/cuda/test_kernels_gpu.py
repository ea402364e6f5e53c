"""The kernels on the GPU of this machine; `make test-gpu` runs these beside the whole case list."""

from __future__ import annotations

import pytest

from refmoe.catalog import kernel_of, list_cases
from refmoe.cuda.device import DeviceUnavailable, open_device
from refmoe.families.family import Case
from refmoe.silicon.conformance import run as conformance
from refmoe.verify.kernel import Devices
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    try:
        open_device("cuda")
    except DeviceUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def devices() -> Devices:
    return Devices()


@pytest.mark.parametrize("case", list_cases("quick", device="cuda"), ids=str)
def test_quick_cases(case: Case, devices: Devices) -> None:
    result = run_case(kernel_of(case, devices), case)
    if result.verdict is Verdict.SKIPPED:
        pytest.skip(str(result))
    assert result.verdict in (Verdict.PASS, Verdict.UNSUPPORTED), result
    assert not result.fails, result  # what is refused is what the case list says


def test_executor_agrees_with_the_gpu() -> None:
    document = conformance()
    assert document["opcodes"] > 2000
    assert document["differing_opcodes"] == 0
