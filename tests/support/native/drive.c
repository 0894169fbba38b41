/* Drives the runtime over the recorder: `drive RECORDER PACK threads|allocations|fuzz SEED COUNT`. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tuner/tuner.h>

enum { NUM_THREADS = 8, NUM_LAUNCHES = 400 };
static const size_t kMostMemory = (size_t)1 << 26;
static atomic_long num_allocations;

#ifdef COUNT_ALLOCATIONS
void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);
void *__real_aligned_alloc(size_t, size_t);
void *__wrap_malloc(size_t size) { return atomic_fetch_add(&num_allocations, 1), __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return atomic_fetch_add(&num_allocations, 1), __real_calloc(count, size); }
void *__wrap_aligned_alloc(size_t at, size_t size) { return atomic_fetch_add(&num_allocations, 1), __real_aligned_alloc(at, size); }
#endif

static void require(int is_right, const char *what) {
  if (is_right) return;
  fprintf(stderr, "%s: %s\n", what, tuner_error());
  exit(1);
}

/* Addresses that nothing reads, so far apart that no tensors overlap. */
static tuner_tensors tensors_at(uintptr_t base) {
  void *at[9];
  for (uintptr_t i = 0; i < 9; ++i) at[i] = (void *)(base + (i << 40));
  const tuner_tensors tensors = {at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8]};
  return tensors;
}

static tuner_attention_tensors attention_at(uintptr_t base, int64_t num_pages) {
  const tuner_attention_tensors tensors = {(void *)base,           (void *)(base + 0x100), (void *)(base + 0x200),
                                           (int32_t *)(base + 0x300), (int32_t *)(base + 0x400), (void *)(base + 0x500),
                                           (void *)(base + 0x600), num_pages};
  return tensors;
}

enum { MOST_TENSORS = 64 };
/* Lists all tensors of a layer, as offsets from `base`; returns their number. */
static uint32_t layer_at(const tuner_pack *pack, const tuner_attention_choice *choice, uintptr_t base,
                         const void *addresses[MOST_TENSORS], int *has_pages) {
  tuner_layer_tensor tensor;
  uint32_t count = 0;
  *has_pages = 0;
  for (; count < MOST_TENSORS && tuner_layer_tensor_at(pack, choice, count, &tensor) == TUNER_OK; ++count) {
    (void)strlen(tensor.name), (void)strlen(tensor.role);
    addresses[count] = (const void *)(base + 0x100 * (uintptr_t)count);
    *has_pages |= tensor.has_pages;
  }
  return count;
}

static void *allocate(size_t num_bytes) { return aligned_alloc(256, (num_bytes + 256) / 256 * 256); }

/* The first attention, `num_launches` times. */
static void run_attention(tuner_pack *pack, int num_launches, long *before) {
  tuner_attention_shape shape;
  tuner_attention_choice choice;
  tuner_attention *attention;
  require(tuner_pack_attention(pack, 0, &shape, NULL) == TUNER_OK, "attention");
  require(tuner_attention_find(pack, &shape, 4, 1, &choice) == TUNER_OK, "find");
  void *memory = allocate(choice.memory_bytes);
  require(tuner_attention_prepare(pack, &choice, memory, NULL, 4, &attention) == TUNER_OK, "prepare");
  *before = atomic_load(&num_allocations);
  for (int i = 0; i < num_launches; ++i) {
    const tuner_attention_tensors tensors = attention_at(0x10000 + 0x1000 * (uintptr_t)(i % 7), shape.page_tokens ? 9 : 0);
    require(tuner_attention_launch(attention, &tensors, NULL, i % 2 ? TUNER_NO_PDL : 0) == TUNER_OK, "launch");
  }
  require(tuner_attention_refused(attention, NULL, NULL) == TUNER_OK, "refused");
  require(tuner_attention_reset(attention, NULL) == TUNER_OK, "reset");
  *before = atomic_load(&num_allocations) - *before;
  tuner_attention_release(attention);
  free(memory);
}

