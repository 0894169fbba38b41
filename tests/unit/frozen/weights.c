/* A program for packs whose weights are stored in fewer bits.
 * weights PACK LIBCUDA   finds each chain for 4 rows, says of each tensor what its bytes are, prepares and launches it. */
#include <stdio.h>
#include <stdlib.h>
#include <tuner/tuner.h>

static void need(tuner_status status, const char *what) {
  if (status == TUNER_OK) return;
  printf("%s: %d, %s\n", what, status, tuner_error());
  exit(1);
}

static void say_tensor(const tuner_pack *pack, const tuner_attention_choice *choice, uint32_t index,
                       const tuner_layer_tensor *tensor) {
  printf(" %s, %s, dtype %d [%d, %d]", tensor->name, tensor->role, tensor->dtype, tensor->dims[0], tensor->dims[1]);
  tuner_weights is;
  if (tuner_layer_weights_at(pack, choice, index, &is) == TUNER_OK)
    printf(": %s by %s, %d bits, groups of %d, factors %s, zeros %d, [%d, %d]", is.format, is.layout, is.bits, is.group,
           is.factors, is.has_zeros, is.rows, is.k);
  printf("\n");
}

static void run(tuner_pack *pack, uint32_t index) {
  tuner_layer_shape shape;
  tuner_attention_choice choice;
  need(tuner_pack_layer(pack, index, &shape, NULL), "layer");
  if (shape.attention.heads != 0) return;
  need(tuner_layer_find(pack, index, 4, 0, &choice), "find");
  printf("%s, dtype %d, %d columns, %.2f\n", shape.ops, shape.attention.dtype, shape.d_in, choice.speedup);
  const void *addresses[64];
  tuner_layer_tensor tensor;
  uint32_t count = 0;
  for (; tuner_layer_tensor_at(pack, &choice, count, &tensor) == TUNER_OK; ++count) {
    addresses[count] = (const char *)0x10000000 + 0x1000000 * (size_t)count;
    say_tensor(pack, &choice, count, &tensor);
  }
  void *memory = aligned_alloc(256, (choice.memory_bytes + 255) / 256 * 256);
  tuner_layer *layer;
  need(tuner_layer_prepare(pack, &choice, memory, NULL, 0, &layer), "prepare");
  const tuner_layer_tensors tensors = {.addresses = addresses, .num_addresses = count};
  need(tuner_layer_launch_rows(layer, 4, &tensors, NULL, 0), "launch");
  printf(" 6 rows: %d, %s\n", tuner_layer_launch_rows(layer, 6, &tensors, NULL, 0), tuner_error());
  tuner_layer_release(layer);
  free(memory);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  need(tuner_load_driver(argv[2]), "driver");
  tuner_pack *pack;
  need(tuner_pack_open(argv[1], &pack), "open");
  uint32_t num_layers;
  tuner_pack_layer(pack, 0, NULL, &num_layers);
  for (uint32_t i = 0; i < num_layers; ++i) run(pack, i);
  tuner_pack_close(pack);
  return 0;
}
