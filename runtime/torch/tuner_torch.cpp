// torch.ops.tuner.ffn on a card, in C++: what tuner/runtime/torch_op.py does there, without the time that Python takes.
//
// It is optional. `python -m tuner.runtime.torch_op` has PyTorch's own builder compile it, and keeps it; torch_op.py uses
// it where it is there. It needs PyTorch's headers and no CUDA toolkit. The schema, the fake kernel and PyTorch's own
// products stay in Python.
//
// What is known of a prepared FFN comes from Python once, by tuner_torch_register: addresses of functions of the C
// runtime among them, so that there is one runtime in a process. A call then looks into a table, asks for memory for Y and
// launches. It may be captured in a graph. The runtime keeps the parameters of each set of addresses packed.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/string_view.h>
#include <torch/library.h>
#include <tuner/tuner.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

extern "C" {
// A prepared FFN as Python tells of it; `_Known` in torch_op.py has the same fields.
struct tuner_torch_ffn {
  tuner_ffn* const* by_rows;  // what computes each number of rows; null where PyTorch's own products do
  int64_t num_rows;
  tuner_shape shape;
  tuner_tensors tensors;  // weights, biases and room for the intermediate
  tuner_status (*launch)(const tuner_launch*);
  const char* (*error)(void);
  int32_t (*current_stream)(int32_t device, void** stream);  // 0 where it has found it
};
void tuner_torch_register(int64_t number, const tuner_torch_ffn* ffn);
}

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Formula = Tensor(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&,
                       const OptionalTensor&, const OptionalTensor&, c10::string_view, bool, int64_t);

struct Known {
  tuner_torch_ffn given;
  std::vector<tuner_ffn*> by_rows;
};

std::shared_mutex lock;
std::vector<std::shared_ptr<const Known>> known_ffns;

std::shared_ptr<const Known> find(int64_t number) {
  std::shared_lock guard(lock);
  return number >= 0 && number < static_cast<int64_t>(known_ffns.size()) ? known_ffns[number] : nullptr;
}

const void* address_of(const OptionalTensor& tensor) { return tensor ? tensor->const_data_ptr() : nullptr; }

// The number of an activation in tuner.h; -1 for one that is not there.
int32_t activation_of(c10::string_view name) {
  constexpr c10::string_view kNames[] = {"identity", "relu", "gelu", "silu"};
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  return found == std::end(kNames) ? -1 : static_cast<int32_t>(found - std::begin(kNames));
}

void check_inference(std::initializer_list<const Tensor*> operands) {
  if (!at::GradMode::is_enabled()) return;
  for (const Tensor* one : operands)
    TORCH_CHECK_NOT_IMPLEMENTED(one == nullptr || !one->requires_grad(),
                                "tuner::ffn has no gradient: call it under torch.inference_mode() or torch.no_grad()");
}

const Tensor* pointer_to(const OptionalTensor& tensor) { return tensor ? &*tensor : nullptr; }

// The kernel for these rows, where the operands and options are those that were prepared; else null.
tuner_ffn* kernel_for(const Known& known, int64_t rows, const Tensor& w1, const Tensor& w2, const OptionalTensor& b1,
                      const OptionalTensor& b2, bool has_residual, bool has_row_scale, c10::string_view activation,
                      bool gated) {
  const tuner_tensors& own = known.given.tensors;
  const tuner_shape& shape = known.given.shape;
  const bool is_prepared = own.w1 == w1.const_data_ptr() && own.w2 == w2.const_data_ptr() && own.b1 == address_of(b1) &&
                           own.b2 == address_of(b2) && shape.activation == activation_of(activation) &&
                           gated == ((shape.flags & TUNER_GATED) != 0) &&
                           has_residual == ((shape.flags & TUNER_RESIDUAL) != 0) &&
                           has_row_scale == ((shape.flags & TUNER_ROW_SCALE) != 0);
  return is_prepared && rows < static_cast<int64_t>(known.by_rows.size()) ? known.by_rows[rows] : nullptr;
}

// Y = FFN(X), enqueued on the current stream.
Tensor launch(const Known& known, tuner_ffn* kernel, const Tensor& given, const OptionalTensor& residual,
              const OptionalTensor& row_scale) {
  const tuner_shape& shape = known.given.shape;
  const auto dtype = shape.dtype == TUNER_BF16 ? at::kBFloat16 : at::kHalf;
  TORCH_CHECK(given.size(1) == shape.d_in && given.scalar_type() == dtype, "x is ", given.sizes(), " of ",
              given.scalar_type(), ": give [m, ", shape.d_in, "] of ", dtype, ", as the weights are");
  TORCH_CHECK(!row_scale || (row_scale->scalar_type() == at::kFloat && row_scale->is_contiguous()),
              "row_scale must be contiguous and of float32: give one factor for each row");
  const c10::DeviceGuard on_its_device(given.device());
  const Tensor x = given.contiguous(), y = at::empty({x.size(0), shape.d_out}, x.options());
  const OptionalTensor added = residual ? OptionalTensor(residual->contiguous()) : std::nullopt;
  tuner_launch one{kernel, nullptr, static_cast<int32_t>(x.size(0)), 0, known.given.tensors};
  one.tensors.x = x.const_data_ptr();
  one.tensors.residual = address_of(added);
  one.tensors.row_scale = static_cast<const float*>(address_of(row_scale));
  one.tensors.y = y.mutable_data_ptr();
  TORCH_CHECK(known.given.current_stream(x.get_device(), &one.stream) == 0, "PyTorch tells no current stream");
  TORCH_CHECK(known.given.launch(&one) == TUNER_OK, known.given.error());
  return y;
}

Tensor ffn(const Tensor& x, const Tensor& w1, const Tensor& w2, const OptionalTensor& b1, const OptionalTensor& b2,
           const OptionalTensor& residual, const OptionalTensor& row_scale, c10::string_view activation, bool gated,
           int64_t number) {
  TORCH_CHECK_VALUE(x.dim() == 2, "x has ", x.dim(), " dimensions: give [m, d_in], e.g. x.view(-1, x.shape[-1])");
  check_inference({&x, &w1, &w2, pointer_to(b1), pointer_to(b2), pointer_to(residual), pointer_to(row_scale)});
  if (const auto known = find(number)) {
    tuner_ffn* kernel = kernel_for(*known, x.size(0), w1, w2, b1, b2, residual.has_value(), row_scale.has_value(),
                                   activation, gated);
    if (kernel != nullptr) return launch(*known, kernel, x, residual, row_scale);
  }
  static const auto by_torch = c10::Dispatcher::singleton().findSchemaOrThrow("tuner::ffn_by_torch", "").typed<Formula>();
  return by_torch.call(x, w1, w2, b1, b2, residual, row_scale, activation, gated, number);
}

}  // namespace

// From now on the operator knows an FFN by this number; null: it knows it no more. `ffn` and `by_rows` are copied.
void tuner_torch_register(int64_t number, const tuner_torch_ffn* ffn) {
  std::shared_ptr<Known> known;
  if (ffn != nullptr) {
    known = std::make_shared<Known>(Known{*ffn, {ffn->by_rows, ffn->by_rows + ffn->num_rows}});
    known->given.by_rows = nullptr;  // Python's, which it frees
  }
  const std::unique_lock guard(lock);
  if (number >= static_cast<int64_t>(known_ffns.size())) known_ffns.resize(number + 1);
  known_ffns[number] = std::move(known);
}

TORCH_LIBRARY_IMPL(tuner, CUDA, library) { library.impl("ffn", &ffn); }
