/* A prepared program: the launches of one artifact with an attention, and their memory. What its tensors are called, and how
 * a caller hands them over, is known to attention.c and layer.c. */
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

/* Loads number `index` of a pack into zeroed room, and fills `memory`. `key_bytes`: of what parameters are kept by. What
 * was made is freed by program_free, also where this fails. */
tuner_status program_make(program *made, const tuner_pack *pack, uint32_t index, void *memory, CUstream stream,
                          size_t key_bytes, uint32_t num_cached);
void program_free(program *made);
/* A launch's kernel in a module; and the launch without stream and attributes. */
tuner_status program_function(const tuner_driver *driver, const pack_part *part, CUmodule module, CUfunction *function);
CUlaunchConfig program_config(const pack_part *part);

/* Enqueues it. `addresses` by the numbers of tensors; that of the memory need not be there. `key` is all that the
 * parameters depend on. */
tuner_status program_launch(program *on, const void *key, const uint64_t *addresses, int64_t num_pages, CUstream stream,
                            uint32_t flags);

/* Of an address and of the number of pages; `name` is for the sentence. */
tuner_status program_check_address(const program *on, uint32_t tensor, uint64_t address, const char *name);
tuner_status program_check_pages(const program *on, int64_t num_pages);

tuner_status program_refused(const program *on, CUstream stream, tuner_attention_refusal *refusal);
tuner_status program_reset(program *on, CUstream stream);

#endif
