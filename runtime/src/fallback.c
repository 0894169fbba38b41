/* Fallback rows for cards that hold fewer clusters than the card on which the kernels were measured: each follows the
 * row of its kernel, and belongs to the same artifact. */
#include <string.h>

#include "fail.h"
#include "pack.h"

enum { FALLBACK_VERSION = 5, DIGEST_BYTES = 32 };

static tuner_status bad(const char *table, uint32_t index, const char *what) {
  return tuner_fail(TUNER_BAD_PACK, "%s %u of the pack's index: %s", table, index, what);
}

static int is_same_program(const pack_program *a, const pack_program *b) {
  const pack_target *one = &a->target, *other = &b->target;
  return memcmp(a->digest, b->digest, DIGEST_BYTES) == 0 && one->major == other->major && one->minor == other->minor &&
         one->suffix == other->suffix && one->num_sms == other->num_sms && one->cuda_version == other->cuda_version &&
         one->is_simulated == other->is_simulated && a->num_parts == b->num_parts && a->num_operands == b->num_operands &&
         a->most_rows == b->most_rows && !b->has_fallback;
}

static int is_same_part(const pack_part *a, const pack_part *b) {
  return a->symbol == b->symbol && a->gate_symbol == b->gate_symbol && a->grid >= b->grid &&
         a->num_threads == b->num_threads && a->cluster_size == b->cluster_size && a->shared_bytes == b->shared_bytes &&
         a->flags == b->flags && a->dependent_offset == b->dependent_offset && a->parameter_bytes == b->parameter_bytes &&
         a->num_maps == b->num_maps && a->cubin.data == b->cubin.data && a->cubin.num_bytes == b->cubin.num_bytes;
}

static int is_same_operand(const tuner_pack *pack, uint32_t one, uint32_t other) {
  const pack_operand a = pack_get_operand(pack, one), b = pack_get_operand(pack, other);
  return a.name == b.name && a.role == b.role && a.dtype == b.dtype && a.flags == b.flags && a.rank == b.rank &&
         memcmp(a.dims, b.dims, sizeof a.dims) == 0;
}

/* The templates of a program's parts. */
static int is_same_kernel(const tuner_pack *pack, uint32_t row) {
  const pack_kernel a = pack_get_kernel(pack, row), b = pack_get_kernel(pack, row + 1);
  if (a.spin_limit_cycles != b.spin_limit_cycles || a.first_tasks_offset != b.first_tasks_offset ||
      a.maps_offset != b.maps_offset || a.m_min != b.m_min || a.num_ops != b.num_ops ||
      a.num_workspaces != b.num_workspaces || (a.flags ^ PACK_KERNEL_HAS_FALLBACK) != b.flags)
    return 0;
  for (uint32_t i = 0; i < a.num_ops; ++i) {
    const pack_op one = pack_get_op(pack, a.first_op + i), other = pack_get_op(pack, b.first_op + i);
    if (memcmp(&one, &other, sizeof one) != 0) return 0; /* without padding */
  }
  for (uint32_t i = 0; i < a.num_launches; ++i)
    if (pack_get_launch(pack, a.first_launch + i).flags != pack_get_launch(pack, b.first_launch + i).flags) return 0;
  return 1;
}

/* Checks that the next row is this row's fallback. */
static tuner_status check_row(const tuner_pack *pack, uint32_t row) {
  const int is_ffn = row < pack->num_kernels;
  const char *table = is_ffn ? "kernel" : "program";
  const uint32_t index = is_ffn ? row : row - pack->num_kernels, count = is_ffn ? pack->num_kernels : pack->num_programs;
  if (index + 1 == count) return bad(table, index, "its fallback is missing");
  const pack_program first = pack_get_row(pack, row), other = pack_get_row(pack, row + 1);
  if (!is_same_program(&first, &other) || (is_ffn && !is_same_kernel(pack, row)))
    return bad(table, index + 1, "it is the fallback of another kernel");
  for (uint32_t i = 0; !is_ffn && i < first.num_operands; ++i)
    if (!is_same_operand(pack, first.first_operand + i, other.first_operand + i))
      return bad("operand", other.first_operand + i, "it differs from the same operand of the main program");
  for (uint32_t i = 0; i < first.num_parts; ++i) {
    for (uint32_t variant = 0; variant < PACK_NUM_VARIANTS; ++variant) {
      const pack_part a = pack_get_row_part(pack, row, i, variant), b = pack_get_row_part(pack, row + 1, i, variant);
      if (!is_same_part(&a, &b)) return bad(table, index + 1, "one of its launches is larger or of another kind than the kernel's");
    }
  }
  return TUNER_OK;
}

/* Queries for sizes use the first rows. */
static tuner_status check_ladder(const tuner_pack *pack, const pack_ladder *ladder) {
  for (uint32_t i = 0; i < ladder->count; ++i) {
    const pack_rung rung = pack_get_rung(pack, ladder, i);
    if (rung.choice != PACK_CHOICE_KERNEL || rung.number == 0) continue;
    if (pack_get_row(pack, (ladder->is_ffn ? 0 : pack->num_kernels) + rung.number - 1).has_fallback)
      return bad(ladder->is_ffn ? "rung" : "attention rung", ladder->first + i, "its kernel is the fallback of another kernel");
  }
  return TUNER_OK;
}

tuner_status pack_check_fallbacks(const tuner_pack *pack) {
  int has_any = 0;
  for (uint32_t row = 0; row < pack->num_kernels + pack->num_programs; ++row) {
    if (!pack_get_row(pack, row).has_fallback) continue;
    TUNER_TRY(check_row(pack, row++));
    has_any = 1;
  }
  if (!has_any) return TUNER_OK;
  if (pack->version < FALLBACK_VERSION)
    return tuner_fail(TUNER_BAD_PACK, "the pack has fallbacks, which version %u does not support", pack->version);
  for (uint32_t i = 0; i < pack->num_shapes; ++i) {
    const pack_ladder ladder = pack_get_shape(pack, i).ladder;
    TUNER_TRY(check_ladder(pack, &ladder));
  }
  for (uint32_t i = 0; i < pack->num_attentions; ++i) {
    const pack_ladder ladder = pack_get_attention(pack, i).ladder;
    TUNER_TRY(check_ladder(pack, &ladder));
  }
  for (uint32_t i = 0; i < pack->num_layers; ++i) {
    const pack_ladder ladder = pack_get_layer(pack, i).ladder;
    TUNER_TRY(check_ladder(pack, &ladder));
  }
  return TUNER_OK;
}
