/* Whether an attention's launch in the index matches its tables: the values in its parameter, and the targets of its
 * pointers. tuner/ops/attention/pack/launches.py checks a manifest in the same way. */
#include <string.h>

#include "plan_check.h"

/* Offsets in a parameter, after its caches (two encoded maps or two addresses), as in args_attention.cuh. */
enum { MAPS_BYTES = 256, ADDRESSES_BYTES = 16, TASKS = 24, QUEUES = 32, ARRIVALS = 48, REFUSED = 72, ABORT = 80, SPIN_LIMIT = 88 };
enum { KV_HEADS = 120, NUM_BLOCKS = 132, NUM_SPANS = 144, ARRIVALS_PER_LAUNCH = 148, NUM_QUEUES = 200, SEQUENCES = 204, FIRST = 208 };
enum { MOST_QUEUES = 160, TASK_BYTES = 8, ABORT_BYTES = 24, REFUSED_BYTES = 16 };

/* The offset in the memory to which an address of the parameter points; none if it is outside. */
static uint64_t pointed_to(const tuner_pack *pack, const pack_part *part, uint32_t offset) {
  for (uint32_t p = 0; p < part->num_patches; ++p) {
    const pack_patch patch = pack_get_patch(pack, part->first_patch + p);
    if (patch.offset == offset && patch.tensor == PACK_TENSOR_MEMORY) return patch.addend;
  }
  return PACK_NOWHERE;
}

static pack_blob table_at(const tuner_pack *pack, const pack_program *program, uint64_t place) {
  const pack_blob none = {NULL, 0};
  for (uint32_t f = 0; f < program->num_fills; ++f) {
    const pack_fill fill = pack_get_fill(pack, program->first_fill + f);
    if (fill.offset == place && fill.blob.num_bytes > 0) return fill.blob;
  }
  return none;
}

static int is_zeroed(const tuner_pack *pack, const pack_program *program, uint64_t place, uint64_t num_bytes) {
  for (uint32_t f = 0; f < program->num_fills; ++f) {
    const pack_fill fill = pack_get_fill(pack, program->first_fill + f);
    if (fill.blob.num_bytes == 0 && fill.offset <= place && place - fill.offset <= fill.num_zeros &&
        num_bytes <= fill.num_zeros - (place - fill.offset))
      return 1;
  }
  return 0;
}

static const char *check_tables(const uint8_t *at, const pack_part *part, pack_blob queues, pack_blob tasks) {
  const uint32_t num_queues = pack_u32(at + NUM_QUEUES);
  if (num_queues == 0 || num_queues > MOST_QUEUES || queues.num_bytes != 4 * ((uint64_t)num_queues + 1))
    return "its number of queues does not match its queue table";
  const uint64_t least = (uint64_t)num_queues * part->cluster_size;
  if (part->grid < least || part->grid > (uint64_t)MOST_QUEUES * part->cluster_size)
    return "its grid does not match its queues";
  uint32_t begin = pack_u32(queues.data);
  if (begin != 0) return "its queues are not consecutive";
  for (uint32_t i = 0; i < num_queues; ++i) {
    const uint32_t end = pack_u32(queues.data + 4 * (i + 1));
    if (end <= begin || (uint64_t)end * TASK_BYTES > tasks.num_bytes) return "its queues are not consecutive";
    if (memcmp(at + FIRST + TASK_BYTES * i, tasks.data + (size_t)TASK_BYTES * begin, TASK_BYTES) != 0)
      return "its first tasks differ from those of its queues";
    begin = end;
  }
  return (uint64_t)begin * TASK_BYTES == tasks.num_bytes ? NULL : "its queues do not contain all tasks";
}

/* Checks the tasks against the numbers of sequences, KV heads, blocks and spans in the parameter. */
static const char *check_tasks(const uint8_t *at, pack_blob tasks) {
  const uint32_t most[4] = {pack_u32(at + SEQUENCES), pack_u32(at + KV_HEADS), pack_u32(at + NUM_BLOCKS), pack_u32(at + NUM_SPANS)};
  uint64_t count = 1;
  for (int i = 0; i < 4; ++i) {
    if (most[i] == 0 || most[i] >= 1u << 24) return "it has too many or too few sequences, heads, blocks or spans";
    count *= most[i];
    if (count > tasks.num_bytes) return "it does not have one task per span";
  }
  if (count * TASK_BYTES != tasks.num_bytes) return "it does not have one task per span";
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t first = pack_u32(tasks.data + TASK_BYTES * i), second = pack_u32(tasks.data + TASK_BYTES * i + 4);
    if (first >> 16 >= most[0] || (first & 0xFFFF) >= most[1] || second >> 24 >= most[2] || (second & 0xFFFFFF) >= most[3])
      return "a task's sequence, head, block or span is out of range";
  }
  uint32_t arrivals = 1;
  while (arrivals < most[3]) arrivals *= 2;
  return pack_u32(at + ARRIVALS_PER_LAUNCH) == arrivals ? NULL : "its number of arrivals does not match its spans";
}

const char *attention_check_launch(const tuner_pack *pack, const pack_part *part, const pack_program *program) {
  const uint32_t caches = part->num_maps > 0 ? MAPS_BYTES : ADDRESSES_BYTES;
  if (part->abort_offset == PACK_NOWHERE) return NULL; /* versions without bounded waits have a different parameter */
  if (part->parameter_bytes < caches + FIRST + MOST_QUEUES * TASK_BYTES) return "its parameter is too small for an attention";
  const uint8_t *at = part->parameter.data + caches;
  const char *wrong = plan_check_spin_limit((int64_t)pack_u64(at + SPIN_LIMIT));
  if (wrong != NULL) return wrong;
  const pack_blob queues = table_at(pack, program, pointed_to(pack, part, caches + QUEUES));
  const pack_blob tasks = table_at(pack, program, pointed_to(pack, part, caches + TASKS));
  if ((wrong = check_tables(at, part, queues, tasks)) != NULL || (wrong = check_tasks(at, tasks)) != NULL) return wrong;
  const uint64_t slots = (uint64_t)pack_u32(at + SEQUENCES) * pack_u32(at + KV_HEADS) * pack_u32(at + NUM_BLOCKS);
  const uint64_t arrivals = pointed_to(pack, part, caches + ARRIVALS);
  if (arrivals == PACK_NOWHERE || !is_zeroed(pack, program, arrivals, 4 * slots * part->cluster_size))
    return "its counters are not zeroed";
  if (pointed_to(pack, part, caches + REFUSED) != program->refused_offset ||
      !is_zeroed(pack, program, program->refused_offset, REFUSED_BYTES))
    return "its refusal record is not where the index says, or not zeroed";
  if (pointed_to(pack, part, caches + ABORT) != part->abort_offset ||
      !is_zeroed(pack, program, part->abort_offset, ABORT_BYTES))
    return "its abort record is not where the index says, or not zeroed";
  return NULL;
}
