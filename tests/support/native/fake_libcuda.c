/* A library with the driver's ABI that records every call. It does not model CUDA: the arguments of a caller are kept
 * byte for byte, and every call succeeds. Device memory is memory of the host. */
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CALLS = 1 << 14, MAX_BYTES = 8192 };

typedef struct call {
  const char *name;
  uint64_t values[12];
  uint32_t num_bytes;
  uint8_t *bytes;
} call;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static call calls[MAX_CALLS];
static int num_calls, is_recording = 1;
static uint32_t parameter_bytes; /* of the launched kernels, since no call states it */
static int facts[128] = {[16] = 132, [75] = 9, [76] = 0};
static int driver_version = 13000, ctas_per_sm = 1, max_clusters = 132, failing = 0, num_succeeding = 0;
static _Thread_local void *context = (void *)0x1000;
static const char *failing_name;
static uint32_t green_sms;          /* SMs of the context of the stream below, and that context */
static void *green_stream, *green_context = (void *)0x6EE0;
static int is_capturing;
static int load_ms; /* the duration of a module's load */

int fake_num_calls(void) { return num_calls; }
const call *fake_call(int index) { return &calls[index]; }
void fake_clear(void) {
  for (int i = 0; i < num_calls; ++i) free(calls[i].bytes);
  memset(calls, 0, sizeof calls);
  num_calls = 0;
}
void fake_record(int on) { is_recording = on; }
void fake_parameter_bytes(uint32_t bytes) { parameter_bytes = bytes; }
void fake_device(int major, int minor, int num_sms, int version) {
  facts[75] = major, facts[76] = minor, facts[16] = num_sms, driver_version = version;
}
void fake_occupancy(int per_sm, int clusters) { ctas_per_sm = per_sm, max_clusters = clusters; }
/* The first `behind` calls of that name still succeed. */
void fake_fail(const char *name, int status, int behind) { failing_name = name, failing = status, num_succeeding = behind; }
/* SMs of the green context of a stream; 0 for none. */
void fake_green(void *stream, uint32_t num_sms) { green_stream = stream, green_sms = num_sms; }
void fake_capture(int on) { is_capturing = on; }
void fake_slow_loads(int ms) { load_ms = ms; }
void fake_context(void *is) { context = is; }

static int note(const char *name, const uint64_t *values, int count, const void *bytes, uint32_t num_bytes) {
  if (is_recording) {
    pthread_mutex_lock(&lock);
    if (num_calls < MAX_CALLS) {
      call *one = &calls[num_calls++];
      one->name = name;
      for (int i = 0; i < count; ++i) one->values[i] = values[i];
      if (num_bytes > 0 && num_bytes <= MAX_BYTES) {
        one->bytes = malloc(num_bytes);
        memcpy(one->bytes, bytes, num_bytes);
        one->num_bytes = num_bytes;
      }
    }
    pthread_mutex_unlock(&lock);
  }
  if (failing_name == NULL || strcmp(failing_name, name) != 0) return 0;
  return num_succeeding-- > 0 ? 0 : failing;
}

#define NOTE(...) note(__func__, (const uint64_t[]){__VA_ARGS__}, sizeof((uint64_t[]){__VA_ARGS__}) / 8, NULL, 0)
#define U(value) ((uint64_t)(uintptr_t)(value))

typedef struct attribute {
  uint32_t id;
  char pad[4];
  int32_t on;
  char rest[60];
} attribute;
typedef struct config {
  uint32_t grid[3], block[3], shared_bytes;
  void *stream;
  attribute *attributes;
  uint32_t num_attributes;
} config;

