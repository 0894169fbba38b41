// An operator that only allocates its output: the minimum host time of any operator with this schema.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/string_view.h>
#include <torch/library.h>

#include <optional>

namespace {
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor empty(const Tensor& x, const Tensor&, const Tensor& w2, const OptionalTensor&, const OptionalTensor&,
             const OptionalTensor&, const OptionalTensor&, c10::string_view, bool, int64_t) {
  return at::empty({x.size(0), w2.size(0)}, x.options());
}
}  // namespace

TORCH_LIBRARY(tuner_bench, library) {
  library.def(
      "empty(Tensor x, Tensor w1, Tensor w2, Tensor? b1, Tensor? b2, Tensor? residual, Tensor? row_scale, "
      "str activation, bool gated, int number) -> Tensor");
}
TORCH_LIBRARY_IMPL(tuner_bench, CUDA, library) { library.impl("empty", &empty); }
