/* The kernel's one by-value parameter: packed once for each set of addresses and rows, and kept. */
#include <string.h>

#include "fail.h"
#include "ffn.h"

static void put_address(uint8_t *at, const void *address) {
  const uint64_t value = (uint64_t)(uintptr_t)address;
  memcpy(at, &value, 8);
}

static void put_op(uint8_t *at, const pack_op *op, int32_t m, const void *const addresses[6]) {
  for (int i = 0; i < 6; ++i) put_address(at + 8 * i, addresses[i]);
  const int32_t sizes[4] = {m, (int32_t)op->n, (int32_t)op->k, 0};
  memcpy(at + 48, sizes, sizeof sizes);
}

static tuner_status encode(const tuner_ffn *ffn, const pack_map *map, int32_t m, const void *address, uint8_t *into) {
  uint64_t dims[5];
  memcpy(dims, map->dims, sizeof dims);
  if (map->rows_dim != PACK_NONE) dims[map->rows_dim] = (uint64_t)m;
  return tuner_encode_map(ffn->driver, map, dims, (uint64_t)(uintptr_t)address, into);
}

static tuner_status pack_all(const tuner_ffn *ffn, int32_t m, const tuner_tensors *t, uint8_t *parameters) {
  /* Of each op: A, weights, bias, output, residual, row scale. */
  const void *const addresses[PACK_MAX_OPS][6] = {{t->x, t->w1, t->b1, t->hidden, NULL, t->row_scale},
                                                  {t->hidden, t->w2, t->b2, t->y, t->residual, NULL}};
  const uint32_t maps_offset = ffn->kernel.maps_offset;
  memset(parameters, 0, (size_t)ffn->parameter_stride * ffn->kernel.num_launches);
  for (uint32_t i = 0; i < ffn->kernel.num_launches; ++i) {
    uint8_t *at = parameters + (size_t)i * ffn->parameter_stride;
    const pack_launch *launch = &ffn->launches[i];
    const int32_t is_second = (launch->flags & PACK_IS_SECOND) != 0;
    memcpy(at + ARGS_WORDS, &ffn->words[i], 8);
    memcpy(at + ARGS_WORKSPACE, &ffn->workspaces[i], 8);
    memcpy(at + ARGS_SPIN_LIMIT, &ffn->kernel.spin_limit_cycles, 8);
    memcpy(at + ARGS_IS_SECOND, &is_second, 4);
    memcpy(at + ARGS_PLAN_HEADER, launch->words.data, PLAN_HEADER_BYTES);
    for (uint32_t op = 0; op < ffn->kernel.num_ops; ++op)
      put_op(at + ARGS_OPS + ARGS_OP_BYTES * op, &ffn->ops[op], m, addresses[op]);
    if (launch->first_tasks.num_bytes > 0)
      memcpy(at + ffn->kernel.first_tasks_offset, launch->first_tasks.data, launch->first_tasks.num_bytes);
    for (uint32_t j = 0; j < ffn->kernel.num_maps; ++j) {
      uint8_t *map_at = at + maps_offset + MAP_BYTES * j;
      if (i > 0) {
        memcpy(map_at, parameters + maps_offset + MAP_BYTES * j, MAP_BYTES); /* all launches have the same maps */
        continue;
      }
      static const int kPlaces[3] = {0, 1, 3}; /* of a, w and c among an op's addresses */
      const pack_map *map = &ffn->maps[j];
      TUNER_TRY(encode(ffn, map, m, addresses[map->op][kPlaces[map->operand]], map_at));
    }
  }
  return TUNER_OK;
}

uint8_t *ffn_parameters(tuner_ffn *ffn, int32_t m, const tuner_tensors *tensors) {
  const ffn_key key = {*tensors, m};
  int is_new;
  uint8_t *parameters = cache_find(&ffn->parameters, &key, &is_new);
  if (!is_new) return parameters;
  if (pack_all(ffn, m, tensors, parameters) != TUNER_OK) return NULL;
  cache_keep(&ffn->parameters, parameters, &key);
  return parameters;
}
