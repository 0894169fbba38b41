/* Requirements on the records of attentions and layers, so that readers need not check again. */
#include <string.h>

#include "fail.h"
#include "pack.h"
#include "plan_check.h"
#include "rows_of.h"

/* Limits of a kernel, as in pack_check.c. */
enum { MAX_PARAMETER_BYTES = 32764, MAX_THREADS = 1024, MAX_CLUSTER = 16, MAX_SHARED_BYTES = 1 << 20, MAX_GRID = 1 << 20 };
enum { ENCODED_MAP_BYTES = 128, ALIGNMENT = 256, RECORD_BYTES = 16 };
/* Layout of a product's parameter and workspace, as in launch_args.cuh. */
enum { ARGS_WORDS = 0, ARGS_WORKSPACE = 8, ARGS_SPIN_LIMIT = 16, ARGS_IS_DEPENDENT = 24, ARGS_PLAN_HEADER = 40 };
enum { ARGS_HEAD_BYTES = 104, PLAN_HEADER_BYTES = 64, ABORT_OFFSET = 128, PLAN_MAGIC = 0x524E5554 };
/* Larger than the memory of any device. */
static const uint64_t kMaxBytes = 1ull << 40;

static tuner_status bad(const char *table, uint32_t index, const char *what) {
  return tuner_fail(TUNER_BAD_PACK, "%s %u of the pack's index: %s", table, index, what);
}

static int is_within(uint64_t offset, uint64_t num_bytes, uint64_t total) {
  return offset <= total && num_bytes <= total - offset;
}

/* Whether a number refers to something: for an attention's program to one of its seven tensors, for a layer's to one of
 * its operands, and for both also to the memory or the number of pages. */
static int is_tensor(uint32_t tensor, const pack_program *program) {
  if (tensor == PACK_TENSOR_MEMORY || tensor == PACK_TENSOR_NUM_PAGES) return 1;
  if (tensor == PACK_TENSOR_ROWS) return program->most_rows > 0;
  if (program->num_operands == 0) return tensor < PACK_TENSOR_MEMORY;
  return tensor >= PACK_FIRST_OPERAND && tensor - PACK_FIRST_OPERAND < program->num_operands;
}

/* Whether a map's launch-dependent dimension is valid: rows of pages, or rows. */
static int has_rows_of(const tuner_pack *pack, const pack_map *map, const pack_program *program) {
  const int is_paged = map->rows_per_page > 0;
  if (!is_paged && (program->most_rows == 0 || map->rows_dim == 0 || map->dims[map->rows_dim] != program->most_rows)) return 0;
  if (map->op == PACK_TENSOR_MEMORY) return !is_paged;
  if (map->op < PACK_FIRST_OPERAND) return is_paged && (map->op == PACK_TENSOR_KEYS || map->op == PACK_TENSOR_VALUES);
  const pack_operand of = pack_get_operand(pack, program->first_operand + map->op - PACK_FIRST_OPERAND);
  return (of.flags & (is_paged ? PACK_IS_PAGED : PACK_HAS_ROWS)) != 0;
}

static tuner_status check_operand(const tuner_pack *pack, uint32_t index, uint32_t before) {
  const pack_operand found = pack_get_operand(pack, index);
  if (!pack_is_text(pack, found.name) || !pack_is_text(pack, found.role))
    return bad("operand", index, "a string lies outside the string table");
  if (found.program < before || found.program >= pack->num_programs)
    return bad("operand", index, "its program number is out of order or out of range");
  if (rows_element_bytes(found.dtype) == 0 || found.rank < 1 || found.rank > 4)
    return bad("operand", index, "its element type or rank is out of range");
  for (uint32_t i = 0; i < found.rank; ++i)
    if (found.dims[i] == 0 || found.dims[i] > INT32_MAX) return bad("operand", index, "a dimension is out of range");
  return TUNER_OK;
}

static tuner_status check_fill(const tuner_pack *pack, uint32_t index, const pack_program *program) {
  const pack_fill fill = pack_get_fill(pack, index);
  const uint64_t num_bytes = fill.blob.num_bytes > 0 ? fill.blob.num_bytes : fill.num_zeros;
  if (fill.offset % ALIGNMENT != 0 || !is_within(fill.offset, num_bytes, program->memory_bytes))
    return bad("fill", index, "it is misaligned or outside the program's memory");
  return TUNER_OK;
}

