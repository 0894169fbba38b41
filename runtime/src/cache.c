#include "cache.h"

#include <stdlib.h>
#include <string.h>

#include "fail.h"

enum { PROBES = 8, DEFAULT_ENTRIES = 64, MAX_ENTRIES = 1 << 16 };

static size_t rounded(size_t num_bytes) { return (num_bytes + 63) / 64 * 64; }

tuner_status cache_make(cache *made, size_t key_bytes, size_t parameter_bytes, uint32_t num_entries) {
  made->num_entries = num_entries == 0 ? DEFAULT_ENTRIES : num_entries > MAX_ENTRIES ? MAX_ENTRIES : num_entries;
  made->key_bytes = key_bytes;
  made->head_bytes = rounded(key_bytes);
  made->entry_bytes = made->head_bytes + rounded(parameter_bytes);
  made->entries = aligned_alloc(64, made->entry_bytes * made->num_entries); /* tensor maps must be at multiples of 64 */
  if (made->entries == NULL) return tuner_fail(TUNER_NO_MEMORY, "not enough host memory for %u sets of parameters", made->num_entries);
  memset(made->entries, 0, made->entry_bytes * made->num_entries);
  return TUNER_OK;
}

void cache_free(cache *made) { free(made->entries); }

static uint64_t hash_of(const void *key, size_t num_bytes) {
  uint64_t hash = 0;
  for (size_t i = 0; i < num_bytes; i += 8) {
    uint64_t word;
    memcpy(&word, (const uint8_t *)key + i, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 32;
  }
  return hash;
}

static int is_empty(const uint8_t *key, size_t num_bytes) {
  for (size_t i = 0; i < num_bytes; ++i)
    if (key[i] != 0) return 0;
  return 1;
}

uint8_t *cache_find(cache *in, const void *key, int *is_new) {
  const uint64_t start = hash_of(key, in->key_bytes);
  const uint32_t probes = in->num_entries < PROBES ? in->num_entries : PROBES;
  uint8_t *chosen = NULL;
  for (uint32_t probe = 0; probe < probes; ++probe) {
    uint8_t *entry = in->entries + (size_t)((start + probe) % in->num_entries) * in->entry_bytes;
    if (memcmp(entry, key, in->key_bytes) == 0) {
      *is_new = 0;
      return entry + in->head_bytes;
    }
    if (chosen == NULL && is_empty(entry, in->key_bytes)) chosen = entry;
  }
  if (chosen == NULL) /* the cache is full, so entries are replaced in turn */
    chosen = in->entries + (size_t)((start + in->next_victim++ % probes) % in->num_entries) * in->entry_bytes;
  memset(chosen, 0, in->key_bytes);
  *is_new = 1;
  return chosen + in->head_bytes;
}

void cache_keep(const cache *in, uint8_t *parameters, const void *key) {
  memcpy(parameters - in->head_bytes, key, in->key_bytes);
}
