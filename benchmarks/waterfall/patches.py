"""Modified kernels: the rendered source of a kernel with changed lines, built and launched in the same way.

Kernels that omit work compute wrong results, and are only timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.errors import TunerError
from tuner.workers.builder.nvrtc import Builder, Built, build_key


class PatchError(TunerError):
    """A patch does not fit the source; the message says where."""


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A text in a source, and its replacement."""

    #: The text as written by the renderer; it must occur in each source.
    before: str
    after: str

    def applied(self, source: str) -> str:
        """`source` with every occurrence of `before` replaced.

        Raises:
            PatchError: it does not occur.
        """
        if self.before not in source:
            raise PatchError(f"the source has no {self.before!r}: update the patch for the changed kernel")
        return source.replace(self.before, self.after)


class PatchingBuilder:
    """Builds sources with patches under the names of the unpatched ones, so that plans are tied to them."""

    def __init__(self, builder: Builder, patches: Sequence[Patch]) -> None:
        self._builder = builder
        self._patches = patches

    def build(self, source: str, arch: str) -> Built:
        """Builds `source` with all patches.

        Raises:
            PatchError: one does not fit.
            BuildError: it does not compile.
        """
        patched = source
        for patch in self._patches:
            patched = patch.applied(patched)
        built = self._builder.build(patched, arch)
        return replace(built, key=build_key(source, arch, built.compiler))


_INPUT_STAGE = "  mbarrier_arrive_expect(full, kConfig.tile_m * kConfig.tile_k * kElementBytes);\n"
_WEIGHT_STAGE = "  mbarrier_arrive_expect(full, kCodeBytes + kLists * kHalves * list_bytes);\n"
_PRODUCT = "            Wgmma<kColumns>::multiply("
_NEVER = "if (shared.flags->aborted == 2) "
_STORES = ("sum_and_store<kOp>(acc,", "store_transposed_tile<kOp>(acc,", "store_or_copy_tile<kOp>(acc,")


def _without(requested: str) -> Patch:
    return Patch(
        before=requested, after=f"  if (kNumOps > 0) {{\n    mbarrier_arrive(full);\n    return;\n  }}\n{requested}"
    )


#: The changes for each way to omit work. Barriers, signals and posts are kept. A store that never happens keeps the
#: sums alive.
NO_INPUTS = (_without(_INPUT_STAGE),)
NO_WEIGHTS = (_without(_WEIGHT_STAGE),)
NO_PRODUCTS = (Patch(before=_PRODUCT, after="            if (left < 0) Wgmma<kColumns>::multiply("),)
NO_EPILOGUE = tuple(Patch(before=f"      {store}", after=f"      {_NEVER}{store}") for store in _STORES)
_STEPS = "  const int all = (op.k + kOps[kOp].tile_k - 1) / (is_own_task(kOp) ? 1 : kOps[kOp].tile_k);\n"
NO_STEPS = (Patch(before=_STEPS, after=f"{_STEPS}  if (kNumOps > 0) return {{0, 1, 0}};\n"),)
LEFT_OUT = {
    "no inputs": NO_INPUTS,
    "no weights": NO_WEIGHTS,
    "no products": NO_PRODUCTS,
    "no epilogue": NO_EPILOGUE,
    "products alone": (*NO_INPUTS, *NO_WEIGHTS, *NO_EPILOGUE),
    "loads alone": (*NO_PRODUCTS, *NO_EPILOGUE),
    "barriers alone": (*NO_INPUTS, *NO_WEIGHTS, *NO_PRODUCTS, *NO_EPILOGUE),
    "nothing": (*NO_INPUTS, *NO_WEIGHTS, *NO_STEPS, *NO_EPILOGUE),
}
