#include "ffn.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "operands.h"

enum { ALIGNMENT = 256, RECORD_BYTES = 16 };

tuner_status program_function(const tuner_driver *driver, const pack_part *part, CUmodule module, CUfunction *function) {
  TUNER_TRY(tuner_check(driver, driver->module_function(function, module, part->symbol), "cuModuleGetFunction"));
  TUNER_TRY(tuner_check(driver, driver->set_attribute(*function, CU_MAX_DYNAMIC_SHARED_BYTES, (int)part->shared_bytes),
                        "cuFuncSetAttribute"));
  if ((part->flags & PACK_NON_PORTABLE_CLUSTER) == 0) return TUNER_OK;
  return tuner_check(driver, driver->set_attribute(*function, CU_NON_PORTABLE_CLUSTER, 1), "cuFuncSetAttribute");
}

CUlaunchConfig program_config(const pack_part *part) {
  const CUlaunchConfig config = {
      .grid = {part->grid, 1, 1}, .block = {part->num_threads, 1, 1}, .shared_bytes = part->shared_bytes};
  return config;
}

static tuner_status load_part(program *made, uint32_t index, CUstream stream) {
  const pack_part *part = &made->rows.parts[index];
  TUNER_TRY(module_get(made->pack, made->driver, &part->cubin, &made->modules[index]));
  TUNER_TRY(program_function(made->driver, part, made->modules[index]->module, &made->functions[index]));
  made->configs[index] = program_config(part);
  return launch_list_add(&made->list, made->driver, made->functions[index], made->configs[index], part->cluster_size,
                         part->flags, stream);
}

static void note_needed(program *made) {
  for (uint32_t i = 0; i < made->rows.is.num_parts; ++i) {
    const pack_part *part = &made->rows.parts[i];
    for (uint32_t p = 0; p < part->num_patches; ++p)
      made->is_needed[made->rows.patches[part->first_patch + p].tensor] = 1;
    for (uint32_t m = 0; m < part->num_maps; ++m) {
      const pack_map *map = &made->rows.maps[part->first_map + m];
      made->is_needed[map->op] = 1;
      if (map->rows_dim != PACK_NONE && map->rows_per_page > 0) made->is_needed[PACK_TENSOR_NUM_PAGES] = 1;
    }
  }
}

/* Resets the memory. */
static tuner_status fill_memory(const program *on, CUstream stream) {
  const tuner_driver *driver = on->driver;
  for (uint32_t i = 0; i < on->rows.is.num_fills; ++i) {
    const pack_fill fill = on->rows.fills[i];
    const CUdeviceptr at = on->memory + fill.offset;
    if (fill.blob.num_bytes > 0) {
      TUNER_TRY(tuner_check(driver, driver->copy_to_device(at, fill.blob.data, fill.blob.num_bytes, stream),
                            "cuMemcpyHtoDAsync"));
    } else if (fill.num_zeros > 0) {
      TUNER_TRY(tuner_check(driver, driver->set_bytes(at, 0, (size_t)fill.num_zeros, stream), "cuMemsetD8Async"));
    }
  }
  return tuner_check(driver, driver->stream_synchronize(stream), "cuStreamSynchronize");
}

/* A program's fills, patches and maps, which are in the pack. */
static tuner_status read_program(const tuner_pack *pack, program_rows *into) {
  uint32_t num_patches = 0, num_maps = 0;
  for (uint32_t i = 0; i < into->is.num_fills; ++i) into->fills[i] = pack_get_fill(pack, into->is.first_fill + i);
  for (uint32_t i = 0; i < into->is.num_parts; ++i)
    num_patches += into->parts[i].num_patches, num_maps += into->parts[i].num_maps;
  into->patches = calloc((size_t)num_patches + 1, sizeof *into->patches);
  into->maps = calloc((size_t)num_maps + 1, sizeof *into->maps);
  if (into->patches == NULL || into->maps == NULL) return tuner_fail(TUNER_NO_MEMORY, "not enough host memory for a program's launches");
  num_patches = num_maps = 0;
  for (uint32_t i = 0; i < into->is.num_parts; ++i) {
    pack_part *part = &into->parts[i];
    for (uint32_t p = 0; p < part->num_patches; ++p)
      into->patches[num_patches + p] = pack_get_patch(pack, part->first_patch + p);
    for (uint32_t m = 0; m < part->num_maps; ++m) into->maps[num_maps + m] = pack_get_map(pack, part->first_map + m);
    part->first_patch = num_patches, part->first_map = num_maps;
    num_patches += part->num_patches, num_maps += part->num_maps;
  }
  return TUNER_OK;
}

