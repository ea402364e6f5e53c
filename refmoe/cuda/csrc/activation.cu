// SwiGLU between the two GEMMs of an expert, quantized to MXFP8 on the way, scales in the layout of the second GEMM.
//
//      gpt_oss   g = min(gate, limit)   u = clamp(up, -limit, limit)   out = (g / (1 + exp(-alpha g))) * (u + beta)
//      silu      g = gate               u = up                         out = (g / (1 + exp(-g))) * u
//
// where x / (1 + e) is x * RN(1 / (1 + e)); everything in FP32, each operation rounded, and quantized from FP32: no
// 16-bit format in between.
//
// A CTA takes one row at a time, a lane 16 results and so 16 gates and 16 ups, BF16:
//
//      gpt_oss   | g0 u0 g1 u1 ... g15 u15 |           one stretch of 64 bytes, a 32-bit word holds a pair
//      silu      | g0 g1 ... g15 | ... | u0 ... u15 |  two stretches of 32 bytes, `width` elements apart
//
// Rows that no expert has, and scale rows that no row has, are neither read nor written.
#include "expert_maps.cuh"
#include "exponential.cuh"
#include "mxfp8_encode.cuh"
#include "swiglu.cuh"
#include "swiglu_estimate.cuh"

namespace refmoe {

constexpr int kLaneWords = kLaneElements;                      // a word holds two of the lane's inputs
constexpr int kWordsPerPiece = 4;
constexpr int kLanePieces = kLaneWords / kWordsPerPiece;

// CTAs of a multiprocessor whose threads the registers must suffice for. Left to choose, which is what 0 says, ptxas finds
// the fastest count on SM90; for SM12x it aims at more CTAs than it has registers for, and spills.
#if __CUDA_ARCH__ >= 1200
constexpr int kResidentCtas = 1;
#else
constexpr int kResidentCtas = 0;
#endif

/// The 32 BF16 inputs of a lane: for gpt_oss pairs of gate and up, for silu 16 gates, then 16 ups.
struct GateUp {
    uint32_t words[kLaneWords];
};

/// Where a lane's pieces of a row are.
struct Pieces {
    const uint4 *first, *second;  // halves of kLanePieces

    __device__ __forceinline__ void load(GateUp& loaded, int i) const {
        constexpr int kHalf = kLanePieces / 2;
        const uint4 piece = __ldg(i < kHalf ? first + i : second + (i - kHalf));
        loaded.words[kWordsPerPiece * i] = piece.x;
        loaded.words[kWordsPerPiece * i + 1] = piece.y;
        loaded.words[kWordsPerPiece * i + 2] = piece.z;
        loaded.words[kWordsPerPiece * i + 3] = piece.w;
    }

    __device__ __forceinline__ void load(GateUp& loaded) const {
#pragma unroll
        for (int i = 0; i < kLanePieces; ++i) load(loaded, i);
    }
};

/// Those of row `row` of a matrix of rows of `4 * lanes` pieces.
template <Variant variant>
__device__ __forceinline__ Pieces lane_pieces(const uint4* rows, int row, int lane, int lanes) {
    constexpr int kHalf = kLanePieces / 2;
    const uint4* const pieces = rows + static_cast<int64_t>(row) * kLanePieces * lanes;
    if constexpr (variant == Variant::kGptOss) return {pieces + kLanePieces * lane, pieces + kLanePieces * lane + kHalf};
    return {pieces + kHalf * lane, pieces + kHalf * (lanes + lane)};
}

/// Gate and up of result `i`, as x and y.
template <Variant variant>
__device__ __forceinline__ float2 gate_up(const GateUp& loaded, int i) {
    if constexpr (variant == Variant::kGptOss) return Bf16::to_float2(loaded.words[i]);
    const float2 gates = Bf16::to_float2(loaded.words[i / 2]);
    const float2 ups = Bf16::to_float2(loaded.words[kLaneWords / 2 + i / 2]);
    return i % 2 == 0 ? float2{gates.x, ups.x} : float2{gates.y, ups.y};
}

__device__ __forceinline__ float2 sum(float2 a, float2 b) { return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y)}; }

/// The expert maps and what goes with an expert.
struct Experts {
    const int64_t* offsets;  // [experts + 1] first row of each expert
    const uint4* bias;       // [experts, 2 * width] BF16, laid out as the rows, or null
    Shapes shapes;
    int experts;
};

/// A lane's place in the walk over rows: a wide row takes several rounds of the CTA.
struct Place {
    int row, lane;

