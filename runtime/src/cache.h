/* Parameters of launches, packed once per key and cached. Nothing is allocated after its creation. */
#ifndef TUNER_CACHE_H
#define TUNER_CACHE_H

#include <stddef.h>
#include <stdint.h>
#include <tuner/tuner.h>

typedef struct cache {
  uint8_t *entries;
  size_t key_bytes, head_bytes, entry_bytes;
  uint32_t num_entries, next_victim;
} cache;

/* `num_entries`: 0 means 64. `key_bytes` is a multiple of 8. */
tuner_status cache_make(cache *made, size_t key_bytes, size_t parameter_bytes, uint32_t num_entries);
void cache_free(cache *made);
/* The parameters for a key, at a multiple of 64 bytes; if `is_new`, the caller must pack them. No key may consist only
 * of zeros. */
uint8_t *cache_find(cache *in, const void *key, int *is_new);
void cache_keep(const cache *in, uint8_t *parameters, const void *key);

#endif
