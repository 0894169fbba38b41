/* Whether a pack's kernels run on a device. */
#include "fail.h"
#include "pack.h"

tuner_status pack_check_target(const pack_target *target, int version, int major, int minor, int num_sms) {
  const int wanted[2] = {(int)target->major, (int)target->minor};
  const char suffix[2] = {(char)target->suffix, 0};
  if (major != wanted[0] || minor < wanted[1] || (target->suffix != 0 && minor != wanted[1]))
    return tuner_fail(TUNER_MISMATCH, "the kernels are for sm_%d%d%s, but this device is sm_%d%d: tune on such a card",
                      wanted[0], wanted[1], suffix, major, minor);
  if (version / 1000 < (int)target->cuda_version / 1000)
    return tuner_fail(TUNER_MISMATCH, "the kernels need a driver for CUDA %u, but this one is for CUDA %d: update the driver",
                      target->cuda_version / 1000, version / 1000);
  if ((uint32_t)num_sms != target->num_sms)
    return tuner_fail(TUNER_OTHER_CARD, "the kernels were measured on a card with %u SMs, but this device has %d",
                      target->num_sms, num_sms);
  return TUNER_OK;
}

tuner_status tuner_pack_check(const tuner_pack *pack, int ordinal) {
  if (pack == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "pack must not be null");
  for (uint32_t i = 0; i < pack->num_kernels + pack->num_programs; ++i) /* with or without a driver */
    if (pack_get_row(pack, i).target.is_simulated)
      return tuner_fail(TUNER_MISMATCH, "the pack is simulated: there is nothing to run");
  const tuner_driver *driver = tuner_driver_get();
  if (driver == NULL) return TUNER_NO_DRIVER;
  CUdevice device;
  int version, facts[3];
  static const int kFacts[3] = {CU_DEVICE_MAJOR, CU_DEVICE_MINOR, CU_DEVICE_NUM_SMS};
  TUNER_TRY(tuner_check(driver, driver->driver_version(&version), "cuDriverGetVersion"));
  TUNER_TRY(tuner_check(driver, driver->device_get(&device, ordinal), "cuDeviceGet"));
  for (int i = 0; i < 3; ++i)
    TUNER_TRY(tuner_check(driver, driver->device_attribute(&facts[i], kFacts[i], device), "cuDeviceGetAttribute"));
  tuner_status worst = TUNER_OK;
  uint32_t other = 0;
  for (uint32_t i = 0; i < pack->num_kernels + pack->num_programs; ++i) {
    const pack_target target = pack_get_row(pack, i).target;
    const tuner_status status = pack_check_target(&target, version, facts[0], facts[1], facts[2]);
    if (status < 0) return status;
    if (status != TUNER_OK) worst = status, other = i;
  }
  TUNER_TRY(pack_check_fits(pack, driver, device));
  if (worst == TUNER_OK) return TUNER_OK;
  const pack_target target = pack_get_row(pack, other).target;
  return pack_check_target(&target, version, facts[0], facts[1], facts[2]); /* called again for its error message */
}
