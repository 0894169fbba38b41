/* Checks of addresses before a launch. */
#include "fail.h"
#include "ffn.h"
#include "operands.h"

tuner_status operand_check_address(const char *name, uint64_t address, int is_needed) {
  if (address % OPERAND_ALIGNMENT != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "%s is not aligned to %d bytes", name, OPERAND_ALIGNMENT);
  if (address == 0 && is_needed) return tuner_fail(TUNER_BAD_ARGUMENT, "%s is null, and the kernel needs it", name);
  return TUNER_OK;
}

tuner_status operand_check_apart(const operand_span *written, const operand_span *other) {
  if (written == other || written->num_bytes == 0 || other->num_bytes == 0) return TUNER_OK;
  /* Computed from their distance, since an end may exceed the largest address. */
  const int is_behind = written->address >= other->address;
  const uint64_t distance = is_behind ? written->address - other->address : other->address - written->address;
  if (distance >= (is_behind ? other->num_bytes : written->num_bytes)) return TUNER_OK;
  if (other->may_be_output && written->may_be_shared && written->address == other->address) return TUNER_OK;
  return tuner_fail(TUNER_BAD_ARGUMENT, "%s is written and overlaps %s: use separate memory", written->name,
                    other->name);
}

tuner_status operand_check_flags(uint32_t flags) {
  if ((flags & ~(uint32_t)TUNER_NO_PDL) == 0) return TUNER_OK;
  return tuner_fail(TUNER_BAD_ARGUMENT, "flags are 0x%x: give 0 or TUNER_NO_PDL", (unsigned)flags);
}

static operand_span span(const char *name, const void *address, uint64_t rows, uint64_t columns, uint64_t element_bytes,
                         int is_needed) {
  const uint64_t at = (uint64_t)(uintptr_t)address;
  return (operand_span){.name = name, .address = at, .num_bytes = is_needed ? rows * columns * element_bytes : 0};
}

tuner_status ffn_check_operands(const tuner_ffn *ffn, int32_t m, const tuner_tensors *t) {
  if (m < ffn->m_min || m > ffn->m_max)
    return tuner_fail(TUNER_BAD_ARGUMENT, "the kernel supports %d to %d rows, not %d", (int)ffn->m_min, (int)ffn->m_max, (int)m);
  const pack_op *first = &ffn->ops[0], *second = &ffn->ops[1];
  const uint32_t flags = first->flags | second->flags;
  const int has_bias = (flags & TUNER_BIAS) != 0;
  const uint64_t rows = (uint64_t)m;
  enum { HIDDEN, Y, RESIDUAL, NUM = 9 };
  const uint64_t bytes = ffn->element_bytes;
  operand_span all[NUM] = {
      span("hidden", t->hidden, rows, first->n, bytes, 1),
      span("y", t->y, rows, second->n, bytes, 1),
      span("residual", t->residual, rows, second->n, bytes, (flags & TUNER_RESIDUAL) != 0),
      span("x", t->x, rows, first->k, bytes, 1),
      span("w1", t->w1, first->weight_rows, first->k, bytes, 1),
      span("w2", t->w2, second->weight_rows, second->k, bytes, 1),
      span("b1", t->b1, first->weight_rows, 1, bytes, has_bias),
      span("b2", t->b2, second->weight_rows, 1, bytes, has_bias),
      span("row_scale", t->row_scale, rows, 1, 4, (flags & TUNER_ROW_SCALE) != 0),
  };
  all[Y].may_be_shared = all[RESIDUAL].may_be_output = 1;
  for (int i = 0; i < NUM; ++i) TUNER_TRY(operand_check_address(all[i].name, all[i].address, all[i].num_bytes > 0));
  for (int i = 0; i < NUM; ++i) {
    TUNER_TRY(operand_check_apart(&all[HIDDEN], &all[i]));
    TUNER_TRY(operand_check_apart(&all[Y], &all[i]));
  }
  return TUNER_OK;
}