    __device__ __forceinline__ Place next(int padded_lanes) const {
        const int beside = lane + static_cast<int>(blockDim.x);
        if (beside < padded_lanes) return {row, beside};
        return {row + 1, static_cast<int>(threadIdx.x)};
    }
};

/// An expert and its rows, [first_row, end).
struct ExpertRows {
    int expert, first_row, end;
    Shape shape;
    float exponent_factor;
};

/// That of a row in use.
template <Variant variant>
__device__ __forceinline__ ExpertRows find_expert(const Experts& experts, int row) {
    const int expert = expert_of_row(experts.offsets, experts.experts, row);
    const Shape shape = experts.shapes.of(expert);
    return {expert, static_cast<int>(__ldg(experts.offsets + expert)),
            static_cast<int>(__ldg(experts.offsets + expert + 1)), shape, exponent_factor<variant>(shape)};
}

/// A lane's results are made in parts, each from whole pieces: for gpt_oss 4 from one, for silu 8 from a piece of gates
/// and one of ups. As soon as a part is made, its pieces of the next row are on their way into the same registers.
template <Variant variant>
constexpr int kPart = variant == Variant::kGptOss ? 4 : 8;

template <Variant variant>
__device__ __forceinline__ void load_part(GateUp& loaded, const Pieces& from, int part) {
    if constexpr (variant == Variant::kGptOss) {
        from.load(loaded, part);
    } else {
        from.load(loaded, part);
        from.load(loaded, kLanePieces / 2 + part);
    }
}

/// The results of a lane, each part by make(made, pairs); `loaded` becomes that of the next row, if `more`.
template <Variant variant, class Make>
__device__ __forceinline__ void lane_results(float (&results)[kLaneElements], GateUp& loaded, const GateUp* bias,
                                             const Pieces& next, bool more, const Make& make) {
    constexpr int kCount = kPart<variant>;
#pragma unroll
    for (int part = 0; part < kLaneElements / kCount; ++part) {
        float2 pairs[kCount];
        float made[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) pairs[i] = gate_up<variant>(loaded, part * kCount + i);
        if (more) load_part<variant>(loaded, next, part);
        if (bias) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) pairs[i] = sum(pairs[i], gate_up<variant>(*bias, part * kCount + i));
        }
        make(made, pairs);
#pragma unroll
        for (int i = 0; i < kCount; ++i) results[part * kCount + i] = made[i];
    }
}

constexpr int kQuarter = kLaneElements / 4;  // results whose codes share a word

/// Gates and ups of a quarter of a lane, from memory.
template <Variant variant>
__device__ __forceinline__ void load_quarter(float2 (&pairs)[kQuarter], const Pieces& from, int quarter) {
    if constexpr (variant == Variant::kGptOss) {
        const uint4 piece = __ldg(from.first + quarter);  // the halves of a lane are one stretch
        const uint32_t words[kQuarter] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (int i = 0; i < kQuarter; ++i) pairs[i] = Bf16::to_float2(words[i]);
    } else {
        const uint2 gates = __ldg(reinterpret_cast<const uint2*>(from.first) + quarter);
        const uint2 ups = __ldg(reinterpret_cast<const uint2*>(from.second) + quarter);
        const float2 g[2] = {Bf16::to_float2(gates.x), Bf16::to_float2(gates.y)};
        const float2 u[2] = {Bf16::to_float2(ups.x), Bf16::to_float2(ups.y)};
#pragma unroll
        for (int i = 0; i < kQuarter / 2; ++i) {
            pairs[2 * i] = {g[i].x, u[i].x};
            pairs[2 * i + 1] = {g[i].y, u[i].y};
        }
    }
}

/// A lane's row once more, for what an estimate does not prove: its gates and ups are read again.
template <Variant variant>
struct Again {
    Pieces row, bias;
    bool biased;
    Shape shape;

    /// The defined results of a quarter.
    __device__ __forceinline__ void results(float (&made)[kQuarter], int quarter) const {
        float2 pairs[kQuarter];
        load_quarter<variant>(pairs, row, quarter);
        if (biased) {
            float2 terms[kQuarter];
            load_quarter<variant>(terms, bias, quarter);
#pragma unroll
            for (int i = 0; i < kQuarter; ++i) pairs[i] = sum(pairs[i], terms[i]);
        }
        swiglu<variant>(made, pairs, shape);
    }

