/* A plan's header, and requirements on a launch of the plan. Error messages are null if everything is valid. */
#ifndef TUNER_PLAN_CHECK_H
#define TUNER_PLAN_CHECK_H

#include "pack.h"

typedef struct plan_header {
  uint32_t num_tasks, num_signals, num_ctas, assignment, num_waits, num_first_tasks, num_split_tiles, in_band_ops;
} plan_header;

/* The index's values for a launch. */
typedef struct plan_launch {
  uint32_t grid, cluster_size, flags;
  uint64_t workspace_bytes, zero_bytes;
  uint64_t mailbox_bytes;    /* bytes passed in band, if any; 0 if unknown */
  uint64_t first_task_bytes; /* 0 if the parameter has none */
  int is_paired;             /* the second of two launches that run at the same time, with a start gate */
} plan_launch;

/* Reads the header of a plan's words, which have `num_bytes` bytes. */
const char *plan_read(const uint8_t *words, size_t num_bytes, plan_header *header);
const char *plan_check_launch(const plan_header *plan, const plan_launch *launch);
const char *plan_check_spin_limit(int64_t cycles);
/* An attention's launch, whose tables are in its program's memory: attention_launch_check.c. */
const char *attention_check_launch(const tuner_pack *pack, const pack_part *part, const pack_program *program);

#endif
