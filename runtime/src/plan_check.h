/* A plan's header, and what a launch must be by it. Sentences are null where all is right. */
#ifndef TUNER_PLAN_CHECK_H
#define TUNER_PLAN_CHECK_H

#include "pack.h"

typedef struct plan_header {
  uint32_t num_tasks, num_signals, num_ctas, assignment, num_waits, num_first_tasks, num_split_tiles, in_band_ops;
} plan_header;

/* What the index says of a launch. */
typedef struct plan_launch {
  uint32_t grid, cluster_size, flags;
  uint64_t workspace_bytes, zero_bytes;
  uint64_t mailbox_bytes;    /* of what is handed over in band, where anything is; 0 where that is not known */
  uint64_t first_task_bytes; /* 0 where the parameter has none */
  int is_paired;             /* one of two that run side by side, of which the second begins after a gate */
} plan_launch;

/* The header of a plan's words, of which there are this many bytes. */
const char *plan_read(const uint8_t *words, size_t num_bytes, plan_header *header);
const char *plan_check_launch(const plan_header *plan, const plan_launch *launch);
const char *plan_check_spin_limit(int64_t cycles);
/* An attention's launch, whose tables are in its program's memory: attention_launch_check.c. */
const char *attention_check_launch(const tuner_pack *pack, const pack_part *part, const pack_program *program);

#endif
