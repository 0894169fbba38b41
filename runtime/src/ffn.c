/* FFNs: which build of a kernel is prepared, the record of aborts, and launches with tuner_tensors. */
#include "ffn.h"

#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "operands.h"
#include "rows_of.h"

static uint32_t variant_of(const tuner_pack *pack, const pack_kernel *kernel, uint32_t flags) {
  if ((flags & TUNER_AS_MEASURED) != 0) return PACK_MEASURED;
  for (uint32_t i = 0; i < kernel->num_launches; ++i)
    if ((flags & TUNER_SAFE_WEIGHTS) != 0 && (pack_get_launch(pack, kernel->first_launch + i).flags & PACK_READS_EARLY) != 0)
      return PACK_SAFE;
  return PACK_GUARDED;
}

static tuner_status make_record(tuner_ffn *ffn) {
  const tuner_driver *driver = ffn->on.driver;
  void *record = NULL;
  TUNER_TRY(tuner_check(driver, driver->host_alloc(&record, sizeof *ffn->record, CU_HOST_PORTABLE | CU_HOST_MAPPED),
                        "cuMemHostAlloc"));
  memset(record, 0, sizeof *ffn->record);
  ffn->record = record;
  return tuner_check(driver, driver->host_address(&ffn->record_address, record, 0), "cuMemHostGetDevicePointer");
}

/* Stores the address of the abort record in the workspaces, which have just been reset. */
static tuner_status note_record(const tuner_ffn *ffn, CUstream stream) {
  const program *on = &ffn->on;
  const tuner_driver *driver = on->driver;
  if (ffn->record == NULL) return TUNER_OK;
  for (uint32_t i = 0; i < on->rows.is.num_fills; ++i) {
    const pack_fill *fill = &on->rows.fills[i];
    const CUdeviceptr at = on->memory + fill->offset + HOST_RECORD_OFFSET;
    if (fill->num_zeros > 0)
      TUNER_TRY(tuner_check(driver,
                            driver->copy_to_device(at, &ffn->record_address, sizeof ffn->record_address, stream),
                            "cuMemcpyHtoDAsync"));
  }
  return tuner_check(driver, driver->stream_synchronize(stream), "cuStreamSynchronize");
}

/* Bytes per element of a kernel, from the first shape that uses it. */
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

static tuner_status make(tuner_ffn *ffn, tuner_pack *pack, uint32_t index, void *memory, CUstream stream, uint32_t flags,
                         uint32_t num_cached) {
  const pack_kernel kernel = pack_get_kernel(pack, index);
  const uint32_t variant = variant_of(pack, &kernel, flags);
  if ((kernel.flags & PACK_SIMULATED) == 0 && kernel.variants[variant].num_bytes == 0)
    return tuner_fail(TUNER_NO_VARIANT,
                      "the pack does not have this build of the kernel: see its manifest, or use TUNER_AS_MEASURED");
  ffn->m_min = kernel.m_min, ffn->m_max = kernel.m_max, ffn->element_bytes = element_bytes_of(pack, index);
  for (uint32_t i = 0; i < kernel.num_ops; ++i) ffn->ops[i] = pack_get_op(pack, kernel.first_op + i);
  TUNER_TRY(program_make(&ffn->on, pack, index, variant, memory, stream, num_cached));
  if (variant != PACK_MEASURED) TUNER_TRY(make_record(ffn));
  return note_record(ffn, stream);
}

tuner_status tuner_ffn_prepare(tuner_pack *pack, const tuner_choice *choice, void *memory, void *stream, uint32_t flags,
                               uint32_t num_cached, tuner_ffn **prepared) {
  if (pack == NULL || choice == NULL || prepared == NULL || choice->kernel >= pack->num_kernels)
    return tuner_fail(TUNER_BAD_ARGUMENT, "pack, choice and ffn must not be null, and the choice must name a kernel");
  if ((flags & ~(uint32_t)(TUNER_AS_MEASURED | TUNER_SAFE_WEIGHTS)) != 0 ||
      flags == (TUNER_AS_MEASURED | TUNER_SAFE_WEIGHTS))
    return tuner_fail(TUNER_BAD_ARGUMENT, "flags must be 0, TUNER_AS_MEASURED or TUNER_SAFE_WEIGHTS");
  tuner_ffn *ffn = calloc(1, sizeof *ffn);
  if (ffn == NULL) return tuner_fail(TUNER_NO_MEMORY, "not enough host memory for an FFN");
  const tuner_status status = make(ffn, pack, choice->kernel, memory, stream, flags, num_cached);
  if (status != TUNER_OK) {
    tuner_ffn_release(ffn);
    return status;
  }
  *prepared = ffn;
  return TUNER_OK;
}

void tuner_ffn_release(tuner_ffn *ffn) {
  if (ffn == NULL) return;
  if (ffn->record != NULL) (void)ffn->on.driver->host_free(ffn->record);
  program_end(&ffn->on);
  free(ffn);
}

tuner_status tuner_ffn_launch(tuner_ffn *ffn, int32_t m, const tuner_tensors *tensors, void *stream, uint32_t flags) {
  if (ffn == NULL || tensors == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "ffn and tensors must not be null");
  TUNER_TRY(operand_check_flags(flags));
  TUNER_TRY(ffn_check_operands(ffn, m, tensors));
  program_call call = {.rows = m};
  memcpy(&call.addresses[PACK_FIRST_OPERAND], tensors, sizeof *tensors);
  return program_launch(&ffn->on, &call, stream, flags);
}

tuner_status tuner_ffn_launch_from(const tuner_launch *launch) {
  if (launch == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "launch must not be null");
  return tuner_ffn_launch(launch->ffn, launch->m, &launch->tensors, launch->stream, launch->flags);
}

tuner_status tuner_reset(tuner_ffn *ffn, void *stream) {
  if (ffn == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "ffn must not be null");
  TUNER_TRY(program_reset(&ffn->on, stream));
  TUNER_TRY(note_record(ffn, stream));
  if (ffn->record != NULL) atomic_store_explicit(&ffn->record->raised, 0, memory_order_release);
  return TUNER_OK;
}

tuner_status tuner_abort_poll(const tuner_ffn *ffn, tuner_abort_record *record) {
  if (ffn == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "ffn must not be null");
  if (ffn->record == NULL)
    return tuner_fail(TUNER_NO_VARIANT, "the build as measured does not report aborts to the host: prepare without TUNER_AS_MEASURED");
  if (atomic_load_explicit(&ffn->record->raised, memory_order_acquire) == 0) return TUNER_OK;
  const host_record *seen = ffn->record;
  if (record != NULL) *record = (tuner_abort_record){seen->task, seen->signal, seen->seen, seen->expected, seen->cta};
  return TUNER_ABORTED;
}
