"""What a finding says of an `mbarrier.inval` that races."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import run

from refmoe import ptx

# Thread 0 makes a barrier and uses it, thread 37 gives it back.
BODY = """
    setp.ne.u32 %p9, %r1, 0; setp.ne.u32 %p8, %r1, 37;
    @!%p9 mbarrier.init.shared.b64 [bar], 1;
    bar.sync 0;
    {uses}
    {meet}
    @!%p8 mbarrier.inval.shared.b64 [bar];
    {then}
    ret;
"""
ARRIVES = "@!%p9 mbarrier.arrive.shared.b64 _, [bar];"
WAITS = "@%p9 bra E; C: mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0; @!%p1 bra C; E:"


def caught(uses: str, meet: str = "", then: str = "") -> ptx.RaceError:
    body = BODY.format(uses=uses, meet=meet, then=then)
    with pytest.raises(ptx.RaceError) as raised:
        run(body, np.zeros(64, np.uint32), block=(64, 1, 1), declarations=".shared .align 8 .b64 bar;")
    return raised.value


@pytest.mark.parametrize(
    ("uses", "opcode"), [(ARRIVES, "mbarrier.arrive"), (ARRIVES + WAITS, "mbarrier.try_wait")], ids=["arrives", "waits"]
)
def test_it_names_the_use_and_the_barrier_that_is_missing(uses: str, opcode: str) -> None:
    finding = caught(uses).finding
    assert finding is not None
    assert finding.earlier is not None
    assert opcode in finding.earlier.text
    assert "mbarrier.inval" in finding.later.text
    assert "bar.sync 0" in finding.remedy
    assert (finding.tried, finding.clean) == (True, True)


def test_it_names_the_inval_that_a_store_does_not_come_after() -> None:
    finding = caught("", then="@!%p9 st.shared.u32 [bar], 1;").finding
    assert finding is not None
    assert finding.earlier is not None
    assert "mbarrier.inval" in finding.earlier.text
