/* A pack in memory: what tuner/packs/index.py wrote, read where it lies. Whatever an accessor returns has been checked
 * when the pack was opened, so nobody checks it again. */
#ifndef TUNER_PACK_H
#define TUNER_PACK_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <tuner/tuner.h>

#include "driver.h"

#define PACK_NONE 0xFFFFFFFFu
/* Most launches, ops and tensor maps of one kernel. */
enum { PACK_MAX_LAUNCHES = 2, PACK_MAX_OPS = 2, PACK_MAX_MAPS = 6, PACK_MAX_WORKSPACES = 2 };
enum { PACK_MEASURED, PACK_GUARDED, PACK_SAFE, PACK_NUM_VARIANTS };
enum { PACK_CHOICE_KERNEL = 1, PACK_CHOICE_LIBRARY = 2 };
enum { PACK_SIMULATED = 1, PACK_PROGRAMMATIC = 2, PACK_PAIRED = 4 };
enum {
  PACK_NEEDS_ALL_CTAS = 1,
  PACK_READS_EARLY = 2,
  PACK_IS_SECOND = 4,
  PACK_SIDE_STREAM = 8,
  PACK_IS_COOPERATIVE = 16,
  PACK_IS_PROGRAMMATIC = 32,
  PACK_COOPERATIVE_WHEN_PLAIN = 64,
};

/* A part of the file; null where there is none. */
typedef struct pack_blob {
  const uint8_t *data;
  size_t num_bytes;
} pack_blob;

typedef struct pack_shape {
  tuner_shape shape;
  uint32_t first_rung, num_rungs;
  const char *text;
} pack_shape;

typedef struct pack_rung {
  int32_t m_lo, m_hi;
  uint32_t choice, kernel, speedup_ppm;
  const char *library;
} pack_rung;

typedef struct pack_kernel {
  const uint8_t *digest;
  int64_t spin_limit_cycles;
  const char *text, *symbol, *gate_symbol;
  uint32_t major, minor, suffix, num_sms, cuda_version;
  uint32_t num_threads, cluster_size, shared_bytes, parameter_bytes, first_tasks_offset, maps_offset;
  int32_t m_min, m_max;
  uint32_t first_launch, num_launches, first_op, num_ops, first_map, num_maps, num_workspaces, flags;
  pack_blob variants[PACK_NUM_VARIANTS];
} pack_kernel;

typedef struct pack_launch {
  uint32_t grid, flags, gate_ctas, workspace;
  uint64_t workspace_bytes, zero_bytes;
  pack_blob words, first_tasks;
} pack_launch;

typedef struct pack_op {
  uint32_t n, k, weight_rows, flags, activation, source;
} pack_op;

typedef struct pack_map {
  uint32_t op, operand, rank, data_type, rows_dim;
  uint64_t dims[5], strides[4];
  uint32_t box[5];
} pack_map;

/* A kernel's module in one context. */
typedef struct pack_module {
  struct pack_module *next;
  CUcontext context;
  uint32_t kernel, variant, num_users;
  CUmodule module;
  CUfunction function, gate;
} pack_module;

struct tuner_pack {
  const uint8_t *bytes;
  size_t num_bytes;
  void *owned; /* freed when it is closed, or null */
  uint32_t num_shapes, num_rungs, num_kernels, num_launches, num_ops, num_maps, num_strings;
  const uint8_t *shapes, *rungs, *kernels, *launches, *ops, *maps, *strings;
  pthread_mutex_t lock; /* of what follows */
  pack_module *modules;
};

pack_shape pack_get_shape(const tuner_pack *pack, uint32_t index);
pack_rung pack_get_rung(const tuner_pack *pack, uint32_t index);
pack_kernel pack_get_kernel(const tuner_pack *pack, uint32_t index);
pack_launch pack_get_launch(const tuner_pack *pack, uint32_t index);
pack_op pack_get_op(const tuner_pack *pack, uint32_t index);
pack_map pack_get_map(const tuner_pack *pack, uint32_t index);

/* Device memory of a kernel: workspaces first, then the words of its launches' plans, each a multiple of 256 bytes. */
typedef struct pack_layout {
  uint64_t workspaces[PACK_MAX_WORKSPACES], words[PACK_MAX_LAUNCHES], bytes;
} pack_layout;
pack_layout pack_get_layout(const tuner_pack *pack, const pack_kernel *kernel);

/* An encoded tensor map of these dimensions at an address, 128 bytes at a multiple of 64. */
tuner_status tuner_encode_map(const tuner_driver *driver, const pack_map *map, const uint64_t dims[5], uint64_t address,
                              uint8_t *into);

/* Every record, before any is used: pack_check.c. */
tuner_status pack_check_records(const tuner_pack *pack);
tuner_status pack_check_blobs(const tuner_pack *pack);

#endif
