/* The launches of one call: whether the stream's SMs hold them, and whether all of them were enqueued. */
#ifndef TUNER_LAUNCH_LIST_H
#define TUNER_LAUNCH_LIST_H

#include <tuner/tuner.h>

#include "driver.h"
#include "pack.h"

/* A launch whose CTAs must be resident at once, or that runs in clusters. */
typedef struct launch_needs {
  CUfunction function;
  CUlaunchConfig config;
  uint32_t cluster_size;
  int needs_all_ctas;
} launch_needs;

typedef struct launch_list {
  launch_needs needs[PACK_MAX_PARTS];
  uint32_t num_needs;
  uint64_t stream_id;                  /* number of the last stream that holds them */
  uint32_t num_launches, num_enqueued; /* launches of the current call */
  int needs_reset;                     /* only some launches of a call were enqueued */
} launch_list;

/* Adds one launch of every call, with the flags of its part or launch. TUNER_MISMATCH if the stream's SMs do not hold
 * it. */
tuner_status launch_list_add(launch_list *list, const tuner_driver *driver, CUfunction function, CUlaunchConfig config,
                             uint32_t cluster_size, uint32_t facts, CUstream stream);
/* Before the launches of a call: TUNER_NEEDS_RESET if an earlier call was enqueued in part, TUNER_MISMATCH if the
 * stream is not the last one and does not hold them. */
tuner_status launch_list_begin(launch_list *list, const tuner_driver *driver, CUstream stream, uint32_t num_launches);
/* After the launches of a call: returns the status; if only some were enqueued, the message says how many. */
tuner_status launch_list_end(launch_list *list, tuner_status status);

#endif
