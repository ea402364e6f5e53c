from __future__ import annotations

from collections import Counter

import pytest

from refmoe.mutation import cuda, host, ptx
from refmoe.mutation.reach import HOST
from refmoe.mutation.site import Edit, Site, sites_of

CUDA = """\
#include "nothing.cuh"
constexpr int kWidth = 32;  // 33 in a comment
struct Problem {
    const uint8_t* weights;
    const uint8_t* tokens;
    int n;
};
__device__ float scaled(const Problem& problem, const float* left, const float* right, int row, int rows) {
    float sum = __fmul_rn(left[row], 2.0f);
    if (row < rows && problem.n > 0) sum = __fadd_rn(sum, right[row]);
    __syncthreads();
    use(problem.weights + row, problem.tokens);
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    return row == 0 ? sum : 1.0f;
}
"""

PTX = """\
.version 9.0
.target sm_120a
.visible .entry kernel(
\t.param .u64 kernel_param_0
)
{
\t.reg .pred \t%p<2>;
\t.reg .b32 \t%r<4>;
\t.reg .b32 \t%f<3>;
\t.reg .b64 \t%rd<3>;

\tld.param.u64 \t%rd1, [kernel_param_0];
\tsetp.lt.s32 \t%p1, %r1, 7;
\t@%p1 bra \t$L__BB_1;
\tsub.s32 \t%r2, %r1, %r3;
\tmul.rn.f32 \t%f2, %f1, 0f3F800000;
\tbar.sync \t0;
\tst.global.u32 \t[%rd1+4], %r2;
$L__BB_1:
\tret;
}
"""

HOST_CODE = '''\
"""A docstring with 7."""
LIMIT = 8
Bytes = npt.NDArray[np.uint8]


def plan(kernel, rows, width):
    """Plans 9."""
    if rows > LIMIT:
        raise ArgumentError("rows", str(rows), "at most 8")
    check_fill(rows)
    grid = min(rows, width // 4 + 1)
    return LaunchPlan(kernel, grid, 32, (rows, width), shared_bytes=16)
'''


def changes(text: str, edits: object) -> dict[str, set[tuple[str, str]]]:
    found: dict[str, set[tuple[str, str]]] = {}
    for edit in edits:  # type: ignore[attr-defined]
        assert isinstance(edit, Edit)
        found.setdefault(edit.operator, set()).add((text[edit.start : edit.end], edit.after))
    return found


def test_cuda_operators_change_what_they_say() -> None:
    found = changes(CUDA, cuda.edits(CUDA))
    assert {("32", "33"), ("32", "31"), ("0", "1")} <= found["off-by-one"]
    assert {("32", "64"), ("2.0f", "4.0f")} <= found["constant"]
    assert found["relation"] == {("<", "<="), ("<", ">="), (">", ">="), (">", "<="), ("==", "!=")}
    assert ("row < rows && problem.n > 0", "true") in found["guard"]
    assert ("row < rows && problem.n > 0", "false") in found["guard"]
    assert found["logic"] == {("&&", "||")}
    assert ("__fmul_rn", "__fmul_rz") in found["rounding"]
    assert found["dropped-synchronisation"] == {
        ("__syncthreads();", ";"),
        ('asm volatile("fence.acq_rel.gpu;" ::: "memory");', ";"),
    }
    assert {(".gpu", ".cta"), (".acq_rel", ".relaxed"), ("__syncthreads", "__syncwarp")} <= found["scope"]
    assert ("sum, right[row]", "right[row], sum") in found["swapped-arguments"]
    assert {("left", "right"), ("row", "rows"), ("weights", "tokens")} <= found["swapped-name"]
    assert ("sum = __fadd_rn(sum, right[row]);", ";") in found["dropped-statement"]
    assert found["swapped-choice"] == {("sum : 1.0f", "(1.0f) : (sum)")}
    assert ("uint8_t", "int8_t") in found["width"]


def test_nothing_that_no_thread_runs_is_changed_in_cuda() -> None:
    edits = list(cuda.edits(CUDA))
    for words in ("#include", "33 in a comment"):
        start = CUDA.index(words)
        assert not [edit for edit in edits if start <= edit.start < start + len(words)]