/* Checks maps of the memory and of a layer's operands. The sizes of an attention's seven tensors are not known here. */
static tuner_status check_map_place(const tuner_pack *pack, uint32_t index, const pack_map *map, const pack_program *program) {
  uint64_t num_bytes = rows_map_bytes(map->data_type);
  if (num_bytes == 0)
    return bad("tensor map", index, "its element type is unknown");
  if (map->op == PACK_TENSOR_MEMORY) {
    num_bytes = program->memory_bytes - (uint64_t)map->memory_place * ALIGNMENT;
  } else if (map->op < PACK_FIRST_OPERAND) {
    return TUNER_OK;
  } else {
    const uint32_t number = program->first_operand + map->op - PACK_FIRST_OPERAND;
    const pack_operand of = pack_get_operand(pack, number);
    /* Codes are stored as bytes; a map treats them as elements of several codes. */
    num_bytes = rows_element_bytes(of.dtype);
    if (of.dtype != TUNER_UINT8 && !rows_is_mapped(of.dtype, map->data_type)) return bad("tensor map", index, "its element type differs from its operand's");
    for (uint32_t i = 0; i < of.rank; ++i) {
      if (num_bytes > kMaxBytes / of.dims[i]) return bad("operand", number, "it is too large");
      num_bytes *= of.dims[i];
    }
    const uint32_t rows = map->rows_per_page > 0 ? map->rows_per_page : 1;
    if (map->rows_dim != PACK_NONE && (map->rows_dim == 0 || map->strides[map->rows_dim - 1] * rows != num_bytes / of.dims[0]))
      return bad("tensor map", index, "its pages or rows differ from its operand's");
  }
  return pack_map_is_within(map, num_bytes) ? TUNER_OK : bad("tensor map", index, "it is outside its tensor");
}

static tuner_status check_map(const tuner_pack *pack, uint32_t index, const pack_part *part, const pack_program *program) {
  const pack_map map = pack_get_map(pack, index);
  const uint32_t tensor = map.op, offset = map.operand;
  if (!is_tensor(tensor, program) || tensor == PACK_TENSOR_NUM_PAGES || tensor == PACK_TENSOR_ROWS || map.rank < 2 ||
      map.rank > 5)
    return bad("tensor map", index, "its tensor or rank is out of range");
  if (offset % 64 != 0 || !is_within(offset, ENCODED_MAP_BYTES, part->parameter_bytes))
    return bad("tensor map", index, "it is outside the kernel's parameter");
  if (map.rows_dim != PACK_NONE && (map.rows_dim >= map.rank || !has_rows_of(pack, &map, program)))
    return bad("tensor map", index, "its pages or rows are out of range");
  if (tensor == PACK_TENSOR_MEMORY && (uint64_t)map.memory_place * ALIGNMENT >= program->memory_bytes)
    return bad("tensor map", index, "it is outside the program's memory");
  TUNER_TRY(pack_check_map_dims(&map, index));
  return check_map_place(pack, index, &map, program);
}

static tuner_status check_patch(const tuner_pack *pack, uint32_t index, const pack_part *part, const pack_program *program) {
  const pack_patch patch = pack_get_patch(pack, index);
  const uint32_t num_bytes = patch.tensor == PACK_TENSOR_NUM_PAGES || patch.tensor == PACK_TENSOR_ROWS ? 4 : 8;
  if (!is_tensor(patch.tensor, program) || patch.offset % 4 != 0 ||
      !is_within(patch.offset, num_bytes, part->parameter_bytes))
    return bad("patch", index, "it is outside the kernel's parameter");
  if (patch.addend >= (patch.tensor == PACK_TENSOR_MEMORY ? program->memory_bytes : 1))
    return bad("patch", index, "it is outside its tensor");
  return TUNER_OK;
}

/* The content of the memory that a patch of the parameter points to; nothing if there is no such patch or fill. */
static pack_fill pointed_to(const tuner_pack *pack, uint32_t offset, const pack_part *part, const pack_program *program) {
  const pack_fill none = {PACK_NOWHERE, 0, {NULL, 0}};
  for (uint32_t p = 0; p < part->num_patches; ++p) {
    const pack_patch patch = pack_get_patch(pack, part->first_patch + p);
    if (patch.offset != offset || patch.tensor != PACK_TENSOR_MEMORY) continue;
    for (uint32_t f = 0; f < program->num_fills; ++f) {
      const pack_fill fill = pack_get_fill(pack, program->first_fill + f);
      if (fill.offset == patch.addend) return fill;
    }
  }
  return none;
}

