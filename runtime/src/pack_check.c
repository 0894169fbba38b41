/* Requirements on the records of a pack, so that readers need not check again. */
#include <string.h>

#include "fail.h"
#include "pack.h"
#include "plan_check.h"
#include "rows_of.h"

enum { HEAD_BYTES = 104, OP_ARGS_BYTES = 64, ENCODED_MAP_BYTES = 128, GUARD_END = 256 };
/* Limits of a kernel. Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". */
enum { MAX_PARAMETER_BYTES = 32764, MAX_THREADS = 1024, MAX_CLUSTER = 16, MAX_SHARED_BYTES = 1 << 20, MAX_GRID = 1 << 20 };
/* Larger than the memory of any device. */
static const uint64_t kMaxBytes = 1ull << 40;

static tuner_status bad(const char *table, uint32_t index, const char *what) {
  return tuner_fail(TUNER_BAD_PACK, "%s %u of the pack's index: %s", table, index, what);
}

int pack_is_range(uint32_t first, uint32_t count, uint32_t total) { return first <= total && count <= total - first; }

/* Texts of a record must be in the strings, whose last byte is 0. */
int pack_is_text(const tuner_pack *pack, const char *text) {
  return (size_t)(text - (const char *)pack->strings) < pack->num_strings;
}

static tuner_status check_op(const tuner_pack *pack, uint32_t index, uint32_t number) {
  const pack_op op = pack_get_op(pack, index);
  const uint64_t rows = (uint64_t)op.n * ((op.flags & TUNER_GATED) != 0 ? 2 : 1);
  if (op.n == 0 || op.k == 0 || op.n > INT32_MAX || op.k > INT32_MAX || op.weight_rows != rows)
    return bad("op", index, "a size is out of range");
  if (op.source != (number == 0 ? PACK_NONE : number - 1)) return bad("op", index, "it does not read the preceding op");
  return TUNER_OK;
}

/* For images [images, height, width, channels], with the additional arguments of the driver's function. */
static tuner_status check_im2col(const pack_map *map, uint32_t index) {
  const int32_t lower = (int32_t)map->box[2], upper = (int32_t)map->box[3];
  int is_right = map->rank == 4 && map->rows_dim == PACK_NONE && map->box[4] >= 1 && map->box[4] <= 8;
  for (int i = 0; i < 4; ++i) is_right &= map->dims[i] != 0 && map->dims[i] <= UINT32_MAX;
  for (int i = 0; i < 2; ++i) is_right &= map->box[i] != 0 && map->box[i] <= 256;
  if (!is_right || lower < -128 || lower > 127 || upper < -128 || upper > 127)
    return bad("tensor map", index, "its images, corners or stride are out of range");
  return TUNER_OK;
}

tuner_status pack_check_map_dims(const pack_map *map, uint32_t index) {
  if (map->is_im2col) return check_im2col(map, index);
  for (uint32_t i = 0; i < map->rank; ++i)
    if (map->dims[i] == 0 || map->dims[i] > UINT32_MAX || map->box[i] == 0 || map->box[i] > 256)
      return bad("tensor map", index, "a dimension or its box is out of range");
  return TUNER_OK;
}

int pack_map_is_within(const pack_map *map, uint64_t num_bytes) {
  uint64_t left = num_bytes;
  const uint64_t element_bytes = rows_map_bytes(map->data_type);
  if (map->dims[0] * element_bytes > left) return 0;
  left -= map->dims[0] * element_bytes;
  for (uint32_t i = 1; i < map->rank; ++i) {
    const uint64_t steps = map->dims[i] - 1, stride = map->strides[i - 1];
    if (steps != 0 && stride > left / steps) return 0;
    left -= steps * stride;
  }
  return 1;
}

