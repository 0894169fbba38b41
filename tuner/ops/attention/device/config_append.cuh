// The constants of one append kernel. A generated source puts its own values before this (and defines
// TUNER_APPEND_CONFIG); this default lets each file compile alone.
#pragma once
#include "config.cuh"

#ifndef TUNER_APPEND_CONFIG
#define TUNER_APPEND_CONFIG
constexpr int kHeadDim = 128;
constexpr int kAppendThreads = 128;
constexpr int kPageTokens = 0;  // tokens per page of the cache; 0 if it is contiguous
[[maybe_unused]] constexpr bool kHeadsFirst = true;
#endif

static_assert(kHeadDim == 64 || kHeadDim == 128, "the head size is 64 or 128");
