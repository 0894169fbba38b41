// The attention in the C++ wrapper: `attention PACK`, with the library in TUNER_LIBCUDA.
#include <cstdio>
#include <cstdlib>
#include <tuner/tuner.hpp>

int main(int, char** argv) try {
  tuner::checked(tuner_load_driver(std::getenv("TUNER_LIBCUDA")));
  tuner::Pack pack(argv[1]);
  const tuner_attention_shape shape = pack.attention(0);
  const tuner::AttentionChoice choice = pack.find(shape, 4, 600);
  if (!choice.is_kernel || pack.find(shape, 4, 9000).is_kernel) return 2;
  tuner::Attention attention = pack.prepare(choice, std::aligned_alloc(256, choice.memory_bytes), nullptr);
  tuner_attention_tensors tensors = {};
  tensors.q = tensors.keys = tensors.values = tensors.y = reinterpret_cast<void*>(0x1000);
  tensors.lengths = reinterpret_cast<const std::int32_t*>(0x2000);
  attention.launch(tensors, nullptr);
  if (attention.refused(nullptr)) return 3;
  attention.reset(nullptr);
  std::printf("%d tokens: %s\n", choice.max_length, choice.text);
  tensors.lengths = nullptr;
  attention.launch(tensors, nullptr);
  return 4;
} catch (const tuner::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.status == TUNER_BAD_ARGUMENT ? 0 : 1;
}