static tuner_status check_map(const tuner_pack *pack, uint32_t index, const pack_kernel *kernel) {
  const pack_map map = pack_get_map(pack, index);
  if (map.op >= kernel->num_ops || map.operand > 2 || map.is_im2col || map.rank < 2 || map.rank > 5)
    return bad("tensor map", index, "its op, operand or rank is out of range");
  if (map.rows_dim != PACK_NONE && map.rows_dim >= map.rank) return bad("tensor map", index, "its dimension of rows is out of range");
  if ((map.operand == 1) != (map.rows_dim == PACK_NONE)) return bad("tensor map", index, "only maps of weights have no rows");
  TUNER_TRY(pack_check_map_dims(&map, index));
  if (rows_map_bytes(map.data_type) == 0) return bad("tensor map", index, "its element type is unknown");
  const pack_op op = pack_get_op(pack, kernel->first_op + map.op);
  const uint64_t row_bytes = rows_map_bytes(map.data_type) * (uint64_t)(map.operand == 2 ? op.n : op.k);
  const uint64_t rows = map.operand == 1 ? op.weight_rows : (uint64_t)kernel->m_max;
  if (map.rows_dim != PACK_NONE &&
      (map.rows_dim == 0 || map.dims[map.rows_dim] != rows || map.strides[map.rows_dim - 1] != row_bytes))
    return bad("tensor map", index, "its rows differ from those of its op");
  if (!pack_map_is_within(&map, rows * row_bytes)) return bad("tensor map", index, "it is outside its tensor");
  return TUNER_OK;
}

/* For an op's input that is passed in band: two halves for the first product, two bytes per element. */
static uint64_t mailbox_bytes(const tuner_pack *pack, const pack_kernel *kernel) {
  const uint64_t num_bytes = 2 * (uint64_t)kernel->m_max * pack_get_op(pack, kernel->first_op).n;
  return 2 * ((num_bytes + 255) / 256 * 256);
}

static tuner_status check_launch(const tuner_pack *pack, uint32_t index, const pack_kernel *kernel, plan_header *plan) {
  const pack_launch launch = pack_get_launch(pack, index);
  if (launch.grid == 0 || launch.grid > MAX_GRID || launch.grid % kernel->cluster_size != 0)
    return bad("launch", index, "its grid is out of range");
  if (launch.workspace >= kernel->num_workspaces || launch.workspace_bytes > kMaxBytes ||
      launch.workspace_bytes < GUARD_END || launch.zero_bytes > launch.workspace_bytes || launch.zero_bytes < GUARD_END)
    return bad("launch", index, "its workspace is out of range");
  const size_t room = kernel->maps_offset > kernel->first_tasks_offset ? kernel->maps_offset - kernel->first_tasks_offset : 0;
  if (launch.first_tasks.num_bytes != (kernel->first_tasks_offset == 0 ? 0 : room))
    return bad("launch", index, "its first tasks do not fit the parameter");
  if (launch.gate_ctas != 0 && kernel->gate_symbol[0] == 0) return bad("launch", index, "the kernel has no start gate");
  const plan_launch is = {.grid = launch.grid,
                          .cluster_size = kernel->cluster_size,
                          .flags = launch.flags,
                          .workspace_bytes = launch.workspace_bytes,
                          .zero_bytes = launch.zero_bytes,
                          .mailbox_bytes = mailbox_bytes(pack, kernel),
                          .first_task_bytes = launch.first_tasks.num_bytes,
                          .is_paired = (kernel->flags & PACK_PAIRED) != 0};
  const char *wrong = plan_read(launch.words.data, launch.words.num_bytes, plan);
  if (wrong == NULL) wrong = plan_check_launch(plan, &is);
  return wrong == NULL ? TUNER_OK : bad("launch", index, wrong);
}

/* The launches of a pair run at the same time: the first waits for nothing, and the second has the same workspace and a
 * start gate. Other launches follow each other in one stream, each with its own workspace. */
