/* What is done before the first launch: checks, modules, the device's memory, the host's. */
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "ffn.h"
#include "rows_of.h"

enum { ALIGNMENT = 256 };

static uint32_t variant_of(const pack_kernel *kernel, const pack_launch *launches, uint32_t flags) {
  if ((flags & TUNER_AS_MEASURED) != 0) return PACK_MEASURED;
  for (uint32_t i = 0; i < kernel->num_launches; ++i)
    if ((flags & TUNER_SAFE_WEIGHTS) != 0 && (launches[i].flags & PACK_READS_EARLY) != 0) return PACK_SAFE;
  return PACK_GUARDED;
}

CUlaunchConfig ffn_config(const pack_kernel *kernel, const pack_launch *launch) {
  const CUlaunchConfig config = {
      .grid = {launch->grid, 1, 1}, .block = {kernel->num_threads, 1, 1}, .shared_bytes = kernel->shared_bytes};
  return config;
}

static tuner_status make_record(tuner_ffn *ffn) {
  const tuner_driver *driver = ffn->driver;
  void *record = NULL;
  TUNER_TRY(tuner_check(driver, driver->host_alloc(&record, sizeof *ffn->record, CU_HOST_PORTABLE | CU_HOST_MAPPED),
                        "cuMemHostAlloc"));
  memset(record, 0, sizeof *ffn->record);
  ffn->record = record;
  return tuner_check(driver, driver->host_address(&ffn->record_address, record, 0), "cuMemHostGetDevicePointer");
}

/* Workspaces as new: zeros, but for where an abort's record goes. */
static tuner_status clear_workspaces(const tuner_ffn *ffn, CUstream stream) {
  const tuner_driver *driver = ffn->driver;
  for (uint32_t i = 0; i < ffn->kernel.num_launches; ++i) {
    const CUdeviceptr at = ffn->workspaces[i];
    TUNER_TRY(tuner_check(driver, driver->set_bytes(at, 0, (size_t)ffn->launches[i].zero_bytes, stream), "cuMemsetD8Async"));
    if (ffn->record != NULL)
      TUNER_TRY(tuner_check(driver,
                            driver->copy_to_device(at + HOST_RECORD_OFFSET, &ffn->record_address,
                                                   sizeof ffn->record_address, stream),
                            "cuMemcpyHtoDAsync"));
  }
  return TUNER_OK;
}

static tuner_status lay_out(tuner_ffn *ffn, CUdeviceptr memory, CUstream stream) {
  const tuner_driver *driver = ffn->driver;
  const pack_layout layout = pack_get_layout(ffn->pack, &ffn->kernel);
  for (uint32_t i = 0; i < ffn->kernel.num_launches; ++i) {
    const pack_launch *launch = &ffn->launches[i];
    ffn->workspaces[i] = memory + layout.workspaces[launch->workspace];
    ffn->words[i] = memory + layout.words[i];
    TUNER_TRY(tuner_check(driver,
                          driver->copy_to_device(ffn->words[i], launch->words.data, launch->words.num_bytes, stream),
                          "cuMemcpyHtoDAsync"));
  }
  TUNER_TRY(clear_workspaces(ffn, stream));
  return tuner_check(driver, driver->stream_synchronize(stream), "cuStreamSynchronize");
}

