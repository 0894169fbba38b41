/* The functions of CUDA's driver API that are used, loaded by dlopen: building a program that uses packs needs no
 * toolkit.
 * Source: cuda.h of CUDA 12 and 13, whose ABI is the same for all of these declarations. */
#ifndef TUNER_DRIVER_H
#define TUNER_DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include <tuner/tuner.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream, *CUevent;

typedef struct CUlaunchAttribute {
  uint32_t id;
  char pad[4];
  union {
    char bytes[64];
    int32_t on;
  } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
  uint32_t grid[3], block[3], shared_bytes;
  CUstream stream;
  CUlaunchAttribute *attributes;
  uint32_t num_attributes;
} CUlaunchConfig;

/* CUdevResource, of which only the number of SMs is read; newer drivers may write more. */
typedef struct CUdevResource {
  int type;
  char pad[92];
  uint32_t num_sms;
  char rest[156];
} CUdevResource;

enum {
  CU_ATTRIBUTE_COOPERATIVE = 2,
  CU_ATTRIBUTE_PROGRAMMATIC = 6,
  CU_MAX_DYNAMIC_SHARED_BYTES = 8,
  CU_NON_PORTABLE_CLUSTER = 14,
  CU_DEVICE_NUM_SMS = 16,
  CU_DEVICE_MAJOR = 75,
  CU_DEVICE_MINOR = 76,
  CU_STREAM_NON_BLOCKING = 1,
  CU_EVENT_DISABLE_TIMING = 2,
  CU_HOST_PORTABLE = 1,
  CU_HOST_MAPPED = 2,
  CU_RESOURCE_SM = 1,
};

/* Name in the library, name here, parameters. */
#define TUNER_DRIVER_CALLS(CALL)                                                                                   \
  CALL(cuInit, init, (unsigned))                                                                                   \
  CALL(cuDriverGetVersion, driver_version, (int *))                                                                \
  CALL(cuDeviceGet, device_get, (CUdevice *, int))                                                                 \
  CALL(cuDeviceGetAttribute, device_attribute, (int *, int, CUdevice))                                             \
  CALL(cuCtxGetCurrent, current_context, (CUcontext *))                                                            \
  CALL(cuCtxGetDevice, context_device, (CUdevice *))                                                               \
  CALL(cuDevicePrimaryCtxRetain, retain_primary, (CUcontext *, CUdevice))                                          \
  CALL(cuDevicePrimaryCtxRelease_v2, release_primary, (CUdevice))                                                  \
  CALL(cuCtxPushCurrent_v2, push_context, (CUcontext))                                                             \
  CALL(cuCtxPopCurrent_v2, pop_context, (CUcontext *))                                                             \
  CALL(cuGetErrorName, error_name, (CUresult, const char **))                                                      \
  CALL(cuModuleLoadData, module_load, (CUmodule *, const void *))                                                  \
  CALL(cuModuleUnload, module_unload, (CUmodule))                                                                  \
  CALL(cuModuleGetFunction, module_function, (CUfunction *, CUmodule, const char *))                               \
  CALL(cuFuncSetAttribute, set_attribute, (CUfunction, int, int))                                                  \
  CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, ctas_per_sm, (int *, CUfunction, int, size_t))                 \
  CALL(cuOccupancyMaxActiveClusters, max_clusters, (int *, CUfunction, const CUlaunchConfig *))                    \
  CALL(cuLaunchKernelEx, launch, (const CUlaunchConfig *, CUfunction, void **, void **))                           \
  CALL(cuTensorMapEncodeTiled, encode_map,                                                                         \
       (void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int, int, \
        int, int))                                                                                                 \
  CALL(cuTensorMapEncodeIm2col, encode_im2col,                                                                     \
       (void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const int *, const int *, uint32_t, uint32_t, \
        const uint32_t *, int, int, int, int))                                                                     \
  CALL(cuMemcpyHtoDAsync_v2, copy_to_device, (CUdeviceptr, const void *, size_t, CUstream))                        \
  CALL(cuMemcpyDtoHAsync_v2, copy_to_host, (void *, CUdeviceptr, size_t, CUstream))                                \
  CALL(cuMemsetD8Async, set_bytes, (CUdeviceptr, unsigned char, size_t, CUstream))                                 \
  CALL(cuMemHostAlloc, host_alloc, (void **, size_t, unsigned))                                                    \
  CALL(cuMemHostGetDevicePointer_v2, host_address, (CUdeviceptr *, void *, unsigned))                              \
  CALL(cuMemFreeHost, host_free, (void *))                                                                         \
  CALL(cuStreamCreate, stream_create, (CUstream *, unsigned))                                                      \
  CALL(cuStreamDestroy_v2, stream_destroy, (CUstream))                                                             \
  CALL(cuStreamSynchronize, stream_synchronize, (CUstream))                                                        \
  CALL(cuStreamGetCtx, stream_context, (CUstream, CUcontext *))                                                    \
  CALL(cuStreamGetId, stream_id, (CUstream, unsigned long long *))                                                 \
  CALL(cuStreamIsCapturing, is_capturing, (CUstream, int *))                                                       \
  CALL(cuStreamWaitEvent, stream_wait, (CUstream, CUevent, unsigned))                                              \
  CALL(cuEventCreate, event_create, (CUevent *, unsigned))                                                         \
  CALL(cuEventDestroy_v2, event_destroy, (CUevent))                                                                \
  CALL(cuEventRecord, event_record, (CUevent, CUstream))

/* Functions of newer drivers: null if missing. The first one was added with green contexts in CUDA 12.4. */
#define TUNER_NEWER_CALLS(CALL) CALL(cuCtxGetDevResource, context_resource, (CUcontext, CUdevResource *, int))

typedef struct tuner_driver {
#define CALL(symbol, name, parameters) CUresult(*name) parameters;
  TUNER_DRIVER_CALLS(CALL)
  TUNER_NEWER_CALLS(CALL)
#undef CALL
} tuner_driver;

/* The loaded driver, or null and an error message. */
const tuner_driver *tuner_driver_get(void);
/* Whether the stream's SMs hold all CTAs of the launch at once if it needs that, otherwise one of its clusters. */
tuner_status tuner_check_residency(const tuner_driver *driver, CUfunction function, const CUlaunchConfig *config,
                                   uint32_t cluster_size, int needs_all_ctas);
/* TUNER_OK, or the error message that `what` failed. */
tuner_status tuner_check(const tuner_driver *driver, CUresult result, const char *what);

#define TUNER_TRY(call)                                      \
  do {                                                       \
    const tuner_status tuner_try_status = (call);            \
    if (tuner_try_status != TUNER_OK) return tuner_try_status; \
  } while (0)

#endif
