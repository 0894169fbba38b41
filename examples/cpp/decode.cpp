// Runs the first shape of a pack for some rows, on zeros: decode ROWS
#include <cstdio>
#include <cstdlib>
#include <tuner/tuner.hpp>

#include "device.hpp"

int main(int argc, char** argv) try {
  const int m = argc > 1 ? std::atoi(argv[1]) : 16;
  if (const char* driver = std::getenv("TUNER_LIBCUDA")) tuner::checked(tuner_load_driver(driver));
  const Device device;
  void* const stream = nullptr;

  tuner::Pack pack(TUNER_PACK_MODEL_TUNERPACK);
  if (!pack.check(0)) std::printf("note: %s\n", tuner_error());
  const tuner_shape shape = pack.shape(0);
  const tuner::Choice choice = pack.find(shape, m);
  if (!choice.is_kernel) {
    std::printf("%d rows: use the library %s\n", m, choice.text);
    return 0;
  }
  tuner::Ffn ffn = pack.prepare(choice, device.zeros(choice.memory_bytes), stream);

  const auto matrix = [&](int rows, int columns) { return device.zeros(std::size_t{2} * rows * columns); };
  const int halves = (shape.flags & TUNER_GATED) != 0 ? 2 : 1;
  tuner_tensors tensors = {};
  tensors.x = matrix(m, shape.d_in);
  tensors.w1 = matrix(halves * shape.d_hidden, shape.d_in);
  tensors.w2 = matrix(shape.d_out, shape.d_hidden);
  tensors.hidden = matrix(m, shape.d_hidden);
  tensors.y = matrix(m, shape.d_out);

  for (int i = 0; i < 3; ++i) ffn.launch(m, tensors, stream);
  device.wait();
  if (const auto record = ffn.aborted()) {
    std::fprintf(stderr, "a launch was aborted at task %d\n", record->task);
    return 1;
  }
  std::printf("%d rows: %s\n", m, choice.text);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