/* For a launch of products: the plan header in the parameter must match the plan in the memory and in the recipe. */
static tuner_status check_product(const tuner_pack *pack, uint32_t index, const pack_part *part, const pack_program *program) {
  const pack_fill words = pointed_to(pack, ARGS_WORDS, part, program);
  const pack_fill workspace = pointed_to(pack, ARGS_WORKSPACE, part, program);
  const uint8_t *parameter = part->parameter.data;
  plan_header plan;
  const char *wrong = plan_check_spin_limit((int64_t)pack_u64(parameter + ARGS_SPIN_LIMIT));
  if (wrong == NULL) wrong = plan_read(words.blob.data, words.blob.num_bytes, &plan);
  if (wrong != NULL) return bad("part", index, wrong);
  if (memcmp(parameter + ARGS_PLAN_HEADER, words.blob.data, PLAN_HEADER_BYTES) != 0)
    return bad("part", index, "its parameter has another plan's header");
  if (part->dependent_offset != ARGS_IS_DEPENDENT || workspace.offset == PACK_NOWHERE || workspace.blob.num_bytes > 0 ||
      part->abort_offset != workspace.offset + ABORT_OFFSET)
    return bad("part", index, "it has no workspace with an abort record");
  const plan_launch is = {.grid = part->grid,
                          .cluster_size = part->cluster_size,
                          .flags = part->flags,
                          .workspace_bytes = program->memory_bytes - workspace.offset,
                          .zero_bytes = workspace.num_zeros};
  wrong = plan_check_launch(&plan, &is);
  return wrong == NULL ? TUNER_OK : bad("part", index, wrong);
}

/* Products have plans, attentions do not: at the offset of the magic number, an attention's parameter has another word.
 * */
static int is_product(const pack_part *part) {
  if (part->parameter_bytes < ARGS_HEAD_BYTES) return 0;
  return part->dependent_offset != PACK_NONE || (part->flags & PACK_TELLS_REFUSED) != 0 ||
         pack_u32(part->parameter.data + ARGS_PLAN_HEADER) == PLAN_MAGIC;
}

static tuner_status check_part(const tuner_pack *pack, uint32_t index, const pack_program *program) {
  const pack_part part = pack_get_part(pack, index);
  if (!pack_is_text(pack, part.symbol)) return bad("part", index, "a string lies outside the string table");
  if (part.num_threads == 0 || part.num_threads > MAX_THREADS || part.cluster_size == 0 ||
      part.cluster_size > MAX_CLUSTER || part.shared_bytes > MAX_SHARED_BYTES || part.grid == 0 || part.grid > MAX_GRID ||
      part.grid % part.cluster_size != 0)
    return bad("part", index, "its grid, threads, cluster size or shared memory is out of range");
  if (part.parameter_bytes == 0 || part.parameter_bytes > MAX_PARAMETER_BYTES ||
      part.parameter_bytes != part.parameter.num_bytes)
    return bad("part", index, "its parameter size is out of range");
  if (part.dependent_offset != PACK_NONE &&
      (part.dependent_offset % 4 != 0 || !is_within(part.dependent_offset, 4, part.parameter_bytes)))
    return bad("part", index, "its dependent_offset is outside the parameter");
  const uint64_t record_bytes = RECORD_BYTES + ((part.flags & PACK_TELLS_REFUSED) != 0 ? PACK_REFUSED_BEHIND_ABORT : 0);
  if (part.abort_offset != PACK_NOWHERE && !is_within(part.abort_offset, record_bytes, program->memory_bytes))
    return bad("part", index, "its abort record is outside the program's memory");
  if (!program->target.is_simulated && part.cubin.num_bytes == 0) return bad("part", index, "it has no cubin");
  if (part.num_maps > PACK_MAX_PART_MAPS || part.num_patches > part.parameter_bytes / 4 ||
      !pack_is_range(part.first_patch, part.num_patches, pack->num_patches) ||
      !pack_is_range(part.first_map, part.num_maps, pack->num_maps))
    return bad("part", index, "its patches or tensor maps exceed their tables");
  for (uint32_t i = 0; i < part.num_patches; ++i) TUNER_TRY(check_patch(pack, part.first_patch + i, &part, program));
  for (uint32_t i = 0; i < part.num_maps; ++i) TUNER_TRY(check_map(pack, part.first_map + i, &part, program));
  if (is_product(&part)) return check_product(pack, index, &part, program);
  const char *wrong = attention_check_launch(pack, &part, program);
  return wrong == NULL ? TUNER_OK : bad("part", index, wrong);
}

