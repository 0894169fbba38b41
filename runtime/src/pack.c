#define _POSIX_C_SOURCE 200809L
#include "pack.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "sha256.h"

/* As packed by tuner/packs/index.py. */
enum { HEADER_BYTES = 128, SHAPE_BYTES = 40, RUNG_BYTES = 40, KERNEL_BYTES = 280, LAUNCH_BYTES = 128 };
enum { ATTENTION_BYTES = 56, ATTENTION_RUNG_BYTES = 32, PROGRAM_BYTES = 96, FILL_BYTES = 64, PART_BYTES = 152, PATCH_BYTES = 16 };
enum { LAYER_BYTES = 72, OPERAND_BYTES = 40, WEIGHTS_BYTES = 32 };
/* From version 6 on, a header also has the number of weights. */
enum { VERSION = 6, WEIGHTS_VERSION = 6, MORE_BYTES = 8 };
enum { OP_BYTES = 32, MAP_BYTES = 120, BLOB_BYTES = 48, INDEX_OFFSET = 64, DIGEST_OFFSET = 64, MAX_RECORDS = 1 << 20 };

uint32_t pack_u32(const uint8_t *p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
uint64_t pack_u64(const uint8_t *p) { return pack_u32(p) | (uint64_t)pack_u32(p + 4) << 32; }
static const char *text_at(const tuner_pack *pack, const uint8_t *p) { return (const char *)pack->strings + pack_u32(p); }

pack_blob pack_blob_at(const tuner_pack *pack, const uint8_t *p) {
  const size_t num_bytes = (size_t)pack_u64(p + 8);
  pack_blob blob = {NULL, num_bytes};
  if (num_bytes > 0) blob.data = pack->bytes + pack_u64(p); /* an empty section may be anywhere */
  return blob;
}

pack_shape pack_get_shape(const tuner_pack *pack, uint32_t index) {
  const uint8_t *p = pack->shapes + (size_t)index * SHAPE_BYTES;
  const pack_shape shape = {
      .shape = {(int32_t)pack_u32(p), (int32_t)pack_u32(p + 4), (int32_t)pack_u32(p + 12), (int32_t)pack_u32(p + 16),
                (int32_t)pack_u32(p + 20), pack_u32(p + 8)},
      .ladder = {.first = pack_u32(p + 24), .count = pack_u32(p + 28), .is_ffn = 1, .by_rows = 1},
      .text = text_at(pack, p + 32),
  };
  return shape;
}

pack_rung pack_get_rung(const tuner_pack *pack, const pack_ladder *ladder, uint32_t index) {
  const size_t place = (size_t)ladder->first + index;
  const uint8_t *p = ladder->is_ffn ? pack->rungs + place * RUNG_BYTES : pack->attention_rungs + place * ATTENTION_RUNG_BYTES;
  const int32_t first = (int32_t)pack_u32(p), second = (int32_t)pack_u32(p + 4);
  const pack_rung rung = {
      .m_lo = first,
      .m_hi = ladder->by_rows ? second : first,
      .max_length = ladder->by_rows ? 0 : second,
      .choice = pack_u32(p + 8),
      .number = pack_u32(p + 12),
      .speedup_ppm = pack_u32(p + 16),
      .library = text_at(pack, p + 28),
  };
  return rung;
}

pack_kernel pack_get_kernel(const tuner_pack *pack, uint32_t index) {
  const uint8_t *p = pack->kernels + (size_t)index * KERNEL_BYTES;
  pack_kernel kernel = {.digest = p, .spin_limit_cycles = (int64_t)pack_u64(p + 32)};
  kernel.text = text_at(pack, p + 40), kernel.symbol = text_at(pack, p + 44), kernel.gate_symbol = text_at(pack, p + 48);
  kernel.m_min = (int32_t)pack_u32(p + 96), kernel.m_max = (int32_t)pack_u32(p + 100);
  uint32_t *const before_rows[] = {&kernel.major,       &kernel.minor,        &kernel.suffix,       &kernel.num_sms,
                                   &kernel.cuda_version, &kernel.num_threads,  &kernel.cluster_size, &kernel.shared_bytes,
                                   &kernel.parameter_bytes, &kernel.first_tasks_offset, &kernel.maps_offset};
  for (size_t i = 0; i < sizeof before_rows / sizeof *before_rows; ++i) *before_rows[i] = pack_u32(p + 52 + 4 * i);
  uint32_t *const behind_rows[] = {&kernel.first_launch, &kernel.num_launches, &kernel.first_op,       &kernel.num_ops,
                                   &kernel.first_map,    &kernel.num_maps,     &kernel.num_workspaces, &kernel.flags};
  for (size_t i = 0; i < sizeof behind_rows / sizeof *behind_rows; ++i) *behind_rows[i] = pack_u32(p + 104 + 4 * i);
  for (int i = 0; i < PACK_NUM_VARIANTS; ++i) kernel.variants[i] = pack_blob_at(pack, p + 136 + BLOB_BYTES * i);
  return kernel;
}

pack_launch pack_get_launch(const tuner_pack *pack, uint32_t index) {
  const uint8_t *p = pack->launches + (size_t)index * LAUNCH_BYTES;
  const pack_launch launch = {
      .grid = pack_u32(p),
      .flags = pack_u32(p + 4),
      .gate_ctas = pack_u32(p + 8),
      .workspace = pack_u32(p + 12),
      .workspace_bytes = pack_u64(p + 16),
      .zero_bytes = pack_u64(p + 24),
      .words = pack_blob_at(pack, p + 32),
      .first_tasks = pack_blob_at(pack, p + 32 + BLOB_BYTES),
  };
  return launch;
}

pack_op pack_get_op(const tuner_pack *pack, uint32_t index) {
  const uint8_t *p = pack->ops + (size_t)index * OP_BYTES;
  const pack_op op = {pack_u32(p), pack_u32(p + 4), pack_u32(p + 8), pack_u32(p + 12), pack_u32(p + 16), pack_u32(p + 20)};
  return op;
}

pack_map pack_get_map(const tuner_pack *pack, uint32_t index) {
  const uint8_t *p = pack->maps + (size_t)index * MAP_BYTES;
  const uint32_t rank = pack_u32(p + 8);
  pack_map map = {.op = pack_u32(p), .operand = pack_u32(p + 4), .rank = rank & ~PACK_IM2COL, .data_type = pack_u32(p + 12),
                  .rows_dim = pack_u32(p + 16), .is_im2col = (rank & PACK_IM2COL) != 0};
  for (int i = 0; i < 5; ++i) map.dims[i] = pack_u64(p + 24 + 8 * i);
  for (int i = 0; i < 4; ++i) map.strides[i] = pack_u64(p + 64 + 8 * i);
  for (int i = 0; i < 5; ++i) map.box[i] = pack_u32(p + 96 + 4 * i);
  map.rows_per_page = pack_u32(p + 20), map.memory_place = pack_u32(p + 116);
  return map;
}

static tuner_attention_shape attention_at(const uint8_t *p) {
  tuner_attention_shape shape, *const is = &shape;
  is->dtype = (int32_t)pack_u32(p), is->heads = (int32_t)pack_u32(p + 4), is->kv_heads = (int32_t)pack_u32(p + 8);
  is->head_dim = (int32_t)pack_u32(p + 12), is->new_tokens = (int32_t)pack_u32(p + 16);
  is->page_tokens = (int32_t)pack_u32(p + 20), is->flags = pack_u32(p + 24), is->window = (int32_t)pack_u32(p + 28);
  is->d_out = (int32_t)pack_u32(p + 32);
  const uint32_t floats[2] = {pack_u32(p + 36), pack_u32(p + 40)};
  memcpy(&is->scale, &floats[0], 4), memcpy(&is->soft_cap, &floats[1], 4);
  return shape;
}

pack_attention pack_get_attention(const tuner_pack *pack, uint32_t index) {
  const uint8_t *p = pack->attentions + (size_t)index * ATTENTION_BYTES;
  return (pack_attention){attention_at(p), {.first = pack_u32(p + 44), .count = pack_u32(p + 48)}, text_at(pack, p + 52)};
}

pack_layer pack_get_layer(const tuner_pack *pack, uint32_t index) {
  const uint8_t *p = pack->layers + (size_t)index * LAYER_BYTES;
  const pack_layer found = {
      .shape = {attention_at(p), (int32_t)pack_u32(p + 44), (int32_t)pack_u32(p + 48), (int32_t)pack_u32(p + 52),
                text_at(pack, p + 68)},
      .ladder = {.first = pack_u32(p + 56), .count = pack_u32(p + 60), .by_rows = pack_u32(p + 4) == 0},
      .text = text_at(pack, p + 64),
  };
  return found;
}

pack_operand pack_get_operand(const tuner_pack *pack, uint32_t index) {
  const uint8_t *p = pack->operands + (size_t)index * OPERAND_BYTES;
  pack_operand found = {.program = pack_u32(p), .name = text_at(pack, p + 4), .role = text_at(pack, p + 8)};
  found.dtype = pack_u32(p + 12), found.flags = pack_u32(p + 16), found.rank = pack_u32(p + 20);
  for (int i = 0; i < 4; ++i) found.dims[i] = pack_u32(p + 24 + 4 * i);
  return found;
}

pack_weights pack_get_weights(const tuner_pack *pack, uint32_t index) {
  const uint8_t *p = pack->weights + (size_t)index * WEIGHTS_BYTES;
  pack_weights found = {.operand = pack_u32(p)};
  found.is = (tuner_weights){
      .format = text_at(pack, p + 4),
      .layout = text_at(pack, p + 8),
      .factors = text_at(pack, p + 12),
      .bits = (int32_t)pack_u32(p + 16),
      .k = (int32_t)pack_u32(p + 20),
      .group = (int32_t)pack_u32(p + 24),
      .has_zeros = (int32_t)pack_u32(p + 28),
  };
  if (found.operand < pack->num_operands) found.is.rows = (int32_t)pack_get_operand(pack, found.operand).dims[0];
  return found;
}

/* The first operand of the given program or of a later one; operands are in the order of programs. */
static uint32_t operands_before(const tuner_pack *pack, uint32_t program) {
  uint32_t first = 0, end = pack->num_operands;
  while (first < end) {
    const uint32_t middle = first + (end - first) / 2;
    if (pack_u32(pack->operands + (size_t)middle * OPERAND_BYTES) < program) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  return first;
}

pack_program pack_get_program(const tuner_pack *pack, uint32_t index) {
  const uint8_t *p = pack->programs + (size_t)index * PROGRAM_BYTES;
  const uint32_t first_operand = operands_before(pack, index);
  const pack_program program = {
      .digest = p,
      .text = text_at(pack, p + 32),
      .target = {pack_u32(p + 36), pack_u32(p + 40), pack_u32(p + 44), pack_u32(p + 48), pack_u32(p + 52),
                 (pack_u32(p + 56) & PACK_SIMULATED) != 0},
      .first_fill = pack_u32(p + 60),
      .num_fills = pack_u32(p + 64),
      .first_part = pack_u32(p + 68),
      .num_parts = pack_u32(p + 72),
      .most_rows = pack_u32(p + 76),
      .has_fallback = (pack_u32(p + 56) & PACK_PROGRAM_HAS_FALLBACK) != 0,
      .first_operand = first_operand,
      .num_operands = operands_before(pack, index + 1) - first_operand,
      .memory_bytes = pack_u64(p + 80),
      .refused_offset = pack_u64(p + 88),
  };
  return program;
}

pack_fill pack_get_fill(const tuner_pack *pack, uint32_t index) {
  const uint8_t *p = pack->fills + (size_t)index * FILL_BYTES;
  const pack_fill fill = {pack_u64(p), pack_u64(p + 8), pack_blob_at(pack, p + 16)};
  return fill;
}

pack_part pack_get_part(const tuner_pack *pack, uint32_t index) {
  const uint8_t *p = pack->parts + (size_t)index * PART_BYTES;
  pack_part part = {.symbol = text_at(pack, p), .abort_offset = pack_u64(p + 48)};
  uint32_t *const numbers[] = {&part.grid,        &part.num_threads, &part.cluster_size, &part.shared_bytes,
                               &part.flags,       &part.dependent_offset, &part.parameter_bytes, &part.first_patch,
                               &part.num_patches, &part.first_map,   &part.num_maps};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) *numbers[i] = pack_u32(p + 4 + 4 * i);
  part.cubin = pack_blob_at(pack, p + 56), part.parameter = pack_blob_at(pack, p + 56 + BLOB_BYTES);
  return part;
}

pack_patch pack_get_patch(const tuner_pack *pack, uint32_t index) {
  const uint8_t *p = pack->patches + (size_t)index * PATCH_BYTES;
  const pack_patch patch = {pack_u32(p), pack_u32(p + 4), pack_u64(p + 8)};
  return patch;
}

static uint64_t aligned(uint64_t num_bytes) { return (num_bytes + 255) / 256 * 256; }

pack_layout pack_get_layout(const tuner_pack *pack, const pack_kernel *kernel) {
  pack_layout layout = {{0}, {0}, 0};
  uint64_t sizes[PACK_MAX_WORKSPACES] = {0};
  for (uint32_t i = 0; i < kernel->num_launches; ++i) {
    const pack_launch launch = pack_get_launch(pack, kernel->first_launch + i);
    if (launch.workspace_bytes > sizes[launch.workspace]) sizes[launch.workspace] = launch.workspace_bytes;
  }
  for (uint32_t i = 0; i < kernel->num_workspaces; ++i) {
    layout.workspaces[i] = layout.bytes;
    layout.bytes += aligned(sizes[i]);
  }
  for (uint32_t i = 0; i < kernel->num_launches; ++i) {
    layout.words[i] = layout.bytes;
    layout.bytes += aligned(pack_get_launch(pack, kernel->first_launch + i).words.num_bytes);
  }
  return layout;
}

static int has_digest(const uint8_t *index, uint64_t num_bytes) {
#ifdef TUNER_FUZZING
  (void)index, (void)num_bytes;
  return 1; /* skipped when fuzzing, so that the fuzzer reaches the data after it */
#else
  static const uint8_t kZeros[32] = {0};
  uint8_t found[32];
  sha256 hash;
  sha256_begin(&hash);
  sha256_add(&hash, index, DIGEST_OFFSET);
  sha256_add(&hash, kZeros, 32);
  sha256_add(&hash, index + DIGEST_OFFSET + 32, (size_t)num_bytes - DIGEST_OFFSET - 32);
  sha256_end(&hash, found);
  return memcmp(found, index + DIGEST_OFFSET, 32) == 0;
#endif
}

/* A blob's offset, size and sha256 in its record. */
static tuner_status check_blob(const tuner_pack *pack, const uint8_t *p, const char *what, uint32_t index) {
  const uint64_t offset = pack_u64(p), num_bytes = pack_u64(p + 8);
  if (num_bytes == 0) return TUNER_OK;
  if (offset > pack->num_bytes || num_bytes > pack->num_bytes - offset)
    return tuner_fail(TUNER_BAD_PACK, "%s %u lies outside the pack: the file is truncated", what, index);
#ifndef TUNER_FUZZING
  uint8_t found[32];
  sha256 hash;
  sha256_begin(&hash);
  sha256_add(&hash, pack->bytes + offset, (size_t)num_bytes);
  sha256_end(&hash, found);
  if (memcmp(found, p + 16, 32) != 0)
    return tuner_fail(TUNER_BAD_PACK, "%s %u does not match its sha256 in the index: fetch the pack again", what, index);
#endif
  return TUNER_OK;
}

tuner_status pack_check_blobs(const tuner_pack *pack) {
  for (uint32_t i = 0; i < pack->num_kernels; ++i)
    for (int v = 0; v < PACK_NUM_VARIANTS; ++v)
      TUNER_TRY(check_blob(pack, pack->kernels + (size_t)i * KERNEL_BYTES + 136 + BLOB_BYTES * v, "cubin of kernel", i));
  for (uint32_t i = 0; i < pack->num_launches; ++i)
    for (int b = 0; b < 2; ++b)
      TUNER_TRY(check_blob(pack, pack->launches + (size_t)i * LAUNCH_BYTES + 32 + BLOB_BYTES * b, "plan of launch", i));
  for (uint32_t i = 0; i < pack->num_fills; ++i)
    TUNER_TRY(check_blob(pack, pack->fills + (size_t)i * FILL_BYTES + 16, "data of fill", i));
  for (uint32_t i = 0; i < pack->num_parts; ++i)
    for (int b = 0; b < 2; ++b)
      TUNER_TRY(check_blob(pack, pack->parts + (size_t)i * PART_BYTES + 56 + BLOB_BYTES * b, "cubin or parameter of part", i));
  return TUNER_OK;
}

static tuner_status read_index(tuner_pack *pack) {
  const uint8_t *index = pack->bytes + INDEX_OFFSET;
  if (pack->num_bytes < INDEX_OFFSET + HEADER_BYTES || memcmp(index, "TUNRPACK", 8) != 0)
    return tuner_fail(TUNER_BAD_PACK, "this is not a pack, as tuner-client pack makes: there is no index at byte %d", INDEX_OFFSET);
  const uint32_t version = pack->version = pack_u32(index + 8);
  if (version < 1 || version > VERSION)
    return tuner_fail(TUNER_BAD_PACK, "the pack has version %u, but this runtime supports versions 1 to %d", version, VERSION);
  const uint64_t num_bytes = pack_u64(index + 16);
  const uint32_t header_bytes = HEADER_BYTES + (version < WEIGHTS_VERSION ? 0 : MORE_BYTES);
  if (pack_u32(index + 12) != header_bytes || pack_u64(index + 24) != INDEX_OFFSET || num_bytes < header_bytes ||
      num_bytes > pack->num_bytes - INDEX_OFFSET)
    return tuner_fail(TUNER_BAD_PACK, "the pack's index is longer than the file: the file is truncated");
  if (!has_digest(index, num_bytes))
    return tuner_fail(TUNER_BAD_PACK, "the pack's index does not match its sha256: fetch the pack again");
  const struct {
    uint32_t *count;
    const uint8_t **records;
    uint32_t size, count_at;
  } tables[] = {
      {&pack->num_shapes, &pack->shapes, SHAPE_BYTES, 36},
      {&pack->num_rungs, &pack->rungs, RUNG_BYTES, 40},
      {&pack->num_kernels, &pack->kernels, KERNEL_BYTES, 44},
      {&pack->num_launches, &pack->launches, LAUNCH_BYTES, 48},
      {&pack->num_ops, &pack->ops, OP_BYTES, 52},
      {&pack->num_maps, &pack->maps, MAP_BYTES, 56},
      {&pack->num_attentions, &pack->attentions, ATTENTION_BYTES, 96},
      {&pack->num_attention_rungs, &pack->attention_rungs, ATTENTION_RUNG_BYTES, 100},
      {&pack->num_programs, &pack->programs, PROGRAM_BYTES, 104},
      {&pack->num_fills, &pack->fills, FILL_BYTES, 108},
      {&pack->num_parts, &pack->parts, PART_BYTES, 112},
      {&pack->num_patches, &pack->patches, PATCH_BYTES, 116},
      {&pack->num_layers, &pack->layers, LAYER_BYTES, 120},
      {&pack->num_operands, &pack->operands, OPERAND_BYTES, 124},
      {&pack->num_weights, &pack->weights, WEIGHTS_BYTES, HEADER_BYTES},
      {&pack->num_strings, &pack->strings, 1, 60},
  };
  uint64_t end = header_bytes;
  for (size_t i = 0; i < sizeof tables / sizeof *tables; ++i) {
    const uint32_t count = tables[i].count_at < header_bytes ? pack_u32(index + tables[i].count_at) : 0;
    const uint64_t table_bytes = (uint64_t)count * tables[i].size;
    if ((tables[i].size > 1 && count > MAX_RECORDS) || table_bytes > num_bytes - end)
      return tuner_fail(TUNER_BAD_PACK, "table %zu of the pack's index is longer than the index", i);
    *tables[i].count = count;
    *tables[i].records = index + end;
    end += table_bytes;
  }
  if (end != num_bytes || pack->num_strings == 0 || pack->strings[pack->num_strings - 1] != 0)
    return tuner_fail(TUNER_BAD_PACK, "the tables of the pack's index do not match its length");
  TUNER_TRY(pack_check_blobs(pack));
  TUNER_TRY(pack_check_records(pack));
  TUNER_TRY(pack_check_attentions(pack));
  TUNER_TRY(pack_check_weights(pack));
  return pack_check_fallbacks(pack);
}

tuner_status tuner_pack_open_bytes(const void *bytes, size_t num_bytes, tuner_pack **opened) {
  if (bytes == NULL || opened == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "bytes and pack must not be null");
  tuner_pack *pack = calloc(1, sizeof *pack);
  if (pack == NULL) return tuner_fail(TUNER_NO_MEMORY, "not enough host memory for a pack");
  pack->bytes = bytes;
  pack->num_bytes = num_bytes;
  const tuner_status status = read_index(pack);
  if (status != TUNER_OK) {
    free(pack);
    return status;
  }
  pthread_mutex_init(&pack->lock, NULL);
  pack->num_holders = 1;
  *opened = pack;
  return TUNER_OK;
}

static tuner_status read_file(const char *path, void **bytes, size_t *num_bytes) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return tuner_fail(TUNER_BAD_PACK, "%s cannot be opened: %s", path, strerror(errno));
  long end = -1;
  const int is_folder = fgetc(file) == EOF && ferror(file); /* a folder can be opened, too, and reports a size */
  if (!is_folder && fseek(file, 0, SEEK_END) == 0) end = ftell(file);
  *bytes = NULL;
  tuner_status status = TUNER_OK;
  if (end < 0 || fseek(file, 0, SEEK_SET) != 0) {
    status = tuner_fail(TUNER_BAD_PACK, "%s cannot be read: %s", path, strerror(errno));
  } else if ((*bytes = aligned_alloc(64, ((size_t)end + 64) / 64 * 64)) == NULL) {
    status = tuner_fail(TUNER_NO_MEMORY, "not enough host memory for the %ld bytes of %s", end, path);
  } else if (fread(*bytes, 1, (size_t)end, file) != (size_t)end) {
    status = tuner_fail(TUNER_BAD_PACK, "%s cannot be read completely", path);
  }
  fclose(file);
  *num_bytes = end < 0 ? 0 : (size_t)end;
  if (status != TUNER_OK) free(*bytes);
  return status;
}

tuner_status tuner_pack_open(const char *path, tuner_pack **opened) {
  if (path == NULL || opened == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "path and pack must not be null");
  void *bytes = NULL;
  size_t num_bytes = 0;
  TUNER_TRY(read_file(path, &bytes, &num_bytes));
  const tuner_status status = tuner_pack_open_bytes(bytes, num_bytes, opened);
  if (status == TUNER_OK) {
    (*opened)->owned = bytes;
  } else {
    free(bytes);
    tuner_fail_more(status, " (%s)", path);
  }
  return status;
}

void pack_hold(tuner_pack *pack) {
  pthread_mutex_lock(&pack->lock);
  ++pack->num_holders;
  pthread_mutex_unlock(&pack->lock);
}

void pack_let_go(tuner_pack *pack) {
  pthread_mutex_lock(&pack->lock);
  const uint32_t left = --pack->num_holders;
  pthread_mutex_unlock(&pack->lock);
  if (left > 0) return;
  pthread_mutex_destroy(&pack->lock);
  free(pack->owned);
  free(pack);
}

void tuner_pack_close(tuner_pack *pack) {
  if (pack != NULL) pack_let_go(pack);
}
