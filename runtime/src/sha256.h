/* sha256. Source: FIPS 180-4. */
#ifndef TUNER_SHA256_H
#define TUNER_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct sha256 {
  uint32_t state[8];
  uint64_t num_bytes;
  uint8_t block[64];
} sha256;

void sha256_begin(sha256 *hash);
void sha256_add(sha256 *hash, const void *data, size_t num_bytes);
void sha256_end(sha256 *hash, uint8_t digest[32]);

#endif
