/* Properties from the rows of element types and activations. */
#include "rows_of.h"

#ifdef TUNER_ROWS_FILE /* set in a build with the rows of packages */
#include TUNER_ROWS_FILE
#else
#include "rows.h"
#endif

typedef struct element_row {
  uint32_t number, map_type, num_bytes;
} element_row;

#define ELEMENT(number, map_type, num_bytes) {number, map_type, num_bytes},
#define NUMBER(number) number,
static const element_row kElements[] = {ROWS_OF_ELEMENTS(ELEMENT)};
static const uint32_t kOperands[] = {ROWS_OF_OPERANDS(NUMBER)};
static const uint32_t kActivations[] = {ROWS_OF_ACTIVATIONS(NUMBER)};
enum { NUM_ELEMENTS = sizeof kElements / sizeof kElements[0] };

const char *const rows_operand_names = ROWS_OPERAND_NAMES;
const char *const rows_activation_names = ROWS_ACTIVATION_NAMES;

static int is_among(const uint32_t *numbers, size_t count, int32_t number) {
  for (size_t i = 0; i < count; ++i)
    if (number >= 0 && numbers[i] == (uint32_t)number) return 1;
  return 0;
}

int rows_is_operand(int32_t dtype) { return is_among(kOperands, sizeof kOperands / sizeof kOperands[0], dtype); }

int rows_is_activation(int32_t activation) {
  return is_among(kActivations, sizeof kActivations / sizeof kActivations[0], activation);
}

uint32_t rows_element_bytes(uint32_t dtype) {
  for (size_t i = 0; i < NUM_ELEMENTS; ++i)
    if (kElements[i].number == dtype) return kElements[i].num_bytes;
  return 0;
}

uint32_t rows_map_bytes(uint32_t map_type) {
  for (size_t i = 0; i < NUM_ELEMENTS; ++i)
    if (kElements[i].map_type == map_type && map_type != ROWS_NO_MAP) return kElements[i].num_bytes;
  return 0;
}

int rows_is_mapped(uint32_t dtype, uint32_t map_type) {
  for (size_t i = 0; i < NUM_ELEMENTS; ++i)
    if (kElements[i].number == dtype) return kElements[i].map_type == map_type && map_type != ROWS_NO_MAP;
  return 0;
}
