// The device code on a CPU: a fiber for each thread of all CTAs, on one thread of the system. This file precedes a
// generated source, ptx.h and ptx_hopper.h replace its wrappers of single instructions, and launch.h follows it. What
// does not depend on a kernel is in threads.cpp.
//
// A fiber runs until it waits for others. So every access is complete when the next one begins, and errors that depend
// on memory order, or on the two proxies, are not detected. Copies of the copy engine, and stores to other CTAs, are
// executed when they are requested or, if `delay_copies` says so, some rounds of all fibers later, in a different
// order. Until then, the destination of a copy contains NaN.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cmath>
#include <functional>
#include <map>
#include <vector>
#include <algorithm>
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
using u16 = unsigned short; using u32 = unsigned int; using u64 = unsigned long long;
using u8 = unsigned char;
struct float4 { float x, y, z, w; };
struct int4 { int x, y, z, w; };
struct uint2 { u32 x, y; };
static inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
struct uint4 { u32 x, y, z, w; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
using std::min; using std::max;
static inline float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }
static inline float __uint_as_float(u32 i) { float f; memcpy(&f, &i, 4); return f; }
static inline u32 __float_as_uint(float f) { u32 i; memcpy(&i, &f, 4); return i; }
static inline int __popc(u32 x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
static inline float __fdividef(float a, float b) { return a / b; }
struct Dim { u32 x; };
extern Dim threadIdx, blockIdx, gridDim;
extern template class std::vector<unsigned char>;
inline void __threadfence_system() {}  // fibers see each other's writes immediately

namespace emu {
struct Barrier { int arrived = 0; u64 generation = 0; bool any = false, all = true, any_out = false, all_out = true; };
struct MBarrier { u32 count = 0, pending = 0; long long tx = 0; u64 phase = 0; bool is_init = false; };
struct Cta {
  int number; std::vector<unsigned char> memory; std::map<int, std::vector<unsigned char>> statics;
  Barrier bars[17]; std::map<u32, MBarrier> mbarriers; int live;
};
struct Warp { u64 values[2][32]; u64 more[2][32][4]; int arrived = 0; u64 generation = 0; };
struct Fiber { void* sp; unsigned char* stack; int cta, thread; bool done; u64 cluster_generation; bool has_waited; };
struct Cluster { int arrived = 0; u64 generation = 0; };
extern std::vector<Fiber> fibers; extern std::vector<Cta> ctas; extern std::vector<Warp> warps; extern int current, threads, cluster_size;
extern std::vector<Cluster> clusters; extern u64 progress, num_early;
// TMA copies that were requested and are not complete; the maximum rounds that one takes; and the last random number.
struct Copy { u64 due; std::function<void()> run; };
extern std::vector<Copy> copies; extern u64 turn; extern int most_rounds; extern u32 drawn;
// The functions of threads.cpp, which is compiled once for all kernels.
void yield();
// Runs a function some rounds later, or at once if copies are not delayed.
void later(std::function<void()> run);
unsigned char* at(u32 address, size_t n = 1);
MBarrier& mb(u32 address);
MBarrier& mb_of(int cta, u32 address);
unsigned char* static_bytes(int line, size_t n);
template <class T> T& static_of(int line) { return *reinterpret_cast<T*>(static_bytes(line, sizeof(T))); }
// Synchronises all lanes; returns the slot of this exchange.
int meet(u64 value, const u32* more = nullptr, int num_more = 0);
void bar(Barrier& b, int count, bool flag = false);
void arrive(MBarrier& m, u32 n = 1);
// Copies bytes to a CTA's shared memory and, once they have arrived, signals its barrier.
void put(u32 address, std::vector<unsigned char> bytes, u32 barrier);
float e4m3(u8 bits);
// Rounds to nearest even; larger values saturate.
u16 to_e4m3(float f);
inline Fiber& me() { return fibers[current]; }
// Whether the thread has waited for the previous launches; counts its reads of data that they may write if it has not.
inline bool has_waited() { return me().has_waited; }
inline void needs_wait() { num_early += !has_waited(); }
inline Cta& cta() { return ctas[me().cta]; }
inline int lane() { return me().thread % 32; }
inline Warp& warp() { return warps[(me().cta * threads + me().thread) / 32]; }
inline float f16(u16 bits) { _Float16 h; memcpy(&h, &bits, 2); return (float)h; }
inline u16 to16(float f) { _Float16 h = (_Float16)f; u16 b; memcpy(&b, &h, 2); return b; }
inline float b16(u16 bits) { return __uint_as_float((u32)bits << 16); }
inline u16 tob16(float f) { u32 b; memcpy(&b, &f, 4); if (f != f) return 0x7FFF; return (b + 0x7FFF + ((b >> 16) & 1)) >> 16; }
}
static inline void __syncthreads() { emu::bar(emu::cta().bars[0], emu::threads); }
static inline bool __syncthreads_and(bool f) { emu::bar(emu::cta().bars[0], emu::threads, f); return emu::cta().bars[0].all_out; }
static inline bool __syncthreads_or(bool f) { emu::bar(emu::cta().bars[0], emu::threads, f); return emu::cta().bars[0].any_out; }
static inline void __syncwarp() { emu::meet(0); }
template <class T> static inline T shfl(T v, int from) {
  u64 bits = 0; memcpy(&bits, &v, sizeof v); const int s = emu::meet(bits); T r; memcpy(&r, &emu::warp().values[s][from], sizeof r); return r;
}
template <class T> static inline T __shfl_xor_sync(u32, T v, int x) { return shfl(v, emu::lane() ^ x); }
template <class T> static inline T __shfl_sync(u32, T v, int from) { return shfl(v, from % 32); }
static inline u32 __ballot_sync(u32, bool p) { const int s = emu::meet(p); u32 r = 0; for (int i = 0; i < 32; ++i) r |= (u32)(emu::warp().values[s][i] != 0) << i; return r; }
static inline u32 __reduce_add_sync(u32, u32 v) { const int s = emu::meet(v); u32 r = 0; for (int i = 0; i < 32; ++i) r += (u32)emu::warp().values[s][i]; return r; }
static inline bool __all_sync(u32 m, bool p) { return __ballot_sync(m, p) == 0xFFFFFFFFu; }
template <class T> static inline T __ldg(const T* p) { return *p; }
static inline void __stcg(float4* p, float4 v) { *p = v; }
static inline long long clock64() { return 0; }