    /// Codes of a quarter under a scale that is proved.
    __device__ __forceinline__ uint32_t codes(int quarter, float factor) const {
        float made[kQuarter];
        results(made, quarter);
        return plain_codes(made, factor);
    }

    /// All of it. All lanes of the warp take part; those past the end of a row, not `inside`, encode zeros.
    template <ScaleMode mode, EdgePolicy edge>
    __device__ __forceinline__ Encoded encoded(bool inside) const {
        float all[kLaneElements] = {};
        if (inside) {
#pragma unroll
            for (int quarter = 0; quarter < kLaneElements / kQuarter; ++quarter) {
                float made[kQuarter];
                results(made, quarter);
#pragma unroll
                for (int i = 0; i < kQuarter; ++i) all[quarter * kQuarter + i] = made[i];
            }
        }
        return encode<mode, edge>(all);
    }
};

/// Codes and scale of a lane's results: the estimates' where all lanes of the warp have proved theirs. Else the words of
/// four codes that any lane has in doubt are made again by all, or everything is if it is a scale.
template <ScaleMode mode, EdgePolicy edge, class MakeAgain>
__device__ __forceinline__ Encoded proved(const Bracket& found, bool inside, const MakeAgain& make_again) {
    Encoded encoded{{found.below[0], found.below[1], found.below[2], found.below[3]}, found.scale.byte};
    const uint32_t differing = (found.below[0] ^ found.above[0]) | (found.below[1] ^ found.above[1]) |
                               (found.below[2] ^ found.above[2]) | (found.below[3] ^ found.above[3]);
    if (!__any_sync(kFullWarp, inside && (differing != 0 || !found.scale_proved))) return encoded;
    const auto again = make_again();
    if (__any_sync(kFullWarp, inside && !found.scale_proved)) return again.template encoded<mode, edge>(inside);
    uint32_t doubts = __reduce_or_sync(kFullWarp, inside ? found.doubts() : 0);
    while (doubts != 0) {
        const int quarter = __ffs(static_cast<int>(doubts)) - 1;
        doubts &= doubts - 1;
        if (!inside) continue;
        const uint32_t word = again.codes(quarter, found.scale.factor);
        encoded.codes.x = quarter == 0 ? word : encoded.codes.x;
        encoded.codes.y = quarter == 1 ? word : encoded.codes.y;
        encoded.codes.z = quarter == 2 ? word : encoded.codes.z;
        encoded.codes.w = quarter == 3 ? word : encoded.codes.w;
    }
    return encoded;
}

/// A CTA's rows, [begin, end), of which it takes one at a time.
struct Rows {
    const uint4* inputs;
    uint4* codes;
    uint8_t* scales;
    int begin, end, lanes, groups;
};

/// Makes them, by estimates or by the written sequence at once.
template <Variant variant, ScaleMode mode, EdgePolicy edge, ScaleLayout layout, bool estimated>
__device__ __forceinline__ void make_rows(const Rows& rows, const Experts& experts) {
    const int lanes = rows.lanes, padded_lanes = whole_warps(lanes);
    Place place{rows.begin, static_cast<int>(threadIdx.x)};
    const auto pieces = [&](const Place& at) { return lane_pieces<variant>(rows.inputs, at.row, at.lane, lanes); };
    GateUp loaded{};
    if (place.lane < lanes) pieces(place).load(loaded);
    ExpertRows of{};
    while (place.row < rows.end) {
        const Place next = place.next(padded_lanes);
        if (place.row >= of.end) of = find_expert<variant>(experts, place.row);
        const bool inside = place.lane < lanes, more = next.row < rows.end && next.lane < lanes;
        float results[kLaneElements];
        Estimates all{};
        const auto make = [&](const GateUp* bias) {
            // Ahead only where there are estimates: else there seldom is a next row.
            lane_results<variant>(results, loaded, bias, pieces(next), estimated && more,
                                  [&](auto& made, const auto& pairs) {
                                      if constexpr (estimated)
                                          estimate<variant>(made, all, pairs, of.shape, of.exponent_factor);
                                      else
                                          swiglu<variant>(made, pairs, of.shape);
                                  });
        };
        if (experts.bias) {
            GateUp bias{};
            if (inside) lane_pieces<variant>(experts.bias, of.expert, place.lane, lanes).load(bias);
            make(&bias);
        } else {
            make(nullptr);
        }
        Encoded encoded;
        if constexpr (estimated) {
            encoded = proved<mode, edge>(bracket<mode>(results, all), inside, [&] {
                return Again<variant>{pieces(place), lane_pieces<variant>(experts.bias, of.expert, place.lane, lanes),
                                      experts.bias != nullptr, of.shape};
            });
        } else {
            encoded = encode<mode, edge>(results);
        }
        if (inside) rows.codes[static_cast<int64_t>(place.row) * lanes + place.lane] = encoded.codes;
        const uint32_t word = group_scale_word(inside ? encoded.scale : 0);
        const int group = place.lane / kGroupLanes;
        if (place.lane % kGroupLanes == 0 && group < rows.groups) {
            const int scale_row = expert_scale_row(of.first_row, of.expert) + place.row - of.first_row;
            store_scale_word<layout>(rows.scales, scale_row, group, rows.groups, word);
        }
        if (!estimated && more) pieces(next).load(loaded);
        place = next;
    }
}

