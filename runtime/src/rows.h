/* Written by `python -m tuner.runtime.binding.rows`: the program's rows of element types and activations. */
#ifndef TUNER_ROWS_H
#define TUNER_ROWS_H

/* For each element type: its number, its CUtensorMapDataType or 0xFFFFFFFF, and the bytes of an element. */
#define ROWS_OF_ELEMENTS(ROW) ROW(0u, 6u, 2u) ROW(1u, 9u, 2u) ROW(4u, 0u, 1u) ROW(2u, 4294967295u, 4u) ROW(3u, 4294967295u, 4u) ROW(5u, 4294967295u, 1u)
/* The numbers of the types that kernels multiply. */
#define ROWS_OF_OPERANDS(ROW) ROW(0u) ROW(1u) ROW(4u)
#define ROWS_OPERAND_NAMES "TUNER_FP16, TUNER_BF16 or TUNER_FP8_E4M3"
/* Numbers of activations. */
#define ROWS_OF_ACTIVATIONS(ROW) ROW(0u) ROW(1u) ROW(2u) ROW(3u)
#define ROWS_ACTIVATION_NAMES "TUNER_IDENTITY, TUNER_RELU, TUNER_GELU or TUNER_SILU"

#endif
