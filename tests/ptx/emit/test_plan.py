"""An entry that was compiled before: its plan is found by the text, and gives the code that it gave then."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from support.ptx_kernel import text as whole

from refmoe import ptx
from refmoe.native import cache
from refmoe.ptx.emit import codegen
from refmoe.ptx.observe.profile import Profile
from refmoe.ptx.text import parser

# An estimate in a native block and one beside an atomic; a barrier; an unknown opcode that lane 40 alone would reach.
BODY = """
    cvt.rn.f32.u32 %f1, %r2;
    add.f32 %f1, %f1, 0f3F800000;
    rcp.approx.f32 %f2, %f1;
    st.global.f32 [%d2], %f2;
    bar.sync 0;
    setp.eq.u32 %p2, %r2, 40;
    @%p2 frobnicate.u32 %r5, %r2;
    ret;
"""
TEXT = whole(BODY, declarations=".reg .f32 %f<3>;")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of each test's own."""
    monkeypatch.setenv("REFMOE_CACHE_DIR", str(tmp_path))
    return tmp_path / "native"


def _run(text: str = TEXT, profile: Profile | None = None) -> tuple[bytes, ptx.LaunchResult]:
    out = np.zeros(32, np.float32)
    module = ptx.Module.parse(text, "test.ptx")
    result = ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [out, np.zeros(32, np.uint32), 32], profile=profile)
    return out.tobytes(), result


def test_an_entry_that_is_known_is_neither_parsed_nor_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    before, result = _run()

    def fails(*_: object) -> None:
        raise AssertionError("nobody needs this again")

    monkeypatch.setattr(codegen, "_plan", fails)
    monkeypatch.setattr(parser.ParsedModule, "function", fails)
    found, again = _run()
    assert found == before
    assert again.approximate == result.approximate != ()
    assert (again.instructions, again.lane_instructions) == (result.instructions, result.lane_instructions)


def test_what_is_refused_stays_refused() -> None:
    text = TEXT.replace("40", "31")
    for _ in range(2):
        with pytest.raises(ptx.UnknownOpcode, match="frobnicate") as caught:
            _run(text)
        assert caught.value.thread == (31, 0, 0)


def test_a_strict_module_refuses_what_is_known() -> None:
    _run()
    module = ptx.Module.parse(TEXT, "test.ptx", strict=True)
    with pytest.raises(ptx.Contraction, match=r"add\.f32"):
        module.compile("k")


def test_another_text_and_another_view_have_plans_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    plan = codegen._plan

    def counted(*arguments: object) -> object:
        made.append(arguments)
        return plan(*arguments)

    monkeypatch.setattr(codegen, "_plan", counted)
    _run()
    _run()
    assert len(made) == 1
    _run(TEXT.replace("0f3F800000", "0f40000000"))
    assert len(made) == 2
    _run(profile=Profile())
    assert len(made) == 3


def test_a_damaged_plan_is_made_again(folder: Path) -> None:
    before, _ = _run()
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    assert _run()[0] == before


def test_the_plan_of_another_host_asks_for_machine_code_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _run()
    kept = [cache.load(file.name) for file in cache.folder().iterdir()]
    plans = [held for held in kept if held is not None and held.startswith(b"\x80")]
    names = {file.name for file in cache.folder().iterdir()}
    contents = [plan.content for plan in map(pickle.loads, plans) if hasattr(plan, "content")]
    assert len(contents) == 1
    assert contents[0] not in names
