/* What a pack says of an attention or a layer, its sequences and a context. */
#include <string.h>

#include "fail.h"
#include "pack.h"

tuner_status tuner_pack_attention(const tuner_pack *pack, uint32_t index, tuner_attention_shape *shape,
                                  uint32_t *num_shapes) {
  if (pack == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "pack must not be null");
  if (num_shapes != NULL) *num_shapes = pack->num_attentions;
  if (index >= pack->num_attentions) return TUNER_NONE;
  if (shape != NULL) *shape = pack_get_attention(pack, index).shape;
  return TUNER_OK;
}

/* But for a rounding: a scale is often computed anew. */
static int is_near(float a, float b) {
  const float difference = a < b ? b - a : a - b, size = a < 0 ? -a : a;
  return difference <= 1e-6f * size;
}

static int is_same(const tuner_attention_shape *a, const tuner_attention_shape *b) {
  return a->dtype == b->dtype && a->heads == b->heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
         a->new_tokens == b->new_tokens && a->page_tokens == b->page_tokens && a->flags == b->flags &&
         a->window == b->window && a->d_out == b->d_out && is_near(a->scale, b->scale) &&
         is_near(a->soft_cap, b->soft_cap);
}

/* That a caller asks for what there can be. */
static tuner_status check_shape(const tuner_attention_shape *shape) {
  if (shape->dtype != TUNER_FP16 && shape->dtype != TUNER_BF16)
    return tuner_fail(TUNER_BAD_ARGUMENT, "dtype is %d: give TUNER_FP16 or TUNER_BF16", (int)shape->dtype);
  if ((shape->flags & ~(uint32_t)TUNER_HEADS_FIRST) != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "flags are 0x%x: give 0 or TUNER_HEADS_FIRST", (unsigned)shape->flags);
  if (shape->page_tokens == 0 && shape->flags == 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "flags are 0, and a contiguous cache has its heads first: give TUNER_HEADS_FIRST");
  if (shape->heads < 1 || shape->kv_heads < 1 || shape->head_dim < 1 || shape->new_tokens < 1)
    return tuner_fail(TUNER_BAD_ARGUMENT, "heads, kv_heads, head_dim and new_tokens are %d, %d, %d and %d: give 1 at least of each",
                      (int)shape->heads, (int)shape->kv_heads, (int)shape->head_dim, (int)shape->new_tokens);
  if (shape->page_tokens < 0 || shape->window < 0 || shape->d_out < 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "page_tokens, window and d_out are %d, %d and %d: give 0 or more", (int)shape->page_tokens,
                      (int)shape->window, (int)shape->d_out);
  return TUNER_OK;
}

/* Likewise. */
static tuner_status check_sizes(int32_t sequences, int32_t length) {
  if (sequences >= 1 && length >= 0) return TUNER_OK;
  return tuner_fail(TUNER_BAD_ARGUMENT, "sequences and length are %d and %d: give 1 sequence at least, and its tokens",
                    (int)sequences, (int)length);
}

static tuner_status choose(const tuner_pack *pack, const pack_attention_rung *rung, tuner_attention_choice *choice) {
  choice->max_length = rung->max_length;
  choice->speedup = rung->speedup_ppm / 1e6;
  if (rung->choice == PACK_CHOICE_LIBRARY) {
    choice->text = rung->library;
    return TUNER_LIBRARY;
  }
  const pack_program program = pack_get_program(pack, rung->program);
  choice->program = rung->program;
  choice->text = program.text;
  choice->memory_bytes = (size_t)program.memory_bytes;
  memcpy(choice->digest, program.digest, sizeof choice->digest);
  return TUNER_OK;
}