int cuInit(unsigned flags) { return NOTE(flags); }
int cuDriverGetVersion(int *version) {
  *version = driver_version;
  return NOTE(0);
}
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return NOTE((uint64_t)ordinal);
}
int cuDeviceGetAttribute(int *value, int attribute_id, int device) {
  *value = facts[attribute_id];
  return NOTE((uint64_t)attribute_id, (uint64_t)device);
}
int cuDevicePrimaryCtxRetain(void **found, int device) {
  *found = context;
  return NOTE((uint64_t)device);
}
int cuDevicePrimaryCtxRelease_v2(int device) { return NOTE((uint64_t)device); }
int cuCtxSetCurrent(void *is) { return NOTE(U(is)); }
int cuCtxPushCurrent_v2(void *is) { return NOTE(U(is)); }
int cuCtxPopCurrent_v2(void **was) {
  *was = context;
  return NOTE(0);
}
int cuStreamGetCtx(void *stream, void **found) {
  *found = green_sms > 0 && stream == green_stream ? green_context : context;
  return NOTE(U(stream));
}
int cuCtxGetDevResource(void *of, uint8_t *resource, int type) {
  const uint32_t num_sms = of == green_context ? green_sms : (uint32_t)facts[16];
  memcpy(resource + 96, &num_sms, 4);
  return NOTE(U(of), (uint64_t)type);
}
/* During a capture, the driver refuses this call, and the capture is lost (observed on an H200 with driver
 * 580.159.04). */
int cuStreamGetId(void *stream, unsigned long long *id) {
  *id = U(stream) + 1;
  if (is_capturing) return NOTE(U(stream)), 900;
  return NOTE(U(stream));
}
int cuStreamIsCapturing(void *stream, int *is) {
  *is = is_capturing;
  return NOTE(U(stream));
}
int cuCtxSynchronize(void) { return NOTE(0); }
int cuMemAlloc_v2(uint64_t *address, size_t num_bytes) {
  *address = U(aligned_alloc(256, (num_bytes + 255) / 256 * 256));
  return NOTE(*address, num_bytes);
}
int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t num_bytes) {
  memset((void *)(uintptr_t)to, value, num_bytes);
  return NOTE(to, value, num_bytes);
}
int cuCtxGetCurrent(void **found) {
  *found = context;
  return NOTE(0);
}
int cuCtxGetDevice(int *device) {
  *device = 0;
  return NOTE(0);
}
int cuGetErrorName(int status, const char **name) {
  *name = "CUDA_ERROR_OF_THE_RECORDER";
  return NOTE((uint64_t)status) * 0;
}
int cuModuleLoadData(void **module, const void *image) {
  static uint64_t next = 0x2000;
  (void)poll(NULL, 0, load_ms);
  pthread_mutex_lock(&lock);
  *module = (void *)(uintptr_t)(next += 16);
  pthread_mutex_unlock(&lock);
  const uint64_t values[] = {U(*module), U(image)};
  return note(__func__, values, 2, image, 16);
}
int cuModuleUnload(void *module) { return NOTE(U(module)); }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = (void *)(U(module) + (strcmp(name, "tuner_start_gate") == 0 ? 2 : 1));
  const uint64_t values[] = {U(module)};
  return note(__func__, values, 1, name, (uint32_t)strlen(name) + 1);
}
int cuFuncSetAttribute(void *function, int id, int value) { return NOTE(U(function), (uint64_t)id, (uint64_t)value); }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *ctas, void *function, int threads, size_t shared_bytes) {
  *ctas = ctas_per_sm;
  return NOTE(U(function), (uint64_t)threads, shared_bytes);
}
int cuOccupancyMaxActiveClusters(int *clusters, void *function, const config *is) {
  *clusters = max_clusters;
  return NOTE(U(function), is->grid[0]);
}
/* Records function, grid, block, shared memory, stream, attributes, and the first attribute's id and value; then the
 * parameter. A start gate has three parameters: 8, 4 and 8 bytes. */
