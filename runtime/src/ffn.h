/* A prepared FFN: what a launch needs, ready to be handed to the driver. */
#ifndef TUNER_FFN_H
#define TUNER_FFN_H

#include <stdatomic.h>
#include <stdint.h>

#include "cache.h"
#include "driver.h"
#include "launch_list.h"
#include "pack.h"

/* As launch_args.cuh and host_record.cuh lay them out. */
enum {
  ARGS_WORDS = 0,
  ARGS_WORKSPACE = 8,
  ARGS_SPIN_LIMIT = 16,
  ARGS_IS_DEPENDENT = 24,
  ARGS_IS_SECOND = 28,
  ARGS_PLAN_HEADER = 40,
  ARGS_OPS = 104,
  ARGS_OP_BYTES = 64,
  PLAN_HEADER_BYTES = 64,
  MAP_BYTES = 128,
  HOST_RECORD_OFFSET = 192,
};

/* The record as a guarded build writes it, in memory that the device maps. */
typedef struct host_record {
  _Atomic uint32_t raised;
  int32_t task, signal;
  uint32_t seen, expected;
  int32_t cta;
} host_record;

/* What parameters are kept by: addresses and rows. */
typedef struct ffn_key {
  tuner_tensors tensors;
  int64_t m;
} ffn_key;

struct tuner_ffn {
  tuner_pack *pack;
  const tuner_driver *driver;
  pack_module *module;
  pack_kernel kernel;
  uint32_t element_bytes; /* of its operands */
  pack_launch launches[PACK_MAX_LAUNCHES];
  pack_op ops[PACK_MAX_OPS];
  pack_map maps[PACK_MAX_MAPS];
  CUdeviceptr workspaces[PACK_MAX_LAUNCHES], words[PACK_MAX_LAUNCHES]; /* of each launch */
  CUlaunchConfig configs[PACK_MAX_LAUNCHES];
  host_record *record;  /* null where the build is not guarded */
  CUdeviceptr record_address;
  CUstream side; /* of a pair; its events */
  CUevent fork, join;
  uint32_t parameter_stride; /* bytes from a launch's parameter to the next one's: a multiple of 64 */
  launch_list list;
  cache parameters;
};

/* Rows and addresses, before any of them is used. */
tuner_status ffn_check_operands(const tuner_ffn *ffn, int32_t m, const tuner_tensors *tensors);

/* The parameters for these tensors and rows, packed now or before; null and a sentence where a map is refused. */
uint8_t *ffn_parameters(tuner_ffn *ffn, int32_t m, const tuner_tensors *tensors);

/* A launch without stream and attributes. */
CUlaunchConfig ffn_config(const pack_kernel *kernel, const pack_launch *launch);

/* Loads a kernel's build into the current context, by its number and the build's. */
tuner_status module_load(const tuner_pack *pack, const tuner_driver *driver, pack_module *module);
/* The kernel's module in the current context, loaded once; and no longer used. */
tuner_status module_get(tuner_pack *pack, const tuner_driver *driver, uint32_t kernel, uint32_t variant,
                        pack_module **module);
void module_release(tuner_pack *pack, const tuner_driver *driver, pack_module *module);

#endif
