// The kernel that a user of the library runs after a product whose sums have a different type, `Sum`: once for each
// such element type (source/tools.py), after tools_of_elements.cu and in its namespace.

using SumBits = Sum::Bits;

// sums [m, n], or [m, 2n] with the gate's half first if gated; row_scale [m], channels as wide as the sums, output [1].
// A pointer is null if there is no such factor.
struct Scaled {
  const SumBits* sums;
  const float* row_scale;
  const float* channels;
  const float* output;
  u32 m, n;
  int activation, gated;
};

template <class Stored, int kWidth>
struct alignas(sizeof(Stored) * kWidth) Vector {
  Stored bits[kWidth];
};

// kWidth adjacent sums of a row, multiplied by their factors.
template <int kWidth>
__device__ __forceinline__ void load_scaled(float (&values)[kWidth], const Scaled& s, u32 row, u32 column) {
  const u32 columns = s.gated ? 2 * s.n : s.n;
  const auto read = *reinterpret_cast<const Vector<SumBits, kWidth>*>(s.sums + static_cast<long long>(row) * columns + column);
  const auto factors = s.channels ? *reinterpret_cast<const Vector<float, kWidth>*>(s.channels + column) : Vector<float, kWidth>{};
  const float of_row = s.row_scale ? s.row_scale[row] : 1.0f;
#pragma unroll
  for (int c = 0; c < kWidth; ++c) values[c] = Sum::widen(read.bits[c]) * of_row * (s.channels ? factors.bits[c] : 1.0f);
}

// Each thread processes kWidth columns of a row at a time; n is a multiple of kWidth.
template <class Out, int kWidth>
__device__ void scale_sums(const Scaled& s, typename Out::Bits* to) {
  using OutVector = Vector<typename Out::Bits, kWidth>;
  const u32 per_row = s.n / kWidth, count = s.m * per_row;
  const float output = s.output ? 1.0f / *s.output : 1.0f;
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const u32 row = i / per_row, column = i % per_row * kWidth;
    float first[kWidth], second[kWidth];
    load_scaled(first, s, row, column);
    if (s.gated) load_scaled(second, s, row, s.n + column);
    OutVector out;
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      const float value = activate(first[c], s.activation) * (s.gated ? second[c] : 1.0f);
      out.bits[c] = static_cast<typename Out::Bits>(Out::narrow(value * output));
    }
    *reinterpret_cast<OutVector*>(to + static_cast<long long>(row) * s.n + column) = out;
  }
}

template <class Out>
__device__ __forceinline__ void scale_all(const Scaled& s, typename Out::Bits* to) {
  if (s.n % 8 == 0) {
    scale_sums<Out, 8>(s, to);
  } else {
    scale_sums<Out, 1>(s, to);
  }
}

// Converts 8 elements at a time to the type of the sums; `count` is a multiple of 8.
extern "C" __global__ void TUNER_KERNEL(tuner_widen_sums)(const Bits* from, SumBits* to, u64 count) {
  const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
  for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count / 8; i += stride) {
    const auto read = reinterpret_cast<const Vector<Bits, 8>*>(from)[i];
    Vector<SumBits, 8> wide;
#pragma unroll
    for (int c = 0; c < 8; ++c) wide.bits[c] = static_cast<SumBits>(Sum::narrow(Element::widen(read.bits[c])));
    reinterpret_cast<Vector<SumBits, 8>*>(to)[i] = wide;
  }
}

// C = activation(sums), times the other half if gated, divided by the output's factor; stored as elements, or in the
// type of the sums.
extern "C" __global__ void TUNER_KERNEL(tuner_scaled)(const SumBits* sums, Bits* out, const float* row_scale,
                                                      const float* channels, const float* output, u32 m, u32 n,
                                                      int activation, int gated) {
  scale_all<Element>({sums, row_scale, channels, output, m, n, activation, gated}, out);
}

extern "C" __global__ void TUNER_KERNEL(tuner_scaled_sums)(const SumBits* sums, SumBits* out, const float* row_scale,
                                                           const float* channels, const float* output, u32 m, u32 n,
                                                           int activation, int gated) {
  scale_all<Sum>({sums, row_scale, channels, output, m, n, activation, gated}, out);
}

// C as above, each group of 128 columns divided by its scale, the largest magnitude over that of an element: `factors`
// [m, n / 128], and in the library's layout [n / 128, room]. A warp computes one group of a row.
extern "C" __global__ void TUNER_KERNEL(tuner_scaled_groups)(const SumBits* sums, Bits* out, const float* row_scale,
                                                             const float* channels, float* factors, float* laid,
                                                             u32 room, u32 m, u32 n, int activation, int gated) {
  const Scaled scaled{sums, row_scale, channels, nullptr, m, n, activation, gated};
  const u32 groups = n / 128, num_warps = gridDim.x * blockDim.x / 32;
  for (u32 i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < m * groups; i += num_warps) {
    const u32 row = i / groups, group = i % groups, column = group * 128 + threadIdx.x % 32 * 4;
    float first[4], second[4];
    load_scaled(first, scaled, row, column);
    if (gated) load_scaled(second, scaled, row, n + column);
    u32 most = __float_as_uint(1e-10f);  // as an integer, so that a NaN is larger than any number
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      first[c] = activate(first[c], activation) * (gated ? second[c] : 1.0f);
      most = max(most, __float_as_uint(first[c]) & 0x7FFFFFFFu);
    }
    for (int distance = 16; distance > 0; distance /= 2) most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, distance));
    const float scale = __uint_as_float(most) / 448.0f;
    if (threadIdx.x % 32 == 0) factors[i] = laid[group * room + row] = scale;
    Vector<Bits, 4> codes;