static tuner_status check_streams(const tuner_pack *pack, uint32_t index, const pack_kernel *kernel,
                                  const plan_header *plans) {
  const int is_paired = (kernel->flags & PACK_PAIRED) != 0;
  if (is_paired && (kernel->num_launches != 2 || plans[0].num_waits != 0))
    return bad("kernel", index, "it must have two launches, of which the first waits for nothing");
  const uint32_t num_ctas = pack_get_launch(pack, kernel->first_launch).grid;
  for (uint32_t i = 0; i < kernel->num_launches; ++i) {
    const pack_launch launch = pack_get_launch(pack, kernel->first_launch + i);
    const uint32_t is_second = is_paired && i == 1;
    if ((launch.flags & (PACK_SIDE_STREAM | PACK_IS_SECOND)) != (is_second ? PACK_SIDE_STREAM | PACK_IS_SECOND : 0u) ||
        launch.workspace != (is_paired ? 0 : i) || launch.gate_ctas != (is_second && plans[0].num_signals > 0 ? num_ctas : 0))
      return bad("kernel", index, "its launches have the wrong streams, workspaces or start gates");
  }
  return TUNER_OK;
}

static tuner_status check_kernel(const tuner_pack *pack, uint32_t index) {
  const pack_kernel kernel = pack_get_kernel(pack, index);
  if (!pack_is_text(pack, kernel.text) || !pack_is_text(pack, kernel.symbol) || !pack_is_text(pack, kernel.gate_symbol))
    return bad("kernel", index, "a string lies outside the string table");
  if (kernel.num_threads == 0 || kernel.num_threads > MAX_THREADS || kernel.cluster_size == 0 ||
      kernel.cluster_size > MAX_CLUSTER || kernel.shared_bytes > MAX_SHARED_BYTES)
    return bad("kernel", index, "its threads, cluster size or shared memory is out of range");
  if (kernel.num_launches == 0 || kernel.num_launches > PACK_MAX_LAUNCHES || kernel.num_ops != PACK_MAX_OPS ||
      kernel.num_maps > PACK_MAX_MAPS || kernel.num_workspaces == 0 || kernel.num_workspaces > PACK_MAX_WORKSPACES)
    return bad("kernel", index, "it has too many or too few launches, ops, tensor maps or workspaces");
  if (!pack_is_range(kernel.first_launch, kernel.num_launches, pack->num_launches) ||
      !pack_is_range(kernel.first_op, kernel.num_ops, pack->num_ops) ||
      !pack_is_range(kernel.first_map, kernel.num_maps, pack->num_maps))
    return bad("kernel", index, "its launches, ops or tensor maps exceed their tables");
  const uint64_t head = HEAD_BYTES + OP_ARGS_BYTES * (uint64_t)kernel.num_ops;
  const uint64_t maps = (uint64_t)ENCODED_MAP_BYTES * kernel.num_maps;
  if (kernel.parameter_bytes < head || kernel.parameter_bytes > MAX_PARAMETER_BYTES || kernel.parameter_bytes % 8 != 0)
    return bad("kernel", index, "its parameter size is out of range");
  if (kernel.num_maps > 0 &&
      (kernel.maps_offset % 64 != 0 || kernel.maps_offset < kernel.first_tasks_offset ||
       kernel.first_tasks_offset < head || kernel.maps_offset + maps != kernel.parameter_bytes))
    return bad("kernel", index, "its tensor maps do not fit the parameter");
  if (kernel.num_maps == 0 && kernel.first_tasks_offset != 0)
    return bad("kernel", index, "it has first tasks, but no tensor maps");
  if (kernel.m_min < 1 || kernel.m_max < kernel.m_min) return bad("kernel", index, "its rows are out of range");
  if ((kernel.flags & PACK_SIMULATED) == 0 && kernel.variants[PACK_MEASURED].num_bytes == 0)
    return bad("kernel", index, "it has no cubin");
  for (uint32_t i = 0; i < kernel.num_ops; ++i) TUNER_TRY(check_op(pack, kernel.first_op + i, i));
  for (uint32_t i = 0; i < kernel.num_maps; ++i) TUNER_TRY(check_map(pack, kernel.first_map + i, &kernel));
  const char *wrong = plan_check_spin_limit(kernel.spin_limit_cycles);
  if (wrong != NULL) return bad("kernel", index, wrong);
  plan_header plans[PACK_MAX_LAUNCHES];
  for (uint32_t i = 0; i < kernel.num_launches; ++i)
    TUNER_TRY(check_launch(pack, kernel.first_launch + i, &kernel, &plans[i]));
  return check_streams(pack, index, &kernel, plans);
}

