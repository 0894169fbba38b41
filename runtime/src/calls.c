/* Prepared attentions, layers and chains. All are programs; their tensors are the seven of an attention's call, or have
 * the names in the manifest. */
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "operands.h"
#include "program.h"

/* Both types are programs, and are created as such. */
static program *of_attention(const tuner_attention *attention) { return (program *)(uintptr_t)attention; }
static program *of_layer(const tuner_layer *layer) { return (program *)(uintptr_t)layer; }

static void release(program *made) {
  if (made != NULL) program_end(made);
  free(made);
}

/* Prepares the program of a choice. `has_operands` is 1 for the functions of layers and 0 for those of attentions. If
 * the caller's own output is null, the pack is null. */
static tuner_status make(tuner_pack *pack, const tuner_attention_choice *choice, void *memory, void *stream,
                         uint32_t num_cached, int has_operands, program **made) {
  if (pack == NULL || choice == NULL || choice->program >= pack->num_programs)
    return tuner_fail(TUNER_BAD_ARGUMENT, "pack, choice and prepared must not be null, and the choice must name a kernel");
  if ((pack_get_program(pack, choice->program).num_operands > 0) != has_operands)
    return tuner_fail(TUNER_BAD_ARGUMENT, has_operands ? "the choice is for an attention: use tuner_attention_prepare"
                                                       : "the choice is for a layer: use tuner_layer_prepare");
  program *const room = calloc(1, sizeof *room);
  if (room == NULL) return tuner_fail(TUNER_NO_MEMORY, "not enough host memory for a program");
  const tuner_status status = program_make(room, pack, pack->num_kernels + choice->program, 0, memory, stream, num_cached);
  if (status == TUNER_OK) {
    *made = room;
  } else {
    release(room);
  }
  return status;
}

tuner_status tuner_attention_prepare(tuner_pack *pack, const tuner_attention_choice *choice, void *memory, void *stream,
                                     uint32_t num_cached, tuner_attention **prepared) {
  program *made = NULL;
  TUNER_TRY(make(prepared == NULL ? NULL : pack, choice, memory, stream, num_cached, 0, &made));
  *prepared = (tuner_attention *)made;
  return TUNER_OK;
}

tuner_status tuner_layer_prepare(tuner_pack *pack, const tuner_attention_choice *choice, void *memory, void *stream,
                                 uint32_t num_cached, tuner_layer **prepared) {
  program *made = NULL;
  TUNER_TRY(make(prepared == NULL ? NULL : pack, choice, memory, stream, num_cached, 1, &made));
  *prepared = (tuner_layer *)made;
  return TUNER_OK;
}

void tuner_attention_release(tuner_attention *attention) { release(of_attention(attention)); }
void tuner_layer_release(tuner_layer *layer) { release(of_layer(layer)); }

tuner_status tuner_attention_launch(tuner_attention *attention, const tuner_attention_tensors *tensors, void *stream,
                                    uint32_t flags) {
  if (attention == NULL || tensors == NULL)
    return tuner_fail(TUNER_BAD_ARGUMENT, "attention and tensors must not be null");
  static const char *const kNames[PACK_TENSOR_MEMORY] = {"q", "keys", "values", "lengths", "pages", "w", "y"};
  const tuner_attention_tensors *t = tensors;
  const void *const given[PACK_TENSOR_MEMORY] = {t->q, t->keys, t->values, t->lengths, t->pages, t->w, t->y};
  program_call call = {.num_pages = t->num_pages};
  for (uint32_t tensor = 0; tensor < PACK_TENSOR_MEMORY; ++tensor) {
    call.addresses[tensor] = (uint64_t)(uintptr_t)given[tensor];
    TUNER_TRY(program_check_address(of_attention(attention), tensor, call.addresses[tensor], kNames[tensor]));
  }
  return program_launch(of_attention(attention), &call, stream, flags);
}

static tuner_status launch_layer(tuner_layer *layer, int64_t rows, const tuner_layer_tensors *tensors, void *stream,
                                 uint32_t flags) {
  if (layer == NULL || tensors == NULL || tensors->addresses == NULL)
    return tuner_fail(TUNER_BAD_ARGUMENT, "layer, tensors and their addresses must not be null");
  program *on = of_layer(layer);
  const uint32_t count = on->rows.is.num_operands;
  if (tensors->num_addresses != count)
    return tuner_fail(TUNER_BAD_ARGUMENT, "%u addresses for the layer's %u tensors: give one per tensor, in order",
                      tensors->num_addresses, count);
  program_call call = {.num_pages = tensors->num_pages, .rows = rows < 0 ? on->rows.is.most_rows : rows};
  if (call.rows > on->rows.is.most_rows || (on->rows.is.most_rows > 0 && call.rows < 1))
    return tuner_fail(TUNER_BAD_ARGUMENT, "rows are %lld: give 1 to %u, or 0 for a kernel with an attention", (long long)rows,
                      on->rows.is.most_rows);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t address = (uint64_t)(uintptr_t)tensors->addresses[i];
    const pack_operand operand = pack_get_operand(on->pack, on->rows.is.first_operand + i);
    TUNER_TRY(program_check_address(on, PACK_FIRST_OPERAND + i, address, operand.name));
    call.addresses[PACK_FIRST_OPERAND + i] = address;
  }
  return program_launch(on, &call, stream, flags);
}

tuner_status tuner_layer_launch(tuner_layer *layer, const tuner_layer_tensors *tensors, void *stream, uint32_t flags) {
  return launch_layer(layer, -1, tensors, stream, flags);
}

tuner_status tuner_layer_launch_rows(tuner_layer *layer, int32_t m, const tuner_layer_tensors *tensors, void *stream,
                                     uint32_t flags) {
  return launch_layer(layer, m < 0 ? 0 : m, tensors, stream, flags);
}

static tuner_status refused(const program *on, void *stream, tuner_attention_refusal *refusal) {
  return on == NULL ? tuner_fail(TUNER_BAD_ARGUMENT, "the prepared attention or layer must not be null") : program_refused(on, stream, refusal);
}

static tuner_status reset(program *on, void *stream) {
  return on == NULL ? tuner_fail(TUNER_BAD_ARGUMENT, "the prepared attention or layer must not be null") : program_reset(on, stream);
}

tuner_status tuner_attention_refused(const tuner_attention *attention, void *stream, tuner_attention_refusal *refusal) {
  return refused(of_attention(attention), stream, refusal);
}
tuner_status tuner_layer_refused(const tuner_layer *layer, void *stream, tuner_attention_refusal *refusal) {
  return refused(of_layer(layer), stream, refusal);
}
tuner_status tuner_attention_reset(tuner_attention *attention, void *stream) { return reset(of_attention(attention), stream); }
tuner_status tuner_layer_reset(tuner_layer *layer, void *stream) { return reset(of_layer(layer), stream); }
