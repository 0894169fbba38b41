// Helpers of the measuring protocol; never part of a candidate. source/tools.py puts ptx.cuh and `activate` (by an
// activation's number) before them, and tools_of_elements.cu after them, once for each element type.

// Keeps the stream busy for `cycles` of the SM clock, so that the host's launch latency does not affect the following
// launches.
extern "C" __global__ void tuner_delay(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

// Reads each SM's cycle counter and the global timer: out[smid] = {sample, cycles, ns}. One CTA per SM on an idle card;
// an SM without a CTA keeps an older sample's number, so that the host ignores it. Two readings of one SM give its mean
// clock between them: the counter is not reset between kernels.
extern "C" __global__ void tuner_read_clocks(u64* out, u32 num_slots, u64 sample) {
  u32 sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (threadIdx.x != 0 || sm >= num_slots) return;
  u64 cycles, ns;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  out[3 * sm] = sample;
  out[3 * sm + 1] = cycles;
  out[3 * sm + 2] = ns;
}

// Reads `count` 16-byte vectors, to evict the previous content of the L2; the sum prevents the compiler from removing
// the loads.
extern "C" __global__ void tuner_flush(const uint4* buffer, long long count, u32* sink) {
  u32 sum = 0;
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint4 v = buffer[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x5EED5EEDu) *sink = sum;
}

// A known-good kernel: out[i] = 3 i + seed. It runs after a kill, before the next candidate.
extern "C" __global__ void tuner_probe(u32* out, u32 count, u32 seed) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 3 * i + seed;
}

__device__ __forceinline__ u64 mix(u64 value, u64 place) {
  u64 x = value + (place + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9ull;
  return x ^ (x >> 32);
}

// One fingerprint per region of memory: sums[blockIdx.y] += the mix of each of its 8-byte words with the word's
// position. The table has the address and the size in bytes of each region; bytes before the first aligned word and
// after the last one are mixed one by one. `sums` must be zero before.
extern "C" __global__ void tuner_fingerprint(const u64* table, u64* sums) {
  const u64 address = table[2 * blockIdx.y], size = table[2 * blockIdx.y + 1];
  const u64 to_aligned = (8 - address % 8) % 8, head = to_aligned < size ? to_aligned : size;
  const u64 num_words = (size - head) / 8, tail = head + 8 * num_words;
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(address);
  const u64* words = reinterpret_cast<const u64*>(address + head);
  const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
  u64 sum = 0;
  for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < num_words; i += stride) {
    sum += mix(words[i], i);
  }
  if (blockIdx.x == 0 && threadIdx.x < head) sum += mix(bytes[threadIdx.x], ~static_cast<u64>(threadIdx.x));
  if (blockIdx.x == 0 && threadIdx.x < size - tail) {
    sum += mix(bytes[tail + threadIdx.x], ~(tail + threadIdx.x));
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(sums + blockIdx.y, sum);
}
