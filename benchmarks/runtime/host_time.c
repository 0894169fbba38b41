/* The host's time of a call: the runtime's launch, and a bare cuLaunchKernelEx of the same parameters. */
#define _POSIX_C_SOURCE 200809L
#include <time.h>

#include "ffn.h"

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* Microseconds per call of the runtime. The stream must have room for all launches. */
double host_time_of_runtime(tuner_ffn *ffn, int32_t m, const tuner_tensors *tensors, void *stream, int count) {
  const double begin = now_us();
  for (int i = 0; i < count; ++i)
    if (tuner_ffn_launch(ffn, m, tensors, stream, 0) != TUNER_OK) return -1;
  return (now_us() - begin) / count;
}

/* The host time of the driver's call alone, for an FFN of one launch. */
double host_time_of_driver(tuner_ffn *ffn, int32_t m, const tuner_tensors *tensors, void *stream, int count) {
  program *on = &ffn->on;
  if (on->rows.is.num_parts != 1) return -1;
  program_call call = {.rows = m};
  __builtin_memcpy(&call.addresses[PACK_FIRST_OPERAND], tensors, sizeof *tensors);
  int is_new;
  uint8_t *parameters = cache_find(&on->parameters, &call, &is_new);
  if (is_new) {
    if (tuner_ffn_launch(ffn, m, tensors, stream, 0) != TUNER_OK) return -1;
    parameters = cache_find(&on->parameters, &call, &is_new);
  }
  const pack_part *part = &on->rows.parts[0];
  CUlaunchAttribute attribute = {
      .id = (part->flags & PACK_IS_PROGRAMMATIC) != 0 ? CU_ATTRIBUTE_PROGRAMMATIC : CU_ATTRIBUTE_COOPERATIVE,
      .value = {.on = 1}};
  CUlaunchConfig config = on->configs[0];
  config.stream = stream;
  config.attributes = &attribute;
  config.num_attributes = (part->flags & (PACK_IS_PROGRAMMATIC | PACK_IS_COOPERATIVE)) != 0;
  const int32_t is_dependent = (part->flags & PACK_IS_PROGRAMMATIC) != 0;
  __builtin_memcpy(parameters + on->offsets[0] + ARGS_IS_DEPENDENT, &is_dependent, 4);
  void *values[] = {parameters + on->offsets[0]};
  const double begin = now_us();
  for (int i = 0; i < count; ++i)
    if (on->driver->launch(&config, on->functions[0], values, NULL) != 0) return -1;
  return (now_us() - begin) / count;
}
