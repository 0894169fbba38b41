/* Modules: one for each context, kernel and build, shared by all who prepare it. */
#include <stdlib.h>

#include "fail.h"
#include "ffn.h"

tuner_status tuner_encode_map(const tuner_driver *driver, const pack_map *map, const uint64_t dims[5], uint64_t address,
                              uint8_t *into) {
  static const uint32_t kElementStrides[5] = {1, 1, 1, 1, 1};
  enum { NO_INTERLEAVE = 0, SWIZZLE_128B = 3, PROMOTION_128B = 2, ZEROS_OUTSIDE = 0 };
  return tuner_check(driver,
                     driver->encode_map(into, (int)map->data_type, map->rank, (void *)(uintptr_t)address, dims, map->strides,
                                        map->box, kElementStrides, NO_INTERLEAVE, SWIZZLE_128B, PROMOTION_128B,
                                        ZEROS_OUTSIDE),
                     "cuTensorMapEncodeTiled");
}

tuner_status module_load(const tuner_pack *pack, const tuner_driver *driver, pack_module *module) {
  const pack_kernel kernel = pack_get_kernel(pack, module->kernel);
  TUNER_TRY(tuner_check(driver, driver->module_load(&module->module, kernel.variants[module->variant].data),
                        "cuModuleLoadData"));
  CUresult result = driver->module_function(&module->function, module->module, kernel.symbol);
  if (result == 0 && kernel.gate_symbol[0] != 0)
    result = driver->module_function(&module->gate, module->module, kernel.gate_symbol);
  if (result == 0)
    result = driver->set_attribute(module->function, CU_MAX_DYNAMIC_SHARED_BYTES, (int)kernel.shared_bytes);
  if (result == 0) return TUNER_OK;
  (void)driver->module_unload(module->module);
  return tuner_check(driver, result, "loading a kernel");
}

static tuner_status find_or_load(tuner_pack *pack, const tuner_driver *driver, pack_module wanted, pack_module **found) {
  for (pack_module *one = pack->modules; one != NULL; one = one->next) {
    if (one->context != wanted.context || one->kernel != wanted.kernel || one->variant != wanted.variant) continue;
    ++one->num_users;
    *found = one;
    return TUNER_OK;
  }
  pack_module *made = malloc(sizeof *made);
  if (made == NULL) return tuner_fail(TUNER_NO_MEMORY, "no memory for a module");
  *made = wanted;
  const tuner_status status = module_load(pack, driver, made);
  if (status != TUNER_OK) {
    free(made);
    return status;
  }
  made->next = pack->modules;
  pack->modules = made;
  *found = made;
  return TUNER_OK;
}

tuner_status module_get(tuner_pack *pack, const tuner_driver *driver, uint32_t kernel, uint32_t variant,
                        pack_module **found) {
  pack_module wanted = {.kernel = kernel, .variant = variant, .num_users = 1};
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
