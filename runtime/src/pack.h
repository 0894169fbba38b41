/* A pack in memory, as written by tuner/packs/index.py, read in place. Everything is checked when the pack is opened,
 * so users of the accessors need no further checks. */
#ifndef TUNER_PACK_H
#define TUNER_PACK_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <tuner/tuner.h>

#include "driver.h"

#define PACK_NONE 0xFFFFFFFFu
/* Every flag that a shape may have. */
enum { PACK_ALL_SHAPE_FLAGS = TUNER_GATED | TUNER_BIAS | TUNER_RESIDUAL | TUNER_ROW_SCALE };
/* Maximum launches, ops and tensor maps of one kernel. */
enum { PACK_MAX_LAUNCHES = 2, PACK_MAX_OPS = 2, PACK_MAX_MAPS = 6, PACK_MAX_WORKSPACES = 2 };
/* Maximum launches of a program, tensor maps of each, fills of its memory, and operands of a layer. */
enum { PACK_MAX_PARTS = 10, PACK_MAX_PART_MAPS = 24, PACK_MAX_FILLS = 32, PACK_MAX_OPERANDS = 64 };
enum { PACK_MEASURED, PACK_GUARDED, PACK_SAFE, PACK_NUM_VARIANTS };
enum { PACK_CHOICE_KERNEL = 1, PACK_CHOICE_LIBRARY = 2 };
/* Flags of a kernel. Programs have only the first one, and a flag for a fallback: the next row is then the same program
 * with launches for cards that cannot hold its own. */
enum { PACK_SIMULATED = 1, PACK_PROGRAMMATIC = 2, PACK_PAIRED = 4, PACK_KERNEL_HAS_FALLBACK = 8, PACK_PROGRAM_HAS_FALLBACK = 2 };
enum {
  PACK_NEEDS_ALL_CTAS = 1,
  PACK_READS_EARLY = 2,
  PACK_IS_SECOND = 4,
  PACK_SIDE_STREAM = 8,
  PACK_IS_COOPERATIVE = 16,
  PACK_IS_PROGRAMMATIC = 32,
  PACK_COOPERATIVE_WHEN_PLAIN = 64,
};
/* Flags of a part, besides those of launches; the second one: the words of the invalid input follow those of the abort.
 * */
enum { PACK_NON_PORTABLE_CLUSTER = 2, PACK_TELLS_REFUSED = 128, PACK_REFUSED_BEHIND_ABORT = 32 };
/* What the patches and maps of a part refer to: an attention's seven tensors, the memory, the number of pages, a
 * program's operands; for patches also the number of rows. */
enum { PACK_TENSOR_KEYS = 1, PACK_TENSOR_VALUES = 2, PACK_TENSOR_MEMORY = 7, PACK_TENSOR_NUM_PAGES = 8 };
enum { PACK_FIRST_OPERAND = 9, PACK_TENSOR_ROWS = PACK_FIRST_OPERAND + PACK_MAX_OPERANDS, PACK_NUM_TENSORS };
/* Flags of an operand. */
enum { PACK_IS_PAGED = 1, PACK_HAS_ROWS = 2 };
#define PACK_NOWHERE UINT64_MAX

/* A section of the file; null if missing. */
typedef struct pack_blob {
  const uint8_t *data;
  size_t num_bytes;
} pack_blob;

/* A shape's rungs: only by rows, or by sequences and the longest context. */
typedef struct pack_ladder {
  uint32_t first, count;
  int is_ffn, by_rows; /* whether they are in the table of FFNs' rungs and refer to kernels; otherwise they refer to
                          programs */
} pack_ladder;

typedef struct pack_rung {
  int32_t m_lo, m_hi, max_length; /* rows are sequences for an attention; the last field is 0 if a ladder has only rows
                                     */
  uint32_t choice, number, speedup_ppm;
  const char *library;
} pack_rung;

typedef struct pack_shape {
  tuner_shape shape;
  pack_ladder ladder;
  const char *text;
} pack_shape;

/* The device that a kernel was built and measured for. */
typedef struct pack_target {
  uint32_t major, minor, suffix, num_sms, cuda_version;
  int is_simulated;
} pack_target;

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

