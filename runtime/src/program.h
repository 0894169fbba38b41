/* A prepared program: the launches of one artifact, and their memory. What its tensors are called, and how a caller hands
 * them over, is known to calls.c. */
#ifndef TUNER_PROGRAM_H
#define TUNER_PROGRAM_H

#include "cache.h"
#include "driver.h"
#include "launch_list.h"
#include "pack.h"

typedef struct program {
  const tuner_pack *pack;
  const tuner_driver *driver;
  pack_program is;
  pack_part parts[PACK_MAX_PARTS];
  CUmodule modules[PACK_MAX_PARTS]; /* null where an earlier part has loaded the same one */
  CUfunction functions[PACK_MAX_PARTS];
  CUlaunchConfig configs[PACK_MAX_PARTS];
  size_t offsets[PACK_MAX_PARTS];         /* of each part's parameter among those of a set of tensors */
  uint8_t is_needed[PACK_NUM_TENSORS];    /* by number: whether a patch or a map names the tensor */
  CUdeviceptr memory;
  launch_list list;
  cache parameters;
} program;

/* All that parameters depend on: they are kept by its first bytes. Addresses are by the numbers of tensors; that of the memory
 * need not be there. */
typedef struct program_call {
  int64_t num_pages, rows; /* 0 where there is none, or it is fixed */
  uint64_t addresses[PACK_NUM_TENSORS];
} program_call;

/* Loads number `index` of a pack into zeroed room, and fills `memory`. */
tuner_status program_make(program *made, const tuner_pack *pack, uint32_t index, void *memory, CUstream stream,
                          uint32_t num_cached);
/* Frees what was made, in whole or in part, and its room. */
void program_free(program *made);
/* A launch's kernel in a module; and the launch without stream and attributes. */
tuner_status program_function(const tuner_driver *driver, const pack_part *part, CUmodule module, CUfunction *function);
CUlaunchConfig program_config(const pack_part *part);

/* Enqueues it, once flags and the number of pages are checked. */
tuner_status program_launch(program *on, const program_call *call, CUstream stream, uint32_t flags);

/* Of an address; `name` is for the sentence. */
tuner_status program_check_address(const program *on, uint32_t tensor, uint64_t address, const char *name);

tuner_status program_refused(const program *on, CUstream stream, tuner_attention_refusal *refusal);
tuner_status program_reset(program *on, CUstream stream);

#endif