/* The first layer, `num_launches` times. */
static void run_layer(tuner_pack *pack, int num_launches, long *before) {
  tuner_attention_choice choice;
  tuner_layer *layer;
  require(tuner_layer_find(pack, 0, 4, 1, &choice) == TUNER_OK, "find");
  void *memory = allocate(choice.memory_bytes);
  require(tuner_layer_prepare(pack, &choice, memory, NULL, 4, &layer) == TUNER_OK, "prepare");
  *before = atomic_load(&num_allocations);
  for (int i = 0; i < num_launches; ++i) {
    const void *addresses[MOST_TENSORS];
    int has_pages;
    const uint32_t count = layer_at(pack, &choice, 0x10000 + 0x10000 * (uintptr_t)(i % 7), addresses, &has_pages);
    const tuner_layer_tensors tensors = {addresses, count, has_pages ? 9 : 0};
    require(tuner_layer_launch(layer, &tensors, NULL, i % 2 ? TUNER_NO_PDL : 0) == TUNER_OK, "launch");
  }
  require(tuner_layer_refused(layer, NULL, NULL) == TUNER_OK, "refused");
  require(tuner_layer_reset(layer, NULL) == TUNER_OK, "reset");
  *before = atomic_load(&num_allocations) - *before;
  tuner_layer_release(layer);
  free(memory);
}

static void *of_a_thread(void *shared) {
  tuner_pack *pack = shared;
  long unused;
  run_attention(pack, NUM_LAUNCHES, &unused);
  run_layer(pack, NUM_LAUNCHES / 4, &unused);
  tuner_shape shape;
  tuner_choice choice;
  require(tuner_pack_shape(pack, 0, &shape, NULL) == TUNER_OK, "shape");
  require(tuner_ffn_find(pack, &shape, 1, &choice) == TUNER_OK, "find");
  for (int round = 0; round < 4; ++round) {
    void *memory = allocate(choice.memory_bytes);
    tuner_ffn *ffn;
    require(tuner_ffn_prepare(pack, &choice, memory, NULL, 0, 4, &ffn) == TUNER_OK, "prepare");
    for (int i = 0; i < NUM_LAUNCHES; ++i) {
      const tuner_tensors tensors = tensors_at(0x10000 + 0x1000 * (uintptr_t)(i % 7));
      require(tuner_ffn_launch(ffn, 1 + i % choice.m_hi, &tensors, NULL, i % 2 ? TUNER_NO_PDL : 0) == TUNER_OK, "launch");
      tuner_abort_record record;
      require(tuner_abort_poll(ffn, &record) == TUNER_OK, "poll");
    }
    require(tuner_reset(ffn, NULL) == TUNER_OK, "reset");
    require(tuner_ffn_launch(NULL, 1, NULL, NULL, 0) == TUNER_BAD_ARGUMENT, "a launch of nothing");
    tuner_ffn_release(ffn);
    free(memory);
  }
  return NULL;
}

static void run_threads(tuner_pack *pack) {
  pthread_t threads[NUM_THREADS];
  for (int i = 0; i < NUM_THREADS; ++i) require(pthread_create(&threads[i], NULL, of_a_thread, pack) == 0, "thread");
  for (int i = 0; i < NUM_THREADS; ++i) pthread_join(threads[i], NULL);
}

/* The number of allocations before and after an FFN was prepared. */
static void run_allocations(tuner_pack *pack) {
  tuner_shape shape;
  tuner_choice choice;
  tuner_ffn *ffn;
  require(tuner_pack_shape(pack, 0, &shape, NULL) == TUNER_OK, "shape");
  require(tuner_ffn_find(pack, &shape, 1, &choice) == TUNER_OK, "find");
  void *memory = allocate(choice.memory_bytes);
  require(tuner_ffn_prepare(pack, &choice, memory, NULL, 0, 4, &ffn) == TUNER_OK, "prepare");
  const long before = atomic_load(&num_allocations);
  for (int i = 0; i < NUM_LAUNCHES; ++i) {
    const tuner_tensors tensors = tensors_at(0x10000 + 0x1000 * (uintptr_t)(i % 7));
    require(tuner_ffn_launch(ffn, 1, &tensors, NULL, 0) == TUNER_OK, "launch");
    require(tuner_abort_poll(ffn, NULL) == TUNER_OK, "poll");
  }
  require(tuner_reset(ffn, NULL) == TUNER_OK, "reset");
  const long after = atomic_load(&num_allocations) - before;
  long of_attention, of_layer;
  run_attention(pack, NUM_LAUNCHES, &of_attention);
  run_layer(pack, NUM_LAUNCHES, &of_layer);
  printf("%ld before, %ld after\n", before, after + of_attention + of_layer);
  tuner_ffn_release(ffn);
  free(memory);
}