#define PACK_IM2COL 256u /* added to the rank of a map in im2col mode */
typedef struct pack_map {
  uint32_t op, operand, rank, data_type, rows_dim; /* for a part: the tensor, its offset in the parameter, and rows (of
                                                      pages) */
  uint64_t dims[5], strides[4];
  uint32_t box[5]; /* in im2col mode: channels, pixels, both corners as int32, and the stride, the same for rows and
                      columns */
  uint32_t is_im2col;
  uint32_t rows_per_page, memory_place; /* only for a part; the latter in units of 256 bytes */
} pack_map;

typedef struct pack_attention {
  tuner_attention_shape shape;
  pack_ladder ladder;
  const char *text;
} pack_attention;

/* Products around an attention, or only products. */
typedef struct pack_layer {
  tuner_layer_shape shape;
  pack_ladder ladder;
  const char *text;
} pack_layer;

/* The launches of one artifact of an attention or of named ops, and their memory. */
typedef struct pack_program {
  const uint8_t *digest;
  const char *text;
  pack_target target;
  uint32_t first_fill, num_fills, first_part, num_parts;
  uint32_t first_operand, num_operands; /* only for named ops, not for an attention */
  uint32_t most_rows;                   /* only for chains of products that support fewer rows; 0 if the number of rows
                                           is fixed */
  uint32_t has_fallback;
  uint64_t memory_bytes, refused_offset;
} pack_program;

typedef struct pack_operand {
  uint32_t program, dtype, flags, rank, dims[4];
  const char *name, *role;
} pack_operand;

/* For an operand of quantised weights. */
typedef struct pack_weights {
  uint32_t operand;
  tuner_weights is;
} pack_weights;

typedef struct pack_fill {
  uint64_t offset, num_zeros;
  pack_blob blob;
} pack_fill;

typedef struct pack_part {
  const char *symbol;
  uint32_t grid, num_threads, cluster_size, shared_bytes, flags, dependent_offset, parameter_bytes;
  uint32_t first_patch, num_patches, first_map, num_maps;
  uint64_t abort_offset;
  pack_blob cubin, parameter;
  uint32_t gate_ctas; /* only for an FFN: how many CTAs the start gate before it waits for; 0 if there is no gate */
  const char *gate_symbol;
} pack_part;

typedef struct pack_patch {
  uint32_t offset, tensor;
  uint64_t addend;
} pack_patch;

/* A cubin's module in one context. */
typedef struct pack_module {
  struct pack_module *next;
  CUcontext context;
  const uint8_t *cubin;
  uint32_t num_users;
  CUmodule module;
} pack_module;

struct tuner_pack {
  const uint8_t *bytes;
  size_t num_bytes;
  void *owned; /* freed when the pack is closed, or null */
  uint32_t version;
  uint32_t num_shapes, num_rungs, num_kernels, num_launches, num_ops, num_maps, num_strings;
  const uint8_t *shapes, *rungs, *kernels, *launches, *ops, *maps, *strings;
  uint32_t num_attentions, num_attention_rungs, num_programs, num_fills, num_parts, num_patches;
  const uint8_t *attentions, *attention_rungs, *programs, *fills, *parts, *patches;
  uint32_t num_layers, num_operands, num_weights;
  const uint8_t *layers, *operands, *weights;
  pthread_mutex_t lock; /* guards the following fields */
  uint32_t num_holders; /* its owner until it is closed, and everything that was prepared from it */
  pack_module *modules;
};

