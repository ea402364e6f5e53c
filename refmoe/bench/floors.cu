// What no kernel can beat: a launch that does nothing, and moving bytes in 16-byte pieces.
#include <cstdint>

extern "C" __global__ void refmoe_bench_empty() {}

/// Reads `count` 16-byte pieces once and writes each `writes` times, to consecutive images of the source: the traffic
/// of a fused expand without its arithmetic.
extern "C" __global__ void refmoe_bench_copy(const uint4* source, uint4* target, int count, int writes) {
    const int piece = blockIdx.x * blockDim.x + threadIdx.x;
    if (piece >= count) return;
    const uint4 value = __ldg(source + piece);
    for (int image = 0; image < writes; ++image) target[static_cast<int64_t>(image) * count + piece] = value;
}

/// Reads `reads` images of `count` 16-byte pieces and writes one: the traffic of an activation, whose inputs are four
/// times as many bytes as its codes, and of the last step, which sums the rows of four experts.
extern "C" __global__ void refmoe_bench_gather(const uint4* source, uint4* target, int count, int reads) {
    const int piece = blockIdx.x * blockDim.x + threadIdx.x;
    if (piece >= count) return;
    uint4 sum{};
#pragma unroll 4
    for (int image = 0; image < reads; ++image) {
        const uint4 value = __ldg(source + static_cast<int64_t>(image) * count + piece);
        sum = {sum.x ^ value.x, sum.y ^ value.y, sum.z ^ value.z, sum.w ^ value.w};
    }
    target[piece] = sum;
}

/// Reads `count` 16-byte pieces once and writes nothing to speak of: the traffic of a product with one activation. Four
/// pieces of a thread are on their way together.
extern "C" __global__ void refmoe_bench_read(const uint4* source, uint32_t* target, int count) {
    constexpr int kPieces = 4;
    const int first = blockIdx.x * blockDim.x * kPieces + threadIdx.x;
    uint32_t mixed = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        const int piece = first + i * static_cast<int>(blockDim.x);
        if (piece >= count) continue;
        const uint4 value = __ldg(source + piece);
        mixed ^= value.x ^ value.y ^ value.z ^ value.w;
    }
    if (mixed == 0x9E3779B9u) *target = mixed;  // so that no load can be left out
}
