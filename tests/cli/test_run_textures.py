"""`refmoe run` with textures and surfaces from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.textures.kernels import HEADER
from typer.testing import CliRunner

from refmoe.cli import app

TEXT = f"""{HEADER}
.visible .entry k(.param .u64 image, .param .u64 target) {{
    .reg .b32 %r<8>;
    .reg .f32 %f<4>;
    .reg .b64 %d<3>;
    ld.param.u64 %d0, [image];
    ld.param.u64 %d1, [target];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %tid.y;
    cvt.rn.f32.u32 %f0, %r0;
    cvt.rn.f32.u32 %f1, %r1;
    tex.2d.v4.f32.f32 {{%r2, %r3, %r4, %r5}}, [%d0, {{%f0, %f1}}];
    shl.b32 %r6, %r0, 2;
    sust.b.2d.b32.trap [%d1, {{%r6, %r1}}], {{%r2}};
    ret;
}}
"""
IMAGE = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("k.ptx").write_text(TEXT)
    np.save("image.npy", IMAGE)
    np.save("bytes.npy", IMAGE.astype(np.uint8))
    np.save("target.npy", np.zeros((3, 4), np.float32))
    return tmp_path


def run(arguments: str, block: str = "4,3") -> tuple[int, str]:
    found = CliRunner().invoke(app, ["run", "k.ptx", "--block", block, "--args", arguments])
    return found.exit_code, found.output


def test_a_texture_is_read_and_a_surface_written() -> None:
    code, output = run("texture:image.npy surface:target.npy:out.npy")
    assert code == 0, output
    assert (np.load("out.npy") == IMAGE).all()
    assert not np.load("target.npy").any()


def test_options() -> None:
    code, output = run("texture:bytes.npy:read=normalized_float:filter=linear:address=border surface:target.npy")
    assert code == 0, output
    # A quarter of each of four texels, in 65535ths: 642.5 of them.
    assert np.load("target.npy")[1, 1] == np.float32(643) / np.float32(65535)
    code, output = run("texture:image.npy:normalized:address=wrap,clamp surface:target.npy")
    assert code == 0, output
    assert np.load("target.npy").tolist() == [[0.0] * 4, [8.0] * 4, [8.0] * 4]


def test_a_fault_writes_nothing() -> None:
    code, output = run("texture:image.npy surface:target.npy", "5,3")
    assert code == 1
    assert "x 16, y 0" in " ".join(output.split())
    assert not np.load("target.npy").any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("texture:image.npy:filter=cubic surface:target.npy", "point or linear"),
        ("texture:image.npy:colour=1 surface:target.npy", "an option of kind, channels, address"),
        ("texture:image.npy:kind=3d surface:target.npy", "3 axes for 3d"),
        ("texture:image.npy:channels=x surface:target.npy", "1, 2 or 4"),
        ("texture:image.npy:border=1,a,2,3 surface:target.npy", "four numbers"),
        ("texture:image.npy surface:target.npy:kind=linear", "a CudaArray"),
        ("texture:image.npy surface:target.npy:filter=linear", "an option of kind, channels"),
    ],
)
def test_words_that_mean_no_object(arguments: str, message: str) -> None:
    code, output = run(arguments)
    assert code == 2
    assert message in " ".join(output.replace("│", " ").split())
