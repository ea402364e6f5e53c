"""Faults of the grouped GEMM in CuTe DSL."""

from __future__ import annotations

from refmoe.museum.cute_faults import CuteFault
from refmoe.museum.edits import Edit, literally

_MMA = "cute_deepseek_gemm:bf16:m24k384n256e3:near:rows=5-0-17:tile_m=16:poison=0x7F:seed7@ptx"
_FP32 = "cute_deepseek_gemm:f32:m24k384n256e3:near:rows=5-0-17:tile_m=16:seed7@ptx"
#: Fewer CTAs than tiles: each takes several.
_SEVERAL = (
    "cute_deepseek_gemm:f32:m19k512n128e4:cancelling:grouping=masked:rows=19-0-17-11:pad=2:expected_m=1:tile_m=16"
    ":seed7@ptx"
)
_MANY_EXPERTS = "cute_deepseek_gemm:bf16:m88k256n128e130:one-hot-weights:rows=1-0-1:tile_m=16:seed7@ptx"
_DEEP = "cute_deepseek_gemm:bf16:m9k1408n128e2:near:rows=4-5:tile_m=16:seed7@ptx"
_WGMMA = (
    "cute_deepseek_gemm:bf16:m24k384n256e3:near:model=sm90_wgmma_fp8:rows=5-0-17:tile_m=64:poison=0x7F:seed7@ptx.sm_90a"
)
_WGMMA_DEEP = "cute_deepseek_gemm:bf16:m9k1408n128e2:near:model=sm90_wgmma_fp8:rows=4-5:tile_m=64:seed7@ptx.sm_90a"
#: CTAs whose second tile is that of the 33rd expert.
_SECOND = (
    "cute_deepseek_gemm:bf16:m529k128n128e33:near:grouping=masked:rows=529-0-0-0-0-0-0-0-0-0-0-0-0-0-0-0:expected_m=1"
    ":tile_m=16:seed7@ptx"
)
_WGMMA_SECOND = (
    "cute_deepseek_gemm:bf16:m2113k128n128e33:near:grouping=masked:model=sm90_wgmma_fp8"
    ":rows=2113-0-0-0-0-0-0-0-0-0-0-0-0-0-0-0:expected_m=1:tile_m=64:seed7@ptx.sm_90a"
)

