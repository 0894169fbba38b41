/* A prepared layer: a program whose tensors have the names of its manifest. */
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "operands.h"
#include "program.h"

/* What parameters are kept by: addresses and the number of pages. */
typedef struct layer_key {
  uint64_t addresses[PACK_MAX_OPERANDS];
  int64_t num_pages;
} layer_key;

struct tuner_layer {
  program on;
};

tuner_status tuner_layer_prepare(tuner_pack *pack, const tuner_attention_choice *choice, void *memory, void *stream,
                                 uint32_t num_cached, tuner_layer **prepared) {
  if (pack == NULL || choice == NULL || prepared == NULL || choice->program >= pack->num_programs)
    return tuner_fail(TUNER_BAD_ARGUMENT, "pack, choice and layer must not be null, and the choice must name a kernel");
  if (pack_get_program(pack, choice->program).num_operands == 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "the choice is an attention's: prepare it by tuner_attention_prepare");
  tuner_layer *layer = calloc(1, sizeof *layer);
  if (layer == NULL) return tuner_fail(TUNER_NO_MEMORY, "no memory for a layer");
  const tuner_status status =
      program_make(&layer->on, pack, choice->program, memory, stream, sizeof(layer_key), num_cached);
  if (status != TUNER_OK) {
    tuner_layer_release(layer);
    return status;
  }
  *prepared = layer;
  return TUNER_OK;
}

void tuner_layer_release(tuner_layer *layer) {
  if (layer == NULL) return;
  program_free(&layer->on);
  free(layer);
}

tuner_status tuner_layer_launch(tuner_layer *layer, const tuner_layer_tensors *tensors, void *stream, uint32_t flags) {
  if (layer == NULL || tensors == NULL || tensors->addresses == NULL)
    return tuner_fail(TUNER_BAD_ARGUMENT, "layer, tensors and their addresses must not be null");
  TUNER_TRY(operand_check_flags(flags));
  const program *on = &layer->on;
  const uint32_t count = on->is.num_operands;
  if (tensors->num_addresses != count)
    return tuner_fail(TUNER_BAD_ARGUMENT, "%u addresses for the layer's %u tensors: give one to each, in their order",
                      tensors->num_addresses, count);
  uint64_t addresses[PACK_NUM_TENSORS];
  layer_key key;
  memset(&key, 0, sizeof key);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t address = (uint64_t)(uintptr_t)tensors->addresses[i];
    const pack_operand operand = pack_get_operand(on->pack, on->is.first_operand + i);
    TUNER_TRY(program_check_address(on, PACK_FIRST_OPERAND + i, address, operand.name));
    addresses[PACK_FIRST_OPERAND + i] = key.addresses[i] = address;
  }
  key.num_pages = tensors->num_pages;
  TUNER_TRY(program_check_pages(on, tensors->num_pages));
  return program_launch(&layer->on, &key, addresses, tensors->num_pages, stream, flags);
}

tuner_status tuner_layer_refused(const tuner_layer *layer, void *stream, tuner_attention_refusal *refusal) {
  if (layer == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "layer must not be null");
  return program_refused(&layer->on, stream, refusal);
}

tuner_status tuner_layer_reset(tuner_layer *layer, void *stream) {
  if (layer == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "layer must not be null");
  return program_reset(&layer->on, stream);
}
