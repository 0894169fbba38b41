/* Converts codes, factors and zero points of a checkpoint to the kernels' layout. */
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "pack.h"

/* A format. */
typedef struct lanes {
  const char *name, *layout;
  uint32_t bits, chunk, group; /* bits per code; columns per 16 bytes; weights that share a factor (0 if none) */
  uint32_t bundle;             /* number of columns whose factors are adjacent in a row */
  uint32_t has_zeros;
  uint32_t factor_bytes;       /* bytes per factor: 2 for an element, 1 for a power of two (e8m0),
                                  4 for a float32, of a 128 x 128 block or of a group */
  uint16_t raised[2];          /* the stored value for a zero point of 0, for fp16 and bf16 */
  const uint32_t *base;        /* the four words of a chunk of zero codes */
  const uint8_t *word;         /* [column of a chunk] the word that contains its code */
  const uint8_t *table;        /* [column of a chunk] the table of the bits that its code changes in that word */
  const uint32_t *change;      /* [table][code] */
} lanes;
#include "lanes.h"

enum { CODES_A_WORD = 8, HALF_ZERO = 8, MOST_ZERO = 15, MOST_POWER = 128, BLOCK_ROWS = 128 };
/* AWQ's order of eight rows in a word, lowest bits first. */
static const uint32_t kAwqOrder[CODES_A_WORD] = {0, 2, 4, 6, 1, 3, 5, 7};

/* The input of a conversion: a product's tensors, and its first row. */
typedef struct product {
  const tuner_weights *is;
  const lanes *form;
  const tuner_stored_product *from;
  int32_t source, is_bf16;
} product;

static uint32_t nibble(const void *words, uint64_t word, uint32_t place) {
  uint32_t found;
  memcpy(&found, (const uint8_t *)words + 4 * word, 4);
  return found >> (4 * place) & 15;
}

/* The position of a row in AWQ's layout: the column of its word, and the position in the word. */
static uint32_t awq_place(uint32_t row) {
  for (uint32_t i = 0; i < CODES_A_WORD; ++i)
    if (kAwqOrder[i] == row % CODES_A_WORD) return i;
  return 0;
}

static uint32_t code_at(const product *of, uint32_t row, uint32_t column) {
  const uint64_t rows = (uint32_t)of->from->rows, k = (uint32_t)of->is->k;
  const void *codes = of->from->codes;
  if (of->source == TUNER_FROM_E4M3) return ((const uint8_t *)codes)[row * k + column];
  if (of->source == TUNER_FROM_COMPRESSED || of->source == TUNER_FROM_E2M1)
    return nibble(codes, (row * k + column) / CODES_A_WORD, column % CODES_A_WORD);
  if (of->source == TUNER_FROM_AWQ) return nibble(codes, column * (rows / CODES_A_WORD) + row / CODES_A_WORD, awq_place(row));
  return nibble(codes, column / CODES_A_WORD * rows + row, column % CODES_A_WORD);
}

static uint32_t scale_at(const product *of, uint32_t row, uint32_t group) {
  const uint64_t rows = (uint32_t)of->from->rows, groups = (uint32_t)(of->is->k / of->is->group);
  uint16_t found;
  uint32_t of_block;
  const uint64_t at = of->source == TUNER_FROM_COMPRESSED ? row * groups + group : group * rows + row;
  if (of->form->factor_bytes == sizeof of_block && of->source != TUNER_FROM_E4M3) {
    memcpy(&of_block, (const uint8_t *)of->from->scales + sizeof of_block * at, sizeof of_block);
    return of_block;
  }
  if (of->form->factor_bytes == sizeof of_block) {
    memcpy(&of_block, (const uint8_t *)of->from->scales + sizeof of_block * (row / BLOCK_ROWS * groups + group), sizeof of_block);
    return of_block;
  }
  if (of->form->factor_bytes == 1) return ((const uint8_t *)of->from->scales)[row * groups + group];
  memcpy(&found, (const uint8_t *)of->from->scales + 2 * at, 2);
  return found;
}

/* Returns a value above 15 if it does not fit in four bits. */
static uint32_t zero_at(const product *of, uint32_t row, uint32_t group) {
  const uint64_t rows = (uint32_t)of->from->rows, groups = (uint32_t)(of->is->k / of->is->group);
  const void *zeros = of->from->zeros;
  if (of->source == TUNER_FROM_COMPRESSED)
    return zeros == NULL ? HALF_ZERO : nibble(zeros, row / CODES_A_WORD * groups + group, row % CODES_A_WORD);
  const uint64_t word = group * (rows / CODES_A_WORD) + row / CODES_A_WORD;
  if (of->source == TUNER_FROM_AWQ) return nibble(zeros, word, awq_place(row));
  return nibble(zeros, word, row % CODES_A_WORD) + (of->source == TUNER_FROM_GPTQ ? 1 : 0);
}

