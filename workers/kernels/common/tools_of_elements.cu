// The part of the measuring protocol's helpers that reads and writes elements: compiled once for each type
// (source/tools.py), each time in a separate namespace, preceded by `Element` and by `TUNER_KERNEL`, which appends the
// type's name to a kernel's name.

using Bits = Element::Bits;

__device__ __forceinline__ Bits narrow(float value) { return static_cast<Bits>(Element::narrow(value)); }

// sums [m, n], or [m, 2n] with the gate's half first if gated; out, residual [m, n]; bias as wide as the sums;
// row_scale [m]. Null if there is none.
struct Epilogue {
  const Bits* sums;
  Bits* out;
  const Bits* bias;
  const Bits* residual;
  const float* row_scale;
  u32 m, n;
  int activation, gated;
};

// kWidth adjacent elements, in one access.
template <int kWidth>
struct alignas(sizeof(Bits) * kWidth) Elements {
  Bits bits[kWidth];
};

template <int kWidth>
__device__ __forceinline__ Elements<kWidth> load(const Bits* address) {
  return *reinterpret_cast<const Elements<kWidth>*>(address);
}

// Each thread processes kWidth columns of a row at a time; n is a multiple of kWidth.
template <int kWidth>
__device__ void apply_epilogue(const Epilogue& e) {
  using Vector = Elements<kWidth>;
  const u32 per_row = e.n / kWidth, count = e.m * per_row;
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const u32 row = i / per_row, column = i % per_row * kWidth;
    const long long at = static_cast<long long>(row) * e.n + column;
    const Bits* sums = e.sums + (e.gated ? at + static_cast<long long>(row) * e.n : at);
    const Vector first = load<kWidth>(sums), second = e.gated ? load<kWidth>(sums + e.n) : Vector{};
    const Vector first_bias = e.bias ? load<kWidth>(e.bias + column) : Vector{};
    const Vector second_bias = e.bias && e.gated ? load<kWidth>(e.bias + e.n + column) : Vector{};
    const Vector residual = e.residual ? load<kWidth>(e.residual + at) : Vector{};
    const float scale = e.row_scale ? e.row_scale[row] : 1.0f;
    Vector out;
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      float value = activate(scale * Element::widen(first.bits[c]) + Element::widen(first_bias.bits[c]), e.activation);
      if (e.gated) value *= scale * Element::widen(second.bits[c]) + Element::widen(second_bias.bits[c]);
      out.bits[c] = narrow(value + Element::widen(residual.bits[c]));
    }
    *reinterpret_cast<Vector*>(e.out + at) = out;
  }
}

// The operations that the library's own epilogue does not have, in one pass: C = activation(s sums + bias), times the
// other half if gated, plus the residual. In place if it is not gated.
extern "C" __global__ void TUNER_KERNEL(tuner_epilogue)(const Bits* sums, Bits* out, const Bits* bias,
                                                        const Bits* residual, const float* row_scale, u32 m, u32 n,
                                                        int activation, int gated) {
  const Epilogue e{sums, out, bias, residual, row_scale, m, n, activation, gated};
  if (n % 8 == 0) {
    apply_epilogue<8>(e);
  } else {
    apply_epilogue<1>(e);
  }
}

// Converts elements to a type that the library supports, and back.
extern "C" __global__ void TUNER_KERNEL(tuner_widen)(const Bits* from, float* to, u64 count) {
  const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
  for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) to[i] = Element::widen(from[i]);
}

extern "C" __global__ void TUNER_KERNEL(tuner_narrow)(const float* from, Bits* to, u64 count) {
  const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
  for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) to[i] = narrow(from[i]);
}

// The kernel that a user of the library runs after the product that computes queries, keys and values: sums [m, 2n] has
// the first halves of all heads, then the second halves. Rotates queries and keys by position * frequency, and writes
// keys and values to the cache or its pages.
struct Rotary {
  const Bits* sums;
  Bits *q, *keys, *values;
  const int *lengths, *pages;  // null if the cache is contiguous
  const float* frequencies;
  u32 m;
  int heads, kv_heads, head_dim, max_length, new_tokens, page_tokens, heads_first, num_pages;
};

// The line of a KV head for a token; negative if there is none.
__device__ long long line_of(const Rotary& r, int sequence, int kv_head, int position) {
  if (position < 0 || position >= r.max_length) return -1;
  if (r.pages == nullptr) return (static_cast<long long>(sequence) * r.kv_heads + kv_head) * r.max_length + position;
  const int max_pages = (r.max_length + r.page_tokens - 1) / r.page_tokens, in_page = position % r.page_tokens;
  const long long page = r.pages[static_cast<long long>(sequence) * max_pages + position / r.page_tokens];
  if (page < 0 || page >= r.num_pages) return -1;
  const long long first = r.heads_first ? page * r.kv_heads + kv_head : page * r.page_tokens + in_page;
  return r.heads_first ? first * r.page_tokens + in_page : first * r.kv_heads + kv_head;
}

