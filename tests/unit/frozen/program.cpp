// A program as somebody wrote it for tuner.hpp of 0.1.0: it is compiled against today's header, and never changed.
// program PACK LIBCUDA   launches what a pack with products, an attention and a layer has.
#include <cstdio>
#include <cstdlib>
#include <tuner/tuner.hpp>

namespace {
void* memory(std::size_t num_bytes) { return std::aligned_alloc(256, (num_bytes + 255) / 256 * 256); }
void* address(std::size_t number) { return reinterpret_cast<void*>(0x10000000 * (number + 1)); }

void run_ffn(tuner::Pack& pack) {
  const tuner_shape shape = pack.shape(0);
  if (pack.find(shape, 4000).is_kernel) std::abort();
  const tuner::Choice choice = pack.find(shape, 9);
  tuner::Ffn ffn = pack.prepare(choice, memory(choice.memory_bytes), nullptr);
  tuner_tensors tensors = {};
  tensors.x = address(0), tensors.w1 = address(1), tensors.w2 = address(2);
  tensors.hidden = address(3), tensors.y = address(4);
  ffn.launch(9, tensors, nullptr);
  if (ffn.aborted()) std::abort();
  ffn.reset(nullptr);
  std::printf("%d rows: %s\n", choice.m_hi, choice.text);
}

void run_attention(tuner::Pack& pack) {
  const tuner_attention_shape shape = pack.attention(0);
  const tuner::AttentionChoice choice = pack.find(shape, 4, 600);
  tuner::Attention attention = pack.prepare(choice, memory(choice.memory_bytes), nullptr);
  tuner_attention_tensors tensors = {};
  tensors.q = address(0), tensors.keys = address(1), tensors.values = address(2), tensors.w = address(3);
  tensors.lengths = static_cast<const std::int32_t*>(address(4)), tensors.y = address(5);
  attention.launch(tensors, nullptr);
  if (attention.refused(nullptr)) std::abort();
  attention.reset(nullptr);
  std::printf("%d tokens: %s\n", choice.max_length, choice.text);
}

void run_layer(tuner::Pack& pack) {
  const tuner::LayerChoice choice = pack.find_layer(0, 4, 300);
  tuner::Layer layer = pack.prepare(choice, memory(choice.memory_bytes), nullptr);
  std::vector<const void*> addresses;
  for (std::size_t i = 0; i < layer.tensors().size(); ++i) addresses.push_back(address(i));
  layer.launch(addresses, nullptr);
  if (layer.refused(nullptr)) std::abort();
  layer.reset(nullptr);
  std::printf("%s: %zu tensors: %s\n", pack.layer(0).ops, addresses.size(), choice.text);
  addresses[layer.place("attention.lengths")] = nullptr;
  layer.launch(addresses, nullptr);
}
}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  tuner::checked(tuner_load_driver(argv[2]));
  tuner::Pack pack(argv[1]);
  std::printf("check %d\n", pack.check(0));
  run_ffn(pack), run_attention(pack), run_layer(pack);
  return 3;
} catch (const tuner::Error& error) {
  std::printf("%d: %s\n", error.status, error.what());
  return 0;
}
