/* Rows for cards that hold fewer clusters than the one that the kernels were measured on: each stands behind its first, and is of
 * the same artifact. */
#include <string.h>

#include "fail.h"
#include "pack.h"

enum { FALLBACK_VERSION = 5, DIGEST_BYTES = 32 };

static tuner_status bad(const char *table, uint32_t index, const char *what) {
  return tuner_fail(TUNER_BAD_PACK, "%s %u of the pack's index: %s", table, index, what);
}

uint32_t pack_kernel_rows(const tuner_pack *pack, uint32_t index) {
  return (pack_get_kernel(pack, index).flags & PACK_KERNEL_HAS_FALLBACK) != 0 ? 2 : 1;
}

uint32_t pack_program_rows(const tuner_pack *pack, uint32_t index) {
  return pack_get_program(pack, index).has_fallback ? 2 : 1;
}

static int is_same_kernel(const pack_kernel *a, const pack_kernel *b) {
  for (int v = 0; v < PACK_NUM_VARIANTS; ++v)
    if (a->variants[v].data != b->variants[v].data || a->variants[v].num_bytes != b->variants[v].num_bytes) return 0;
  return memcmp(a->digest, b->digest, DIGEST_BYTES) == 0 && a->symbol == b->symbol && a->gate_symbol == b->gate_symbol &&
         a->spin_limit_cycles == b->spin_limit_cycles && a->num_threads == b->num_threads &&
         a->cluster_size == b->cluster_size && a->shared_bytes == b->shared_bytes && a->parameter_bytes == b->parameter_bytes &&
         a->first_tasks_offset == b->first_tasks_offset && a->maps_offset == b->maps_offset && a->m_min == b->m_min &&
         a->m_max == b->m_max && a->num_launches == b->num_launches && a->num_ops == b->num_ops && a->num_maps == b->num_maps &&
         a->num_workspaces == b->num_workspaces && (a->flags ^ PACK_KERNEL_HAS_FALLBACK) == b->flags;
}

static int is_same_target(const pack_target *a, const pack_target *b) {
  return a->major == b->major && a->minor == b->minor && a->suffix == b->suffix && a->num_sms == b->num_sms &&
         a->cuda_version == b->cuda_version && a->is_simulated == b->is_simulated;
}

/* What computes, and what it reads and writes, row by row. */
static int is_same_op(const tuner_pack *pack, uint32_t one, uint32_t other) {
  const pack_op a = pack_get_op(pack, one), b = pack_get_op(pack, other);
  return a.n == b.n && a.k == b.k && a.weight_rows == b.weight_rows && a.flags == b.flags && a.activation == b.activation &&
         a.source == b.source;
}

static int is_same_operand(const tuner_pack *pack, uint32_t one, uint32_t other) {
  const pack_operand a = pack_get_operand(pack, one), b = pack_get_operand(pack, other);
  return a.name == b.name && a.role == b.role && a.dtype == b.dtype && a.flags == b.flags && a.rank == b.rank &&
         memcmp(a.dims, b.dims, sizeof a.dims) == 0;
}

static int is_same_part(const pack_part *a, const pack_part *b) {
  return a->symbol == b->symbol && a->grid >= b->grid && a->num_threads == b->num_threads &&
         a->cluster_size == b->cluster_size && a->shared_bytes == b->shared_bytes && a->flags == b->flags &&
         a->dependent_offset == b->dependent_offset && a->parameter_bytes == b->parameter_bytes &&
         a->num_maps == b->num_maps && a->cubin.data == b->cubin.data;
}

static tuner_status check_kernel(const tuner_pack *pack, uint32_t index) {
  const pack_kernel first = pack_get_kernel(pack, index);
  if (index + 1 == pack->num_kernels) return bad("kernel", index, "its fallback is missing");
  const pack_kernel other = pack_get_kernel(pack, index + 1);
  if (!is_same_kernel(&first, &other)) return bad("kernel", index + 1, "it is of another kernel than that whose fallback it is");
  for (uint32_t i = 0; i < first.num_ops; ++i)
    if (!is_same_op(pack, first.first_op + i, other.first_op + i))
      return bad("kernel", index + 1, "it has other ops than the kernel whose fallback it is");
  for (uint32_t i = 0; i < first.num_launches; ++i) {
    const pack_launch a = pack_get_launch(pack, first.first_launch + i), b = pack_get_launch(pack, other.first_launch + i);
    if (a.flags != b.flags || a.grid < b.grid)
      return bad("launch", other.first_launch + i, "it is larger or of another kind than the launch whose fallback it is");
  }
  return TUNER_OK;
}

static tuner_status check_program(const tuner_pack *pack, uint32_t index) {
  const pack_program first = pack_get_program(pack, index);
  if (index + 1 == pack->num_programs) return bad("program", index, "its fallback is missing");
  const pack_program other = pack_get_program(pack, index + 1);
  if (memcmp(first.digest, other.digest, DIGEST_BYTES) != 0 || !is_same_target(&first.target, &other.target) ||
      first.num_parts != other.num_parts || first.num_operands != other.num_operands || first.most_rows != other.most_rows ||
      other.has_fallback)
    return bad("program", index + 1, "it is of another kernel than that whose fallback it is");
  for (uint32_t i = 0; i < first.num_operands; ++i)
    if (!is_same_operand(pack, first.first_operand + i, other.first_operand + i))
      return bad("operand", other.first_operand + i, "it is not that of the program whose fallback it is of");
  for (uint32_t i = 0; i < first.num_parts; ++i) {
    const pack_part a = pack_get_part(pack, first.first_part + i), b = pack_get_part(pack, other.first_part + i);
    if (!is_same_part(&a, &b))
      return bad("part", other.first_part + i, "it is larger or of another kind than the launch whose fallback it is");
  }
  return TUNER_OK;
}

/* Sizes are answered by first rows. */
static tuner_status check_ladder(const tuner_pack *pack, const pack_ladder *ladder) {
  for (uint32_t i = 0; i < ladder->count; ++i) {
    const pack_rung rung = pack_get_rung(pack, ladder, i);
    if (rung.choice != PACK_CHOICE_KERNEL || rung.number == 0) continue;
    const uint32_t before = rung.number - 1;
    if ((ladder->is_ffn ? pack_kernel_rows(pack, before) : pack_program_rows(pack, before)) > 1)
      return bad(ladder->is_ffn ? "rung" : "attention's rung", ladder->first + i, "it names another kernel's fallback");
  }
  return TUNER_OK;
}

tuner_status pack_check_fallbacks(const tuner_pack *pack) {
  uint32_t num_fallbacks = 0;
  for (uint32_t i = 0, rows; i < pack->num_kernels; i += rows) {
    if ((rows = pack_kernel_rows(pack, i)) == 1) continue;
    TUNER_TRY(check_kernel(pack, i));
    ++num_fallbacks;
  }
  for (uint32_t i = 0, rows; i < pack->num_programs; i += rows) {
    if ((rows = pack_program_rows(pack, i)) == 1) continue;
    TUNER_TRY(check_program(pack, i));
    ++num_fallbacks;
  }
  if (num_fallbacks == 0) return TUNER_OK;
  if (pack->version < FALLBACK_VERSION)
    return tuner_fail(TUNER_BAD_PACK, "the pack has fallbacks, and packs of version %u have none", pack->version);
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