int cuLaunchKernelEx(const config *is, void *function, void **values, void **extra) {
  const int has_one = is->num_attributes > 0, is_gate = (U(function) & 3) == 2;
  const uint64_t noted[] = {U(function),   is->grid[0], is->block[0], is->shared_bytes,
                            U(is->stream), is->num_attributes, has_one ? is->attributes[0].id : 0,
                            has_one ? (uint64_t)is->attributes[0].on : 0, U(extra)};
  if (!is_gate || !is_recording) return note(__func__, noted, 9, values[0], parameter_bytes);
  uint8_t three[20];
  memcpy(three, values[0], 8), memcpy(three + 8, values[1], 4), memcpy(three + 12, values[2], 8);
  return note(__func__, noted, 9, three, 20);
}
/* The map consists of the arguments from which it was made. */
int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides,
                           const uint32_t *box, const uint32_t *element_strides, int interleave, int swizzle, int promotion,
                           int fill) {
  uint8_t *at = map;
  memset(at, 0xEE, 128);
  const uint64_t head[2] = {U(address), (uint64_t)(type | (int)rank << 8 | interleave << 16 | swizzle << 20 | promotion << 24 | fill << 28)};
  memcpy(at, head, 16);
  for (uint32_t i = 0; i < rank; ++i) memcpy(at + 16 + 8 * i, &dims[i], 8), memcpy(at + 96 + 4 * i, &box[i], 4);
  for (uint32_t i = 0; i + 1 < rank; ++i) memcpy(at + 56 + 8 * i, &strides[i], 8);
  for (uint32_t i = 0; i < rank; ++i)
    if (element_strides[i] != 1) return 1;
  return U(map) % 64 != 0 ? 1 : NOTE(U(address), rank);
}
int cuTensorMapEncodeIm2col(void *map, int type, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides,
                            const int *lower, const int *upper, uint32_t channels, uint32_t pixels,
                            const uint32_t *element_strides, int interleave, int swizzle, int promotion, int fill) {
  uint8_t *at = map;
  memset(at, 0xEE, 128);
  const uint64_t head[2] = {U(address), (uint64_t)(type | (int)rank << 8 | interleave << 16 | swizzle << 20 | promotion << 24 | fill << 28)};
  const uint32_t box[8] = {channels, pixels, (uint32_t)lower[0], (uint32_t)lower[1], (uint32_t)upper[0], (uint32_t)upper[1], element_strides[1], element_strides[2]};
  memcpy(at, head, 16), memcpy(at + 16, dims, 8 * rank), memcpy(at + 56, strides, 8 * (rank - 1)), memcpy(at + 96, box, 32);
  return rank != 4 || U(map) % 64 != 0 || element_strides[0] != 1 || element_strides[3] != 1 ? 1 : NOTE(U(address), rank);
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t num_bytes, void *stream) {
  memcpy((void *)(uintptr_t)to, from, num_bytes);
  return NOTE(to, num_bytes, U(stream));
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t num_bytes, void *stream) {
  memcpy(to, (const void *)(uintptr_t)from, num_bytes);
  return NOTE(from, num_bytes, U(stream));
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t num_bytes, void *stream) {
  memset((void *)(uintptr_t)to, value, num_bytes);
  return NOTE(to, value, num_bytes, U(stream));
}
int cuMemHostAlloc(void **memory, size_t num_bytes, unsigned flags) {
  *memory = calloc(1, num_bytes);
  return NOTE(U(*memory), num_bytes, flags);
}
int cuMemHostGetDevicePointer_v2(uint64_t *address, void *memory, unsigned flags) {
  *address = U(memory);
  return NOTE(U(memory), flags);
}
int cuMemFreeHost(void *memory) {
  const int status = NOTE(U(memory));
  free(memory);
  return status;
}
int cuStreamCreate(void **stream, unsigned flags) {
  *stream = (void *)0x5EED0;
  return NOTE(flags);
}
int cuStreamDestroy_v2(void *stream) { return NOTE(U(stream)); }
int cuStreamSynchronize(void *stream) { return NOTE(U(stream)); }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return NOTE(U(stream), U(event), flags); }
int cuEventCreate(void **event, unsigned flags) {
  static uint64_t next = 0xE000;
  pthread_mutex_lock(&lock);
  *event = (void *)(uintptr_t)(next += 16);
  pthread_mutex_unlock(&lock);
  return NOTE(U(*event), flags);
}
int cuEventDestroy_v2(void *event) { return NOTE(U(event)); }
int cuEventRecord(void *event, void *stream) { return NOTE(U(event), U(stream)); }
