// Operands of 8 bits whose scales change along k: one for each row of the inputs and 128 elements, and one for 128 x 128
// weights.
//
// A line of a stage is 128 elements of k. Its products have separate sums, which a thread multiplies by the scales of
// their rows of inputs and of weights when it adds them to its own. A thread reads its scales from global memory while
// the tensor cores multiply the line; those of the next lines of a row are then in the L1.
//
// With swapped operands, a thread has sums of tile_m / 4 rows of the inputs, and reads a scale for each. Otherwise it
// has two rows of each block, and up to 128 rows of weights, which share one scale, are multiplied at a time: so a sum
// takes one multiply-add, and the second set of sums is a part of the first one's size. While a warpgroup adds its sums,
// the other one's products keep the tensor cores busy.
//
// Memory order. Scales of an earlier op's output are plain loads. They come after the wait for the stage, which the
// inputs' warp requested after it had acquired the post of the tile with these columns, and with it their scales.
#pragma once
#include "mainloop_wgmma.cuh"

// Multiplies a task's stages, each by `kCount` products with separate sums. `issue` starts the product `number` of a
// stage whose first line is `first_block`; `add` adds the sums of a product that is done, while `kAhead` are multiplied.
template <int kOp, int kCount, int kAhead, class Issue, class Add>
__device__ __forceinline__ void multiply_stages(const Steps& steps, const Stages& stages, StagePlaces& places,
                                                const Issue& issue, const Add& add) {
  const int lane = thread_number() % 32;
  const typename WgmmaTile<kOp>::Operands first(stages);
#pragma unroll 1
  for (int step = 0; step < steps.count; ++step) {
    stages.wait_filled(places);
    const typename WgmmaTile<kOp>::Operands operands = first.at(places);
    const int first_block = steps[step] * WgmmaTile<kOp>::kStageLines;
#pragma unroll
    for (int number = 0; number < kCount; ++number) {
      issue(operands, first_block, number);
      wgmma_wait<kAhead>();
      if (number >= kAhead) add(number - kAhead);
    }
    if constexpr (kAhead > 0) {
      wgmma_wait<0>();
      add(kCount - 1);
    }
    places.advance();
    stages.release_before(places, lane);
  }
}

// `kFirst` is the position of the part's scales among the op's pointers of parts. Without scales of weights, those
// are 1.
template <int kOp, int kFirst, bool kHasWeights = true, bool kIsSwapped = kSwapAb>
struct BlockScaled {
  using Tile = WgmmaTile<kOp>;
  static constexpr OpConfig kConfig = kOps[kOp];
  static constexpr int kBlocks = Tile::kBlocks, kNumSums = Tile::kNumSums, kStageLines = Tile::kStageLines;
  static constexpr int kRows = kConfig.tile_m / 4;  // rows of the inputs for which a thread has sums
  static constexpr int kScaleBlock = 128;
  static constexpr bool kHasUp = kConfig.weight_rows() > kConfig.tile_n;
  static constexpr int kAhead = kNumSums <= 32 ? 1 : 0;  // lines multiplied while one is added, if registers allow
  static_assert(kIsSwapped && kLineColumns == kScaleBlock, "a line has one scale per row, and sums are transposed");

  // The thread's scales for a line.
  struct Scales {
    float inputs[kRows], weights[kBlocks][2];
  };

  const float* inputs;
  const float* weights;
  int num_blocks;          // along k
  int places[kRows];       // of the scales of the thread's rows of inputs
  int blocks[kBlocks][2];  // of its rows of weights

