#include "launch_list.h"

#include "fail.h"

static tuner_status check(const tuner_driver *driver, const launch_needs *needs, CUstream stream) {
  CUlaunchConfig config = needs->config;
  config.stream = stream;
  return tuner_check_residency(driver, needs->function, &config, needs->cluster_size, needs->needs_all_ctas);
}

tuner_status launch_list_add(launch_list *list, const tuner_driver *driver, CUfunction function, CUlaunchConfig config,
                             uint32_t cluster_size, uint32_t facts, CUstream stream) {
  const launch_needs needs = {function, config, cluster_size, (facts & PACK_NEEDS_ALL_CTAS) != 0};
  if (cluster_size == 1 && !needs.needs_all_ctas) return TUNER_OK;
  list->stream_id = UINT64_MAX; /* not the number of any stream, so that the first call queries its own */
  list->needs[list->num_needs++] = needs;
  return check(driver, &needs, stream);
}

/* Whether a stream differs from the last one and is not being captured. During capture, it is unknown where the graph
 * will run, and a query for the stream's number would end the capture. */
static int is_new_stream(const launch_list *list, const tuner_driver *driver, CUstream stream, uint64_t *id) {
  unsigned long long found = 0;
  int is_capturing = 0;
  if (driver->is_capturing(stream, &is_capturing) != 0 || is_capturing) return 0;
  if (driver->stream_id(stream, &found) != 0) return 0;
  *id = found;
  return found != list->stream_id;
}

tuner_status launch_list_begin(launch_list *list, const tuner_driver *driver, CUstream stream, uint32_t num_launches) {
  if (list->needs_reset)
    return tuner_fail(TUNER_NEEDS_RESET, "an earlier call enqueued only some of its launches: reset it first");
  list->num_launches = num_launches, list->num_enqueued = 0;
  uint64_t id = 0;
  if (list->num_needs == 0 || !is_new_stream(list, driver, stream, &id)) return TUNER_OK;
  for (uint32_t i = 0; i < list->num_needs; ++i) TUNER_TRY(check(driver, &list->needs[i], stream));
  list->stream_id = id;
  return TUNER_OK;
}

tuner_status launch_list_end(launch_list *list, tuner_status status) {
  if (status == TUNER_OK || list->num_enqueued == 0) return status;
  list->needs_reset = 1;
  return tuner_fail_more(status,
                         "; %u of %u launches were enqueued: reset it before the next call, and do not use a graph that was "
                         "captured in the meantime",
                         list->num_enqueued, list->num_launches);
}
