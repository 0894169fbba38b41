// The layer in the C++ wrapper: `layer PACK`, with the library in TUNER_LIBCUDA.
#include <cstdio>
#include <cstdlib>
#include <tuner/tuner.hpp>

int main(int, char** argv) try {
  tuner::checked(tuner_load_driver(std::getenv("TUNER_LIBCUDA")));
  tuner::Pack pack(argv[1]);
  const tuner_layer_shape shape = pack.layer(0);
  const tuner::LayerChoice choice = pack.find_layer(0, 4, 300);
  if (!choice.is_kernel || pack.find_layer(0, 4, 9000).is_kernel) return 2;
  tuner::Layer layer = pack.prepare(choice, std::aligned_alloc(256, choice.memory_bytes), nullptr);
  std::vector<const void*> addresses;
  for (std::size_t i = 0; i < layer.tensors().size(); ++i)
    addresses.push_back(reinterpret_cast<const void*>(0x1000 * (i + 1)));
  layer.launch(addresses, nullptr);
  if (layer.refused(nullptr)) return 3;
  layer.reset(nullptr);
  std::printf("%s, %d tokens: %s\n", shape.ops, choice.max_length, choice.text);
  addresses[layer.place("attention.lengths")] = nullptr;
  layer.launch(addresses, nullptr);
  return 4;
} catch (const tuner::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.status == TUNER_BAD_ARGUMENT ? 0 : 1;
}