static tuner_status search(const tuner_pack *pack, uint32_t first_rung, uint32_t num_rungs, int32_t sequences,
                           int32_t length, tuner_attention_choice *choice) {
  for (uint32_t r = 0; r < num_rungs; ++r) { /* by sequences, then from the shortest context on */
    const pack_attention_rung rung = pack_get_attention_rung(pack, first_rung + r);
    if (rung.sequences == sequences && rung.max_length >= length) return choose(pack, &rung, choice);
  }
  return TUNER_NONE;
}

static void begin(tuner_attention_choice *choice, int32_t sequences) {
  memset(choice, 0, sizeof *choice);
  choice->program = PACK_NONE, choice->sequences = sequences, choice->text = "";
}

static tuner_status no_answer(int32_t sequences, int32_t length, const char *text) {
  return tuner_fail(TUNER_NONE, "the pack has no answer for %d sequences of up to %d tokens of %s: tune that, or use the library",
                    (int)sequences, (int)length, text);
}

tuner_status tuner_attention_find(const tuner_pack *pack, const tuner_attention_shape *shape, int32_t sequences,
                                  int32_t length, tuner_attention_choice *choice) {
  if (pack == NULL || shape == NULL || choice == NULL)
    return tuner_fail(TUNER_BAD_ARGUMENT, "pack, shape and choice must not be null");
  begin(choice, sequences);
  TUNER_TRY(check_shape(shape));
  TUNER_TRY(check_sizes(sequences, length));
  for (uint32_t i = 0; i < pack->num_attentions; ++i) {
    const pack_attention found = pack_get_attention(pack, i);
    if (!is_same(&found.shape, shape)) continue;
    const tuner_status status = search(pack, found.first_rung, found.num_rungs, sequences, length, choice);
    return status == TUNER_NONE ? no_answer(sequences, length, found.text) : status;
  }
  return tuner_fail(TUNER_NONE, "the pack has no such attention: tune it, or use the library");
}

tuner_status tuner_pack_layer(const tuner_pack *pack, uint32_t index, tuner_layer_shape *shape, uint32_t *num_layers) {
  if (pack == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "pack must not be null");
  if (num_layers != NULL) *num_layers = pack->num_layers;
  if (index >= pack->num_layers) return TUNER_NONE;
  if (shape != NULL) *shape = pack_get_layer(pack, index).shape;
  return TUNER_OK;
}

tuner_status tuner_layer_find(const tuner_pack *pack, uint32_t index, int32_t sequences, int32_t length,
                              tuner_attention_choice *choice) {
  if (pack == NULL || choice == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "pack and choice must not be null");
  begin(choice, sequences);
  if (index >= pack->num_layers)
    return tuner_fail(TUNER_NONE, "the pack has %u layers, and no number %u", pack->num_layers, index);
  TUNER_TRY(check_sizes(sequences, length));
  const pack_layer found = pack_get_layer(pack, index);
  const tuner_status status = search(pack, found.first_rung, found.num_rungs, sequences, length, choice);
  return status == TUNER_NONE ? no_answer(sequences, length, found.text) : status;
}

tuner_status tuner_layer_tensor_at(const tuner_pack *pack, const tuner_attention_choice *choice, uint32_t index,
                                   tuner_layer_tensor *tensor) {
  if (pack == NULL || choice == NULL || tensor == NULL || choice->program >= pack->num_programs)
    return tuner_fail(TUNER_BAD_ARGUMENT, "pack, choice and tensor must not be null, and the choice must name a kernel");
  const pack_program program = pack_get_program(pack, choice->program);
  if (index >= program.num_operands) return TUNER_NONE;
  const pack_operand is = pack_get_operand(pack, program.first_operand + index);
  *tensor = (tuner_layer_tensor){.name = is.name, .role = is.role, .dtype = (int32_t)is.dtype, .rank = (int32_t)is.rank};
  for (uint32_t i = 0; i < is.rank; ++i) tensor->dims[i] = (int32_t)is.dims[i];
  tensor->has_pages = (is.flags & PACK_IS_PAGED) != 0;
  return TUNER_OK;
}
