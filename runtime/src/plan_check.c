/* Whether a launch in the index matches its plan: grid, safety and workspace are compared with the header of the words
 * that the kernel will read. tuner/packs/recipes/launches.py checks a manifest in the same way. */
#include <string.h>

#include "fail.h"
#include "plan_check.h"

enum { HEADER_WORDS = 16, TASK_WORDS = 8, WAIT_WORDS = 8, STATIC = 0, TICKET = 1, FIRST_WAVE = 3, FIRST_TASK_BYTES = 16 };
enum { SIGNALS_OFFSET = 256, ALIGNMENT = 256, LEAST_SLOT_BYTES = 64, MAX_COUNT = 1 << 24, MAX_STEPS = 1 << 26, MAX_OPS = 8 };
static const uint32_t kMagic = 0x524E5554, kVersion = 5; /* as in tuner/core/plan/table/header.py */
static const int64_t kMostSpinCycles = 1000000000000;    /* about ten minutes */

static uint64_t aligned(uint64_t num_bytes) { return (num_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

const char *plan_read(const uint8_t *words, size_t num_bytes, plan_header *header) {
  uint32_t w[HEADER_WORDS];
  if (num_bytes < sizeof w) return "its plan is shorter than a header";
  for (int i = 0; i < HEADER_WORDS; ++i) w[i] = pack_u32(words + 4 * i);
  if (w[0] != kMagic || w[1] != kVersion) return "its plan has an unknown format or version";
  const plan_header found = {.num_tasks = w[2],       .num_signals = w[3],     .num_ctas = w[4],        .assignment = w[5],
                             .num_waits = w[9],       .num_first_tasks = w[10], .num_split_tiles = w[14], .in_band_ops = w[15]};
  if (found.num_tasks > MAX_COUNT || found.num_signals > MAX_COUNT || found.num_ctas == 0 || found.num_ctas > MAX_COUNT ||
      found.num_waits > MAX_COUNT || found.num_split_tiles > MAX_COUNT || found.in_band_ops >= 1u << MAX_OPS || w[11] != 0 ||
      w[12] > MAX_STEPS || w[13] > 1)
    return "a value in its plan's header is out of range";
  if (found.assignment != STATIC && found.assignment != TICKET && found.assignment != FIRST_WAVE)
    return "its plan has an unknown assignment";
  if (found.assignment == FIRST_WAVE ? found.num_first_tasks != found.num_ctas || found.num_ctas > found.num_tasks
                                     : found.num_first_tasks != 0)
    return "its plan's first wave does not have one task per CTA";
  const uint64_t num_queue_words = found.assignment == STATIC ? (uint64_t)found.num_ctas + 1 : 0;
  const uint64_t tasks_at = (HEADER_WORDS + num_queue_words + 7) / 8 * 8;
  const uint64_t waits_at = tasks_at + (uint64_t)found.num_tasks * TASK_WORDS;
  if (w[6] != (num_queue_words > 0 ? HEADER_WORDS : 0) || w[7] != tasks_at || w[8] != waits_at ||
      num_bytes != 4 * (waits_at + (uint64_t)found.num_waits * WAIT_WORDS))
    return "the size of its plan does not match its header";
  *header = found;
  return NULL;
}

const char *plan_check_spin_limit(int64_t cycles) {
  return cycles >= 1 && cycles <= kMostSpinCycles ? NULL : "its spin limit must be 1 to 10^12 cycles";
}

const char *plan_check_launch(const plan_header *plan, const plan_launch *is) {
  if (is->grid != (uint64_t)plan->num_ctas * is->cluster_size) return "its grid does not match its plan";
  if (is->first_task_bytes > 0 && plan->assignment != TICKET &&
      is->first_task_bytes < (uint64_t)FIRST_TASK_BYTES * plan->num_ctas)
    return "it does not have a first task for each CTA of its plan";
  const uint64_t arrivals = 4 * (uint64_t)plan->num_split_tiles * is->cluster_size;
  const uint64_t mailboxes = plan->in_band_ops != 0 ? is->mailbox_bytes : 0;
  if (is->zero_bytes < aligned(SIGNALS_OFFSET + 4 * (uint64_t)plan->num_signals) + aligned(arrivals) + mailboxes ||
      is->workspace_bytes < is->zero_bytes + (uint64_t)LEAST_SLOT_BYTES * plan->num_split_tiles)
    return "its workspace is smaller than its plan needs";
  const uint32_t flags = is->flags;
  if ((flags & PACK_IS_COOPERATIVE) != 0 && (flags & PACK_IS_PROGRAMMATIC) != 0)
    return "a launch cannot be both cooperative and programmatic";
  if (is->first_task_bytes > 0 && plan->assignment != TICKET && (flags & PACK_IS_PROGRAMMATIC) != 0 &&
      (flags & PACK_READS_EARLY) == 0)
    return "it reads weights before it waits, but the index does not say so";
  if (plan->assignment == TICKET || plan->num_signals == 0 || is->is_paired) return NULL;
  if ((flags & PACK_NEEDS_ALL_CTAS) == 0) return "its plan needs all CTAs resident at once, but the index does not say so";
  if ((flags & (PACK_IS_COOPERATIVE | PACK_IS_PROGRAMMATIC)) == 0 || (flags & PACK_COOPERATIVE_WHEN_PLAIN) == 0)
    return "its plan needs all CTAs resident at once, so it must be cooperative where it is not programmatic";
  return NULL;
}
