/* Whether the CTAs of a launch fit on the SMs of its stream: a device, or a green context. */
#include <string.h>

#include "driver.h"
#include "fail.h"

_Static_assert(sizeof(CUdevResource) == 256, "larger than any driver's");

/* For the stream's context, and for the whole device. A stream of a green context has fewer SMs, whatever context is
 * current. */
static tuner_status count_sms(const tuner_driver *driver, CUstream stream, int *num_sms, int *of_device) {
  CUdevice device;
  CUcontext context;
  TUNER_TRY(tuner_check(driver, driver->stream_context(stream, &context), "cuStreamGetCtx"));
  TUNER_TRY(tuner_check(driver, driver->context_device(&device), "cuCtxGetDevice"));
  TUNER_TRY(tuner_check(driver, driver->device_attribute(of_device, CU_DEVICE_NUM_SMS, device), "cuDeviceGetAttribute"));
  *num_sms = *of_device;
  CUdevResource found;
  memset(&found, 0, sizeof found);
  const int is_told = driver->context_resource != NULL && driver->context_resource(context, &found, CU_RESOURCE_SM) == 0;
  if (is_told && found.num_sms > 0 && found.num_sms < (uint32_t)*num_sms) *num_sms = (int)found.num_sms;
  return TUNER_OK;
}

tuner_status tuner_check_residency(const tuner_driver *driver, CUfunction function, const CUlaunchConfig *config,
                                   uint32_t cluster_size, int needs_all_ctas) {
  if (!needs_all_ctas && cluster_size == 1) return TUNER_OK;
  int num_sms, of_device, held = 0;
  TUNER_TRY(count_sms(driver, config->stream, &num_sms, &of_device));
  TUNER_TRY(tuner_check(driver, driver->ctas_per_sm(&held, function, (int)config->block[0], config->shared_bytes),
                        "cuOccupancyMaxActiveBlocksPerMultiprocessor"));
  held *= num_sms;
  if (cluster_size > 1) { /* CTAs of a cluster share a GPC, so fewer may fit; for a whole device the driver knows the
                             number */
    int clusters = 0;
    TUNER_TRY(tuner_check(driver, driver->max_clusters(&clusters, function, config), "cuOccupancyMaxActiveClusters"));
    const int fitting = held / (int)cluster_size;
    held = (clusters < fitting ? clusters : fitting) * (int)cluster_size;
  }
  if (held >= 0 && (uint32_t)held >= (needs_all_ctas ? config->grid[0] : cluster_size)) return TUNER_OK;
  tuner_fail(TUNER_MISMATCH, needs_all_ctas ? "the kernel needs its %u CTAs resident at once" : "the kernel has a grid of %u CTAs",
             config->grid[0]);
  if (cluster_size > 1) tuner_fail_more(TUNER_MISMATCH, " in clusters of %u", cluster_size);
  if (num_sms < of_device) {
    tuner_fail_more(TUNER_MISMATCH, ", and the %d SMs of this stream's context hold", num_sms);
  } else {
    tuner_fail_more(TUNER_MISMATCH, ", and this device holds");
  }
  return tuner_fail_more(TUNER_MISMATCH, " %d: use the library", held);
}
