/* A pack's entries for weights in fewer bits. */
#include "fail.h"
#include "pack.h"

static tuner_status bad(uint32_t index, const char *what) {
  return tuner_fail(TUNER_BAD_PACK, "weights %u of the pack's index: %s", index, what);
}

static tuner_status check(const tuner_pack *pack, uint32_t index, int64_t before) {
  const pack_weights found = pack_get_weights(pack, index);
  const tuner_weights *is = &found.is;
  if (!pack_is_text(pack, is->format) || !pack_is_text(pack, is->layout) || !pack_is_text(pack, is->factors))
    return bad(index, "a string lies outside the string table");
  if (found.operand >= pack->num_operands || found.operand <= before)
    return bad(index, "its operand is out of order or out of range");
  const pack_operand of = pack_get_operand(pack, found.operand);
  if (of.dtype != TUNER_UINT8 || of.rank != 2) return bad(index, "its operand is not a matrix of bytes");
  if (is->bits < 1 || is->bits > 8 || is->k < 1 || is->group < 0 || is->has_zeros < 0 || is->has_zeros > 1 ||
      (is->group == 0 ? is->has_zeros != 0 : is->k % is->group != 0))
    return bad(index, "a number is out of range");
  if ((uint64_t)is->k * (uint32_t)is->bits > 8 * (uint64_t)of.dims[1]) return bad(index, "its codes do not fit into its operand");
  return TUNER_OK;
}

tuner_status pack_check_weights(const tuner_pack *pack) {
  int64_t before = -1;
  for (uint32_t i = 0; i < pack->num_weights; ++i) {
    TUNER_TRY(check(pack, i, before));
    before = pack_get_weights(pack, i).operand;
  }
  return TUNER_OK;
}

tuner_status tuner_layer_weights_at(const tuner_pack *pack, const tuner_attention_choice *choice, uint32_t index,
                                    tuner_weights *weights) {
  if (weights == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "weights must not be null");
  tuner_layer_tensor tensor;
  TUNER_TRY(tuner_layer_tensor_at(pack, choice, index, &tensor));
  const uint32_t operand = pack_get_program(pack, choice->program).first_operand + index;
  for (uint32_t i = 0; i < pack->num_weights; ++i) {
    const pack_weights found = pack_get_weights(pack, i);
    if (found.operand != operand) continue;
    *weights = found.is;
    return TUNER_OK;
  }
  return tuner_fail(TUNER_NONE, "the pack has no weight format for %s: it contains unquantised elements", tensor.name);
}
