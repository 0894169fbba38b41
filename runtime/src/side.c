/* Two launches that run at the same time: the second one on its own stream, after a gate that waits until the first has
 * started. */
#include "fail.h"
#include "ffn.h"

#include <string.h>

tuner_status side_make(program *on) {
  const tuner_driver *driver = on->driver;
  program_side *side = &on->side;
  for (uint32_t i = 0; i < on->rows.is.num_parts; ++i) {
    const pack_part *part = &on->rows.parts[i];
    if (part->gate_ctas != 0)
      TUNER_TRY(tuner_check(driver, driver->module_function(&side->gate, on->modules[i]->module, part->gate_symbol),
                            "cuModuleGetFunction"));
    if ((part->flags & PACK_SIDE_STREAM) == 0) continue;
    TUNER_TRY(tuner_check(driver, driver->stream_create(&side->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
    TUNER_TRY(tuner_check(driver, driver->event_create(&side->fork, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
    TUNER_TRY(tuner_check(driver, driver->event_create(&side->join, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
  }
  return TUNER_OK;
}

void side_end(program *on) {
  const program_side *side = &on->side;
  if (side->join != NULL) (void)on->driver->event_destroy(side->join);
  if (side->fork != NULL) (void)on->driver->event_destroy(side->fork);
  if (side->stream != NULL) (void)on->driver->stream_destroy(side->stream);
}

tuner_status side_fork(const program *on, CUstream stream) {
  const tuner_driver *driver = on->driver;
  if (on->side.stream == NULL) return TUNER_OK;
  TUNER_TRY(tuner_check(driver, driver->event_record(on->side.fork, stream), "cuEventRecord"));
  return tuner_check(driver, driver->stream_wait(on->side.stream, on->side.fork, 0), "cuStreamWaitEvent");
}

/* This is done even after a failed launch: otherwise the side stream would stay open in a capture. */
tuner_status side_join(const program *on, CUstream stream, tuner_status status) {
  const tuner_driver *driver = on->driver;
  if (on->side.stream == NULL) return status;
  CUresult result = driver->event_record(on->side.join, on->side.stream);
  if (result == 0) result = driver->stream_wait(stream, on->side.join, 0);
  return status != TUNER_OK ? status : tuner_check(driver, result, "joining the side stream");
}

/* A single thread that runs before the second of two launches, and waits until all CTAs of the first have started. */
tuner_status side_gate(const program *on, uint32_t index, const uint8_t *parameter) {
  CUlaunchConfig config = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = on->side.stream};
  CUdeviceptr workspace;
  int32_t num_ctas = (int32_t)on->rows.parts[index].gate_ctas;
  int64_t spin_limit_cycles;
  memcpy(&workspace, parameter + ARGS_WORKSPACE, sizeof workspace);
  memcpy(&spin_limit_cycles, parameter + ARGS_SPIN_LIMIT, sizeof spin_limit_cycles);
  void *values[] = {&workspace, &num_ctas, &spin_limit_cycles};
  return tuner_check(on->driver, on->driver->launch(&config, on->side.gate, values, NULL), "the start gate's launch");
}
