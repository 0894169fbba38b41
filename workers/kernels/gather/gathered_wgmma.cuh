// Inputs of a product that gathers its rows, loaded by the copy engine in im2col mode, which walks over the pixels of a
// tile.
//
// A kind defines Gather<kOp>, of which this engine uses `start_of(row)`: the position in the images of a filter's first
// element, and `column_of(column)`: the element of the filter and the channel. A line of a stage is 64 channels at one
// element of the filter, for as many pixels as the tile has rows. The map contains the stride, and the pixels at which
// the walk continues in the next row or image. Borders of an image arrive as zeros, as do images after the last one.
// The host requires channels in whole lines, so a line never covers two elements of a filter. Lines of the last stage
// beyond the filter's last element have no channels and are zero.
#pragma once
#include "mainloop_wgmma.cuh"

template <int kOp>
struct Gather;

template <int kOp>
struct GatheredStage {
  using From = Gather<kOp>;
  static constexpr OpConfig kConfig = kOps[kOp];
  using OwnSlice = Slice<kConfig.tile_m, kConfig.tile_k, InputSharers::kCount>;

  // Called by one thread: requests the CTA's slice, for all sharers, of step `step` of the tile whose first row is
  // `row`.
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