tuner_status pack_check_ladder(const tuner_pack *pack, const pack_ladder *ladder) {
  const char *table = ladder->is_ffn ? "rung" : "attention rung";
  if (!pack_is_range(ladder->first, ladder->count, ladder->is_ffn ? pack->num_rungs : pack->num_attention_rungs))
    return bad(table, ladder->first, "its ladder exceeds the table");
  pack_rung before = {.m_lo = -1};
  for (uint32_t i = 0; i < ladder->count; ++i) {
    const pack_rung rung = pack_get_rung(pack, ladder, i);
    const int is_same = rung.m_lo == before.m_lo && rung.m_hi == before.m_hi;
    if (is_same ? rung.max_length <= before.max_length : rung.m_lo <= before.m_hi || rung.m_hi < rung.m_lo)
      return bad(table, ladder->first + i, "its sizes are not in ascending order");
    if (!ladder->by_rows && rung.max_length < 1) return bad(table, ladder->first + i, "its context is empty");
    if (!pack_is_text(pack, rung.library)) return bad(table, ladder->first + i, "a string lies outside the string table");
    const uint32_t total = ladder->is_ffn ? pack->num_kernels : pack->num_programs;
    if (rung.choice != PACK_CHOICE_LIBRARY && (rung.choice != PACK_CHOICE_KERNEL || rung.number >= total))
      return bad(table, ladder->first + i, "it has no kernel");
    before = rung;
  }
  return TUNER_OK;
}

/* Whether a rung's kernel computes its shape, for its rows. */
static tuner_status check_rung(const tuner_pack *pack, const pack_ladder *ladder, uint32_t number, const tuner_shape *shape) {
  const pack_rung rung = pack_get_rung(pack, ladder, number);
  const uint32_t index = ladder->first + number;
  if (rung.choice == PACK_CHOICE_LIBRARY) return TUNER_OK;
  const pack_kernel kernel = pack_get_kernel(pack, rung.number);
  if (rung.m_lo < kernel.m_min || rung.m_hi > kernel.m_max) return bad("rung", index, "its kernel does not support these rows");
  const pack_op first = pack_get_op(pack, kernel.first_op), second = pack_get_op(pack, kernel.first_op + 1);
  const uint32_t flags = first.flags | second.flags;
  if (first.k != (uint32_t)shape->d_in || first.n != (uint32_t)shape->d_hidden || second.k != first.n ||
      second.n != (uint32_t)shape->d_out || flags != shape->flags || first.activation != (uint32_t)shape->activation ||
      second.activation != TUNER_IDENTITY)
    return bad("rung", index, "its kernel is for another shape");
  for (uint32_t i = 0; i < kernel.num_maps; ++i) {
    const pack_map map = pack_get_map(pack, kernel.first_map + i);
    if (!rows_is_mapped((uint32_t)shape->dtype, map.data_type)) return bad("rung", index, "its kernel is for another element type");
  }
  return TUNER_OK;
}

tuner_status pack_check_records(const tuner_pack *pack) {
  for (uint32_t i = 0; i < pack->num_kernels; ++i) TUNER_TRY(check_kernel(pack, i));
  for (uint32_t i = 0; i < pack->num_shapes; ++i) {
    const pack_shape shape = pack_get_shape(pack, i);
    const tuner_shape *is = &shape.shape;
    if (!pack_is_text(pack, shape.text) || !rows_is_operand(is->dtype) ||
        !rows_is_activation(is->activation) || (is->flags & ~(uint32_t)PACK_ALL_SHAPE_FLAGS) != 0 ||
        is->d_in < 1 || is->d_hidden < 1 || is->d_out < 1)
      return bad("shape", i, "a number is out of range");
    TUNER_TRY(pack_check_ladder(pack, &shape.ladder));
    for (uint32_t r = 0; r < shape.ladder.count; ++r) TUNER_TRY(check_rung(pack, &shape.ladder, r, is));
  }
  return TUNER_OK;
}
