/* The launches of one call: whether what they run on holds them, and whether all of them were enqueued. */
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
  uint64_t stream_id;                  /* of the last stream that holds them */
  uint32_t num_launches, num_enqueued; /* of the call under way */
  int needs_reset;                     /* some launches of a call were enqueued, and others were not */
} launch_list;

/* One launch of all calls, by its part's or launch's flags. TUNER_MISMATCH where what runs the stream does not hold it. */
tuner_status launch_list_add(launch_list *list, const tuner_driver *driver, CUfunction function, CUlaunchConfig config,
                             uint32_t cluster_size, uint32_t facts, CUstream stream);
/* In front of a call's launches: TUNER_NEEDS_RESET where an earlier one was enqueued in part, TUNER_MISMATCH where another
 * stream than the last one does not hold them. */
tuner_status launch_list_begin(launch_list *list, const tuner_driver *driver, CUstream stream, uint32_t num_launches);
/* After them: the status, whose sentence then says what was enqueued if that is not all. */
tuner_status launch_list_end(launch_list *list, tuner_status status);

#endif