  __device__ __forceinline__ BlockScaled(const OpArgs& op, const Task& task)
      : inputs(static_cast<const float*>(op.parts[kFirst + kHasWeights])),
        weights(static_cast<const float*>(op.parts[kFirst])),
        num_blocks(op.k / kScaleBlock) {
    const int lane = thread_number() % 32;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = task.tile_m * kConfig.tile_m + i / 2 * 8 + lane % 4 * 2 + i % 2;
      places[i] = min(row, op.m - 1) * num_blocks;
    }
    const u32 first = team_group() * kBlocks * kBlockRows + team_thread() / 32u % 4 * 16 + lane / 4;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Those of an up projection are n rows further down.
        const int row = Tile::weight_row(first + block * kBlockRows + 8 * half);
        const bool is_up = kHasUp && row >= kConfig.tile_n;
        const int column = min(task.tile_n * kConfig.tile_n + (is_up ? row - kConfig.tile_n : row), op.n - 1);
        blocks[block][half] = (is_up * op.n + column) / kScaleBlock * num_blocks;
      }
    }
  }

  __device__ __forceinline__ void load(Scales& scales, int block) const {
    block = min(block, num_blocks - 1);  // the last stage may have lines beyond k, whose sums are 0
#pragma unroll
    for (int i = 0; i < kRows; ++i) scales.inputs[i] = inputs[places[i] + block];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) scales.weights[i][half] = kHasWeights ? weights[blocks[i][half] + block] : 1.0f;
    }
  }

  __device__ static __forceinline__ void add(float (&acc)[kMaxWgmmaAccumulators], const float (&sums)[kNumSums],
                                             const Scales& scales) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < Tile::kBlockSums; ++i) {
        const float scale = scales.inputs[i / 4 * 2 + i % 2] * scales.weights[block][i / 2 % 2];
        float& sum = acc[block * Tile::kBlockSums + i];
        sum = fmaf(scale, sums[block * Tile::kBlockSums + i], sum);
      }
    }
  }

  // Like `WgmmaTile::multiply_promoted`.
  template <class Issued>
  __device__ static void multiply(float (&acc)[kMaxWgmmaAccumulators], const LaunchArgs& args, const Task& task,
                                  const Stages& stages, StagePlaces& places, const Issued& issued) {
    const OpArgs& op = args.ops[kOp];
    const Steps steps = steps_of<kOp>(args.plan, op, task);
    const BlockScaled own(op, task);
    float sums[kAhead + 1][kNumSums];
    Scales scales[kAhead + 1];
    const auto issue = [&](const typename Tile::Operands& operands, int first_block, int line) {
      own.load(scales[line % (kAhead + 1)], first_block + line);
      Tile::multiply_line(sums[line % (kAhead + 1)], operands, line);
    };
    const auto add_line = [&](int line) { add(acc, sums[line % (kAhead + 1)], scales[line % (kAhead + 1)]); };
    Tile::fill(acc, 0.0f);
    multiply_stages<kOp, kStageLines, kAhead>(steps, stages, places, issue, add_line);
    issued();
  }
};

// W is operand B. A product has one block of 64 rows of inputs, and the `kColumns` rows of weights of a piece.
template <int kOp, int kFirst, bool kHasWeights>
struct BlockScaled<kOp, kFirst, kHasWeights, false> {
  using Tile = WgmmaTile<kOp>;
  static constexpr OpConfig kConfig = kOps[kOp];
  static constexpr int kBlocks = Tile::kBlocks, kStageLines = Tile::kStageLines, kScaleBlock = 128;
  static constexpr int kColumns = kConfig.tile_n < kScaleBlock ? kConfig.tile_n : kScaleBlock, kSums = kColumns / 2;
  static constexpr int kPieces = kConfig.weight_rows() / kColumns, kProducts = kBlocks * kPieces;  // of a line
  static constexpr int kAhead = kSums <= 32 ? 1 : 0;  // products issued while one's sums are added, if registers allow
  static_assert(kScaleBlock % kColumns == 0 && kConfig.tile_n % kColumns == 0 && kLineColumns == kScaleBlock,
                "the weights of a product have one scale");

  // The thread's scales for a line.
  struct Scales {
    float inputs[kBlocks][2], weights[kPieces];
  };

  const float* inputs;
  const float* weights;
  int num_blocks;        // along k
  int rows[kBlocks][2];  // the places of the scales of the thread's rows of inputs
  int columns[kPieces];  // of the pieces' rows of weights

