"""Changes of kernels that convert weights, as patches; they compute the same."""

from __future__ import annotations

from benchmarks.waterfall.patches import Patch

#: With wgmma, a stage's first span is converted after the products of the previous stage, not during its last ones.
LATE = (
    Patch(
        before="    if (num_steps > 0) begin();\n#pragma unroll 1\n"
        "    for (int left = num_steps; left > 0; --left) {\n",
        after="#pragma unroll 1\n    for (int left = num_steps; left > 0; --left) {\n      begin();\n",
    ),
    Patch(before="          if (left > 1) begin();\n", after=""),
)

#: A known first task's weights are requested at the rate of the memory, not all at once: the first inputs queue behind
#: few of them. (17 bytes per clock and SM are 4.4 TB/s.)
PACED = (
    Patch(
        before="  request_weights(args, as_task(known), 0, requested, shared.weights, place, window, policy);\n",
        after="""  constexpr int kAtOnce = kWeightStageBytes > 24 * 1024 ? 2 : 3;
  const long long begun = clock64();
#pragma unroll 1
  for (int step = 0; step < requested; ++step) {
    while (clock64() - begun < (step - kAtOnce) * (kWeightStageBytes / 17LL)) {
    }
    request_weights(args, as_task(known), step, 1, shared.weights, place, window, policy);
  }
""",
    ),
)

_RELEASED = "      stages.release_before(places, lane);\n    }\n#pragma unroll\n    for (int turn"
_ABORTED = "      if (shared.flags->aborted != 0) Tile::fill(acc, __int_as_float(0x7FFFFFFF));\n      const auto ready"
_LOOP = "#pragma unroll 1\n    for (int left = num_steps; left > 0; --left) {\n"
#: With mma.sync, a span is loaded before the previous one is multiplied, also the first span of a task's next stage.
EARLY_SPANS = (
    Patch(
        before=f"{_LOOP}      stages.wait_filled(places);\n"
        "      const int slot = places.weight.slot(), input_slot = places.input_slot();\n",
        after=f"""    u32 words[kSpans][kBlocks][4];
    Inputs inputs[kSpans];
    const auto load_span = [&](int span) {{
      load_inputs(inputs[span], input_rows, places.input_slot(), span);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
        ldmatrix_x4(words[span][block], rows.of(places.weight.slot(), block, span));
    }};
    if (num_steps > 0) {{
      stages.wait_filled(places);
      load_span(0);
    }}
{_LOOP}      const int slot = places.weight.slot();
""",
    ),
    Patch(
        before="        Inputs inputs;\n        load_inputs(inputs, input_rows, input_slot, span);\n",
        after="""        if (span < kSpans - 1) {
          load_span(span + 1);
        } else {
          places.advance();
          if (left > 1) {
            stages.wait_filled(places);
            load_span(0);
          }
        }
""",
    ),
    Patch(
        before="          load(fragments, rows, slot, span, block, bundle);\n",
        after="          load(fragments, words[span][block], span, block, bundle);\n",
    ),
    Patch(
        before="    u32 words[4];  // 8 rows and the next 8, for 16 bytes of k and for the next 16\n"
        "    ldmatrix_x4(words, rows.of(slot, block, span));\n",
        after="""    u32 words[4];
    ldmatrix_x4(words, rows.of(slot, block, span));
    load(fragments, words, span, block, bundle);
  }
  __device__ static __forceinline__ void load(Fragments& fragments, const u32 (&words)[4], int span, int block,
                                              const Bundle& bundle) {
""",
    ),
    Patch(before="fragments[slice], inputs[slice][eight]);", after="fragments[slice], inputs[span][slice][eight]);"),
    Patch(before=f"      places.advance();\n{_RELEASED}", after=_RELEASED),
)

_GROUPS_SPANS = "team_group() * kOwnSpans"
#: With mma.sync and two warpgroups, each multiplies all rows of weights, for half of a stage's k, and the second one
#: gives its sums to the first, which stores the tile: an input is loaded once per block of 64 rows instead of twice.
#: With eight warps, tiles of up to 64 rows would be possible. A stage has at least two spans, of whole groups.
SHARED_K = (
    Patch(
        before="return (shared_rows(op) + kBlockRows * kTeamGroups - 1) / (kBlockRows * kTeamGroups);",
        after="return (shared_rows(op) + kBlockRows - 1) / kBlockRows;",
    ),
    Patch(
        before="kHolders = kBlocks == 1 ? 2 * kSharedRows : kTeamThreads;",
        after="kHolders = kBlocks == 1 ? 2 * kSharedRows : 128;",
    ),
    Patch(
        before="  // Columns of a group, and the number",
        after="  enum : int { kOwnSpans = kSpans / kTeamGroups };\n  // Columns of a group, and the number",
    ),
    Patch(
        before="begin = ring + (team_group() * kBlocks * kBlockRows + warp * 16 + lane % 16) * kLineBytes;\n"
        "      place = (lane / 16 ^ lane % 8) * 16;",
        after=f"const int first = {_GROUPS_SPANS};\n"
        "      begin = ring + (first / kLineSpans * Tile::kSharedRows + warp * 16 + lane % 16) * kLineBytes;\n"
        "      place = (lane / 16 ^ lane % 8) * 16 ^ first % kLineSpans * 32;",
    ),
    Patch(
        before="begin = ring + lane % 8 * kLineBytes;\n      place = (lane / 8 ^ lane % 8) * 16;",
        after=f"const int first = {_GROUPS_SPANS} * kSpan;\n"
        "      begin = ring + (first / kLineColumns * kColumns + lane % 8) * kLineBytes;\n"
        "      place = (lane / 8 ^ lane % 8) * 16 ^ first % kLineColumns / 8 * 16;",
    ),
    Patch(
        before="const u32 first = team_group() * kBlocks * kBlockRows + team_thread()",
        after="const u32 first = team_thread()",
    ),
    Patch(before=" + number * kLists", after=f" + (number + {_GROUPS_SPANS} / kBundleSpans) * kLists"),
    Patch(
        before="kFactorBytes * group &",
        after=f"kFactorBytes * (group + {_GROUPS_SPANS} % kBundleSpans * kSpan / kGroup) &",
    ),
    Patch(before="for (int span = 0; span < kSpans; ++span) {", after="for (int span = 0; span < kOwnSpans; ++span) {"),
    Patch(
        before="      multiply_by_sync(acc, num_steps, stages, places);\n",
        after="      multiply_by_sync(acc, num_steps, stages, places);\n      give_sums(acc, kNumSums);\n",
    ),
    Patch(
        before="template <int kOp>\nstruct Converted {",
        after="""struct GivenSums {
  float of[kMaxWgmmaAccumulators * 128];
};
__device__ __forceinline__ void give_sums(float (&acc)[kMaxWgmmaAccumulators], int count) {
  __shared__ GivenSums given;
  float* const own = given.of + thread_number() % 128;
  if (team_group() == 1) {
#pragma unroll
    for (int i = 0; i < count; ++i) own[i * 128] = acc[i];
  }
  barrier_sync<256>(14);
  if (team_group() == 0) {
#pragma unroll
    for (int i = 0; i < count; ++i) acc[i] += own[i * 128];
  }
  barrier_sync<256>(14);
}

template <int kOp>
struct Converted {""",
    ),
    Patch(
        before=_ABORTED,
        after=f"      if (team_group() != 0) return true;\n{_ABORTED}",
    ),
)
