// The kernels of kernels-gpu/src/w2a8_gemv.rs once more, in CUDA C++: what the Rust compiler's code is
// held against. Same entries, same arguments, same algorithm, so that the benchmark launches either.
//
//     nvcc -O3 -arch=sm_90a -ptx -o w2a8_gemv.ptx benches/cuda/w2a8_gemv.cu
//     cargo xtask bench --bench w2a8_gemv -- --nvcc-ptx w2a8_gemv.ptx

#include <cstdint>

namespace {

constexpr int GROUP = 8;
constexpr int MAX_SEGMENTS = 8;

struct ActStats {
    float scale;
    int32_t sum;
};

struct Segments {
    uint32_t end[MAX_SEGMENTS];
    float scale[MAX_SEGMENTS];
};

struct Args {
    const uint4 *w;
    const uint4 *acts;
    const ActStats *stats;
    float *y;
    uint32_t n;
    uint32_t chunks;
    Segments segments;
    uint32_t room;
};

__device__ __forceinline__ int dp4a_us(uint32_t codes, uint32_t acts, int acc) {
    int sum;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(codes), "r"(acts), "r"(acc));
    return sum;
}

__device__ __forceinline__ void dot_piece(int &acc, uint4 chunk, uint32_t mask, uint4 q) {
    acc = dp4a_us(chunk.x & mask, q.x, acc);
    acc = dp4a_us(chunk.y & mask, q.y, acc);
    acc = dp4a_us(chunk.z & mask, q.z, acc);
    acc = dp4a_us(chunk.w & mask, q.w, acc);
}

// Predicated in PTX, as the Rust kernel's are: an `if` around the load becomes a branch here and there.
__device__ __forceinline__ uint4 load_weights_if(bool there, const uint4 *p) {
    uint4 v;
    asm("{ .reg .pred p; setp.ne.u32 p, %4, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
        " @p ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%5]; }"
        : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
        : "r"(int(there)), "l"(p));
    return v;
}

// Not before the wait for the kernel that makes the activations: `volatile` keeps the order.
__device__ __forceinline__ uint4 load_acts_if(bool there, const uint4 *p) {
    uint4 v;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %4, 0; @p ld.global.v4.b32 {%0, %1, %2, %3}, [%5]; }"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(int(there)), "l"(p));
    return v;
}

template <int STRIDE, int ROWS, int UNROLL>
__device__ __forceinline__ void load_step(uint4 (&step)[UNROLL][ROWS], const uint4 *const (&rows)[ROWS],
                                          uint32_t first, uint32_t chunks) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const uint32_t chunk = first + u * STRIDE;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            step[u][r] = load_weights_if(chunk < chunks, rows[r] + chunk);
        }
    }
}

template <int THREADS, int LANES, int ROWS, int UNROLL, int PARTS>
__device__ __forceinline__ void gemv(const Args &args) {
    constexpr int STRIDE = LANES * PARTS;
    const uint32_t n = args.n, chunks = args.chunks;
    const uint32_t lane = threadIdx.x % LANES, group = threadIdx.x / LANES, own = threadIdx.x % STRIDE;
    const uint32_t row0 = (blockIdx.x * (THREADS / STRIDE) + threadIdx.x / STRIDE) * ROWS;

    const uint4 *rows[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        rows[r] = args.w + size_t(min(row0 + r, n - 1)) * chunks;
    }
    uint4 step[UNROLL][ROWS];
    load_step<STRIDE, ROWS, UNROLL>(step, rows, own, chunks);

    constexpr uint32_t PER_STEP = UNROLL * STRIDE;
    if (ROWS * UNROLL >= 8 || chunks <= 2 * PER_STEP) cudaTriggerProgrammaticLaunchCompletion();
    cudaGridDependencySynchronize();

    const uint4 *acts = args.acts + (own / GROUP * 4 * GROUP + own % GROUP);
    const float scale = args.stats->scale;
    const int sum = args.stats->sum;

    int acc[ROWS][4] = {};
    uint32_t base = 0;
    while (true) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const uint32_t chunk = base + own + u * STRIDE;
            const uint4 *piece = acts + u * STRIDE * 4;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint4 q = load_acts_if(chunk < chunks, piece + j * GROUP);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    dot_piece(acc[r][j], step[u][r], 0x03030303u << (2 * j), q);
                }
            }
        }
        base += PER_STEP;
        if (base >= chunks) break;
        if (base + 2 * PER_STEP >= chunks) cudaTriggerProgrammaticLaunchCompletion();
        acts += UNROLL * STRIDE * 4;
        load_step<STRIDE, ROWS, UNROLL>(step, rows, base + own, chunks);
    }

    int total = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int codes = acc[r][0] + (acc[r][1] >> 2) + (acc[r][2] >> 4) + (acc[r][3] >> 6);
        if (LANES == 32) {
            codes = __reduce_add_sync(0xffffffffu, codes);
        } else {
#pragma unroll
            for (int distance = LANES / 2; distance > 0; distance /= 2) {
                codes += __shfl_xor_sync(0xffffffffu, codes, distance);
            }
        }
        if (lane == r) total = codes - sum;
    }
    if (PARTS > 1) {
        extern __shared__ int sums[];
        const uint32_t part = group % PARTS;
        if (part != 0 && lane < ROWS) sums[group * ROWS + lane] = total + sum;
        __syncthreads();
        if (part != 0) return;
        for (uint32_t other = 1; other < PARTS && lane < ROWS; other++) {
            total += sums[(group + other) * ROWS + lane];
        }
    }
    const uint32_t row = row0 + lane;
    if (lane < ROWS && row < n) {
        float weight = args.segments.scale[0];
#pragma unroll
        for (int i = 1; i < MAX_SEGMENTS; i++) {
            if (row >= args.segments.end[i - 1]) weight = args.segments.scale[i];
        }
        args.y[row] = __fmul_rn(__fdiv_rn(float(total), scale), weight);
    }
}

} // namespace

#define ENTRY(name, threads, lanes, rows, unroll, parts)                                                   \
    extern "C" __global__ void __launch_bounds__(threads) w2a8_gemv_##name(const __grid_constant__ Args args) { \
        gemv<threads, lanes, rows, unroll, parts>(args);                                                    \
    }

ENTRY(l16r1u4, 128, 16, 1, 4, 1)
ENTRY(l16r4u1, 128, 16, 4, 1, 1)
ENTRY(l32r2u2, 128, 32, 2, 2, 1)
ENTRY(l32r2u4, 64, 32, 2, 4, 1)
ENTRY(l32r4u1, 128, 32, 4, 1, 1)
ENTRY(l32r4u2, 64, 32, 4, 2, 1)
ENTRY(l32r4u2p2, 64, 32, 4, 2, 2)
