/* A prepared program: the launches of one artifact, and their memory. What its tensors are called, and how a caller hands
 * them over, is known to calls.c, and of an FFN to ffn.c. */
#ifndef TUNER_PROGRAM_H
#define TUNER_PROGRAM_H

#include "cache.h"
#include "driver.h"
#include "launch_list.h"
#include "pack.h"

/* Of a row what is prepared. Places of patches and maps are among those that are here. */
typedef struct program_rows {
  pack_program is;
  pack_part parts[PACK_MAX_PARTS];
  pack_fill fills[PACK_MAX_FILLS];
  pack_patch *patches;
  pack_map *maps;
  uint8_t *parameters; /* templates of an FFN's launches; null where the pack has them */
} program_rows;

/* A second stream, and what orders it against the caller's: of two launches that run side by side. */
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
  size_t offsets[PACK_MAX_PARTS];      /* of each part's parameter among those of a set of tensors */
  uint8_t is_needed[PACK_NUM_TENSORS]; /* by number: whether a patch or a map names the tensor */
  CUdeviceptr memory;
  program_side side;
  launch_list list;
  cache parameters;
} program;

/* All that parameters depend on: they are kept by its first bytes. Addresses are by the numbers of tensors; that of the memory
 * need not be there. */
typedef struct program_call {
  int64_t num_pages, rows; /* 0 if there is none, or it is fixed */
  uint64_t addresses[PACK_NUM_TENSORS];
} program_call;

/* Loads a row of a pack into zeroed room, by one of its builds where it is an FFN's kernel, and fills `memory`. Where what runs
 * the stream does not hold it, its fallback. */
tuner_status program_make(program *made, tuner_pack *pack, uint32_t row, uint32_t variant, void *memory, CUstream stream,
                          uint32_t num_cached);
/* Gives back all that was made, in whole or in part. */
void program_end(program *made);
/* A launch's kernel in a module; and the launch without stream and attributes. */
tuner_status program_function(const tuner_driver *driver, const pack_part *part, CUmodule module, CUfunction *function);
CUlaunchConfig program_config(const pack_part *part);

/* Enqueues it, once flags and the number of pages are checked. */
tuner_status program_launch(program *on, const program_call *call, CUstream stream, uint32_t flags);

/* Of an address; `name` is for the sentence. */
tuner_status program_check_address(const program *on, uint32_t tensor, uint64_t address, const char *name);

tuner_status program_refused(const program *on, CUstream stream, tuner_attention_refusal *refusal);
tuner_status program_reset(program *on, CUstream stream);

/* side.c: makes the second stream where a launch is on one; orders it after the caller's, and that after it; and the start gate
 * before a launch, by its parameter. */
tuner_status side_make(program *on);
void side_end(program *on);
tuner_status side_fork(const program *on, CUstream stream);
tuner_status side_join(const program *on, CUstream stream, tuner_status status);
tuner_status side_gate(const program *on, uint32_t index, const uint8_t *parameter);

#endif
