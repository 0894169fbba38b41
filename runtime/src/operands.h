/* Checks of an address before it is used. */
#ifndef TUNER_OPERANDS_H
#define TUNER_OPERANDS_H

#include <stdint.h>

#include <tuner/tuner.h>

enum { OPERAND_ALIGNMENT = 16 };

/* The memory of an operand; a missing one has 0 bytes. */
typedef struct operand_span {
  const char *name;
  uint64_t address, num_bytes;
  int may_be_shared; /* for written operands: whether it may be the same memory as an operand with the flag below */
  int may_be_output; /* whether such a written operand may have the same address */
} operand_span;

tuner_status operand_check_address(const char *name, uint64_t address, int is_needed);
/* Checks that a written operand does not overlap the other one. */
tuner_status operand_check_apart(const operand_span *written, const operand_span *other);
/* Checks that a launch has only known flags. */
tuner_status operand_check_flags(uint32_t flags);

#endif
