/* A launch through the driver: programmatic, cooperative or plain. */
#include <string.h>

#include "pack.h"

tuner_status tuner_enqueue(const tuner_driver *driver, CUfunction function, CUlaunchConfig config, uint32_t facts,
                           uint8_t *parameter, uint32_t dependent_offset, uint32_t flags) {
  const int is_plain = (flags & TUNER_NO_PDL) != 0;
  const int32_t is_programmatic = !is_plain && (facts & PACK_IS_PROGRAMMATIC) != 0;
  const int is_cooperative = (facts & (is_plain ? PACK_COOPERATIVE_WHEN_PLAIN : PACK_IS_COOPERATIVE)) != 0;
  CUlaunchAttribute attribute;
  memset(&attribute, 0, sizeof attribute);
  attribute.id = is_programmatic ? CU_ATTRIBUTE_PROGRAMMATIC : CU_ATTRIBUTE_COOPERATIVE;
  attribute.value.on = 1;
  config.attributes = &attribute;
  config.num_attributes = is_programmatic || is_cooperative ? 1 : 0;
  if (dependent_offset != PACK_NONE) memcpy(parameter + dependent_offset, &is_programmatic, 4);
  void *values[] = {parameter};
  return tuner_check(driver, driver->launch(&config, function, values, NULL), "cuLaunchKernelEx");
}
