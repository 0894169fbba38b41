/* A program that was written for tuner.h of 0.1.0. It is compiled against today's header, and must never be changed.
 * program PACK LIBCUDA   finds, prepares and launches what the pack has, and prints sizes and places of what it passes. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <tuner/tuner.h>

#define PLACE(type, field) printf(" %s=%zu", #field, offsetof(type, field))

static void say_layouts(void) {
  printf("tuner_shape %zu:", sizeof(tuner_shape)), PLACE(tuner_shape, d_in), PLACE(tuner_shape, flags);
  printf("\ntuner_choice %zu:", sizeof(tuner_choice));
  PLACE(tuner_choice, m_hi), PLACE(tuner_choice, speedup), PLACE(tuner_choice, memory_bytes);
  PLACE(tuner_choice, text), PLACE(tuner_choice, digest);
  printf("\ntuner_tensors %zu:", sizeof(tuner_tensors));
  PLACE(tuner_tensors, w2), PLACE(tuner_tensors, row_scale), PLACE(tuner_tensors, y);
  printf("\ntuner_launch %zu:", sizeof(tuner_launch)), PLACE(tuner_launch, m), PLACE(tuner_launch, tensors);
  printf("\ntuner_abort_record %zu:", sizeof(tuner_abort_record));
  PLACE(tuner_abort_record, expected), PLACE(tuner_abort_record, cta);
  printf("\ntuner_attention_shape %zu:", sizeof(tuner_attention_shape));
  PLACE(tuner_attention_shape, page_tokens), PLACE(tuner_attention_shape, d_out);
  PLACE(tuner_attention_shape, soft_cap);
  printf("\ntuner_attention_choice %zu:", sizeof(tuner_attention_choice));
  PLACE(tuner_attention_choice, max_length), PLACE(tuner_attention_choice, digest);
  printf("\ntuner_attention_tensors %zu:", sizeof(tuner_attention_tensors));
  PLACE(tuner_attention_tensors, lengths), PLACE(tuner_attention_tensors, num_pages);
  printf("\ntuner_attention_refusal %zu:", sizeof(tuner_attention_refusal)), PLACE(tuner_attention_refusal, end);
  printf("\ntuner_layer_shape %zu:", sizeof(tuner_layer_shape));
  PLACE(tuner_layer_shape, num_in_front), PLACE(tuner_layer_shape, ops);
  printf("\ntuner_layer_tensor %zu:", sizeof(tuner_layer_tensor));
  PLACE(tuner_layer_tensor, dims), PLACE(tuner_layer_tensor, has_pages);
  printf("\ntuner_layer_tensors %zu:", sizeof(tuner_layer_tensors)), PLACE(tuner_layer_tensors, num_pages);
  printf("\nstatus %d %d %d %d, %d to %d\n", TUNER_LIBRARY, TUNER_NONE, TUNER_ABORTED, TUNER_OTHER_CARD,
         TUNER_BAD_ARGUMENT, TUNER_NO_VARIANT);
  printf("options %d %d %d %d, %d %d, %d %d %d, %d\n", TUNER_BF16, TUNER_FP32, TUNER_INT32, TUNER_SILU, TUNER_GATED,
         TUNER_ROW_SCALE, TUNER_AS_MEASURED, TUNER_SAFE_WEIGHTS, TUNER_NO_PDL, TUNER_HEADS_FIRST);
}

static void need(tuner_status status, const char *what) {
  if (status == TUNER_OK) return;
  printf("%s: %d, %s\n", what, status, tuner_error());
  exit(1);
}

static void *memory(size_t num_bytes) { return aligned_alloc(256, (num_bytes + 255) / 256 * 256); }

static const void *address(size_t number) { return (const char *)0x10000000 + 0x10000000 * number; }

static void run_ffn(tuner_pack *pack) {
  tuner_shape shape;
  uint32_t num_shapes;
  need(tuner_pack_shape(pack, 0, &shape, &num_shapes), "shape");
  printf("%u shape: %d %d %d %d %d %u\n", num_shapes, shape.dtype, shape.activation, shape.d_in, shape.d_hidden,
         shape.d_out, shape.flags);
  tuner_choice choice;
  printf("4000 rows: %d, ", tuner_ffn_find(pack, &shape, 4000, &choice));
  printf("%s\n", choice.text);
  need(tuner_ffn_find(pack, &shape, 9, &choice), "find");
  printf("9 rows: kernel %u, %d to %d, %.2f, %zu bytes: %s\n", choice.kernel, choice.m_lo, choice.m_hi, choice.speedup,
         choice.memory_bytes, choice.text);
  tuner_ffn *ffn;
  need(tuner_ffn_prepare(pack, &choice, memory(choice.memory_bytes), NULL, 0, 0, &ffn), "prepare");
  tuner_launch launch = {.ffn = ffn, .m = 9};
  launch.tensors.x = address(0), launch.tensors.w1 = address(1), launch.tensors.w2 = address(2);
  launch.tensors.hidden = (void *)address(3), launch.tensors.y = (void *)address(4);
  need(tuner_ffn_launch(ffn, 9, &launch.tensors, NULL, TUNER_NO_PDL), "launch");
  need(tuner_ffn_launch_from(&launch), "launch from");
  tuner_abort_record record;
  need(tuner_abort_poll(ffn, &record), "poll");
  need(tuner_reset(ffn, NULL), "reset");
  launch.tensors.w1 = NULL;
  printf("without weights: %d, ", tuner_ffn_launch_from(&launch));
  printf("%s\n", tuner_error());
  tuner_ffn_release(ffn);
}

static void run_attention(tuner_pack *pack) {
  tuner_attention_shape shape;
  uint32_t num_shapes = 0;
  if (tuner_pack_attention(pack, 0, &shape, &num_shapes) == TUNER_NONE) {
    printf("%u attentions\n", num_shapes);
    return;
  }
  printf("%u attention: %d %d %d %d, d_out %d\n", num_shapes, shape.heads, shape.kv_heads, shape.head_dim,
         shape.new_tokens, shape.d_out);
  tuner_attention_choice choice;
  printf("9000 tokens: %d\n", tuner_attention_find(pack, &shape, 4, 9000, &choice));
  need(tuner_attention_find(pack, &shape, 4, 600, &choice), "find");
  printf("600 tokens: program %u, %d, %.2f, %zu bytes: %s\n", choice.program, choice.max_length, choice.speedup,
         choice.memory_bytes, choice.text);
  tuner_attention *attention;
  need(tuner_attention_prepare(pack, &choice, memory(choice.memory_bytes), NULL, 0, &attention), "prepare");
  tuner_attention_tensors tensors = {.q = address(0), .keys = address(1), .values = address(2), .w = address(4)};
  tensors.lengths = (const int32_t *)address(3), tensors.y = (void *)address(5);
  need(tuner_attention_launch(attention, &tensors, NULL, 0), "launch");
  tuner_attention_refusal refusal;
  need(tuner_attention_refused(attention, NULL, &refusal), "refused");
  need(tuner_attention_reset(attention, NULL), "reset");
  tuner_attention_release(attention);
}

static void run_layer(tuner_pack *pack) {
  tuner_layer_shape shape;
  uint32_t num_layers = 0;
  if (tuner_pack_layer(pack, 0, &shape, &num_layers) == TUNER_NONE) {
    printf("%u layers\n", num_layers);
    return;
  }
  printf("%u layer: %s, d_in %d, %d of %d in front\n", num_layers, shape.ops, shape.d_in, shape.num_in_front,
         shape.num_products);
  tuner_attention_choice choice;
  need(tuner_layer_find(pack, 0, 4, 300, &choice), "find");
  printf("300 tokens: program %u, %zu bytes: %s\n", choice.program, choice.memory_bytes, choice.text);
  const void *addresses[64];
  tuner_layer_tensor tensor;
  uint32_t count = 0;
  for (; tuner_layer_tensor_at(pack, &choice, count, &tensor) == TUNER_OK; ++count) {
    printf(" %s %s %d %d [%d]\n", tensor.name, tensor.role, tensor.dtype, tensor.has_pages, tensor.dims[0]);
    addresses[count] = address(count);
  }
  tuner_layer *layer;
  need(tuner_layer_prepare(pack, &choice, memory(choice.memory_bytes), NULL, 0, &layer), "prepare");
  tuner_layer_tensors tensors = {.addresses = addresses, .num_addresses = count};
  need(tuner_layer_launch(layer, &tensors, NULL, 0), "launch");
  tuner_attention_refusal refusal;
  need(tuner_layer_refused(layer, NULL, &refusal), "refused");
  need(tuner_layer_reset(layer, NULL), "reset");
  tuner_layer_release(layer);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  say_layouts();
  need(tuner_load_driver(argv[2]), "driver");
  tuner_pack *pack;
  need(tuner_pack_open(argv[1], &pack), "open");
  printf("check %d\n", tuner_pack_check(pack, 0));
  run_ffn(pack), run_attention(pack), run_layer(pack);
  tuner_pack_close(pack);
  return 0;
}
