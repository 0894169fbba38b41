// Tiles that the copy engine stores: from a warpgroup's accumulators through shared memory.
//
// A warp stores its 16 rows of a block to C in chunks of 64 columns, each of which is one line for the copy engine. It
// finishes and rounds a chunk's sums (epilogue_wgmma.cuh). It writes them to shared memory by stmatrix in the layout of
// the 128-byte swizzle: rows of 128 bytes whose eight 16-byte pieces are permuted by the row's number modulo 8. Then
// lane 0 requests the store. Each warp alternates between two buffers: one is filled while the other is read. The copy
// engine skips rows and columns outside the matrix. A warp whose rows belong to another tile stores nothing, since 16
// rows are either all inside a tile or all outside. Columns after the last whole chunk are stored by the threads: a box
// is 64 columns wide, and would overlap the adjacent tile.
//
// Waits: a warp waits only for the copy engine, which waits for nothing. Each chunk is a group of
// lane 0's bulk stores; a skipped chunk is an empty group. So when all but the last group are done, the buffer
// of the chunk before the last is free. Chunks are skipped only at the right or bottom edge of the matrix, and then in
// all later blocks as well.
//
// Memory order, of the buffers. stmatrix belongs to the generic proxy, the copy engine to the async proxy: every lane's
// fence.proxy.async after its stmatrix, followed by __syncwarp, orders all lanes' writes before the read that lane 0
// requests. A buffer is written again when its group has been read, which lane 0 sees by wait_group.read and passes to
// the others by __syncwarp. The last groups are read before the warp ends the task, and therefore before the CTA ends
// and its memory is released.
//
// Memory order, of the tile. The release of a post covers what is visible to the threads that passed their warpgroup's
// barrier before it (post_wgmma.cuh). A bulk store is visible to the thread that requested it once it is complete, not
// just read: wait_group without .read. According to the PTX ISA (asynchronous operations, async proxy), this includes a
// fence between the two proxies. So lane 0 of each warp performs this wait before that barrier. From then on, the store
// is ordered like a plain one: barrier, arrival, red.release by the posting thread, acquire by the reader, whatever
// instructions the reader uses. A reader that copies by TMA fences its proxy after the acquire, as it must for plain
// stores; the writer needs no fence beyond the implicit one. For a tile that no task of the launch waits for, it is
// enough that the buffers have been read: later launches wait for the end of this one, which includes all its stores,
// or for a post. Parts of a split tile use plain stores for their sums; only the last part gets here.
#pragma once
#include "epilogue_wgmma.cuh"

// `map` is the tensor map of C, and `staging` the CTA's buffers; both are unused if the threads store.
template <int kOp>
__device__ __forceinline__ void store_or_copy_tile(const float (&acc)[kMaxWgmmaAccumulators], const OpArgs& op,
                                                   const Task& task, const TensorMap* map, u32 staging,
                                                   const RowNorm& norm, const EarlyResidual<kOp>& early) {
  using Tile = WgmmaTile<kOp>;
  constexpr OpConfig kConfig = kOps[kOp];
  constexpr int kChunks = kTmaEpilogue ? kConfig.tile_n / kLineColumns : 0;
  constexpr int kGroupsOfChunk = kLineColumns / 8;
  constexpr int kBatch = kResidualsInFlight<kOp> < kGroupsOfChunk ? kResidualsInFlight<kOp> : kGroupsOfChunk;
  if constexpr (kChunks == 0) {
    store_wgmma_tile<kOp>(acc, op, task, norm, early);
  } else {
    const int thread = team_thread(), lane = thread % 32;
    const int column0 = task.tile_n * kConfig.tile_n;
    TileSquares<kOp> squares;
    // The destination of this lane's row of a matrix of 16 rows and two groups of columns; lane 0's is the start of the
    // buffers.
    const u32 place = staging + thread_number() / 32 * (kChunkBuffers * kChunkBytes) + lane % 16 * kLineBytes +
                      (lane / 16 ^ lane % 8) * 16;
#pragma unroll
    for (int block = 0; block < Tile::kBlocks; ++block) {
      const int warp_row = (thread / 128 * Tile::kBlocks + block) * kBlockRows + thread / 32 % 4 * kChunkRows;
      const int row = task.tile_m * kConfig.tile_m + warp_row;
      if (warp_row >= kConfig.tile_m || row >= op.m) continue;
      const TileRow rows[2] = {tile_row<kOp>(op, task, norm, warp_row + lane / 4),
                               tile_row<kOp>(op, task, norm, warp_row + lane / 4 + 8)};
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const int number = block * kChunks + chunk, column = column0 + chunk * kLineColumns;
        const u32 there = place + number % kChunkBuffers * kChunkBytes;
        if (number >= kChunkBuffers) {
          if (lane == 0) bulk_wait_read<kChunkBuffers - 1>();
          __syncwarp();
        }
        if (column < op.n) {
          [[maybe_unused]] u32 residuals[2][kBatch];
#pragma unroll
          for (int half = 0; half < 2; ++half)
            load_residuals<kOp>(residuals[half], kBatch, op, rows[half], column + lane % 4 * 2);
#pragma unroll
          for (int pair = 0; pair < kGroupsOfChunk / 2; ++pair) {
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int group = 2 * pair + i / 2, j = chunk * kGroupsOfChunk + group;
              words[i] = finish_two<kOp>(acc + block * Tile::kBlockSums + i % 2 * 2 + j * 4, op, rows[i % 2],
                                         column0 + j * 8 + lane % 4 * 2, residuals[i % 2][group % kBatch]);
              squares.add(block, i % 2, words[i]);
            }
            stmatrix_x4(there ^ pair * 32, words);
          }
          fence_proxy_async_shared();
          __syncwarp();
          if (lane == 0) store_box<kConfig.output_hint>(map, column, row, there);
        }
        if (lane == 0) bulk_commit();
      }
      if constexpr (kChainOps[kOp].squares && kConfig.tile_n % kLineColumns == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          leave_squares(norm, row + lane / 4 + half * 8, rows[half].is_inside, squares.of_row[block][half]);
      }
    }
    if constexpr (kConfig.tile_n % kLineColumns != 0)
      store_wgmma_tile<kOp, kChunks * kGroupsOfChunk>(acc, op, task, norm, {}, squares);
    if (lane == 0) {
      if (task.post >= 0) {
        bulk_wait<0>();
      } else {
        bulk_wait_read<0>();
      }
    }
    __syncwarp();
  }
}