static void forget_rows(program *made) {
  for (uint32_t i = 0; i < PACK_MAX_PARTS; ++i) {
    if (made->modules[i] != NULL) module_release(made->pack, made->driver, made->modules[i]);
    made->modules[i] = NULL;
  }
  free(made->rows.patches), free(made->rows.maps), free(made->rows.parameters);
  made->rows = (program_rows){0};
}

/* Adds all parts of a row, and the bytes of their parameters; TUNER_MISMATCH if the stream's SMs do not hold them. */
static tuner_status load_row(program *made, uint32_t row, uint32_t variant, CUstream stream, size_t *num_bytes) {
  program_rows *rows = &made->rows;
  rows->is = pack_get_row(made->pack, row), made->list = (launch_list){0}, *num_bytes = 0;
  for (uint32_t i = 0; i < rows->is.num_parts; ++i) rows->parts[i] = pack_get_row_part(made->pack, row, i, variant);
  TUNER_TRY(row < made->pack->num_kernels ? lower_kernel(made->pack, row, rows) : read_program(made->pack, rows));
  for (uint32_t i = 0; i < rows->is.num_parts; ++i) {
    made->offsets[i] = *num_bytes;
    *num_bytes += ((size_t)rows->parts[i].parameter_bytes + 63) / 64 * 64;
    TUNER_TRY(load_part(made, i, stream));
  }
  return TUNER_OK;
}

/* Loads the row, or its fallback if it has one and the row does not fit. */
static tuner_status load_rows(program *made, uint32_t row, uint32_t variant, CUstream stream, size_t *num_bytes) {
  const tuner_status status = load_row(made, row, variant, stream, num_bytes);
  if (status != TUNER_MISMATCH || !made->rows.is.has_fallback) return status;
  forget_rows(made);
  return load_row(made, row + 1, variant, stream, num_bytes);
}

tuner_status program_make(program *made, tuner_pack *pack, uint32_t row, uint32_t variant, void *memory, CUstream stream,
                          uint32_t num_cached) {
  if (memory == NULL || (uintptr_t)memory % ALIGNMENT != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "memory must be device memory at a multiple of %d bytes", ALIGNMENT);
  if (pack_get_row(pack, row).target.is_simulated) /* with or without a driver */
    return tuner_fail(TUNER_NO_VARIANT, "this kernel was simulated: there is nothing to run");
  const tuner_driver *driver = tuner_driver_get();
  if (driver == NULL) return TUNER_NO_DRIVER;
  made->pack = pack, made->driver = driver, made->memory = (CUdeviceptr)(uintptr_t)memory;
  pack_hold(pack);
  size_t num_bytes;
  TUNER_TRY(load_rows(made, row, variant, stream, &num_bytes));
  TUNER_TRY(side_make(made));
  note_needed(made);
  const uint32_t num_operands = made->rows.is.num_operands;
  const uint32_t num_tensors = num_operands > 0 ? PACK_FIRST_OPERAND + num_operands : PACK_TENSOR_MEMORY;
  const size_t key_bytes = offsetof(program_call, addresses) + num_tensors * sizeof(uint64_t);
  TUNER_TRY(cache_make(&made->parameters, key_bytes, num_bytes, num_cached));
  return fill_memory(made, stream);
}

void program_end(program *made) {
  side_end(made);
  forget_rows(made);
  cache_free(&made->parameters);
  if (made->pack != NULL) pack_let_go(made->pack);
}

tuner_status program_check_address(const program *on, uint32_t tensor, uint64_t address, const char *name) {
  return operand_check_address(name, address, on->is_needed[tensor]);
}

static tuner_status check_pages(const program *on, int64_t num_pages) {
  const int has_pages = on->is_needed[PACK_TENSOR_NUM_PAGES];
  if (has_pages ? num_pages < 1 || num_pages > INT32_MAX : num_pages != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, has_pages ? "num_pages must be 1 to 2147483647" : "the cache has no pages: num_pages must be 0");
  return TUNER_OK;
}

static tuner_status pack_part_of(const program *on, const pack_part *part, const program_call *call, uint8_t *into) {
  memcpy(into, part->parameter.data, part->parameter_bytes);
  for (uint32_t i = 0; i < part->num_patches; ++i) {
    const pack_patch patch = on->rows.patches[part->first_patch + i];
    if (patch.tensor == PACK_TENSOR_NUM_PAGES || patch.tensor == PACK_TENSOR_ROWS) {
      const int32_t count = (int32_t)(patch.tensor == PACK_TENSOR_ROWS ? call->rows : call->num_pages);
      memcpy(into + patch.offset, &count, 4);
    } else {
      const uint64_t at = patch.tensor == PACK_TENSOR_MEMORY ? on->memory : call->addresses[patch.tensor];
      const uint64_t address = at + patch.addend;
      memcpy(into + patch.offset, &address, 8);
    }
  }
  for (uint32_t i = 0; i < part->num_maps; ++i) {
    const pack_map map = on->rows.maps[part->first_map + i];
    uint64_t dims[5], address = on->memory + (uint64_t)map.memory_place * ALIGNMENT;
    if (map.op != PACK_TENSOR_MEMORY) address = call->addresses[map.op];
    memcpy(dims, map.dims, sizeof dims);
    if (map.rows_dim != PACK_NONE)
      dims[map.rows_dim] = (uint64_t)(map.rows_per_page > 0 ? call->num_pages * map.rows_per_page : call->rows);
    TUNER_TRY(tuner_encode_map(on->driver, &map, dims, address, into + map.operand));
  }
  return TUNER_OK;
}

