/* Element types and activations by their numbers. */
#ifndef TUNER_ROWS_OF_H
#define TUNER_ROWS_OF_H

#include <stddef.h>
#include <stdint.h>

/* CUtensorMapDataType for types without tensor maps. */
#define ROWS_NO_MAP 0xFFFFFFFFu

/* The text of an error message about any other value. */
extern const char *const rows_operand_names, *const rows_activation_names;

/* Whether kernels multiply elements of that type. */
int rows_is_operand(int32_t dtype);
int rows_is_activation(int32_t activation);
/* Bytes of an element of a type, or of a CUtensorMapDataType; 0 if it is unknown. */
uint32_t rows_element_bytes(uint32_t dtype);
uint32_t rows_map_bytes(uint32_t map_type);
/* Whether tensor maps of that CUtensorMapDataType have that type. */
int rows_is_mapped(uint32_t dtype, uint32_t map_type);

#endif