static tuner_status check_program(const tuner_pack *pack, uint32_t index) {
  const pack_program program = pack_get_program(pack, index);
  if (!pack_is_text(pack, program.text)) return bad("program", index, "a string lies outside the string table");
  if (program.num_operands > PACK_MAX_OPERANDS) return bad("program", index, "it has too many operands");
  if (program.most_rows > INT32_MAX) return bad("program", index, "its rows are out of range");
  if (program.num_parts == 0 || program.num_parts > PACK_MAX_PARTS || program.num_fills > PACK_MAX_FILLS ||
      !pack_is_range(program.first_part, program.num_parts, pack->num_parts) ||
      !pack_is_range(program.first_fill, program.num_fills, pack->num_fills))
    return bad("program", index, "it has too many or too few launches or fills");
  for (uint32_t i = 0; i < program.num_operands; ++i) {
    const pack_operand of = pack_get_operand(pack, program.first_operand + i);
    if ((of.flags & PACK_HAS_ROWS) != 0 && of.dims[0] != program.most_rows)
      return bad("operand", program.first_operand + i, "its rows differ from its program's");
  }
  if (program.memory_bytes > kMaxBytes || !is_within(program.refused_offset, RECORD_BYTES, program.memory_bytes))
    return bad("program", index, "its memory is out of range");
  for (uint32_t i = 0; i < program.num_fills; ++i) TUNER_TRY(check_fill(pack, program.first_fill + i, &program));
  for (uint32_t i = 0; i < program.num_parts; ++i) TUNER_TRY(check_part(pack, program.first_part + i, &program));
  return TUNER_OK;
}

static tuner_status check_ladder(const tuner_pack *pack, const pack_ladder *ladder, int has_operands) {
  TUNER_TRY(pack_check_ladder(pack, ladder));
  for (uint32_t i = 0; i < ladder->count; ++i) {
    const pack_rung rung = pack_get_rung(pack, ladder, i);
    if (rung.choice == PACK_CHOICE_LIBRARY) continue;
    const pack_program of = pack_get_program(pack, rung.number);
    if ((of.num_operands > 0) != has_operands) return bad("attention rung", ladder->first + i, "its kernel takes different tensors");
    if (ladder->by_rows ? (uint32_t)rung.m_hi > of.most_rows && (of.most_rows > 0 || rung.m_lo < rung.m_hi) : of.most_rows > 0)
      return bad("attention rung", ladder->first + i, "its kernel does not support these rows");
  }
  return TUNER_OK;
}

static int is_shape(const tuner_attention_shape *is) {
  return rows_is_operand(is->dtype) && is->heads >= 1 && is->kv_heads >= 1 && is->head_dim >= 1 &&
         is->new_tokens >= 1 && is->page_tokens >= 0 && is->window >= 0 && is->d_out >= 0;
}

static tuner_status check_layer(const tuner_pack *pack, uint32_t index) {
  const pack_layer found = pack_get_layer(pack, index);
  const tuner_layer_shape *is = &found.shape;
  const int has_attention = is->attention.heads != 0;
  if (!pack_is_text(pack, found.text) || !pack_is_text(pack, is->ops) || is->d_in < 1 || is->num_in_front < 0 ||
      (has_attention ? !is_shape(&is->attention) || is->num_products < is->num_in_front
                     : is->attention.d_out < 1 || is->num_products != is->num_in_front))
    return bad("layer", index, "a number is out of range");
  return check_ladder(pack, &found.ladder, 1);
}

tuner_status pack_check_attentions(const tuner_pack *pack) {
  uint32_t program = 0;
  for (uint32_t i = 0; i < pack->num_operands; ++i) {
    TUNER_TRY(check_operand(pack, i, program));
    program = pack_get_operand(pack, i).program;
  }
  for (uint32_t i = 0; i < pack->num_programs; ++i) TUNER_TRY(check_program(pack, i));
  for (uint32_t i = 0; i < pack->num_attentions; ++i) {
    const pack_attention found = pack_get_attention(pack, i);
    if (!pack_is_text(pack, found.text) || !is_shape(&found.shape)) return bad("attention", i, "a number is out of range");
    TUNER_TRY(check_ladder(pack, &found.ladder, 0));
  }
  for (uint32_t i = 0; i < pack->num_layers; ++i) TUNER_TRY(check_layer(pack, i));
  return TUNER_OK;
}