  __device__ __forceinline__ BlockScaled(const OpArgs& op, const Task& task)
      : inputs(static_cast<const float*>(op.parts[kFirst + kHasWeights])),
        weights(static_cast<const float*>(op.parts[kFirst])),
        num_blocks(op.k / kScaleBlock) {
    const int thread = team_thread();
    const int warp_row = thread / 128 * kBlocks * kBlockRows + thread / 32 % 4 * 16;
    const int first = task.tile_m * kConfig.tile_m + warp_row + thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i)
      rows[i / 2][i % 2] = min(first + i / 2 * kBlockRows + i % 2 * 8, op.m - 1) * num_blocks;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      // Those of an up projection are n rows further down.
      const int row = piece * kColumns, column = task.tile_n * kConfig.tile_n + row % kConfig.tile_n;
      columns[piece] = (row / kConfig.tile_n * op.n + min(column, op.n - 1)) / kScaleBlock * num_blocks;
    }
  }

  __device__ __forceinline__ void load(Scales& scales, int block) const {
    block = min(block, num_blocks - 1);  // the last stage may have lines beyond k, whose sums are 0
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) scales.inputs[i / 2][i % 2] = inputs[rows[i / 2][i % 2] + block];
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) scales.weights[piece] = kHasWeights ? weights[columns[piece] + block] : 1.0f;
  }

  // The products of a block and a piece of a line, with separate sums. In a stage, the lines of a gate precede those of
  // an up projection.
  __device__ static __forceinline__ void multiply_piece(float (&sums)[kSums], const typename Tile::Operands& operands,
                                                        int line, int block, int piece) {
    const int row = piece * kColumns;
    const int b_row = (row / kConfig.tile_n * kStageLines + line) * kConfig.tile_n + row % kConfig.tile_n;
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < 4; ++slice) {
      const int a_units = (line * Tile::kSharedRows + block * kBlockRows) * (kLineBytes / 16) + slice * 2;
      const int b_units = b_row * (kLineBytes / 16) + slice * 2;
      Wgmma<kColumns>::multiply(sums, operand_descriptor(operands.a() + a_units), operand_descriptor(operands.b() + b_units),
                                slice > 0);
    }
    wgmma_commit();
  }

  __device__ static __forceinline__ void add(float* acc, const float (&sums)[kSums], const float (&of_rows)[2],
                                             float of_weights) {
    const float scales[2] = {of_rows[0] * of_weights, of_rows[1] * of_weights};
#pragma unroll
    for (int i = 0; i < kSums; ++i) acc[i] = fmaf(scales[i / 2 % 2], sums[i], acc[i]);
  }

  // Like `WgmmaTile::multiply_promoted`.
  template <class Issued>
  __device__ static void multiply(float (&acc)[kMaxWgmmaAccumulators], const LaunchArgs& args, const Task& task,
                                  const Stages& stages, StagePlaces& places, const Issued& issued) {
    const OpArgs& op = args.ops[kOp];
    const Steps steps = steps_of<kOp>(args.plan, op, task);
    const BlockScaled own(op, task);
    float sums[kAhead + 1][kSums];
    Scales scales[kAhead + 1];
    const auto issue = [&](const typename Tile::Operands& operands, int first_block, int number) {
      const int line = number / kProducts;
      if (number % kProducts == 0) own.load(scales[line % (kAhead + 1)], first_block + line);
      multiply_piece(sums[number % (kAhead + 1)], operands, line, number % kProducts / kPieces, number % kPieces);
    };
    const auto add_product = [&](int number) {
      const int block = number % kProducts / kPieces, piece = number % kPieces;
      const Scales& of_line = scales[number / kProducts % (kAhead + 1)];
      add(acc + block * Tile::kBlockSums + piece * kSums, sums[number % (kAhead + 1)], of_line.inputs[block],
          of_line.weights[piece]);
    };
    Tile::fill(acc, 0.0f);
    multiply_stages<kOp, kStageLines * kProducts, kAhead>(steps, stages, places, issue, add_product);
    issued();
  }
};

// Scales of inputs alone.
template <int kOp, int kFirst>
struct InputScaled : BlockScaled<kOp, kFirst, false> {};