/// Up to so many rows, if each has a CTA of its own, latency counts and not how many instructions there are: a row whose
/// estimates are not proved would be waited for. Of 32 rows of 2880 results every third has a warp with such an estimate.
constexpr int kFewRows = 256;

/// A CTA has consecutive rows, so that it seldom has to ask for an expert.
template <Variant variant, ScaleMode mode, EdgePolicy edge, ScaleLayout layout>
__device__ __forceinline__ void swiglu_quantize(const uint4* __restrict__ inputs, const Experts& experts,
                                                uint4* __restrict__ codes, uint8_t* __restrict__ scales, int row_count,
                                                int lanes, int groups) {
    const int used = min(row_count, static_cast<int>(__ldg(experts.offsets + experts.experts)));
    const int share = (used + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
    const int begin = min(static_cast<int>(blockIdx.x) * share, used), end = min(begin + share, used);
    if (begin >= end) return;
    const Rows rows{inputs, codes, scales, begin, end, lanes, groups};
    if (share == 1 && used <= kFewRows)
        make_rows<variant, mode, edge, layout, false>(rows, experts);
    else
        make_rows<variant, mode, edge, layout, true>(rows, experts);
}

}  // namespace refmoe

// Entries: refmoe_swiglu_<variant>_<mode>_<edge>_<layout>. Every pointer to codes or BF16 is 16-byte aligned.
//   gate_up             [rows, 2 * width] BF16, sorted by expert; width a multiple of 32
//   offsets             [experts + 1] first row of each expert, then the rows in use
//   bias                [experts, 2 * width] BF16, or null
//   alpha, beta, limit  [experts] FP32, or null for the figure of gpt-oss; not read by silu
//   codes               [rows, width] E4M3
//   scales              E8M0, whole atoms of align128(rows + 127 * experts) rows
//   lanes               width / 16, what one row takes
//   groups              ceil(width / 128), the scale words of one row
#define REFMOE_ENTRY(variant, Variant_, mode, Mode, edge, Edge, layout, Layout)                                        \
    extern "C" __global__ void __launch_bounds__(refmoe::kMaxRowThreads, refmoe::kResidentCtas)                        \
        refmoe_swiglu_##variant##_##mode##_##edge##_##layout(                                                          \
            const uint4* gate_up, const int64_t* offsets, const uint4* bias, const float* alpha, const float* beta,    \
            const float* limit, uint4* codes, uint8_t* scales, int rows, int experts, int lanes, int groups) {         \
        const refmoe::Experts all{offsets, bias, {alpha, beta, limit}, experts};                                       \
        refmoe::swiglu_quantize<refmoe::Variant::Variant_, refmoe::ScaleMode::Mode, refmoe::EdgePolicy::Edge,          \
                                refmoe::ScaleLayout::Layout>(gate_up, all, codes, scales, rows, lanes, groups);        \
    }
#define REFMOE_LAYOUTS(...)                    \
    REFMOE_ENTRY(__VA_ARGS__, 128x4, k128x4) \
    REFMOE_ENTRY(__VA_ARGS__, 8x4, k8x4)
#define REFMOE_POLICIES(...)                                            \
    REFMOE_LAYOUTS(__VA_ARGS__, rceil, kRceil, exact, kExact)           \
    REFMOE_LAYOUTS(__VA_ARGS__, rceil, kRceil, flashinfer, kFlashinfer) \
    REFMOE_LAYOUTS(__VA_ARGS__, floor, kFloor, exact, kExact)           \
    REFMOE_LAYOUTS(__VA_ARGS__, floor, kFloor, flashinfer, kFlashinfer)

REFMOE_POLICIES(gpt_oss, kGptOss)
REFMOE_POLICIES(silu, kSilu)
