/* A pack's choice for a shape and its sizes, from one table of shapes with ladders. */
#include <string.h>

#include "fail.h"
#include "pack.h"
#include "rows_of.h"

/* Finds the first rung for `rows` rows and contexts up to `length`, or returns NONE. `next` is the next larger number
 * of rows with a different result. */
static tuner_status find(const tuner_pack *pack, const pack_ladder *ladder, int32_t rows, int32_t length, pack_rung *found,
                         int32_t *next) {
  *next = INT32_MAX;
  for (uint32_t r = 0; r < ladder->count; ++r) {
    *found = pack_get_rung(pack, ladder, r);
    if (rows < found->m_lo) { /* rungs are in ascending order of rows */
      *next = found->m_lo;
      return TUNER_NONE;
    }
    if (rows <= found->m_hi && found->max_length >= length)
      return found->choice == PACK_CHOICE_LIBRARY ? TUNER_LIBRARY : TUNER_OK;
  }
  return TUNER_NONE;
}

static int is_same_ffn(const tuner_shape *a, const tuner_shape *b) {
  return a->dtype == b->dtype && a->activation == b->activation && a->d_in == b->d_in && a->d_hidden == b->d_hidden &&
         a->d_out == b->d_out && a->flags == b->flags;
}

/* Checks that a request is possible; whether the pack has it is checked elsewhere. */
static tuner_status check_ffn(const tuner_shape *shape) {
  if (!rows_is_operand(shape->dtype))
    return tuner_fail(TUNER_BAD_ARGUMENT, "dtype is %d: give %s", (int)shape->dtype, rows_operand_names);
  if (!rows_is_activation(shape->activation))
    return tuner_fail(TUNER_BAD_ARGUMENT, "activation is %d: give %s", (int)shape->activation, rows_activation_names);
  if ((shape->flags & ~(uint32_t)PACK_ALL_SHAPE_FLAGS) != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT,
                      "flags are 0x%x: use only TUNER_GATED, TUNER_BIAS, TUNER_RESIDUAL and TUNER_ROW_SCALE",
                      (unsigned)shape->flags);
  if (shape->d_in < 1 || shape->d_hidden < 1 || shape->d_out < 1)
    return tuner_fail(TUNER_BAD_ARGUMENT, "d_in, d_hidden and d_out are %d, %d and %d: each must be at least 1",
                      (int)shape->d_in, (int)shape->d_hidden, (int)shape->d_out);
  return TUNER_OK;
}

tuner_status tuner_pack_shape(const tuner_pack *pack, uint32_t index, tuner_shape *shape, uint32_t *num_shapes) {
  if (pack == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "pack must not be null");
  if (num_shapes != NULL) *num_shapes = pack->num_shapes;
  if (index >= pack->num_shapes) return TUNER_NONE;
  if (shape != NULL) *shape = pack_get_shape(pack, index).shape;
  return TUNER_OK;
}

tuner_status tuner_ffn_find(const tuner_pack *pack, const tuner_shape *shape, int32_t m, tuner_choice *choice) {
  if (pack == NULL || shape == NULL || choice == NULL)
    return tuner_fail(TUNER_BAD_ARGUMENT, "pack, shape and choice must not be null");
  memset(choice, 0, sizeof *choice);
  TUNER_TRY(check_ffn(shape));
  choice->kernel = PACK_NONE, choice->m_lo = m, choice->m_hi = INT32_MAX, choice->text = "";
  for (uint32_t i = 0; i < pack->num_shapes; ++i) {
    const pack_shape of = pack_get_shape(pack, i);
    if (!is_same_ffn(&of.shape, shape)) continue;
    pack_rung rung;
    int32_t next;
    const tuner_status status = find(pack, &of.ladder, m, 0, &rung, &next);
    if (status == TUNER_NONE) {
      choice->m_hi = next == INT32_MAX ? next : next - 1;
      return tuner_fail(status, "the pack has no entry for %d rows of %s", (int)m, of.text);
    }
    choice->m_lo = rung.m_lo, choice->m_hi = rung.m_hi, choice->speedup = rung.speedup_ppm / 1e6, choice->text = rung.library;
    if (status == TUNER_LIBRARY) return status;
    const pack_kernel kernel = pack_get_kernel(pack, rung.number);
    choice->kernel = rung.number, choice->text = kernel.text;
    choice->memory_bytes = pack_get_memory(pack, rung.number);
    memcpy(choice->digest, kernel.digest, sizeof choice->digest);
    return status;
  }
  return tuner_fail(TUNER_NONE, "the pack does not have this shape: tune it, or use the library");
}

/* Up to rounding, since scales are often recomputed. */
static int is_near(float a, float b) {
  const float difference = a < b ? b - a : a - b, size = a < 0 ? -a : a;
  return difference <= 1e-6f * size;
}

