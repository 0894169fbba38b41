#include "program.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "operands.h"

enum { ALIGNMENT = 256, RECORD_BYTES = 16 };

/* The module of a part: of launches of one kernel it is loaded once. */
static tuner_status load_module(program *made, uint32_t index, CUmodule *module) {
  for (uint32_t i = 0; i < index; ++i) {
    if (made->modules[i] == NULL || made->parts[i].cubin.data != made->parts[index].cubin.data) continue;
    *module = made->modules[i];
    return TUNER_OK;
  }
  const tuner_status status = tuner_check(
      made->driver, made->driver->module_load(&made->modules[index], made->parts[index].cubin.data), "cuModuleLoadData");
  *module = made->modules[index];
  return status;
}

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
  const pack_part *part = &made->parts[index];
  CUmodule module = NULL;
  TUNER_TRY(load_module(made, index, &module));
  TUNER_TRY(program_function(made->driver, part, module, &made->functions[index]));
  made->configs[index] = program_config(part);
  return launch_list_add(&made->list, made->driver, made->functions[index], made->configs[index], part->cluster_size,
                         part->flags, stream);
}

static void note_needed(program *made) {
  for (uint32_t i = 0; i < made->is.num_parts; ++i) {
    const pack_part *part = &made->parts[i];
    for (uint32_t p = 0; p < part->num_patches; ++p)
      made->is_needed[pack_get_patch(made->pack, part->first_patch + p).tensor] = 1;
    for (uint32_t m = 0; m < part->num_maps; ++m) {
      const pack_map map = pack_get_map(made->pack, part->first_map + m);
      made->is_needed[map.op] = 1;
      if (map.rows_dim != PACK_NONE && map.rows_per_page > 0) made->is_needed[PACK_TENSOR_NUM_PAGES] = 1;
    }
  }
}

