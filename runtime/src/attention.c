/* A prepared attention: its modules and memory, and its launches. */
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "fail.h"
#include "pack.h"

enum { ALIGNMENT = 256, RECORD_BYTES = 16 };

struct tuner_attention {
  const tuner_pack *pack;
  const tuner_driver *driver;
  pack_program program;
  pack_part parts[PACK_MAX_PARTS];
  CUmodule modules[PACK_MAX_PARTS];
  CUfunction functions[PACK_MAX_PARTS];
  CUlaunchConfig configs[PACK_MAX_PARTS];
  size_t offsets[PACK_MAX_PARTS]; /* of each part's parameter among those of a set of tensors */
  uint32_t operands;              /* bit by bit: tensors that a patch or a map names */
  CUdeviceptr memory;
  cache parameters;
};

static tuner_status load_part(tuner_attention *attention, uint32_t index) {
  const tuner_driver *driver = attention->driver;
  const pack_part *part = &attention->parts[index];
  TUNER_TRY(tuner_check(driver, driver->module_load(&attention->modules[index], part->cubin.data), "cuModuleLoadData"));
  CUfunction *function = &attention->functions[index];
  TUNER_TRY(tuner_check(driver, driver->module_function(function, attention->modules[index], part->symbol),
                        "cuModuleGetFunction"));
  TUNER_TRY(tuner_check(driver, driver->set_attribute(*function, CU_MAX_DYNAMIC_SHARED_BYTES, (int)part->shared_bytes),
                        "cuFuncSetAttribute"));
  if ((part->flags & PACK_NON_PORTABLE_CLUSTER) != 0)
    TUNER_TRY(tuner_check(driver, driver->set_attribute(*function, CU_NON_PORTABLE_CLUSTER, 1), "cuFuncSetAttribute"));
  attention->configs[index] = (CUlaunchConfig){
      .grid = {part->grid, 1, 1}, .block = {part->num_threads, 1, 1}, .shared_bytes = part->shared_bytes};
  if ((part->flags & PACK_NEEDS_ALL_CTAS) == 0) return TUNER_OK;
  return tuner_check_residency(driver, *function, &attention->configs[index], part->cluster_size);
}

/* Which tensors a launch must be given. */
static uint32_t operands_of(const tuner_attention *attention) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < attention->program.num_parts; ++i) {
    const pack_part *part = &attention->parts[i];
    for (uint32_t p = 0; p < part->num_patches; ++p)
      found |= 1u << pack_get_patch(attention->pack, part->first_patch + p).tensor;
    for (uint32_t m = 0; m < part->num_maps; ++m) {
      const pack_map map = pack_get_map(attention->pack, part->first_map + m);
      found |= 1u << map.op | (map.rows_dim != PACK_NONE ? 1u << PACK_TENSOR_NUM_PAGES : 0);
    }
  }
  return found;
}

/* The memory as new. */
static tuner_status fill_memory(const tuner_attention *attention, CUstream stream) {
  const tuner_driver *driver = attention->driver;
  for (uint32_t i = 0; i < attention->program.num_fills; ++i) {
    const pack_fill fill = pack_get_fill(attention->pack, attention->program.first_fill + i);
    const CUdeviceptr at = attention->memory + fill.offset;
    if (fill.blob.num_bytes > 0) {
      TUNER_TRY(tuner_check(driver, driver->copy_to_device(at, fill.blob.data, fill.blob.num_bytes, stream),
                            "cuMemcpyHtoDAsync"));
    } else if (fill.num_zeros > 0) {
      TUNER_TRY(tuner_check(driver, driver->set_bytes(at, 0, (size_t)fill.num_zeros, stream), "cuMemsetD8Async"));
    }
  }
  return tuner_check(driver, driver->stream_synchronize(stream), "cuStreamSynchronize");
}

