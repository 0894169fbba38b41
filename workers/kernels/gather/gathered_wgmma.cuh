// Inputs of a product that gathers its rows, by the copy engine in im2col mode: it walks the pixels that a tile is made of.
//
// A kind gives Gather<kOp>, from which this engine uses `start_of(row)`: where the first place of a filter is in the images, and
// `column_of(column)`: the place of a filter and the channel. A line of a stage is 64 channels at one place of a filter, of as
// many pixels as the tile has rows. The map knows the stride and at which pixel of a row, or of an image, the walk continues in
// the next one. The border of an image arrives as zero, and so do images after the last one. The host asks for channels
// in whole lines, so no line is of two places. A line of a last
// stage that is after all places has no channels, hence zero.
#pragma once
#include "mainloop_wgmma.cuh"

template <int kOp>
struct Gather;

template <int kOp>
struct GatheredStage {
  using From = Gather<kOp>;
  static constexpr OpConfig kConfig = kOps[kOp];
  using OwnSlice = Slice<kConfig.tile_m, kConfig.tile_k, InputSharers::kCount>;

  // One thread: the CTA's slice, for all sharers, of step `step` of the tile whose first row is `row`.
  template <class Target>
  __device__ static __forceinline__ void request(const Target& to, const TensorMap* map, int step, int row) {
    const int place = InputSharers::place();
    const int first_line = place % OwnSlice::kLineSlices * OwnSlice::kNumLines;
    const int first_row = place / OwnSlice::kLineSlices * OwnSlice::kNumRows;
    const auto start = From::start_of(row + first_row);
#pragma unroll
    for (int i = 0; i < OwnSlice::kNumLines; ++i) {
      const int k = (step * OwnSlice::kStageLines + first_line + i) * kLineColumns;
      const auto column = From::column_of(k);
      const int channel = From::kNumColumns % kConfig.tile_k == 0 || k < From::kNumColumns ? column.channel : From::kChannels;
      to.pixels(((first_line + i) * kConfig.tile_m + first_row) * kLineBytes, map, {start.x, start.y, start.image}, channel,
                column.x, column.y);
    }
  }
};