static uint64_t state;
static uint32_t next_random(void) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (uint32_t)(state >> 16);
}

static void use_ffn(tuner_pack *pack, const tuner_choice *choice) {
  if (choice->memory_bytes > kMostMemory) return;
  void *memory = allocate(choice->memory_bytes);
  tuner_ffn *ffn = NULL;
  if (tuner_ffn_prepare(pack, choice, memory, NULL, next_random() % 3, 2, &ffn) == TUNER_OK) {
    const tuner_tensors tensors = tensors_at(0x10000);
    (void)tuner_ffn_launch(ffn, choice->m_hi, &tensors, NULL, 0);
    (void)tuner_ffn_launch(ffn, choice->m_lo, &tensors, NULL, TUNER_NO_PDL);
    (void)tuner_reset(ffn, NULL);
    tuner_ffn_release(ffn);
  }
  free(memory);
}

static void use_attention(tuner_pack *pack, const tuner_attention_choice *choice, int has_pages) {
  if (choice->memory_bytes > kMostMemory) return;
  void *memory = allocate(choice->memory_bytes);
  tuner_attention *attention = NULL;
  if (tuner_attention_prepare(pack, choice, memory, NULL, 2, &attention) == TUNER_OK) {
    const tuner_attention_tensors tensors = attention_at(0x10000, has_pages ? 9 : 0);
    (void)tuner_attention_launch(attention, &tensors, NULL, 0);
    (void)tuner_attention_launch(attention, &tensors, NULL, TUNER_NO_PDL);
    (void)tuner_attention_refused(attention, NULL, NULL);
    (void)tuner_attention_reset(attention, NULL);
    tuner_attention_release(attention);
  }
  free(memory);
}

static void use_attentions(tuner_pack *pack) {
  tuner_attention_shape shape;
  for (uint32_t i = 0; i < 16 && tuner_pack_attention(pack, i, &shape, NULL) == TUNER_OK; ++i) {
    static const int32_t kLengths[] = {1, 700, 701, INT32_MAX};
    for (size_t r = 0; r < sizeof kLengths / sizeof *kLengths; ++r) {
      tuner_attention_choice choice;
      const tuner_status status = tuner_attention_find(pack, &shape, 4, kLengths[r], &choice);
      if (status == TUNER_OK || status == TUNER_LIBRARY) (void)strlen(choice.text);
      if (status == TUNER_OK && next_random() % 4 == 0) use_attention(pack, &choice, shape.page_tokens > 0);
    }
  }
}

static void use_layer(tuner_pack *pack, const tuner_attention_choice *choice) {
  if (choice->memory_bytes > kMostMemory) return;
  void *memory = allocate(choice->memory_bytes);
  tuner_layer *layer = NULL;
  if (tuner_layer_prepare(pack, choice, memory, NULL, 2, &layer) == TUNER_OK) {
    const void *addresses[MOST_TENSORS];
    int has_pages;
    const uint32_t count = layer_at(pack, choice, 0x10000, addresses, &has_pages);
    const tuner_layer_tensors tensors = {addresses, count, has_pages ? 9 : 0};
    (void)tuner_layer_launch(layer, &tensors, NULL, 0);
    (void)tuner_layer_launch(layer, &tensors, NULL, TUNER_NO_PDL);
    (void)tuner_layer_refused(layer, NULL, NULL);
    (void)tuner_layer_reset(layer, NULL);
    tuner_layer_release(layer);
  }
  free(memory);
}

static void use_layers(tuner_pack *pack) {
  tuner_layer_shape shape;
  for (uint32_t i = 0; i < 16 && tuner_pack_layer(pack, i, &shape, NULL) == TUNER_OK; ++i) {
    (void)strlen(shape.ops);
    tuner_attention_choice choice;
    const tuner_status status = tuner_layer_find(pack, i, 4, 1, &choice);
    if (status == TUNER_OK || status == TUNER_LIBRARY) (void)strlen(choice.text);
    if (status == TUNER_OK && next_random() % 2 == 0) use_layer(pack, &choice);
  }
}