pack_shape pack_get_shape(const tuner_pack *pack, uint32_t index);
pack_rung pack_get_rung(const tuner_pack *pack, const pack_ladder *ladder, uint32_t index);
pack_kernel pack_get_kernel(const tuner_pack *pack, uint32_t index);
pack_launch pack_get_launch(const tuner_pack *pack, uint32_t index);
pack_op pack_get_op(const tuner_pack *pack, uint32_t index);
pack_map pack_get_map(const tuner_pack *pack, uint32_t index);
pack_attention pack_get_attention(const tuner_pack *pack, uint32_t index);
pack_program pack_get_program(const tuner_pack *pack, uint32_t index);
pack_fill pack_get_fill(const tuner_pack *pack, uint32_t index);
pack_part pack_get_part(const tuner_pack *pack, uint32_t index);
pack_patch pack_get_patch(const tuner_pack *pack, uint32_t index);
pack_layer pack_get_layer(const tuner_pack *pack, uint32_t index);
pack_operand pack_get_operand(const tuner_pack *pack, uint32_t index);
pack_weights pack_get_weights(const tuner_pack *pack, uint32_t index);

/* Kernels of FFNs and programs are numbered together: kernels first, then programs. A row of an FFN's kernel is treated
 * like a row of a program, with the launches of one of its builds and without parameters; lower.c adds these. */
pack_program pack_get_row(const tuner_pack *pack, uint32_t row);
pack_part pack_get_row_part(const tuner_pack *pack, uint32_t row, uint32_t index, uint32_t variant);
/* Bytes of memory for a row or its fallback, since it is not known before preparation which of them runs. */
size_t pack_get_memory(const tuner_pack *pack, uint32_t row);

/* A kernel's device memory: first the workspaces, then the words of its plans, each padded to 256 bytes. */
typedef struct pack_layout {
  uint64_t workspaces[PACK_MAX_WORKSPACES], words[PACK_MAX_LAUNCHES], bytes;
} pack_layout;
pack_layout pack_get_layout(const tuner_pack *pack, const pack_kernel *kernel);

/* An encoded tensor map of these dimensions at an address, 128 bytes at a multiple of 64. */
tuner_status tuner_encode_map(const tuner_driver *driver, const pack_map *map, const uint64_t dims[5], uint64_t address,
                              uint8_t *into);

/* Numbers and blobs as stored in the file. */
uint32_t pack_u32(const uint8_t *at);
uint64_t pack_u64(const uint8_t *at);
pack_blob pack_blob_at(const tuner_pack *pack, const uint8_t *at);

/* The launch flags from the part or launch and from the caller, and the offset in the parameter that says whether it is
 * programmatic, if there is one. */
tuner_status tuner_enqueue(const tuner_driver *driver, CUfunction function, CUlaunchConfig config, uint32_t facts,
                           uint8_t *parameter, uint32_t dependent_offset, uint32_t flags);

/* Adds and removes a user; removing the last one frees the pack. */
void pack_hold(tuner_pack *pack);
void pack_let_go(tuner_pack *pack);
/* Gets and releases the module of a cubin in the current context, which is loaded once for all users. */
tuner_status module_get(tuner_pack *pack, const tuner_driver *driver, const pack_blob *cubin, pack_module **module);
void module_release(tuner_pack *pack, const tuner_driver *driver, pack_module *module);

/* Checks every record before any is used: pack_check.c and attention_check.c. */
tuner_status pack_check_records(const tuner_pack *pack);
tuner_status pack_check_attentions(const tuner_pack *pack);
tuner_status pack_check_weights(const tuner_pack *pack); /* weights.c */
int pack_is_range(uint32_t first, uint32_t count, uint32_t total);
int pack_is_text(const tuner_pack *pack, const char *text);
tuner_status pack_check_fallbacks(const tuner_pack *pack); /* fallback.c */
/* Checks that a ladder is in its table, and has one entry for each size. */
tuner_status pack_check_ladder(const tuner_pack *pack, const pack_ladder *ladder);
tuner_status pack_check_map_dims(const pack_map *map, uint32_t index);
/* Whether everything that a valid map covers is within the first bytes of its tensor; whether the map has a type. */
int pack_map_is_within(const pack_map *map, uint64_t num_bytes);
tuner_status pack_check_blobs(const tuner_pack *pack);
/* Whether a device can hold the launches at once: fits.c. */
tuner_status pack_check_fits(const tuner_pack *pack, const tuner_driver *driver, CUdevice device);
/* Whether a kernel runs on a device of that driver: find.c. */
tuner_status pack_check_target(const pack_target *target, int version, int major, int minor, int num_sms);

#endif