// Each thread processes 8 pairs of a head.
__device__ void turn_and_append(const Rotary& r) {
  using Vector = Elements<8>;
  const u32 half = r.head_dim / 2, n = (r.heads + 2 * r.kv_heads) * half;
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x, row = i / (n / 8), column = i % (n / 8) * 8;
  if (row >= r.m) return;
  const Bits* sums = r.sums + 2ll * row * n + column;
  Vector x = load<8>(sums), y = load<8>(sums + n);
  const int head = column / half, pair = column % half, kept = head - r.heads;
  const int sequence = row / r.new_tokens, position = r.lengths[sequence] - r.new_tokens + static_cast<int>(row % r.new_tokens);
  if (kept < r.kv_heads) {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      float sine, cosine;
      sincosf(static_cast<float>(position) * r.frequencies[pair + c], &sine, &cosine);
      const float old_x = Element::widen(x.bits[c]), old_y = Element::widen(y.bits[c]);
      x.bits[c] = narrow(old_x * cosine - old_y * sine);
      y.bits[c] = narrow(old_y * cosine + old_x * sine);
    }
  }
  Bits* to = r.q + (static_cast<long long>(row) * r.heads + head) * r.head_dim + pair;
  if (kept >= 0) {
    const long long line = line_of(r, sequence, kept % r.kv_heads, position);
    if (line < 0) return;
    to = (kept < r.kv_heads ? r.keys : r.values) + line * r.head_dim + pair;
  }
  *reinterpret_cast<Vector*>(to) = x;
  *reinterpret_cast<Vector*>(to + half) = y;
}

extern "C" __global__ void __launch_bounds__(128)
    TUNER_KERNEL(tuner_rotary)(const Bits* sums, Bits* q, Bits* keys, Bits* values, const int* lengths, const int* pages,
                               const float* frequencies, u32 m, int heads, int kv_heads, int head_dim, int max_length,
                               int new_tokens, int page_tokens, int heads_first, int num_pages) {
  const Rotary r{sums, q, keys, values, lengths, pages, frequencies, m, heads, kv_heads, head_dim, max_length, new_tokens,
                 page_tokens, heads_first, num_pages};
  turn_and_append(r);
}

// RMSNorm of the rows of x [m, k], or of x + residual, one CTA per row: normed = x / sqrt(mean(x^2) + eps). With a
// residual, the rounded sum is stored in `added`, and its rounded values are normed. Each thread processes kWidth
// elements, kTimes times.
template <int kWidth, int kTimes>
__device__ void norm_row(const Bits* x, const Bits* residual, Bits* added, Bits* normed, u32 k, float eps) {
  using Vector = Elements<kWidth>;
  __shared__ float of_warp[32];
  const long long first = static_cast<long long>(blockIdx.x) * k;
  Vector held[kTimes];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const u32 column = (threadIdx.x + i * blockDim.x) * kWidth;
    held[i] = Vector{};
    if (column >= k) continue;
    held[i] = load<kWidth>(x + first + column);
    if (residual != nullptr) {
      const Vector more = load<kWidth>(residual + first + column);
#pragma unroll
      for (int c = 0; c < kWidth; ++c)
        held[i].bits[c] = narrow(Element::widen(held[i].bits[c]) + Element::widen(more.bits[c]));
      *reinterpret_cast<Vector*>(added + first + column) = held[i];
    }
#pragma unroll
    for (int c = 0; c < kWidth; ++c) sum += Element::widen(held[i].bits[c]) * Element::widen(held[i].bits[c]);
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += of_warp[warp];
  const float factor = rsqrtf(__fdividef(sum, static_cast<float>(k)) + eps);
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const u32 column = (threadIdx.x + i * blockDim.x) * kWidth;
    if (column >= k) continue;
#pragma unroll
    for (int c = 0; c < kWidth; ++c) held[i].bits[c] = narrow(factor * Element::widen(held[i].bits[c]));
    *reinterpret_cast<Vector*>(normed + first + column) = held[i];
  }
}

// A library's kernel between products. Rows have up to 32,768 columns if these are a multiple of 8, otherwise up to
// 4,096. The CTA has a multiple of 32 threads, enough for a quarter of the row.
extern "C" __global__ void __launch_bounds__(1024)
    TUNER_KERNEL(tuner_norm)(const Bits* x, const Bits* residual, Bits* added, Bits* normed, u32 k, float eps) {
  const bool is_one = blockDim.x * 8 >= k;
  if (k % 8 != 0) {
    norm_row<1, 4>(x, residual, added, normed, k, eps);
  } else if (is_one) {
    norm_row<8, 1>(x, residual, added, normed, k, eps);
  } else {
    norm_row<8, 4>(x, residual, added, normed, k, eps);
  }
}

