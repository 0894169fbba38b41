/* What a pack says of a shape, and of a device. */
#include <string.h>

#include "fail.h"
#include "ffn.h"

tuner_status tuner_pack_shape(const tuner_pack *pack, uint32_t index, tuner_shape *shape, uint32_t *num_shapes) {
  if (pack == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "pack must not be null");
  if (num_shapes != NULL) *num_shapes = pack->num_shapes;
  if (index >= pack->num_shapes) return TUNER_NONE;
  if (shape != NULL) *shape = pack_get_shape(pack, index).shape;
  return TUNER_OK;
}

static int is_same(const tuner_shape *a, const tuner_shape *b) {
  return a->dtype == b->dtype && a->activation == b->activation && a->d_in == b->d_in && a->d_hidden == b->d_hidden &&
         a->d_out == b->d_out && a->flags == b->flags;
}

/* That a caller asks for what there can be; what the pack has of it is another matter. */
static tuner_status check_shape(const tuner_shape *shape) {
  if (shape->dtype != TUNER_FP16 && shape->dtype != TUNER_BF16)
    return tuner_fail(TUNER_BAD_ARGUMENT, "dtype is %d: give TUNER_FP16 or TUNER_BF16", (int)shape->dtype);
  if (shape->activation < TUNER_IDENTITY || shape->activation > TUNER_SILU)
    return tuner_fail(TUNER_BAD_ARGUMENT,
                      "activation is %d: give TUNER_IDENTITY, TUNER_RELU, TUNER_GELU (the tanh form) or TUNER_SILU",
                      (int)shape->activation);
  if ((shape->flags & ~(uint32_t)PACK_ALL_SHAPE_FLAGS) != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT,
                      "flags are 0x%x: give those of TUNER_GATED, TUNER_BIAS, TUNER_RESIDUAL and TUNER_ROW_SCALE",
                      (unsigned)shape->flags);
  if (shape->d_in < 1 || shape->d_hidden < 1 || shape->d_out < 1)
    return tuner_fail(TUNER_BAD_ARGUMENT, "d_in, d_hidden and d_out are %d, %d and %d: give columns, at least 1 of each",
                      (int)shape->d_in, (int)shape->d_hidden, (int)shape->d_out);
  return TUNER_OK;
}

static tuner_status choose(const tuner_pack *pack, const pack_rung *rung, tuner_choice *choice) {
  memset(choice, 0, sizeof *choice);
  choice->m_lo = rung->m_lo, choice->m_hi = rung->m_hi;
  choice->speedup = rung->speedup_ppm / 1e6;
  if (rung->choice == PACK_CHOICE_LIBRARY) {
    choice->kernel = PACK_NONE;
    choice->text = rung->library;
    return TUNER_LIBRARY;
  }
  const pack_kernel kernel = pack_get_kernel(pack, rung->kernel);
  choice->kernel = rung->kernel;
  choice->text = kernel.text;
  choice->memory_bytes = (size_t)pack_get_layout(pack, &kernel).bytes;
  memcpy(choice->digest, kernel.digest, sizeof choice->digest);
  return TUNER_OK;
}

tuner_status tuner_ffn_find(const tuner_pack *pack, const tuner_shape *shape, int32_t m, tuner_choice *choice) {
  if (pack == NULL || shape == NULL || choice == NULL)
    return tuner_fail(TUNER_BAD_ARGUMENT, "pack, shape and choice must not be null");
  memset(choice, 0, sizeof *choice);
  TUNER_TRY(check_shape(shape));
  choice->kernel = PACK_NONE, choice->m_lo = m, choice->m_hi = INT32_MAX, choice->text = "";
  for (uint32_t i = 0; i < pack->num_shapes; ++i) {
    const pack_shape found = pack_get_shape(pack, i);
    if (!is_same(&found.shape, shape)) continue;
    for (uint32_t r = 0; r < found.num_rungs; ++r) {
      const pack_rung rung = pack_get_rung(pack, found.first_rung + r);
      if (rung.m_lo <= m && m <= rung.m_hi) return choose(pack, &rung, choice);
      if (m < rung.m_lo) { /* rungs go from the fewest rows on */
        choice->m_hi = rung.m_lo - 1;
        break;
      }
    }
    return tuner_fail(TUNER_NONE, "the pack has no answer for %d rows of %s", (int)m, found.text);
  }
  return tuner_fail(TUNER_NONE, "the pack has no such shape: tune it, or use the library");
}

tuner_status pack_check_target(const pack_target *target, int version, int major, int minor, int num_sms) {
  const int wanted[2] = {(int)target->major, (int)target->minor};
  const char suffix[2] = {(char)target->suffix, 0};
  if (major != wanted[0] || minor < wanted[1] || (target->suffix != 0 && minor != wanted[1]))
    return tuner_fail(TUNER_MISMATCH, "the kernels are for sm_%d%d%s, and this device is sm_%d%d: tune on a card like it",
                      wanted[0], wanted[1], suffix, major, minor);
  if (version / 1000 < (int)target->cuda_version / 1000)
    return tuner_fail(TUNER_MISMATCH, "the kernels need a driver of CUDA %u, and this one is of CUDA %d: update the driver",
                      target->cuda_version / 1000, version / 1000);
  if ((uint32_t)num_sms != target->num_sms)
    return tuner_fail(TUNER_OTHER_CARD, "the kernels were measured on a card of %u SMs, and this device has %d",
                      target->num_sms, num_sms);
  return TUNER_OK;
}

/* Of a kernel, or of a program behind them. */
static pack_target target_of(const tuner_pack *pack, uint32_t index) {
  if (index >= pack->num_kernels) return pack_get_program(pack, index - pack->num_kernels).target;
  const pack_kernel is = pack_get_kernel(pack, index);
  const pack_target target = {is.major, is.minor, is.suffix, is.num_sms, is.cuda_version, (is.flags & PACK_SIMULATED) != 0};
  return target;
}

tuner_status tuner_pack_check(const tuner_pack *pack, int ordinal) {
  if (pack == NULL) return tuner_fail(TUNER_BAD_ARGUMENT, "pack must not be null");
  for (uint32_t i = 0; i < pack->num_kernels + pack->num_programs; ++i) /* whether there is a driver or not */
    if (target_of(pack, i).is_simulated)
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
    const pack_target target = target_of(pack, i);
    const tuner_status status = pack_check_target(&target, version, facts[0], facts[1], facts[2]);
    if (status < 0) return status;
    if (status != TUNER_OK) worst = status, other = i;
  }
  TUNER_TRY(pack_check_fits(pack, driver, device));
  if (worst == TUNER_OK) return TUNER_OK;
  const pack_target target = target_of(pack, other);
  return pack_check_target(&target, version, facts[0], facts[1], facts[2]); /* again, for its sentence */
}
