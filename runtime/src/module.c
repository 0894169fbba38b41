/* Modules, one per context and cubin, shared by all users; and tensor maps. */
#include <stdlib.h>

#include "fail.h"
#include "pack.h"

tuner_status tuner_encode_map(const tuner_driver *driver, const pack_map *map, const uint64_t dims[5], uint64_t address,
                              uint8_t *into) {
  static const uint32_t kElementStrides[5] = {1, 1, 1, 1, 1};
  enum { NO_INTERLEAVE = 0, SWIZZLE_128B = 3, PROMOTION_128B = 2, ZEROS_OUTSIDE = 0 };
  if (map->is_im2col) {
    const int lower[2] = {(int)map->box[2], (int)map->box[2]}, upper[2] = {(int)map->box[3], (int)map->box[3]};
    const uint32_t strides[4] = {1, map->box[4], map->box[4], 1};
    return tuner_check(driver,
                       driver->encode_im2col(into, (int)map->data_type, map->rank, (void *)(uintptr_t)address, dims,
                                             map->strides, lower, upper, map->box[0], map->box[1], strides, NO_INTERLEAVE,
                                             SWIZZLE_128B, PROMOTION_128B, ZEROS_OUTSIDE),
                       "cuTensorMapEncodeIm2col");
  }
  return tuner_check(driver,
                     driver->encode_map(into, (int)map->data_type, map->rank, (void *)(uintptr_t)address, dims, map->strides,
                                        map->box, kElementStrides, NO_INTERLEAVE, SWIZZLE_128B, PROMOTION_128B,
                                        ZEROS_OUTSIDE),
                     "cuTensorMapEncodeTiled");
}

static tuner_status find_or_load(tuner_pack *pack, const tuner_driver *driver, pack_module wanted, pack_module **found) {
  for (pack_module *one = pack->modules; one != NULL; one = one->next) {
    if (one->context != wanted.context || one->cubin != wanted.cubin) continue;
    ++one->num_users;
    *found = one;
    return TUNER_OK;
  }
  TUNER_TRY(tuner_check(driver, driver->module_load(&wanted.module, wanted.cubin), "cuModuleLoadData"));
  pack_module *made = malloc(sizeof *made);
  if (made == NULL) {
    (void)driver->module_unload(wanted.module);
    return tuner_fail(TUNER_NO_MEMORY, "not enough host memory for a module");
  }
  *made = wanted;
  made->next = pack->modules;
  pack->modules = made;
  *found = made;
  return TUNER_OK;
}

tuner_status module_get(tuner_pack *pack, const tuner_driver *driver, const pack_blob *cubin, pack_module **found) {
  pack_module wanted = {.cubin = cubin->data, .num_users = 1};
  TUNER_TRY(tuner_check(driver, driver->current_context(&wanted.context), "cuCtxGetCurrent"));
  if (wanted.context == NULL)
    return tuner_fail(TUNER_BAD_ARGUMENT, "this thread has no CUDA context: make one current, e.g. by cudaFree(0)");
  pthread_mutex_lock(&pack->lock);
  const tuner_status status = find_or_load(pack, driver, wanted, found);
  pthread_mutex_unlock(&pack->lock);
  return status;
}

void module_release(tuner_pack *pack, const tuner_driver *driver, pack_module *module) {
  pthread_mutex_lock(&pack->lock);
  if (--module->num_users == 0) {
    pack_module **link = &pack->modules;
    while (*link != module) link = &(*link)->next;
    *link = module->next;
    (void)driver->module_unload(module->module);
    free(module);
  }
  pthread_mutex_unlock(&pack->lock);
}