/* Whether a factor's bits represent a finite positive number. */
static int is_factor(const product *of, uint32_t bits) {
  const uint32_t infinite = of->form->factor_bytes == sizeof(float) ? 0x7F800000 : of->is_bf16 ? 0x7F80 : 0x7C00;
  return bits > 0 && bits < infinite;
}

static tuner_status check_powers(const product *of, uint32_t number) {
  const uint32_t groups = (uint32_t)(of->is->k / of->is->group);
  for (uint32_t row = 0; row < (uint32_t)of->from->rows; ++row)
    for (uint32_t group = 0; group < groups; ++group)
      if (scale_at(of, row, group) > MOST_POWER)
        return tuner_fail(TUNER_BAD_ARGUMENT, "the scale of product %u, row %u, group %u is above 2 or NaN: quantise that group again", number,
                          row, group);
  return TUNER_OK;
}

static tuner_status check_numbers(const product *of, uint32_t number) {
  const uint32_t rows = (uint32_t)of->from->rows, k = (uint32_t)of->is->k;
  if (of->form->factor_bytes == 1) return check_powers(of, number);
  if (of->source == TUNER_FROM_E4M3) {
    for (uint64_t i = 0; i < (uint64_t)rows * k; ++i)
      if ((((const uint8_t *)of->from->codes)[i] & 0x7F) == 0x7F)
        return tuner_fail(TUNER_BAD_ARGUMENT, "codes of product %u are NaN at [%u, %u]: quantise that row again", number,
                          (uint32_t)(i / k), (uint32_t)(i % k));
    if (of->form->group == 0) return TUNER_OK;
  }
  const uint32_t groups = k / (uint32_t)of->is->group;
  for (uint32_t row = 0; row < rows; ++row)
    for (uint32_t group = 0; group < groups; ++group) {
      if (!is_factor(of, scale_at(of, row, group)))
        return tuner_fail(TUNER_BAD_ARGUMENT, "the scale of product %u, row %u, group %u is not a finite number above 0", number, row, group);
      if (of->source == TUNER_FROM_E4M3) continue;
      const uint32_t zero = zero_at(of, row, group);
      if (zero > MOST_ZERO || (!of->is->has_zeros && zero != HALF_ZERO))
        return tuner_fail(TUNER_BAD_ARGUMENT, "the zero point of product %u, row %u, group %u is %u, but the kernel supports only %s", number, row,
                          group, zero, of->is->has_zeros ? "0 to 15" : "8");
    }
  for (uint32_t i = 0; of->from->order != NULL && i < k; ++i)
    if ((uint32_t)of->from->order[i] != i / (uint32_t)of->is->group)
      return tuner_fail(TUNER_BAD_ARGUMENT, "product %u has groups in activation order (desc_act): quantise without it", number);
  return TUNER_OK;
}

static const lanes *form_of(const tuner_weights *is) {
  for (size_t i = 0; i < sizeof kFormats / sizeof *kFormats; ++i)
    if (strcmp(kFormats[i].name, is->format) == 0 && strcmp(kFormats[i].layout, is->layout) == 0) return &kFormats[i];
  return NULL;
}

static size_t row_bytes(const lanes *form, uint32_t k) {
  return (size_t)k * form->bits / 8 + (form->group == 0 ? 0 : (size_t)(k / form->group) * form->factor_bytes * (1 + form->has_zeros));
}

static tuner_status check_form(const product *of, int32_t source) {
  const lanes *form = of->form;
  const uint32_t unit = form->group == 0 ? form->chunk : form->bundle > form->chunk ? form->bundle : form->chunk;
  if (of->is->k < 1 || of->is->rows < 1 || (uint32_t)of->is->k % unit != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "k is %d: it must be a multiple of %u", (int)of->is->k, unit);
  const int is_e4m3 = form->bits == 8, is_e2m1 = form->factor_bytes == 1;
  if (source < TUNER_FROM_GPTQ || source > TUNER_FROM_E2M1 || (source == TUNER_FROM_E4M3) != is_e4m3 || (source == TUNER_FROM_E2M1) != is_e2m1)
    return tuner_fail(TUNER_BAD_ARGUMENT, "source is %d, but the weights are %s: give %s", (int)source, form->name,
                      is_e4m3 ? "TUNER_FROM_E4M3" : is_e2m1 ? "TUNER_FROM_E2M1" : "a source of 4-bit integers");
  if (is_e2m1 && strcmp(of->is->factors, "e8m0") != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "factors are %s: they must be e8m0", of->is->factors);
  if (form->factor_bytes == sizeof(float) && strcmp(of->is->factors, "fp32") != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "factors are %s: they must be fp32", of->is->factors);
  if (form->factor_bytes == sizeof(uint16_t) && strcmp(of->is->factors, "fp16") != 0 && strcmp(of->is->factors, "bf16") != 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "factors are %s: they must be fp16 or bf16", of->is->factors);
  return TUNER_OK;
}

