/* Makes a program of an FFN's kernel: its launches, the parameters' templates, and their patches. */
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "ffn.h"

/* Indices of an op's A, weights, bias, output, residual and row scale among the addresses of tuner_tensors, or NONE. */
enum { X, W1, W2, B1, B2, RESIDUAL, ROW_SCALE, HIDDEN, Y, NUM_TENSORS, NONE, NUM_OP_TENSORS = 6, OP_ROWS = 48 };
static const uint32_t kTensors[PACK_MAX_OPS][NUM_OP_TENSORS] = {{X, W1, B1, HIDDEN, NONE, ROW_SCALE},
                                                                {HIDDEN, W2, B2, Y, RESIDUAL, NONE}};
/* The indices of a map's a, w and c among these. */
static const uint32_t kOperands[3] = {0, 1, 3};
/* Addresses of words and workspace, then the tensors and the rows of each op. */
enum { MAX_PATCHES = 2 + PACK_MAX_OPS * (NUM_OP_TENSORS + 1) };
_Static_assert(sizeof(tuner_tensors) == NUM_TENSORS * sizeof(void *), "its members are the operands");

pack_program pack_get_row(const tuner_pack *pack, uint32_t row) {
  if (row >= pack->num_kernels) return pack_get_program(pack, row - pack->num_kernels);
  const pack_kernel is = pack_get_kernel(pack, row);
  const pack_program found = {
      .digest = is.digest,
      .text = is.text,
      .target = {is.major, is.minor, is.suffix, is.num_sms, is.cuda_version, (is.flags & PACK_SIMULATED) != 0},
      .num_fills = 2 * is.num_launches,
      .num_parts = is.num_launches,
      .num_operands = NUM_TENSORS,
      .most_rows = (uint32_t)is.m_max,
      .has_fallback = (is.flags & PACK_KERNEL_HAS_FALLBACK) != 0,
      .memory_bytes = pack_get_layout(pack, &is).bytes,
  };
  return found;
}

pack_part pack_get_row_part(const tuner_pack *pack, uint32_t row, uint32_t index, uint32_t variant) {
  if (row >= pack->num_kernels) return pack_get_part(pack, pack_get_row(pack, row).first_part + index);
  const pack_kernel is = pack_get_kernel(pack, row);
  const pack_launch launch = pack_get_launch(pack, is.first_launch + index);
  const pack_part part = {
      .symbol = is.symbol,
      .grid = launch.grid,
      .num_threads = is.num_threads,
      .cluster_size = is.cluster_size,
      .shared_bytes = is.shared_bytes,
      .flags = launch.flags & ~(uint32_t)PACK_READS_EARLY, /* the same bits have a different meaning in a part */
      .dependent_offset = ARGS_IS_DEPENDENT,
      .parameter_bytes = is.parameter_bytes,
      .first_patch = index * MAX_PATCHES,
      .first_map = index * is.num_maps,
      .num_maps = is.num_maps,
      .abort_offset = PACK_NOWHERE,
      .cubin = is.variants[variant],
      .gate_ctas = launch.gate_ctas,
      .gate_symbol = is.gate_symbol,
  };
  return part;
}

size_t pack_get_memory(const tuner_pack *pack, uint32_t row) {
  const pack_program is = pack_get_row(pack, row);
  const uint64_t other = is.has_fallback ? pack_get_row(pack, row + 1).memory_bytes : 0;
  return (size_t)(other > is.memory_bytes ? other : is.memory_bytes);
}

static void put_patch(program_rows *into, pack_part *part, uint32_t offset, uint32_t tensor, uint64_t addend) {
  into->patches[part->first_patch + part->num_patches++] = (pack_patch){offset, tensor, addend};
}

static void lower_ops(const tuner_pack *pack, const pack_kernel *kernel, program_rows *into, pack_part *part, uint8_t *parameter) {
  for (uint32_t i = 0; i < kernel->num_ops; ++i) {
    const uint32_t at = ARGS_OPS + ARGS_OP_BYTES * i;
    const pack_op op = pack_get_op(pack, kernel->first_op + i);
    for (uint32_t t = 0; t < NUM_OP_TENSORS; ++t)
      if (kTensors[i][t] != NONE) put_patch(into, part, at + 8 * t, PACK_FIRST_OPERAND + kTensors[i][t], 0);
    put_patch(into, part, at + OP_ROWS, PACK_TENSOR_ROWS, 0);
    const uint32_t sizes[2] = {op.n, op.k};
    memcpy(parameter + at + OP_ROWS + 4, sizes, sizeof sizes);
  }
}

static void lower_launch(const tuner_pack *pack, const pack_kernel *kernel, uint32_t index, program_rows *into,
                         uint8_t *parameter) {
  pack_part *part = &into->parts[index];
  const pack_launch launch = pack_get_launch(pack, kernel->first_launch + index);
  const pack_layout layout = pack_get_layout(pack, kernel);
  const int32_t is_second = (launch.flags & PACK_IS_SECOND) != 0;
  const uint64_t workspace = layout.workspaces[launch.workspace];
  into->fills[index] = (pack_fill){.offset = layout.words[index], .blob = launch.words};
  into->fills[kernel->num_launches + index] = (pack_fill){.offset = workspace, .num_zeros = launch.zero_bytes};
  put_patch(into, part, ARGS_WORDS, PACK_TENSOR_MEMORY, layout.words[index]);
  put_patch(into, part, ARGS_WORKSPACE, PACK_TENSOR_MEMORY, workspace);
  memcpy(parameter + ARGS_SPIN_LIMIT, &kernel->spin_limit_cycles, 8);
  memcpy(parameter + ARGS_IS_SECOND, &is_second, 4);
  memcpy(parameter + ARGS_PLAN_HEADER, launch.words.data, PLAN_HEADER_BYTES);
  lower_ops(pack, kernel, into, part, parameter);
  if (launch.first_tasks.num_bytes > 0)
    memcpy(parameter + kernel->first_tasks_offset, launch.first_tasks.data, launch.first_tasks.num_bytes);
  for (uint32_t i = 0; i < kernel->num_maps; ++i) {
    pack_map map = pack_get_map(pack, kernel->first_map + i);
    map.op = PACK_FIRST_OPERAND + kTensors[map.op][kOperands[map.operand]];
    map.operand = kernel->maps_offset + MAP_BYTES * i;
    into->maps[part->first_map + i] = map;
  }
  part->parameter = (pack_blob){parameter, kernel->parameter_bytes};
}

tuner_status lower_kernel(const tuner_pack *pack, uint32_t row, program_rows *into) {
  const pack_kernel kernel = pack_get_kernel(pack, row);
  into->patches = calloc((size_t)kernel.num_launches * MAX_PATCHES, sizeof *into->patches);
  into->maps = calloc((size_t)kernel.num_launches * kernel.num_maps + 1, sizeof *into->maps);
  into->parameters = calloc(kernel.num_launches, kernel.parameter_bytes);
  if (into->patches == NULL || into->maps == NULL || into->parameters == NULL)
    return tuner_fail(TUNER_NO_MEMORY, "not enough host memory for a kernel's launches");
  for (uint32_t i = 0; i < kernel.num_launches; ++i)
    lower_launch(pack, &kernel, i, into, into->parameters + (size_t)kernel.parameter_bytes * i);
  return TUNER_OK;
}
