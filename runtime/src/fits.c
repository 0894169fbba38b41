/* Whether a device holds at once what the launches of a pack need: the driver is asked, kernel by kernel. Cards of one name
 * and one number of SMs differ in how many clusters they hold. */
#include <stddef.h>

#include "fail.h"
#include "ffn.h"
#include "program.h"

static int asks(uint32_t cluster_size, uint32_t facts) { return cluster_size > 1 || (facts & PACK_NEEDS_ALL_CTAS) != 0; }

static tuner_status check_kernel(const tuner_pack *pack, const tuner_driver *driver, uint32_t index) {
  const pack_kernel kernel = pack_get_kernel(pack, index);
  int is_asked = 0;
  for (uint32_t i = 0; i < kernel.num_launches; ++i)
    is_asked |= asks(kernel.cluster_size, pack_get_launch(pack, kernel.first_launch + i).flags);
  if (!is_asked) return TUNER_OK;
  const uint32_t variant = kernel.variants[PACK_GUARDED].num_bytes > 0 ? PACK_GUARDED : PACK_MEASURED;
  pack_module module = {.kernel = index, .variant = variant};
  TUNER_TRY(module_load(pack, driver, &module));
  tuner_status status = TUNER_OK;
  for (uint32_t i = 0; status == TUNER_OK && i < kernel.num_launches; ++i) {
    const pack_launch launch = pack_get_launch(pack, kernel.first_launch + i);
    const CUlaunchConfig config = ffn_config(&kernel, &launch);
    status = tuner_check_residency(driver, module.function, &config, kernel.cluster_size,
                                   (launch.flags & PACK_NEEDS_ALL_CTAS) != 0);
  }
  (void)driver->module_unload(module.module);
  return status == TUNER_OK ? status : tuner_fail_more(status, " (kernel %u, %s)", index, kernel.text);
}

/* Or its fallback. */
static tuner_status check_kernel_rows(const tuner_pack *pack, const tuner_driver *driver, uint32_t index) {
  const tuner_status status = check_kernel(pack, driver, index);
  if (status != TUNER_MISMATCH || pack_kernel_rows(pack, index) == 1) return status;
  return check_kernel(pack, driver, index + 1);
}

static tuner_status check_part(const tuner_driver *driver, const pack_part *part) {
  if (!asks(part->cluster_size, part->flags)) return TUNER_OK;
  CUmodule module = NULL;
  CUfunction function = NULL;
  TUNER_TRY(tuner_check(driver, driver->module_load(&module, part->cubin.data), "cuModuleLoadData"));
  tuner_status status = program_function(driver, part, module, &function);
  const CUlaunchConfig config = program_config(part);
  if (status == TUNER_OK)
    status = tuner_check_residency(driver, function, &config, part->cluster_size, (part->flags & PACK_NEEDS_ALL_CTAS) != 0);
  (void)driver->module_unload(module);
  return status;
}

static tuner_status check_program(const tuner_pack *pack, const tuner_driver *driver, uint32_t index) {
  const pack_program of = pack_get_program(pack, index);
  for (uint32_t p = 0; p < of.num_parts; ++p) {
    const pack_part part = pack_get_part(pack, of.first_part + p);
    const tuner_status status = check_part(driver, &part);
    if (status != TUNER_OK) return tuner_fail_more(status, " (%s)", of.text);
  }
  return TUNER_OK;
}

/* Or its fallback. */
static tuner_status check_program_rows(const tuner_pack *pack, const tuner_driver *driver, uint32_t index) {
  const tuner_status status = check_program(pack, driver, index);
  if (status != TUNER_MISMATCH || pack_program_rows(pack, index) == 1) return status;
  return check_program(pack, driver, index + 1);
}

static tuner_status check_all(const tuner_pack *pack, const tuner_driver *driver) {
  for (uint32_t i = 0; i < pack->num_kernels; i += pack_kernel_rows(pack, i))
    TUNER_TRY(check_kernel_rows(pack, driver, i));
  for (uint32_t i = 0; i < pack->num_programs; i += pack_program_rows(pack, i))
    TUNER_TRY(check_program_rows(pack, driver, i));
  return TUNER_OK;
}

tuner_status pack_check_fits(const tuner_pack *pack, const tuner_driver *driver, CUdevice device) {
  CUcontext context = NULL;
  CUdevice current = 0;
  TUNER_TRY(tuner_check(driver, driver->current_context(&context), "cuCtxGetCurrent"));
  if (context != NULL) TUNER_TRY(tuner_check(driver, driver->context_device(&current), "cuCtxGetDevice"));
  if (context != NULL && current == device) return check_all(pack, driver);
  TUNER_TRY(tuner_check(driver, driver->retain_primary(&context, device), "cuDevicePrimaryCtxRetain"));
  tuner_status status = tuner_check(driver, driver->push_context(context), "cuCtxPushCurrent");
  if (status == TUNER_OK) {
    status = check_all(pack, driver);
    (void)driver->pop_context(&context);
  }
  (void)driver->release_primary(device);
  return status;
}
