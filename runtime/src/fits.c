/* Whether a device can hold at once the CTAs of a pack's launches: the driver is asked for each kernel. Cards of the
 * same name and number of SMs can differ in how many clusters they hold. */
#include <stddef.h>

#include "fail.h"
#include "program.h"

static tuner_status check_part(const tuner_driver *driver, const pack_part *part) {
  const int needs_all_ctas = (part->flags & PACK_NEEDS_ALL_CTAS) != 0;
  if (part->cluster_size == 1 && !needs_all_ctas) return TUNER_OK;
  CUmodule module = NULL;
  CUfunction function = NULL;
  TUNER_TRY(tuner_check(driver, driver->module_load(&module, part->cubin.data), "cuModuleLoadData"));
  tuner_status status = program_function(driver, part, module, &function);
  const CUlaunchConfig config = program_config(part);
  if (status == TUNER_OK) status = tuner_check_residency(driver, function, &config, part->cluster_size, needs_all_ctas);
  (void)driver->module_unload(module);
  return status;
}

/* For an FFN's kernel, the build that is prepared by default. */
static tuner_status check_row(const tuner_pack *pack, const tuner_driver *driver, uint32_t row) {
  const pack_program of = pack_get_row(pack, row);
  for (uint32_t i = 0; i < of.num_parts; ++i) {
    pack_part part = pack_get_row_part(pack, row, i, PACK_GUARDED);
    if (part.cubin.num_bytes == 0) part = pack_get_row_part(pack, row, i, PACK_MEASURED);
    const tuner_status status = check_part(driver, &part);
    if (status != TUNER_OK) return tuner_fail_more(status, " (%s)", of.text);
  }
  return TUNER_OK;
}

/* Checks a row, or its fallback if the row does not fit. */
static tuner_status check_rows(const tuner_pack *pack, const tuner_driver *driver, uint32_t row, int has_fallback) {
  const tuner_status status = check_row(pack, driver, row);
  return status == TUNER_MISMATCH && has_fallback ? check_row(pack, driver, row + 1) : status;
}

static tuner_status check_all(const tuner_pack *pack, const tuner_driver *driver) {
  const uint32_t num_rows = pack->num_kernels + pack->num_programs;
  for (uint32_t row = 0; row < num_rows; ++row) {
    const uint32_t has_fallback = pack_get_row(pack, row).has_fallback;
    TUNER_TRY(check_rows(pack, driver, row, (int)has_fallback));
    row += has_fallback;
  }
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