#pragma unroll
    for (int c = 0; c < 4; ++c) codes.bits[c] = static_cast<Bits>(Element::narrow(__fdividef(first[c], scale)));
    *reinterpret_cast<Vector<Bits, 4>*>(out + static_cast<long long>(row) * n + column) = codes;
  }
}

// Scales [m, groups] in the library's layout [groups, room].
extern "C" __global__ void TUNER_KERNEL(tuner_laid_scales)(const float* factors, float* laid, u32 room, u32 m, u32 groups) {
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < m * groups; i += gridDim.x * blockDim.x)
    laid[i % groups * room + i / groups] = factors[i];
}

// The operands of the addition to a residual stream, and of the stream's next reader; null if missing.
struct Stream {
  const SumBits* residual;
  SumBits* to;
  const float* factors;  // factors of columns, for the operand
  Bits* operand;
  float* scales;  // of the operand's groups of 128 columns: [m, n / 128], and in the library's layout [n / 128, room]
  float* laid;
  u32 room;
  float* norms;  // factors of rows: 1 / sqrt(mean(x^2) + eps)
  float eps;
};

// The scale of the 128 columns that 16 lanes have, which is stored; n is a multiple of 128.
template <int kWidth>
__device__ __forceinline__ float scale_of_lanes(const Stream& stream, const float (&values)[kWidth], u32 row, u32 column,
                                                u32 groups) {
  u32 most = __float_as_uint(1e-10f);  // as an integer, so that a NaN is larger than any number
#pragma unroll
  for (int c = 0; c < kWidth; ++c) most = max(most, __float_as_uint(values[c]) & 0x7FFFFFFFu);
  const u32 lanes = 0xFFFFu << (threadIdx.x & 16);
  for (int distance = 8; distance > 0; distance /= 2) most = max(most, __shfl_xor_sync(lanes, most, distance));
  const float scale = __uint_as_float(most) / 448.0f;
  const u32 group = column / 128;
  if (column % 128 == 0) stream.scales[row * groups + group] = stream.laid[group * stream.room + row] = scale;
  return scale;
}

// One CTA per row: C = sums + residual, the operand of the next products, and the factor of the row's norm. kWidth
// columns at a time.
template <int kWidth>
__device__ void add_to_stream(const Scaled& s, const Stream& stream) {
  __shared__ float of_warp[32];
  const u32 row = blockIdx.x;
  float total = 0.0f;
  for (u32 column = threadIdx.x * kWidth; column < s.n; column += blockDim.x * kWidth) {
    const long long at = static_cast<long long>(row) * s.n + column;
    float values[kWidth];
    load_scaled(values, s, row, column);
    const auto more = stream.residual ? *reinterpret_cast<const Vector<SumBits, kWidth>*>(stream.residual + at) : Vector<SumBits, kWidth>{};
    Vector<SumBits, kWidth> out;
    Vector<Bits, kWidth> operand;
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      const float value = values[c] + Sum::widen(more.bits[c]);
      out.bits[c] = static_cast<SumBits>(Sum::narrow(value));
      total += Sum::widen(out.bits[c]) * Sum::widen(out.bits[c]);
      values[c] = stream.operand ? value * stream.factors[column + c] : 0.0f;
    }
    const float scale = stream.scales ? scale_of_lanes(stream, values, row, column, s.n / 128) : 1.0f;
#pragma unroll
    for (int c = 0; c < kWidth; ++c) operand.bits[c] = narrow(stream.scales ? __fdividef(values[c], scale) : values[c]);
    *reinterpret_cast<Vector<SumBits, kWidth>*>(stream.to + at) = out;
    if (stream.operand) *reinterpret_cast<Vector<Bits, kWidth>*>(stream.operand + at) = operand;
  }
  for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(0xFFFFFFFFu, total, distance);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x != 0 || !stream.norms) return;
  total = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) total += of_warp[warp];
  stream.norms[row] = rsqrtf(__fdividef(total, static_cast<float>(s.n)) + stream.eps);
}

extern "C" __global__ void TUNER_KERNEL(tuner_scaled_stream)(const SumBits* sums, SumBits* out, const float* row_scale,
                                                             const float* channels, const SumBits* residual,
                                                             const float* factors, Bits* operand, float* scales,
                                                             float* laid, float* norms, float eps, u32 room, u32 m,
                                                             u32 n) {
  const Scaled scaled{sums, row_scale, channels, nullptr, m, n, 0, 0};
  const Stream stream{residual, out, factors, operand, scales, laid, room, norms, eps};
  if (n % 8 == 0) {
    add_to_stream<8>(scaled, stream);
  } else {
    add_to_stream<1>(scaled, stream);
  }
}
