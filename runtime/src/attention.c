/* A prepared attention: a program with the seven tensors of its call. */
#include <stdlib.h>

#include "fail.h"
#include "operands.h"
#include "program.h"

struct tuner_attention {
  program on;
};

tuner_status tuner_attention_prepare(tuner_pack *pack, const tuner_attention_choice *choice, void *memory, void *stream,
                                     uint32_t num_cached, tuner_attention **prepared) {
  if (pack == NULL || choice == NULL || prepared == NULL || choice->program >= pack->num_programs)
    return tuner_fail(TUNER_BAD_ARGUMENT, "pack, choice and attention must not be null, and the choice must name a kernel");
  if (pack_get_program(pack, choice->program).num_operands > 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "the choice is a layer's: prepare it by tuner_layer_prepare");
  tuner_attention *attention = calloc(1, sizeof *attention);
  if (attention == NULL) return tuner_fail(TUNER_NO_MEMORY, "no memory for an attention");
  const tuner_status status = program_make(&attention->on, pack, choice->program, memory, stream,
                                           sizeof(tuner_attention_tensors), num_cached);
  if (status != TUNER_OK) {
    tuner_attention_release(attention);
    return status;
  }
  *prepared = attention;
  return TUNER_OK;
}

void tuner_attention_release(tuner_attention *attention) {
  if (attention == NULL) return;
  program_free(&attention->on);
  free(attention);
}

tuner_status tuner_attention_launch(tuner_attention *attention, const tuner_attention_tensors *tensors, void *stream,
                                    uint32_t flags) {
  if (attention == NULL || tensors == NULL)
    return tuner_fail(TUNER_BAD_ARGUMENT, "attention and tensors must not be null");
  TUNER_TRY(operand_check_flags(flags));
  static const char *const kNames[PACK_TENSOR_MEMORY] = {"q", "keys", "values", "lengths", "pages", "w", "y"};
  const tuner_attention_tensors *t = tensors;
  const void *const given[PACK_TENSOR_MEMORY] = {t->q, t->keys, t->values, t->lengths, t->pages, t->w, t->y};
  uint64_t addresses[PACK_TENSOR_MEMORY];
  for (uint32_t tensor = 0; tensor < PACK_TENSOR_MEMORY; ++tensor) {
    addresses[tensor] = (uint64_t)(uintptr_t)given[tensor];
    TUNER_TRY(program_check_address(&attention->on, tensor, addresses[tensor], kNames[tensor]));
  }
  TUNER_TRY(program_check_pages(&attention->on, t->num_pages));
  return program_launch(&attention->on, tensors, addresses, t->num_pages, stream, flags);
}

tuner_status tuner_attention_refused(const tuner_attention *attention, void *stream, tuner_attention_refusal *refusal) {
  if (attention == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "attention must not be null");
  return program_refused(&attention->on, stream, refusal);
}

tuner_status tuner_attention_reset(tuner_attention *attention, void *stream) {
  if (attention == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "attention must not be null");
  return program_reset(&attention->on, stream);
}