static tuner_status check_product(const product *of, uint32_t number) {
  const tuner_stored_product *from = of->from;
  const int has_none = of->source == TUNER_FROM_COMPRESSED || of->source == TUNER_FROM_E2M1 || of->source == TUNER_FROM_E4M3;
  const int needs_zeros = of->form->group != 0 && (!has_none || of->form->has_zeros);
  if (from->rows < 1 || (of->form->bits == 4 && from->rows % CODES_A_WORD != 0))
    return tuner_fail(TUNER_BAD_ARGUMENT, "rows of product %u are %d: they must be a multiple of %d", number, (int)from->rows, CODES_A_WORD);
  if (from->codes == NULL || (of->form->group != 0 && from->scales == NULL) || (needs_zeros && from->zeros == NULL))
    return tuner_fail(TUNER_BAD_ARGUMENT, "product %u has no codes, no scales or no zero points", number);
  return check_numbers(of, number);
}

static void lay(const product *of, uint32_t first_row, uint8_t *into) {
  const lanes *form = of->form;
  const uint32_t rows = (uint32_t)of->from->rows, all = (uint32_t)of->is->rows, k = (uint32_t)of->is->k;
  const size_t code_bytes = (size_t)k * form->bits / 8;
  for (uint32_t row = 0; row < rows; ++row)
    for (uint32_t chunk = 0; chunk < k / form->chunk; ++chunk) {
      uint32_t words[4];
      memcpy(words, form->base, sizeof words);
      for (uint32_t i = 0; i < form->chunk; ++i)
        words[form->word[i]] ^= form->change[((uint32_t)form->table[i] << form->bits) + code_at(of, row, chunk * form->chunk + i)];
      memcpy(into + (first_row + row) * code_bytes + (size_t)chunk * sizeof words, words, sizeof words);
    }
  if (form->group == 0) return;
  const uint32_t lists = 1 + form->has_zeros, side = form->bundle / form->group;
  uint8_t *behind = into + all * code_bytes;
  for (uint32_t row = 0; row < rows; ++row)
    for (uint32_t group = 0; group < k / form->group; ++group)
      for (uint32_t list = 0; list < lists; ++list) {
        const size_t at = (((size_t)(group / side) * lists + list) * all + first_row + row) * side + group % side;
        const uint32_t value = list == 0 ? scale_at(of, row, group) : zero_at(of, row, group) + form->raised[of->is_bf16];
        for (uint32_t byte = 0; byte < form->factor_bytes; ++byte) behind[form->factor_bytes * at + byte] = (uint8_t)(value >> 8 * byte);
      }
}

tuner_status tuner_weights_lay(const tuner_weights *weights, int32_t source, const tuner_stored_product *products,
                               uint32_t num_products, void *into, size_t num_bytes) {
  if (weights == NULL || products == NULL || into == NULL || num_products == 0)
    return tuner_fail(TUNER_BAD_ARGUMENT, "weights, products and into must not be null");
  product of = {.is = weights, .form = form_of(weights), .source = source};
  if (of.form == NULL)
    return tuner_fail(TUNER_BAD_ARGUMENT, "this runtime cannot lay out weights of format %s in layout %s", weights->format, weights->layout);
  TUNER_TRY(check_form(&of, source));
  of.is_bf16 = strcmp(weights->factors, "bf16") == 0;
  int64_t rows = 0;
  for (uint32_t i = 0; i < num_products; ++i) {
    of.from = &products[i];
    TUNER_TRY(check_product(&of, i));
    rows += products[i].rows;
  }
  const size_t needed = (size_t)weights->rows * row_bytes(of.form, (uint32_t)weights->k);
  if (rows != weights->rows || num_bytes != needed)
    return tuner_fail(TUNER_BAD_ARGUMENT, "there are %lld rows, and an output of %zu bytes: the kernel needs %d and %zu", (long long)rows, num_bytes,
                      (int)weights->rows, needed);
  uint32_t first_row = 0;
  for (uint32_t i = 0; i < num_products; ++i) {
    of.from = &products[i];
    lay(&of, first_row, into);
    first_row += (uint32_t)products[i].rows;
  }
  return TUNER_OK;
}