#: Every fault, in the order in which it is shown.
FAULTS = (
    CuteFault(
        "cute-row-too-many", "the row behind an expert's last is stored, too", "predicate", _MMA, "groups.py",
        literally("[0] < rows:", "[0] <= rows:"),
    ),
    CuteFault(
        "cute-promoted-in-two-steps", "the product of factor and partial sum is rounded before it is added",
        "rounding", _FP32, "groups.py",
        literally(
            "fma_rn(factors[half, i], partial[at], total[at])",
            "fma_rn(Float32(1.0), mul_rn(factors[half, i], partial[at]), total[at])",
        ),
    ),
    CuteFault(
        "cute-factor-without-weight-scale", "the factor is the token's scale alone", "scale", _MMA, "groups.py",
        literally("mul_rn(scales[row, block], weight_scale)", "mul_rn(scales[row, block], Float32(1.0))"),
    ),
    CuteFault(
        "cute-scale-of-first-block", "every block has the token scales of the first", "scale", _MMA, "groups.py",
        literally("mul_rn(scales[row, block], ", "mul_rn(scales[row, 0], "),
    ),
    CuteFault(
        "cute-experts-past-a-warp", "tiles of earlier experts are forgotten past the 32nd expert", "tile search",
        _MANY_EXPERTS, "groups.py",
        literally("before += cute.arch.shuffle_sync(through, WARP_LANES - 1)", "before += 0"),
    ),
    CuteFault(
        "cute-tile-of-expert-before", "the first tile of an expert is taken for one of the expert before",
        "tile search", _MMA, "groups.py", literally("number - before < through", "number - before <= through"),
    ),
    CuteFault(
        "cute-batch-of-first-expert", "rows of a batch are those of the first expert", "stride off by one expert",
        _SEVERAL, "groups.py", literally("            batch = expert\n", "            batch = Int32(0)\n"),
    ),
    CuteFault(
        "cute-barrier-dropped", "a stage is filled while other warps read it", "barrier", _DEEP, "mma.py",
        literally("                cute.arch.barrier()\n", ""),
    ),
    CuteFault(
        "cute-wait-one-late", "a stage is read one group of copies too early", "asynchronous copy", _MMA, "mma.py",
        literally("cp_async_wait_group(STAGES - 2)", "cp_async_wait_group(STAGES - 1)"),
    ),
    CuteFault(
        "cute-tail-barrier-dropped", "the next tile's copies overwrite a stage that is read", "barrier", _SEVERAL,
        "mma.py",
        literally("            cute.arch.barrier()\n            number += step", "            number += step"),
    ),
    CuteFault(
        "cute-partial-kept", "the products of a block are added to those of the block before", "accumulator", _MMA,
        "mma.py", literally("                partial.fill(0.0)\n", ""),
    ),
    CuteFault(
        "cute-rows-not-clamped", "copies read rows past the last token", "predicate", _MMA, "mma.py",
        literally("cutlass.min(thread // ROW_CHUNKS + i * (self.threads // ROW_CHUNKS), rows - 1)",
                  "thread // ROW_CHUNKS + i * (self.threads // ROW_CHUNKS)"),
    ),
    CuteFault(
        "cute-weight-scale-of-first-tile", "every tile has the weight scales of the first 128 weight rows", "scale",
        _MMA, "mma.py", literally("weight_scales[tile_n, block, expert]", "weight_scales[0, block, expert]"),
    ),
    CuteFault(
        "cute-accumulates-from-the-start", "the first wgmma of a block adds to the sums of the block before",
        "accumulator", _WGMMA, "wgmma.py", literally("ACCUMULATE, k != 0)", "ACCUMULATE, True)"),
    ),
    CuteFault(
        "cute-wgmma-not-waited-for", "sums are promoted while wgmma may still write them", "asynchronous product",
        _WGMMA, "wgmma.py", literally("warpgroup.wait_group(0)", "warpgroup.wait_group(1)"),
    ),
    CuteFault(
        "cute-wgmma-fence-dropped", "registers go into wgmma without a fence", "proxy fence", _WGMMA, "wgmma.py",
        literally("                    warpgroup.fence()\n", ""),
    ),
    CuteFault(
        "cute-stage-released-early", "a stage is given back before wgmma has read it", "barrier arrival", _WGMMA_DEEP,
        "wgmma.py",
        Edit(r"( +warpgroup\.wait_group\(0\)\n)( +ring\.consumer_release\(reading\)\n)", r"\2\1"),
    ),
    CuteFault(
        "cute-stage-not-waited-for", "a stage is read before its copies have landed", "barrier wait", _WGMMA,
        "wgmma.py", literally("                    ring.consumer_wait(reading)\n", ""),
    ),
    CuteFault(
        "cute-expects-too-few-bytes", "a stage counts as full before all of its copies have landed",
        "transaction count", _WGMMA, "wgmma.py",
        literally("(tile_m + TILE_N) * BLOCK", "tile_m * BLOCK"),
    ),
    CuteFault(
        "cute-stage-never-released", "no stage is given back", "barrier arrival", _WGMMA_DEEP, "wgmma.py",
        literally("                    ring.consumer_release(reading)\n", ""),
    ),
    CuteFault(
        "cute-second-tile-counted-anew", "a CTA's next tile is looked for without the tiles of the experts before",
        "tile search", _SECOND, "mma.py",
        literally(
            "find_tile(groups, experts, number, base, before)", "find_tile(groups, experts, number, base, Int32(0))"
        ),
    ),
    CuteFault(
        "cute-copies-of-a-tile-counted-anew", "the warp that copies looks for its next tile without those before",
        "tile search", _WGMMA_SECOND, "wgmma.py",
        literally(
            "find_tile(groups, experts, number, base, before)\n            # Nobody",
            "find_tile(groups, experts, number, base, Int32(0))\n            # Nobody",
        ),
    ),
    CuteFault(
        "cute-sixteen-weight-scales", "weight rows past the sixteenth tile have the scales of the first ones", "scale",
        "cute_deepseek_gemm:bf16:m2k128n2176e1:near:tile_m=16:seed7@ptx", "mma.py",
        literally("weight_scales[tile_n, block, expert]", "weight_scales[tile_n & 15, block, expert]"),
    ),
    CuteFault(
        "cute-experts-past-the-96th-skipped", "of the experts past the 96th a warp leaves out 32", "tile search",
        _MANY_EXPERTS, "groups.py",
        literally("base += WARP_LANES", "base += WARP_LANES if base < 64 else 2 * WARP_LANES"),
    ),
    CuteFault(
        "cute-ptx-fragment-shifted", "an instruction takes its first tokens twice", "operand fragment", _MMA, "",
        Edit(r"(mma\.sync\.aligned\.m16n8k32[\w.]*\s*\{[^}]*\},\s*\{)(%r\d+), %r\d+,", r"\1\2, \2,", 1, 16),
    ),
)  # fmt: skip