def test_ptx_operators_change_what_they_say() -> None:
    found = changes(PTX, ptx.edits(PTX))
    assert ("sub.s32 \t%r2, %r1, %r3;", "") in found["dropped-instruction"]
    assert found["dropped-synchronisation"] == {("bar.sync \t0;", "")}
    assert found["guard"] == {("@%p1", "@!%p1")}
    assert found["relation"] == {("setp.lt.s32", "setp.le.s32"), ("setp.lt.s32", "setp.ge.s32")}
    assert found["rounding"] == {("mul.rn.f32", "mul.rz.f32")}
    assert found["modifier"] == {("mul.rn.f32", "mul.rn.ftz.f32"), ("mul.rn.f32", "mul.rn.sat.f32")}
    assert ("%r1, %r3", "%r3, %r1") in found["swapped-operands"]
    assert found["opposite"] == {("sub.s32", "add.s32")}
    assert {("7", "8"), ("7", "6"), ("4", "5"), ("4", "3")} <= found["off-by-one"]
    assert {("0f3F800000", "0f3F800001"), ("0f3F800000", "0fBF800000")} == found["constant"]
    assert found["width"] == {("st.global.u32", "st.global.u16")}
    assert found["type"] == {("setp.lt.s32", "setp.lt.u32")}
    # A neighbour that the entry has, of the same class, and never what the instruction writes.
    assert {("%r1", "%r2"), ("%r3", "%r2"), ("%r2", "%r1"), ("%r2", "%r3"), ("%rd1", "%rd2")} <= found[
        "swapped-register"
    ]
    assert ("%r3", "%r4") not in found["swapped-register"]
    written = {PTX.index("%r2, %r1"), PTX.index("%f2, %f1"), PTX.index("%p1, %r1"), PTX.index("%rd1, [kernel")}
    assert not [edit for edit in ptx.edits(PTX) if edit.operator == "swapped-register" and edit.start in written]


def test_host_operators_change_what_they_say() -> None:
    found = changes(HOST_CODE, host.edits(HOST_CODE))
    assert {("8", "9"), ("8", "7"), ("4", "5")} <= found["off-by-one"]
    assert found["relation"] == {(">", ">="), (">", "<=")}
    assert found["dropped-check"] == {("rows > LIMIT", "False"), ("check_fill(rows)", "None")}
    assert found["opposite"] == {("min", "max")}
    assert {("grid", "(grid) + 1"), ("32", "(32) // 2"), ("16", "(16) - 1")} <= found["launch-size"]
    assert {("rows, width", "width, rows"), ("grid, 32", "32, grid")} <= found["swapped-arguments"]
    assert found["arithmetic"] == {("//", "*"), ("+", "-")}


def test_messages_docstrings_and_names_of_types_stay() -> None:
    edits = list(host.edits(HOST_CODE))
    for words in (
        "A docstring with 7",
        "Plans 9",
        'ArgumentError("rows", str(rows), "at most 8")',
        "npt.NDArray[np.uint8]",
    ):
        start = HOST_CODE.index(words)
        assert not [edit for edit in edits if start <= edit.start < start + len(words)]


def test_a_site_names_its_place_and_makes_its_change() -> None:
    (site,) = sites_of("cuda", "kernel", "kernel.cu", "a\n  b + c\n", [Edit("arithmetic", 6, 7, "-")])
    assert site.id == "cuda:kernel:arithmetic:kernel.cu:2:5:+ -> -"
    assert site.applied("a\n  b + c\n") == "a\n  b - c\n"
    with pytest.raises(ValueError, match="has '\\*' there"):
        site.applied("a\n  b * c\n")


def test_an_edit_that_changes_nothing_is_no_site() -> None:
    assert not list(sites_of("cuda", "k", "k.cu", "a b", [Edit("swapped-name", 0, 1, "a")]))


def sources_and_host() -> list[Site]:
    of_cuda = (site for file in cuda.files() for site in cuda.sites(file))
    return [*of_cuda, *(site for file in host.files() for site in host.sites(file))]


def test_our_sources_and_host_code_have_thousands_of_mutants_each_with_an_id_of_its_own() -> None:
    sites = sources_and_host()
    assert len({site.id for site in sites}) == len(sites) > 10_000
    floors = Counter(site.floor for site in sites)
    assert floors["cuda"] > 5_000
    assert floors["host"] > 3_000
    # Every file that holds code has some.
    assert {site.file for site in sites} >= {*cuda.files(), "quantize.py", "gemm/tile.py", "moe/launches.py"}


def test_host_mutants_keep_the_lines_of_what_stands_below() -> None:
    for file in host.files():
        text = (HOST / file).read_text()
        for site in host.sites(file):
            assert site.applied(text).count("\n") == text.count("\n"), site.id
