/* A launch: a look into the cache, and the driver's calls. Nothing is allocated, locked or waited for. */
#include <string.h>

#include "fail.h"
#include "ffn.h"
#include "operands.h"

/* One thread in front of the second of two launches: until all CTAs of the first have started. */
static tuner_status launch_gate(const tuner_ffn *ffn, uint32_t index, CUstream stream) {
  CUlaunchConfig config = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = stream};
  CUdeviceptr workspace = ffn->workspaces[index];
  int32_t num_ctas = (int32_t)ffn->launches[index].gate_ctas;
  int64_t spin_limit_cycles = ffn->kernel.spin_limit_cycles;
  void *values[] = {&workspace, &num_ctas, &spin_limit_cycles};
  return tuner_check(ffn->driver, ffn->driver->launch(&config, ffn->module->gate, values, NULL), "the start gate's launch");
}

tuner_status tuner_enqueue(const tuner_driver *driver, CUfunction function, CUlaunchConfig config, uint32_t facts,
                           uint8_t *parameter, uint32_t dependent_offset, uint32_t flags) {
  const int is_plain = (flags & TUNER_NO_PDL) != 0;
  const int32_t is_programmatic = !is_plain && (facts & PACK_IS_PROGRAMMATIC) != 0;
  const int is_cooperative = (facts & (is_plain ? PACK_COOPERATIVE_WHEN_PLAIN : PACK_IS_COOPERATIVE)) != 0;
  CUlaunchAttribute attribute;
  memset(&attribute, 0, sizeof attribute);
  attribute.id = is_programmatic ? CU_ATTRIBUTE_PROGRAMMATIC : CU_ATTRIBUTE_COOPERATIVE;
  attribute.value.on = 1;
  config.attributes = &attribute;
  config.num_attributes = is_programmatic || is_cooperative ? 1 : 0;
  if (dependent_offset != PACK_NONE) memcpy(parameter + dependent_offset, &is_programmatic, 4);
  void *values[] = {parameter};
  return tuner_check(driver, driver->launch(&config, function, values, NULL), "cuLaunchKernelEx");
}

static tuner_status fork_side(const tuner_ffn *ffn, CUstream stream) {
  const tuner_driver *driver = ffn->driver;
  TUNER_TRY(tuner_check(driver, driver->event_record(ffn->fork, stream), "cuEventRecord"));
  return tuner_check(driver, driver->stream_wait(ffn->side, ffn->fork, 0), "cuStreamWaitEvent");
}

/* Also behind a launch that failed: in a capture the side stream would stay open. */
static tuner_status join_side(const tuner_ffn *ffn, CUstream stream, tuner_status status) {
  const tuner_driver *driver = ffn->driver;
  CUresult result = driver->event_record(ffn->join, ffn->side);
  if (result == 0) result = driver->stream_wait(stream, ffn->join, 0);
  return status != TUNER_OK ? status : tuner_check(driver, result, "joining the side stream");
}

static tuner_status enqueue_all(tuner_ffn *ffn, uint8_t *parameters, CUstream stream, uint32_t flags) {
  for (uint32_t i = 0; i < ffn->kernel.num_launches; ++i) {
    const CUstream on = (ffn->launches[i].flags & PACK_SIDE_STREAM) != 0 ? ffn->side : stream;
    if (ffn->launches[i].gate_ctas != 0) TUNER_TRY(launch_gate(ffn, i, on));
    CUlaunchConfig config = ffn->configs[i];
    config.stream = on;
    TUNER_TRY(tuner_enqueue(ffn->driver, ffn->module->function, config, ffn->launches[i].flags,
                            parameters + (size_t)i * ffn->parameter_stride, ARGS_IS_DEPENDENT, flags));
    ++ffn->list.num_enqueued;
  }
  return TUNER_OK;
}

tuner_status tuner_ffn_launch(tuner_ffn *ffn, int32_t m, const tuner_tensors *tensors, void *stream, uint32_t flags) {
  if (ffn == NULL || tensors == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "ffn and tensors must not be null");
  TUNER_TRY(operand_check_flags(flags));
  TUNER_TRY(ffn_check_operands(ffn, m, tensors));
  TUNER_TRY(launch_list_begin(&ffn->list, ffn->driver, stream, ffn->kernel.num_launches));
  uint8_t *parameters = ffn_parameters(ffn, m, tensors);
  if (parameters == NULL) return TUNER_CUDA_ERROR;
  if (ffn->side != NULL) TUNER_TRY(fork_side(ffn, stream));
  tuner_status status = enqueue_all(ffn, parameters, stream, flags);
  if (ffn->side != NULL) status = join_side(ffn, stream, status);
  return launch_list_end(&ffn->list, status);
}

tuner_status tuner_ffn_launch_from(const tuner_launch *launch) {
  if (launch == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "launch must not be null");
  return tuner_ffn_launch(launch->ffn, launch->m, &launch->tensors, launch->stream, launch->flags);
}