/* Everything that a program does with a pack. */
static int use(const uint8_t *bytes, size_t num_bytes) {
  tuner_pack *pack;
  if (tuner_pack_open_bytes(bytes, num_bytes, &pack) != TUNER_OK) return 0;
  (void)tuner_pack_check(pack, 0);
  tuner_shape shape;
  for (uint32_t i = 0; tuner_pack_shape(pack, i, &shape, NULL) == TUNER_OK && i < 16; ++i) {
    static const int32_t kRows[] = {1, 16, 17, 48, 600, INT32_MAX};
    for (size_t r = 0; r < sizeof kRows / sizeof *kRows; ++r) {
      tuner_choice choice;
      const tuner_status status = tuner_ffn_find(pack, &shape, kRows[r], &choice);
      if (status == TUNER_OK || status == TUNER_LIBRARY) (void)strlen(choice.text);
      if (status == TUNER_OK && next_random() % 4 == 0) use_ffn(pack, &choice);
    }
  }
  use_attentions(pack);
  use_layers(pack);
  tuner_pack_close(pack);
  return 1;
}

/* Sets how many CTAs an SM of the recorder's device holds, and how many clusters the device holds. */
static void (*hold)(int, int);

/* Mutants of the pack: some bytes changed, most of them in the index; some are truncated, and some have a number near
 * an end of its range. Half of the devices hold no more clusters than fallbacks need. */
static void run_fuzz(const uint8_t *whole, size_t size, uint64_t seed, long count) {
  uint64_t index_bytes;
  memcpy(&index_bytes, whole + 64 + 16, 8);
  long num_opened = 0;
  for (long i = 0; i < count; ++i) {
    state = (seed * 0x9E3779B97F4A7C15ull + (uint64_t)i + 1) * 0xD1342543DE82EF95ull | 1;
    const size_t kept = next_random() % 16 == 0 ? next_random() % (size + 1) : size;
    uint8_t *bytes = malloc(kept + (kept == 0));
    memcpy(bytes, whole, kept);
    const int num_changes = 1 + (int)(next_random() % 3);
    for (int c = 0; c < num_changes && kept > 0; ++c) {
      const size_t range = next_random() % 8 == 0 || kept < 64 + index_bytes ? kept : 64 + (size_t)index_bytes;
      size_t place = next_random() % range;
      static const uint32_t kOdd[] = {0, 1, 2, 3, 255, 256, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFF00};
      if (next_random() % 2 == 0 && kept >= 4) {
        place = place / 4 * 4 <= kept - 4 ? place / 4 * 4 : kept - 4;
        memcpy(bytes + place, &kOdd[next_random() % (sizeof kOdd / sizeof *kOdd)], 4);
      } else {
        bytes[place] ^= (uint8_t)(1u << next_random() % 8);
      }
    }
    hold(1, next_random() % 2 == 0 ? 24 : 132);
    num_opened += use(bytes, kept);
    free(bytes);
  }
  printf("%ld inputs, %ld opened\n", count, num_opened);
}

int main(int argc, char **argv) {
  require(argc >= 4, "drive RECORDER PACK threads|allocations|fuzz SEED COUNT");
  void *recorder = dlopen(argv[1], RTLD_NOW);
  require(recorder != NULL, "the recorder");
  void (*record)(int);
  *(void **)&record = dlsym(recorder, "fake_record");
  *(void **)&hold = dlsym(recorder, "fake_occupancy");
  record(0);
  require(tuner_load_driver(argv[1]) == TUNER_OK, "driver");
  tuner_pack *pack;
  require(tuner_pack_open(argv[2], &pack) == TUNER_OK, "open");
  if (strcmp(argv[3], "threads") == 0) run_threads(pack);
  if (strcmp(argv[3], "allocations") == 0) run_allocations(pack);
  tuner_pack_close(pack);
  if (strcmp(argv[3], "fuzz") == 0 && argc == 6) {
    FILE *file = fopen(argv[2], "rb");
    static uint8_t whole[1 << 22];
    const size_t size = fread(whole, 1, sizeof whole, file);
    fclose(file);
    run_fuzz(whole, size, strtoull(argv[4], NULL, 10), strtol(argv[5], NULL, 10));
  }
  return 0;
}