static tuner_status prepare(tuner_attention *attention, uint32_t program, CUstream stream, uint32_t num_cached) {
  const tuner_driver *driver = attention->driver;
  attention->program = pack_get_program(attention->pack, program);
  if (attention->program.target.is_simulated)
    return tuner_fail(TUNER_NO_VARIANT, "this kernel was simulated: there is nothing to run");
  CUcontext context = NULL;
  TUNER_TRY(tuner_check(driver, driver->current_context(&context), "cuCtxGetCurrent"));
  if (context == NULL)
    return tuner_fail(TUNER_BAD_ARGUMENT, "this thread has no CUDA context: make one current, e.g. by cudaFree(0)");
  size_t num_bytes = 0;
  for (uint32_t i = 0; i < attention->program.num_parts; ++i) {
    attention->parts[i] = pack_get_part(attention->pack, attention->program.first_part + i);
    attention->offsets[i] = num_bytes;
    num_bytes += ((size_t)attention->parts[i].parameter_bytes + 63) / 64 * 64;
    TUNER_TRY(load_part(attention, i));
  }
  attention->operands = operands_of(attention);
  TUNER_TRY(cache_make(&attention->parameters, sizeof(tuner_attention_tensors), num_bytes, num_cached));
  return fill_memory(attention, stream);
}

tuner_status tuner_attention_prepare(tuner_pack *pack, const tuner_attention_choice *choice, void *memory, void *stream,
                                     uint32_t num_cached, tuner_attention **prepared) {
  if (pack == NULL || choice == NULL || prepared == NULL || choice->program >= pack->num_programs)
    return tuner_fail(TUNER_BAD_ARGUMENT, "pack, choice and attention must not be null, and the choice must name a kernel");
  if (memory == NULL || (uintptr_t)memory % ALIGNMENT != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "memory must be device memory at a multiple of %d bytes", ALIGNMENT);
  const tuner_driver *driver = tuner_driver_get();
  if (driver == NULL) return TUNER_NO_DRIVER;
  tuner_attention *attention = calloc(1, sizeof *attention);
  if (attention == NULL) return tuner_fail(TUNER_NO_MEMORY, "no memory for an attention");
  attention->pack = pack;
  attention->driver = driver;
  attention->memory = (CUdeviceptr)(uintptr_t)memory;
  const tuner_status status = prepare(attention, choice->program, stream, num_cached);
  if (status != TUNER_OK) {
    tuner_attention_release(attention);
    return status;
  }
  *prepared = attention;
  return TUNER_OK;
}

void tuner_attention_release(tuner_attention *attention) {
  if (attention == NULL) return;
  for (uint32_t i = 0; i < PACK_MAX_PARTS; ++i)
    if (attention->modules[i] != NULL) (void)attention->driver->module_unload(attention->modules[i]);
  cache_free(&attention->parameters);
  free(attention);
}

static uint64_t address_of(const tuner_attention *attention, const tuner_attention_tensors *t, uint32_t tensor) {
  const void *const given[PACK_TENSOR_MEMORY] = {t->q, t->keys, t->values, t->lengths, t->pages, t->w, t->y};
  return tensor == PACK_TENSOR_MEMORY ? attention->memory : (uint64_t)(uintptr_t)given[tensor];
}

static tuner_status check_tensors(const tuner_attention *attention, const tuner_attention_tensors *t) {
  static const char *const kNames[PACK_TENSOR_MEMORY] = {"q", "keys", "values", "lengths", "pages", "w", "y"};
  for (uint32_t tensor = 0; tensor < PACK_TENSOR_MEMORY; ++tensor) {
    const uint64_t address = address_of(attention, t, tensor);
    if (address % 16 != 0) return tuner_fail(TUNER_BAD_ARGUMENT, "%s does not lie at a multiple of 16 bytes", kNames[tensor]);
    if (address == 0 && (attention->operands >> tensor & 1) != 0)
      return tuner_fail(TUNER_BAD_ARGUMENT, "%s is null, and the kernel needs it", kNames[tensor]);
  }
  const int has_pages = (attention->operands >> PACK_TENSOR_NUM_PAGES & 1) != 0;
  if (has_pages ? t->num_pages < 1 || t->num_pages > INT32_MAX : t->num_pages != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, has_pages ? "num_pages must be 1 to 2147483647" : "the cache has no pages: give 0");
  return TUNER_OK;
}