static tuner_status make_pair(tuner_ffn *ffn) {
  const tuner_driver *driver = ffn->driver;
  if ((ffn->kernel.flags & PACK_PAIRED) == 0) return TUNER_OK;
  TUNER_TRY(tuner_check(driver, driver->stream_create(&ffn->side, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
  TUNER_TRY(tuner_check(driver, driver->event_create(&ffn->fork, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
  return tuner_check(driver, driver->event_create(&ffn->join, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

/* Bytes of an element of a kernel: by the first shape that it serves. */
static uint32_t element_bytes_of(const tuner_pack *pack, uint32_t kernel) {
  for (uint32_t i = 0; i < pack->num_shapes; ++i) {
    const pack_shape shape = pack_get_shape(pack, i);
    for (uint32_t r = 0; r < shape.ladder.count; ++r) {
      const pack_rung rung = pack_get_rung(pack, &shape.ladder, r);
      if (rung.choice == PACK_CHOICE_KERNEL && rung.number == kernel) return rows_element_bytes((uint32_t)shape.shape.dtype);
    }
  }
  return 0;
}

static void read_records(tuner_ffn *ffn, uint32_t kernel) {
  const tuner_pack *pack = ffn->pack;
  ffn->kernel = pack_get_kernel(pack, kernel);
  for (uint32_t i = 0; i < ffn->kernel.num_launches; ++i) {
    ffn->launches[i] = pack_get_launch(pack, ffn->kernel.first_launch + i);
    ffn->configs[i] = ffn_config(&ffn->kernel, &ffn->launches[i]);
  }
  for (uint32_t i = 0; i < ffn->kernel.num_ops; ++i) ffn->ops[i] = pack_get_op(pack, ffn->kernel.first_op + i);
  for (uint32_t i = 0; i < ffn->kernel.num_maps; ++i) ffn->maps[i] = pack_get_map(pack, ffn->kernel.first_map + i);
}

/* A row's build; TUNER_MISMATCH where what runs the stream does not hold its launches. */
static tuner_status load_row(tuner_ffn *ffn, uint32_t kernel, CUstream stream, uint32_t flags) {
  const tuner_driver *driver = ffn->driver;
  ffn->list = (launch_list){0};
  read_records(ffn, kernel);
  const uint32_t variant = variant_of(&ffn->kernel, ffn->launches, flags);
  if (ffn->kernel.variants[variant].num_bytes == 0)
    return tuner_fail(TUNER_NO_VARIANT,
                      "the pack has no such build of this kernel: see its manifest, or give TUNER_AS_MEASURED");
  TUNER_TRY(module_get(ffn->pack, driver, kernel, variant, &ffn->module));
  for (uint32_t i = 0; i < ffn->kernel.num_launches; ++i)
    TUNER_TRY(launch_list_add(&ffn->list, driver, ffn->module->function, ffn->configs[i], ffn->kernel.cluster_size,
                              ffn->launches[i].flags, stream));
  return TUNER_OK;
}

/* Or its fallback's, where it has one. */
static tuner_status load_rows(tuner_ffn *ffn, uint32_t kernel, CUstream stream, uint32_t flags) {
  const tuner_status status = load_row(ffn, kernel, stream, flags);
  if (status != TUNER_MISMATCH || pack_kernel_rows(ffn->pack, kernel) == 1) return status;
  module_release(ffn->pack, ffn->driver, ffn->module);
  ffn->module = NULL;
  return load_row(ffn, kernel + 1, stream, flags);
}

static tuner_status fill(tuner_ffn *ffn, uint32_t kernel, void *memory, CUstream stream, uint32_t flags, uint32_t cached) {
  ffn->element_bytes = element_bytes_of(ffn->pack, kernel);
  TUNER_TRY(load_rows(ffn, kernel, stream, flags));
  if (ffn->module->variant != PACK_MEASURED) TUNER_TRY(make_record(ffn));
  TUNER_TRY(make_pair(ffn));
  ffn->parameter_stride = (ffn->kernel.parameter_bytes + 63) / 64 * 64;
  TUNER_TRY(cache_make(&ffn->parameters, sizeof(ffn_key), (size_t)ffn->parameter_stride * ffn->kernel.num_launches, cached));
  return lay_out(ffn, (CUdeviceptr)(uintptr_t)memory, stream);
}

tuner_status tuner_ffn_prepare(tuner_pack *pack, const tuner_choice *choice, void *memory, void *stream, uint32_t flags,
                               uint32_t num_cached, tuner_ffn **prepared) {
  if (pack == NULL || choice == NULL || prepared == NULL || choice->kernel >= pack->num_kernels)
    return tuner_fail(TUNER_BAD_ARGUMENT, "pack, choice and ffn must not be null, and the choice must name a kernel");
  if (memory == NULL || (uintptr_t)memory % ALIGNMENT != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "memory must be device memory at a multiple of %d bytes", ALIGNMENT);
  if ((flags & ~(uint32_t)(TUNER_AS_MEASURED | TUNER_SAFE_WEIGHTS)) != 0 ||
      flags == (TUNER_AS_MEASURED | TUNER_SAFE_WEIGHTS))
    return tuner_fail(TUNER_BAD_ARGUMENT, "flags must be 0, TUNER_AS_MEASURED or TUNER_SAFE_WEIGHTS");
  if ((pack_get_kernel(pack, choice->kernel).flags & PACK_SIMULATED) != 0) /* whether there is a driver or not */
    return tuner_fail(TUNER_NO_VARIANT, "this kernel was simulated: there is nothing to run");
  const tuner_driver *driver = tuner_driver_get();
  if (driver == NULL) return TUNER_NO_DRIVER;
  tuner_ffn *ffn = calloc(1, sizeof *ffn);
  if (ffn == NULL) return tuner_fail(TUNER_NO_MEMORY, "no memory for an FFN");
  ffn->pack = pack;
  ffn->driver = driver;
  const tuner_status status = fill(ffn, choice->kernel, memory, stream, flags, num_cached);
  if (status != TUNER_OK) {
    tuner_ffn_release(ffn);
    return status;
  }
  *prepared = ffn;
  return TUNER_OK;
}

void tuner_ffn_release(tuner_ffn *ffn) {
  if (ffn == NULL) return;
  if (ffn->join != NULL) (void)ffn->driver->event_destroy(ffn->join);
  if (ffn->fork != NULL) (void)ffn->driver->event_destroy(ffn->fork);
  if (ffn->side != NULL) (void)ffn->driver->stream_destroy(ffn->side);
  if (ffn->record != NULL) (void)ffn->driver->host_free(ffn->record);
  if (ffn->module != NULL) module_release(ffn->pack, ffn->driver, ffn->module);
  cache_free(&ffn->parameters);
  free(ffn);
}

tuner_status tuner_reset(tuner_ffn *ffn, void *stream) {
  if (ffn == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "ffn must not be null");
  const tuner_driver *driver = ffn->driver;
  if (ffn->side != NULL) /* a call that failed may have left a launch there that nothing waits for */
    TUNER_TRY(tuner_check(driver, driver->stream_synchronize(ffn->side), "cuStreamSynchronize"));
  TUNER_TRY(clear_workspaces(ffn, stream));
  TUNER_TRY(tuner_check(driver, driver->stream_synchronize(stream), "cuStreamSynchronize"));
  ffn->list.needs_reset = 0;
  if (ffn->record != NULL) atomic_store_explicit(&ffn->record->raised, 0, memory_order_release);
  return TUNER_OK;
}

tuner_status tuner_abort_poll(const tuner_ffn *ffn, tuner_abort_record *record) {
  if (ffn == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "ffn must not be null");
  if (ffn->record == NULL)
    return tuner_fail(TUNER_NO_VARIANT, "a build as measured tells the host of no abort: prepare it without TUNER_AS_MEASURED");
  if (atomic_load_explicit(&ffn->record->raised, memory_order_acquire) == 0) return TUNER_OK;
  const host_record *seen = ffn->record;
  if (record != NULL) *record = (tuner_abort_record){seen->task, seen->signal, seen->seen, seen->expected, seen->cta};
  return TUNER_ABORTED;
}