static int is_same_attention(const tuner_attention_shape *a, const tuner_attention_shape *b) {
  return a->dtype == b->dtype && a->heads == b->heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
         a->new_tokens == b->new_tokens && a->page_tokens == b->page_tokens && a->flags == b->flags &&
         a->window == b->window && a->d_out == b->d_out && is_near(a->scale, b->scale) &&
         is_near(a->soft_cap, b->soft_cap);
}

/* Checks that a request is possible. */
static tuner_status check_attention(const tuner_attention_shape *shape) {
  if (!rows_is_operand(shape->dtype))
    return tuner_fail(TUNER_BAD_ARGUMENT, "dtype is %d: give %s", (int)shape->dtype, rows_operand_names);
  if ((shape->flags & ~(uint32_t)TUNER_HEADS_FIRST) != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "flags are 0x%x: give 0 or TUNER_HEADS_FIRST", (unsigned)shape->flags);
  if (shape->page_tokens == 0 && shape->flags == 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "flags are 0, but a contiguous cache must be heads-first: give TUNER_HEADS_FIRST");
  if (shape->heads < 1 || shape->kv_heads < 1 || shape->head_dim < 1 || shape->new_tokens < 1)
    return tuner_fail(TUNER_BAD_ARGUMENT, "heads, kv_heads, head_dim and new_tokens are %d, %d, %d and %d: each must be at least 1",
                      (int)shape->heads, (int)shape->kv_heads, (int)shape->head_dim, (int)shape->new_tokens);
  if (shape->page_tokens < 0 || shape->window < 0 || shape->d_out < 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "page_tokens, window and d_out are %d, %d and %d: none may be negative", (int)shape->page_tokens,
                      (int)shape->window, (int)shape->d_out);
  return TUNER_OK;
}

/* Likewise. */
static tuner_status check_sizes(int32_t sequences, int32_t length) {
  if (sequences >= 1 && length >= 0) return TUNER_OK;
  return tuner_fail(TUNER_BAD_ARGUMENT, "sequences and length are %d and %d: give at least 1 sequence, and a length of 0 or more",
                    (int)sequences, (int)length);
}

tuner_status tuner_pack_attention(const tuner_pack *pack, uint32_t index, tuner_attention_shape *shape,
                                  uint32_t *num_shapes) {
  if (pack == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "pack must not be null");
  if (num_shapes != NULL) *num_shapes = pack->num_attentions;
  if (index >= pack->num_attentions) return TUNER_NONE;
  if (shape != NULL) *shape = pack_get_attention(pack, index).shape;
  return TUNER_OK;
}

static void begin(tuner_attention_choice *choice, int32_t sequences) {
  memset(choice, 0, sizeof *choice);
  choice->program = PACK_NONE, choice->sequences = sequences, choice->text = "";
}

/* Finds a choice in a ladder whose kernels are programs; `text` describes its shape. */
static tuner_status find_program(const tuner_pack *pack, const pack_ladder *ladder, int32_t rows, int32_t length,
                                 const char *text, tuner_attention_choice *choice) {
  pack_rung rung;
  int32_t next;
  TUNER_TRY(check_sizes(rows, length));
  const tuner_status status = find(pack, ladder, rows, ladder->by_rows ? 0 : length, &rung, &next);
  if (status == TUNER_NONE && ladder->by_rows)
    return tuner_fail(status, "the pack has no entry for %d rows of %s: tune that, or use the library", (int)rows, text);
  if (status == TUNER_NONE)
    return tuner_fail(status, "the pack has no entry for %d sequences of up to %d tokens of %s: tune that, or use the library",
                      (int)rows, (int)length, text);
  choice->max_length = rung.max_length, choice->speedup = rung.speedup_ppm / 1e6, choice->text = rung.library;
  if (status == TUNER_LIBRARY) return status;
  const pack_program program = pack_get_program(pack, rung.number);
  choice->program = rung.number, choice->text = program.text;
  choice->memory_bytes = pack_get_memory(pack, pack->num_kernels + rung.number);
  memcpy(choice->digest, program.digest, sizeof choice->digest);
  return status;
}

tuner_status tuner_attention_find(const tuner_pack *pack, const tuner_attention_shape *shape, int32_t sequences,
                                  int32_t length, tuner_attention_choice *choice) {
  if (pack == NULL || shape == NULL || choice == NULL)
    return tuner_fail(TUNER_BAD_ARGUMENT, "pack, shape and choice must not be null");
  begin(choice, sequences);
  TUNER_TRY(check_attention(shape));
  TUNER_TRY(check_sizes(sequences, length));
  for (uint32_t i = 0; i < pack->num_attentions; ++i) {
    const pack_attention of = pack_get_attention(pack, i);
    if (is_same_attention(&of.shape, shape)) return find_program(pack, &of.ladder, sequences, length, of.text, choice);
  }
  return tuner_fail(TUNER_NONE, "the pack does not have this attention: tune it, or use the library");
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
    return tuner_fail(TUNER_NONE, "the pack has %u layers, numbered from 0: there is no layer %u", pack->num_layers, index);
  const pack_layer of = pack_get_layer(pack, index);
  return find_program(pack, &of.ladder, sequences, length, of.text, choice);
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