static tuner_status pack_part_of(const tuner_attention *attention, const pack_part *part, const tuner_attention_tensors *t,
                                 uint8_t *into) {
  memcpy(into, part->parameter.data, part->parameter_bytes);
  for (uint32_t i = 0; i < part->num_patches; ++i) {
    const pack_patch patch = pack_get_patch(attention->pack, part->first_patch + i);
    if (patch.tensor == PACK_TENSOR_NUM_PAGES) {
      const int32_t num_pages = (int32_t)t->num_pages;
      memcpy(into + patch.offset, &num_pages, 4);
    } else {
      const uint64_t address = address_of(attention, t, patch.tensor) + patch.addend;
      memcpy(into + patch.offset, &address, 8);
    }
  }
  for (uint32_t i = 0; i < part->num_maps; ++i) {
    const pack_map map = pack_get_map(attention->pack, part->first_map + i);
    uint64_t dims[5], address = address_of(attention, t, map.op);
    memcpy(dims, map.dims, sizeof dims);
    if (map.rows_dim != PACK_NONE) dims[map.rows_dim] = (uint64_t)t->num_pages * map.rows_per_page;
    if (map.op == PACK_TENSOR_MEMORY) address += (uint64_t)map.memory_place * ALIGNMENT;
    TUNER_TRY(tuner_encode_map(attention->driver, &map, dims, address, into + map.operand));
  }
  return TUNER_OK;
}

tuner_status tuner_attention_launch(tuner_attention *attention, const tuner_attention_tensors *tensors, void *stream,
                                    uint32_t flags) {
  if (attention == NULL || tensors == NULL)
    return tuner_fail(TUNER_BAD_ARGUMENT, "attention and tensors must not be null");
  TUNER_TRY(check_tensors(attention, tensors));
  int is_new;
  uint8_t *parameters = cache_find(&attention->parameters, tensors, &is_new);
  if (is_new) {
    for (uint32_t i = 0; i < attention->program.num_parts; ++i)
      TUNER_TRY(pack_part_of(attention, &attention->parts[i], tensors, parameters + attention->offsets[i]));
    cache_keep(&attention->parameters, parameters, tensors);
  }
  for (uint32_t i = 0; i < attention->program.num_parts; ++i) {
    CUlaunchConfig config = attention->configs[i];
    config.stream = stream;
    TUNER_TRY(tuner_enqueue(attention->driver, attention->functions[i], config, attention->parts[i].flags,
                            parameters + attention->offsets[i], attention->parts[i].dependent_offset, flags));
  }
  return TUNER_OK;
}

tuner_status tuner_attention_refused(const tuner_attention *attention, void *stream, tuner_attention_refusal *refusal) {
  if (attention == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "attention must not be null");
  const tuner_driver *driver = attention->driver;
  TUNER_TRY(tuner_check(driver, driver->stream_synchronize(stream), "cuStreamSynchronize"));
  tuner_attention_refusal found;
  _Static_assert(sizeof found == RECORD_BYTES, "as the kernel writes it");
  const CUdeviceptr at = attention->memory + attention->program.refused_offset;
  TUNER_TRY(tuner_check(driver, driver->copy_to_host(&found, at, sizeof found), "cuMemcpyDtoH"));
  for (uint32_t i = 0; found.kind == 0 && i < attention->program.num_parts; ++i) {
    uint32_t raised = 0;
    if (attention->parts[i].abort_offset == PACK_NOWHERE) continue;
    const CUdeviceptr record = attention->memory + attention->parts[i].abort_offset;
    TUNER_TRY(tuner_check(driver, driver->copy_to_host(&raised, record, sizeof raised), "cuMemcpyDtoH"));
    if (raised != 0) found.kind = -1;
  }
  if (refusal != NULL) *refusal = found;
  return found.kind == 0 ? TUNER_OK : TUNER_ABORTED;
}

tuner_status tuner_attention_reset(tuner_attention *attention, void *stream) {
  if (attention == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "attention must not be null");
  TUNER_TRY(tuner_check(attention->driver, attention->driver->stream_synchronize(stream), "cuStreamSynchronize"));
  return fill_memory(attention, stream);
}