// Sums of the squares of the rows of x [m, k], one CTA per row: the additional input of a normed op. If launched
// programmatically, the next launch may begin immediately.
extern "C" __global__ void __launch_bounds__(1024) TUNER_KERNEL(tuner_squares)(const Bits* x, float* squares, u32 k) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  __shared__ float of_warp[32];
  const Bits* row = x + static_cast<long long>(blockIdx.x) * k;
  float sum = 0.0f;
  const auto add = [&](Bits bits) {
    const float value = Element::widen(bits);
    sum += value * value;
  };
  if (k % 8 == 0) {
    for (u32 column = 8 * threadIdx.x; column < k; column += 8 * blockDim.x) {
      const Elements<8> eight = load<8>(row + column);
#pragma unroll
      for (int c = 0; c < 8; ++c) add(eight.bits[c]);
    }
  } else {
    for (u32 column = threadIdx.x; column < k; column += blockDim.x) add(row[column]);
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += of_warp[warp];
  squares[blockIdx.x] = sum;
}

__device__ __forceinline__ float over_cta(float value, bool is_sum, float* of_warp) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, value, distance);
    value = is_sum ? value + other : fmaxf(value, other);
  }
  __syncthreads();  // the result of an earlier call is read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warp[0];
  for (int warp = 1; warp < blockDim.x / 32; ++warp) value = is_sum ? value + of_warp[warp] : fmaxf(value, of_warp[warp]);
  return value;
}

// weights = softmax(scale * scores) over the tokens that a query sees, and zero elsewhere; one CTA per query. Both are
// [sequences, KV heads, new tokens, query heads that share one, max_length]. A window of 0 means no window. A positive
// cap replaces each scaled score by cap * tanh(score / cap).
extern "C" __global__ void __launch_bounds__(1024)
    TUNER_KERNEL(tuner_softmax)(const float* scores, Bits* weights, const int* lengths, int max_length, int new_tokens,
                                int query_heads, int num_kv_heads, float scale, int window, float cap) {
  __shared__ float of_warp[32];
  const int columns = new_tokens * query_heads;
  const int sequence = blockIdx.x / (columns * num_kv_heads), token = blockIdx.x % columns / query_heads;
  const int seen = min(max(lengths[sequence] - new_tokens + 1 + token, 0), max_length);
  const int first = window > 0 ? max(seen - window, 0) : 0;
  const float* row = scores + static_cast<long long>(blockIdx.x) * max_length;
  Bits* out = weights + static_cast<long long>(blockIdx.x) * max_length;
  const auto score = [=](int place) { return cap > 0 ? cap * tanhf(scale * row[place] / cap) : scale * row[place]; };
  float most = -3.0e38f, sum = 0.0f;
  for (int place = first + threadIdx.x; place < seen; place += blockDim.x) most = fmaxf(most, score(place));
  most = over_cta(most, false, of_warp);
  for (int place = first + threadIdx.x; place < seen; place += blockDim.x) sum += __expf(score(place) - most);
  sum = over_cta(sum, true, of_warp);
  for (int place = threadIdx.x; place < max_length; place += blockDim.x) {
    const float weight = first <= place && place < seen ? __expf(score(place) - most) / sum : 0.0f;
    out[place] = narrow(weight);
  }
}

// Compares an output with its reference.
struct Comparison {
  u64 num_bad, first_bad;
  double difference, wanted;  // sums of squares
};

__device__ void compare(const Bits* got, const double* want, const float* tolerance, u64 count, Comparison* out) {
  const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
  u64 num_bad = 0, first_bad = ~0ull;
  double difference = 0.0, wanted = 0.0;
  for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const double off = fabs(static_cast<double>(Element::widen(got[i])) - want[i]);
    if (!(off <= static_cast<double>(tolerance[i]))) {  // a NaN is wrong
      ++num_bad;
      if (i < first_bad) first_bad = i;
    }
    difference += off * off;
    wanted += want[i] * want[i];
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    num_bad += __shfl_down_sync(0xFFFFFFFFu, num_bad, offset);
    const u64 other = __shfl_down_sync(0xFFFFFFFFu, first_bad, offset);
    if (other < first_bad) first_bad = other;
    difference += __shfl_down_sync(0xFFFFFFFFu, difference, offset);
    wanted += __shfl_down_sync(0xFFFFFFFFu, wanted, offset);
  }
  if (threadIdx.x % 32 != 0) return;
  if (num_bad > 0) {
    atomicAdd(&out->num_bad, num_bad);
    atomicMin(&out->first_bad, first_bad);
  }
  atomicAdd(&out->difference, difference);
  atomicAdd(&out->wanted, wanted);
}

// `out` begins as {0, ~0, 0, 0}.
extern "C" __global__ void TUNER_KERNEL(tuner_compare)(const Bits* got, const double* want, const float* tolerance,
                                                       u64 count, Comparison* out) {
  compare(got, want, tolerance, count, out);
}

// Counts how many of `count` elements differ in any bit; `num_different` must be 0 before.
extern "C" __global__ void TUNER_KERNEL(tuner_count_different)(const Bits* one, const Bits* other, u64 count,
                                                               u64* num_different) {
  const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
  u64 found = 0;
  for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    found += one[i] != other[i];
  }
  for (int offset = 16; offset > 0; offset /= 2) found += __shfl_down_sync(0xFFFFFFFFu, found, offset);
  if (threadIdx.x % 32 == 0 && found > 0) atomicAdd(num_different, found);
}
