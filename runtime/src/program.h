/* A prepared program: the launches of one artifact, and their memory. Names of its tensors, and how callers pass them,
 * are defined in calls.c, and for FFNs in ffn.c. */
#ifndef TUNER_PROGRAM_H
#define TUNER_PROGRAM_H

#include "cache.h"
#include "driver.h"
#include "launch_list.h"
#include "pack.h"

/* The prepared form of a row. Indices of patches and maps refer to those here. */
typedef struct program_rows {
  pack_program is;
  pack_part parts[PACK_MAX_PARTS];
  pack_fill fills[PACK_MAX_FILLS];
  pack_patch *patches;
  pack_map *maps;
  uint8_t *parameters; /* templates of an FFN's launches; null if they are in the pack */
} program_rows;

/* For two launches that run at the same time: a second stream, and the events that order it against the caller's. */
typedef struct program_side {
  CUstream stream; /* null if there is none */
  CUevent fork, join;
  CUfunction gate;
} program_side;

typedef struct program {
  tuner_pack *pack;
  const tuner_driver *driver;
  program_rows rows;
  pack_module *modules[PACK_MAX_PARTS];
  CUfunction functions[PACK_MAX_PARTS];
  CUlaunchConfig configs[PACK_MAX_PARTS];
  size_t offsets[PACK_MAX_PARTS];      /* offset of each part's parameter among the parameters for one set of tensors */
  uint8_t is_needed[PACK_NUM_TENSORS]; /* by number: whether a patch or a map refers to the tensor */
  CUdeviceptr memory;
  program_side side;
  launch_list list;
  cache parameters;
} program;

/* Everything on which parameters depend: its first bytes are the key of the cache. Addresses are indexed by the numbers
 * of tensors; that of the memory is optional. */
typedef struct program_call {
  int64_t num_pages, rows; /* 0 if there is none, or it is fixed */
  uint64_t addresses[PACK_NUM_TENSORS];
} program_call;

/* Loads a row of a pack into zeroed memory, for an FFN's kernel in one of its builds, and fills `memory`. If the
 * stream's SMs do not hold it, loads its fallback. */
tuner_status program_make(program *made, tuner_pack *pack, uint32_t row, uint32_t variant, void *memory, CUstream stream,
                          uint32_t num_cached);
/* Releases everything that was created, even if preparation failed halfway. */
void program_end(program *made);
/* Gets a launch's kernel from a module, and makes the launch without stream and attributes. */
tuner_status program_function(const tuner_driver *driver, const pack_part *part, CUmodule module, CUfunction *function);
CUlaunchConfig program_config(const pack_part *part);

/* Enqueues the program, after checking flags and the number of pages. */
tuner_status program_launch(program *on, const program_call *call, CUstream stream, uint32_t flags);

/* Checks an address; `name` is for the error message. */
tuner_status program_check_address(const program *on, uint32_t tensor, uint64_t address, const char *name);

tuner_status program_refused(const program *on, CUstream stream, tuner_attention_refusal *refusal);
tuner_status program_reset(program *on, CUstream stream);

/* side.c: creates the second stream if a launch needs it; orders it after the caller's stream, and the caller's after
 * it; and the start gate before a launch, for its parameter. */
tuner_status side_make(program *on);
void side_end(program *on);
tuner_status side_fork(const program *on, CUstream stream);
tuner_status side_join(const program *on, CUstream stream, tuner_status status);
tuner_status side_gate(const program *on, uint32_t index, const uint8_t *parameter);

#endif