static tuner_status enqueue_all(program *on, uint8_t *parameters, CUstream stream, uint32_t flags) {
  for (uint32_t i = 0; i < on->rows.is.num_parts; ++i) {
    const pack_part *part = &on->rows.parts[i];
    CUlaunchConfig config = on->configs[i];
    config.stream = (part->flags & PACK_SIDE_STREAM) != 0 ? on->side.stream : stream;
    if (part->gate_ctas != 0) TUNER_TRY(side_gate(on, i, parameters + on->offsets[i]));
    TUNER_TRY(tuner_enqueue(on->driver, on->functions[i], config, part->flags, parameters + on->offsets[i],
                            part->dependent_offset, flags));
    ++on->list.num_enqueued;
  }
  return TUNER_OK;
}

tuner_status program_launch(program *on, const program_call *call, CUstream stream, uint32_t flags) {
  TUNER_TRY(operand_check_flags(flags));
  TUNER_TRY(check_pages(on, call->num_pages));
  TUNER_TRY(launch_list_begin(&on->list, on->driver, stream, on->rows.is.num_parts));
  int is_new;
  uint8_t *parameters = cache_find(&on->parameters, call, &is_new);
  if (is_new) {
    for (uint32_t i = 0; i < on->rows.is.num_parts; ++i)
      TUNER_TRY(pack_part_of(on, &on->rows.parts[i], call, parameters + on->offsets[i]));
    cache_keep(&on->parameters, parameters, call);
  }
  TUNER_TRY(side_fork(on, stream));
  return launch_list_end(&on->list, side_join(on, stream, enqueue_all(on, parameters, stream, flags)));
}

/* The content of the memory at an offset, as written by a kernel. */
static tuner_status read_memory(const program *on, CUstream stream, uint64_t offset, size_t num_bytes, void *into) {
  const tuner_driver *driver = on->driver;
  const CUdeviceptr at = on->memory + offset;
  TUNER_TRY(tuner_check(driver, driver->copy_to_host(into, at, num_bytes, stream), "cuMemcpyDtoHAsync"));
  return tuner_check(driver, driver->stream_synchronize(stream), "cuStreamSynchronize");
}

/* For launches of products: whether one has reported an invalid input or was aborted. */
static tuner_status products_refused(const program *on, CUstream stream, tuner_attention_refusal *found) {
  for (uint32_t i = 0; found->kind == 0 && i < on->rows.is.num_parts; ++i) {
    const pack_part *part = &on->rows.parts[i];
    if (part->abort_offset == PACK_NOWHERE) continue;
    if ((part->flags & PACK_TELLS_REFUSED) != 0)
      TUNER_TRY(read_memory(on, stream, part->abort_offset + PACK_REFUSED_BEHIND_ABORT, sizeof *found, found));
  }
  for (uint32_t i = 0; found->kind == 0 && i < on->rows.is.num_parts; ++i) {
    uint32_t raised = 0;
    if (on->rows.parts[i].abort_offset == PACK_NOWHERE) continue;
    TUNER_TRY(read_memory(on, stream, on->rows.parts[i].abort_offset, sizeof raised, &raised));
    if (raised != 0) found->kind = -1;
  }
  return TUNER_OK;
}

tuner_status program_refused(const program *on, CUstream stream, tuner_attention_refusal *refusal) {
  tuner_attention_refusal found;
  _Static_assert(sizeof found == RECORD_BYTES, "in the kernel's layout");
  TUNER_TRY(read_memory(on, stream, on->rows.is.refused_offset, sizeof found, &found));
  TUNER_TRY(products_refused(on, stream, &found));
  if (refusal != NULL) *refusal = found;
  return found.kind == 0 ? TUNER_OK : TUNER_ABORTED;
}

tuner_status program_reset(program *on, CUstream stream) {
  const tuner_driver *driver = on->driver;
  if (on->side.stream != NULL) /* a failed call may have left a launch in the stream that nothing else waits for */
    TUNER_TRY(tuner_check(driver, driver->stream_synchronize(on->side.stream), "cuStreamSynchronize"));
  TUNER_TRY(fill_memory(on, stream));
  on->list.needs_reset = 0;
  return TUNER_OK;
}
