// The constants of one attention kernel. A generated source puts its own values before this (and defines
// TUNER_ATTENTION_CONFIG); this default lets each file compile alone.
//
// Words. A column is a query of a KV head: one new token of one of the query heads that share it. A tile is some tokens
// of the cache that arrive together. A span is whole tiles, the part of a context that one task reads. The CTAs of a
// cluster take its tiles in turn; a chunk is one CTA's part of the longest span. A slice is the 16 tokens of a tile
// that one warp multiplies.
#pragma once
#include "config.cuh"

#ifndef TUNER_ATTENTION_CONFIG
#define TUNER_ATTENTION_CONFIG
constexpr int kHeadDim = 128;
constexpr int kColumns = 8;      // columns of a task: 8 or 16; those without queries stay zero
constexpr int kLiveColumns = 8;  // maximum columns with a query in any task
constexpr int kTileTokens = 64;
constexpr int kStages = 6;  // stages of the ring: each holds a tile of K and its tile of V
constexpr int kMathWarps = 8;
constexpr int kFinishWarps = 4;   // finish a task while math warps begin the next; 0: math warps finish it
constexpr bool kByCopyEngine = true;  // how cache and queries are loaded: copies_tma.cuh, otherwise copies_mma.cuh
constexpr int kCluster = 1;       // CTAs that share a task
constexpr int kPartsAtOnce = 16;  // loads of a sum over spans that are in flight together
constexpr int kBoxTokens = 64;    // tokens per copy: a tile, or a page if pages are smaller
constexpr bool kIsPaged = false;
constexpr bool kHasWindow = false;
constexpr bool kHasSoftCap = false;
constexpr bool kBoundsWaits = true;  // otherwise a wait may last forever: only for timing
constexpr bool kLengthsOnce = false;  // whether one warp of a CTA reads the lengths, for both loading warps
constexpr int kTracedTasks = 0;  // tasks per CTA that a traced build stamps
constexpr int kBoundThreads = 512;  // threads among which an SM's registers are divided
#define TUNER_ATTENTION_CLUSTER
#endif

constexpr int kSliceTokens = 16;
constexpr int kSliceWarps = kTileTokens / kSliceTokens;  // warps of a team, which multiply a tile together
constexpr int kTeams = kMathWarps / kSliceWarps;         // teams take a task's tiles in turn
constexpr int kMathThreads = 32 * kMathWarps;
constexpr int kFinishThreads = kFinishWarps == 0 ? kMathThreads : 32 * kFinishWarps;
constexpr int kRequester = kMathThreads + 32 * kFinishWarps;  // the first of the requesting threads
constexpr int kRequestWarps = kByCopyEngine ? 1 : 2;          // one for keys and values, or one for each
constexpr int kReaderWarps = kLengthsOnce ? 1 : kRequestWarps;  // warps per CTA that read lengths
constexpr int kAttentionThreads = kRequester + 32 * kRequestWarps;
static_assert(kAttentionThreads <= kBoundThreads, "the kernel is compiled for at least this many threads");
constexpr int kColumnGroups = kColumns / 8;
constexpr int kDimSteps = kHeadDim / 16;
constexpr int kLineDims = 64;  // elements per 128 bytes, the swizzle's width
constexpr int kTileBytes = 2 * kTileTokens * kHeadDim;
constexpr int kStageBytes = 2 * kTileBytes;  // K, then V
constexpr int kBoxes = kTileTokens / kBoxTokens;
constexpr int kBoxBytes = 2 * kBoxTokens * kHeadDim;

static_assert(kHeadDim == 64 || kHeadDim == 128, "the head size is 64 or 128");
static_assert(kLiveColumns >= 1 && kLiveColumns <= kColumns, "between one and all columns of a task are queries");
static_assert(kCluster == 1 || kCluster == 2 || kCluster == 4 || kCluster == 8 || kCluster == 16,
              "a cluster has 1, 2, 4, 8 or 16 CTAs");
static_assert(kByCopyEngine || kCluster == 1, "clusters require TMA");
static_assert(kColumns == 8 || kColumns == 16,
              "a task has 8 or 16 columns; the accumulators of more would not fit into registers");
// Otherwise teams would share a stage: one might be a phase behind the other, and a parity does not distinguish phases
// that differ by two.
static_assert(kStages % kTeams == 0, "each stage belongs to one team");
static_assert(kTileTokens % kBoxTokens == 0 && kBoxTokens % kSliceTokens == 0, "a slice is within one box");
static_assert(kIsPaged || kBoxes == 1, "a tile of a contiguous cache is one box");
static_assert(kMathWarps % kSliceWarps == 0 && kTileTokens % kSliceTokens == 0,
              "the warps form whole teams, and a tile has whole slices");
