"""The kernels on the GPU of this machine; `make test-gpu` runs these beside the whole case list."""

from __future__ import annotations

import pytest

from refmoe.cuda.device import DeviceUnavailable, open_device
from refmoe.families.suites import list_cases
from refmoe.silicon.conformance import run as conformance
from refmoe.verify.runner import Devices, run_case
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
def test_quick_cases(case: object, devices: Devices) -> None:
    result = run_case(case, devices)  # type: ignore[arg-type]
    assert result.verdict in (Verdict.PASS, Verdict.UNSUPPORTED), result


def test_executor_agrees_with_the_gpu() -> None:
    document = conformance()
    assert document["opcodes"] > 2000
    assert document["differing_opcodes"] == 0