/* The memory as new. */
static tuner_status fill_memory(const program *on, CUstream stream) {
  const tuner_driver *driver = on->driver;
  for (uint32_t i = 0; i < on->is.num_fills; ++i) {
    const pack_fill fill = pack_get_fill(on->pack, on->is.first_fill + i);
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

static void unload(program *made) {
  for (uint32_t i = 0; i < PACK_MAX_PARTS; ++i) {
    if (made->modules[i] != NULL) (void)made->driver->module_unload(made->modules[i]);
    made->modules[i] = NULL;
  }
}

/* All parts of a row, and the bytes of their parameters; TUNER_MISMATCH where what runs the stream does not hold them. */
static tuner_status load_row(program *made, uint32_t index, CUstream stream, size_t *num_bytes) {
  made->is = pack_get_program(made->pack, index), made->list = (launch_list){0}, *num_bytes = 0;
  for (uint32_t i = 0; i < made->is.num_parts; ++i) {
    made->parts[i] = pack_get_part(made->pack, made->is.first_part + i);
    made->offsets[i] = *num_bytes;
    *num_bytes += ((size_t)made->parts[i].parameter_bytes + 63) / 64 * 64;
    TUNER_TRY(load_part(made, i, stream));
  }
  return TUNER_OK;
}

/* Or of its fallback, where it has one. */
static tuner_status load_rows(program *made, uint32_t index, CUstream stream, size_t *num_bytes) {
  const tuner_status status = load_row(made, index, stream, num_bytes);
  if (status != TUNER_MISMATCH || !made->is.has_fallback) return status;
  unload(made);
  return load_row(made, index + 1, stream, num_bytes);
}

tuner_status program_make(program *made, const tuner_pack *pack, uint32_t index, void *memory, CUstream stream,
                          uint32_t num_cached) {
  if (memory == NULL || (uintptr_t)memory % ALIGNMENT != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "memory must be device memory at a multiple of %d bytes", ALIGNMENT);
  if (pack_get_program(pack, index).target.is_simulated) /* whether there is a driver or not */
    return tuner_fail(TUNER_NO_VARIANT, "this kernel was simulated: there is nothing to run");
  const tuner_driver *driver = tuner_driver_get();
  if (driver == NULL) return TUNER_NO_DRIVER;
  made->pack = pack, made->driver = driver, made->memory = (CUdeviceptr)(uintptr_t)memory;
  CUcontext context = NULL;
  TUNER_TRY(tuner_check(driver, driver->current_context(&context), "cuCtxGetCurrent"));
  if (context == NULL)
    return tuner_fail(TUNER_BAD_ARGUMENT, "this thread has no CUDA context: make one current, e.g. by cudaFree(0)");
  size_t num_bytes;
  TUNER_TRY(load_rows(made, index, stream, &num_bytes));
  note_needed(made);
  const uint32_t num_tensors = made->is.num_operands > 0 ? PACK_FIRST_OPERAND + made->is.num_operands : PACK_TENSOR_MEMORY;
  const size_t key_bytes = offsetof(program_call, addresses) + num_tensors * sizeof(uint64_t);
  TUNER_TRY(cache_make(&made->parameters, key_bytes, num_bytes, num_cached));
  return fill_memory(made, stream);
}

void program_free(program *made) {
  if (made == NULL) return;
  unload(made);
  cache_free(&made->parameters);
  free(made);
}

tuner_status program_check_address(const program *on, uint32_t tensor, uint64_t address, const char *name) {
  return operand_check_address(name, address, on->is_needed[tensor]);
}

static tuner_status check_pages(const program *on, int64_t num_pages) {
  const int has_pages = on->is_needed[PACK_TENSOR_NUM_PAGES];
  if (has_pages ? num_pages < 1 || num_pages > INT32_MAX : num_pages != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, has_pages ? "num_pages must be 1 to 2147483647" : "the cache has no pages: give 0");
  return TUNER_OK;
}

static tuner_status pack_part_of(const program *on, const pack_part *part, const program_call *call, uint8_t *into) {
  memcpy(into, part->parameter.data, part->parameter_bytes);
  for (uint32_t i = 0; i < part->num_patches; ++i) {
    const pack_patch patch = pack_get_patch(on->pack, part->first_patch + i);
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
    const pack_map map = pack_get_map(on->pack, part->first_map + i);
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
  for (uint32_t i = 0; i < on->is.num_parts; ++i) {
    CUlaunchConfig config = on->configs[i];
    config.stream = stream;
    TUNER_TRY(tuner_enqueue(on->driver, on->functions[i], config, on->parts[i].flags, parameters + on->offsets[i],
                            on->parts[i].dependent_offset, flags));
    ++on->list.num_enqueued;
  }
  return TUNER_OK;
}

tuner_status program_launch(program *on, const program_call *call, CUstream stream, uint32_t flags) {
  TUNER_TRY(operand_check_flags(flags));
  TUNER_TRY(check_pages(on, call->num_pages));
  TUNER_TRY(launch_list_begin(&on->list, on->driver, stream, on->is.num_parts));
  int is_new;
  uint8_t *parameters = cache_find(&on->parameters, call, &is_new);
  if (is_new) {
    for (uint32_t i = 0; i < on->is.num_parts; ++i)
      TUNER_TRY(pack_part_of(on, &on->parts[i], call, parameters + on->offsets[i]));
    cache_keep(&on->parameters, parameters, call);
  }
  return launch_list_end(&on->list, enqueue_all(on, parameters, stream, flags));
}

/* What lies at a place of the memory, as a kernel has written it. */
static tuner_status read_memory(const program *on, CUstream stream, uint64_t offset, size_t num_bytes, void *into) {
  const tuner_driver *driver = on->driver;
  const CUdeviceptr at = on->memory + offset;
  TUNER_TRY(tuner_check(driver, driver->copy_to_host(into, at, num_bytes, stream), "cuMemcpyDtoHAsync"));
  return tuner_check(driver, driver->stream_synchronize(stream), "cuStreamSynchronize");
}

/* Of the launches of products: what one refused, or that one gave up. */
static tuner_status products_refused(const program *on, CUstream stream, tuner_attention_refusal *found) {
  for (uint32_t i = 0; found->kind == 0 && i < on->is.num_parts; ++i) {
    const pack_part *part = &on->parts[i];
    if (part->abort_offset == PACK_NOWHERE) continue;
    if ((part->flags & PACK_TELLS_REFUSED) != 0)
      TUNER_TRY(read_memory(on, stream, part->abort_offset + PACK_REFUSED_BEHIND_ABORT, sizeof *found, found));
  }
  for (uint32_t i = 0; found->kind == 0 && i < on->is.num_parts; ++i) {
    uint32_t raised = 0;
    if (on->parts[i].abort_offset == PACK_NOWHERE) continue;
    TUNER_TRY(read_memory(on, stream, on->parts[i].abort_offset, sizeof raised, &raised));
    if (raised != 0) found->kind = -1;
  }
  return TUNER_OK;
}

tuner_status program_refused(const program *on, CUstream stream, tuner_attention_refusal *refusal) {
  tuner_attention_refusal found;
  _Static_assert(sizeof found == RECORD_BYTES, "as the kernel writes it");
  TUNER_TRY(read_memory(on, stream, on->is.refused_offset, sizeof found, &found));
  TUNER_TRY(products_refused(on, stream, &found));
  if (refusal != NULL) *refusal = found;
  return found.kind == 0 ? TUNER_OK : TUNER_ABORTED;
}

tuner_status program_reset(program *on, CUstream stream) {
  TUNER_TRY(fill_memory(on, stream));
  on->list.needs_reset = 0;
  return TUNER_OK;
}
