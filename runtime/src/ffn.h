/* A prepared FFN: a program whose operands are those of tuner_tensors, with a record of aborts in host memory. */
#ifndef TUNER_FFN_H
#define TUNER_FFN_H

#include <stdatomic.h>
#include <stdint.h>

#include "program.h"

/* As in launch_args.cuh and host_record.cuh. */
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

/* The record as written by a guarded build, in host memory that is mapped on the device. */
typedef struct host_record {
  _Atomic uint32_t raised;
  int32_t task, signal;
  uint32_t seen, expected;
  int32_t cta;
} host_record;

struct tuner_ffn {
  program on;
  int32_t m_min, m_max;
  uint32_t element_bytes; /* of its operands */
  pack_op ops[PACK_MAX_OPS];
  host_record *record; /* null if the build is not guarded */
  CUdeviceptr record_address;
};

/* Checks rows and addresses before any of them is used. */
tuner_status ffn_check_operands(const tuner_ffn *ffn, int32_t m, const tuner_tensors *tensors);

/* The prepared form of a kernel's row, with its program and launches. */
tuner_status lower_kernel(const tuner_pack *pack, uint32_t row, program_rows *into);

#endif
