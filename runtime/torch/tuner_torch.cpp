// torch.ops.tuner.ffn on a card, in C++: the same as in tuner/runtime/torch_op.py, without Python's overhead.  It is
// optional. `python -m tuner.runtime.torch_compiled` compiles it with PyTorch's own builder and stores the library;
// torch_op.py uses it if it exists. It needs PyTorch's headers, but no CUDA toolkit. The schema, the fake kernel,
// PyTorch's own products and all error messages stay in Python: a call that does not match a prepared FFN exactly is
// passed on to Python.  Python registers the properties of a prepared FFN once, by tuner_torch_register. They include
// addresses of functions of the C runtime, so that a process has only one runtime. A call then looks into a table,
// allocates Y and launches. It may be captured in a graph. The runtime caches the parameters for each set of addresses.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/string_view.h>
#include <torch/library.h>
#include <tuner/tuner.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

extern "C" {
// A prepared FFN as registered from Python; `_Known` in torch_compiled.py has the same fields.
struct tuner_torch_ffn {
  tuner_ffn* const* by_rows;  // the kernel for each number of rows; null if PyTorch's own products compute it
  int64_t num_rows;
  tuner_shape shape;
  tuner_tensors tensors;  // weights, biases and memory for the intermediate
  tuner_status (*launch)(const tuner_launch*);
  const char* (*error)(void);
  int32_t (*current_stream)(int32_t device, void** stream);  // returns 0 on success
  const char* const* activations;  // all names of the shape's activation
  int64_t num_activations;
};
void tuner_torch_register(int64_t number, const tuner_torch_ffn* ffn);
}

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Formula = Tensor(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&,
                       const OptionalTensor&, const OptionalTensor&, c10::string_view, bool, int64_t);

struct Known {
  int64_t number;
  tuner_torch_ffn given;
  std::vector<tuner_ffn*> by_rows;
  std::vector<std::string> activations;
};

std::shared_mutex lock;
// By the addresses of their first weights; FFNs with the same address are in the order of their numbers.
std::unordered_map<const void*, std::vector<std::shared_ptr<const Known>>> known_ffns;

const void* address_of(const OptionalTensor& tensor) { return tensor ? tensor->const_data_ptr() : nullptr; }

bool asks_gradient(const OptionalTensor& tensor) { return tensor && tensor->requires_grad(); }

// Whether the kernel can read a tensor in place; strides matter only if it cannot be copied.
bool is(const OptionalTensor& tensor, at::IntArrayRef shape, at::ScalarType dtype, c10::Device device) {
  return tensor->sizes() == shape && tensor->scalar_type() == dtype && tensor->device() == device;
}

// Whether it is the prepared weight or bias. The address alone is not enough, since another tensor may have it by now.
bool is_same(const OptionalTensor& tensor, const void* address, at::IntArrayRef shape, at::ScalarType dtype,
             c10::Device device) {
  if (!tensor) return address == nullptr;
  return tensor->const_data_ptr() == address && is(tensor, shape, dtype, device) && tensor->is_contiguous();
}

// PyTorch's type for an element type; a value that no tensor has for others, so that PyTorch's own products compute
// these.
at::ScalarType scalar_type(int32_t dtype) {
  switch (dtype) {
    case TUNER_FP16: return at::kHalf;
    case TUNER_BF16: return at::kBFloat16;
    case TUNER_FP8_E4M3: return at::kFloat8_e4m3fn;
    default: return at::ScalarType::Undefined;
  }
}

// The kernel for these operands and options, if they are the prepared ones and valid; otherwise null.
tuner_ffn* kernel_for(const Known& known, const Tensor& x, const Tensor& w1, const Tensor& w2, const OptionalTensor& b1,
                      const OptionalTensor& b2, const OptionalTensor& residual, const OptionalTensor& row_scale,
                      c10::string_view activation, bool gated) {
  const tuner_tensors& own = known.given.tensors;
  const tuner_shape& shape = known.given.shape;
  const auto dtype = scalar_type(shape.dtype);
  const auto device = x.device();
  if (x.dim() != 2 || x.size(0) >= static_cast<int64_t>(known.by_rows.size())) return nullptr;
  const int64_t m = x.size(0), rows = shape.d_hidden * (gated ? int64_t{2} : int64_t{1});
  const bool is_prepared =
      gated == ((shape.flags & TUNER_GATED) != 0) &&
      residual.has_value() == ((shape.flags & TUNER_RESIDUAL) != 0) &&
      row_scale.has_value() == ((shape.flags & TUNER_ROW_SCALE) != 0) &&
      std::find(known.activations.begin(), known.activations.end(), activation) != known.activations.end() &&
      x.size(1) == shape.d_in && x.scalar_type() == dtype &&
      is_same(w1, own.w1, {rows, shape.d_in}, dtype, device) &&
      is_same(w2, own.w2, {shape.d_out, shape.d_hidden}, dtype, device) && is_same(b1, own.b1, {rows}, dtype, device) &&
      is_same(b2, own.b2, {shape.d_out}, dtype, device) && (!residual || is(residual, {m, shape.d_out}, dtype, device)) &&
      (!row_scale || (is(row_scale, {m}, at::kFloat, device) && row_scale->is_contiguous()));
  const bool has_gradient = at::GradMode::is_enabled() &&
                            (x.requires_grad() || w1.requires_grad() || w2.requires_grad() || asks_gradient(b1) ||
                             asks_gradient(b2) || asks_gradient(residual) || asks_gradient(row_scale));
  return is_prepared && !has_gradient ? known.by_rows[m] : nullptr;
}

// Y = FFN(X), enqueued on the current stream.
Tensor launch(const Known& known, tuner_ffn* kernel, const Tensor& given, const OptionalTensor& residual,
              const OptionalTensor& row_scale) {
  const tuner_shape& shape = known.given.shape;
  const c10::DeviceGuard on_its_device(given.device());
  const Tensor x = given.contiguous(), y = at::empty({x.size(0), shape.d_out}, x.options());
  const OptionalTensor added = residual ? OptionalTensor(residual->contiguous()) : std::nullopt;
  tuner_launch one{kernel, nullptr, static_cast<int32_t>(x.size(0)), 0, known.given.tensors};
  one.tensors.x = x.const_data_ptr();
  one.tensors.residual = address_of(added);
  one.tensors.row_scale = static_cast<const float*>(address_of(row_scale));
  one.tensors.y = y.mutable_data_ptr();
  TORCH_CHECK(known.given.current_stream(x.get_device(), &one.stream) == 0, "PyTorch reports no current stream");
  TORCH_CHECK(known.given.launch(&one) == TUNER_OK, known.given.error());
  return y;
}

Tensor ffn(const Tensor& x, const Tensor& w1, const Tensor& w2, const OptionalTensor& b1, const OptionalTensor& b2,
           const OptionalTensor& residual, const OptionalTensor& row_scale, c10::string_view activation, bool gated,
           int64_t number) {
  std::shared_ptr<const Known> chosen;  // the one with this number if it matches, otherwise the last match
  tuner_ffn* kernel = nullptr;
  {
    std::shared_lock guard(lock);
    const auto found = known_ffns.find(w1.const_data_ptr());
    if (found != known_ffns.end())
      for (const auto& known : found->second) {
        if (chosen && chosen->number == number) break;
        if (auto* const fitting = kernel_for(*known, x, w1, w2, b1, b2, residual, row_scale, activation, gated))
          chosen = known, kernel = fitting;
      }
  }
  if (chosen) return launch(*chosen, kernel, x, residual, row_scale);
  static const auto by_torch = c10::Dispatcher::singleton().findSchemaOrThrow("tuner::ffn_by_torch", "").typed<Formula>();
  return by_torch.call(x, w1, w2, b1, b2, residual, row_scale, activation, gated, number);
}

}  // namespace

// Registers an FFN by its weights, with a number that distinguishes it from others with the same weights; null
// unregisters it. Everything in `ffn` is copied.
void tuner_torch_register(int64_t number, const tuner_torch_ffn* ffn) {
  std::shared_ptr<Known> known;
  if (ffn != nullptr) {
    known = std::make_shared<Known>(Known{number,
                                          *ffn,
                                          {ffn->by_rows, ffn->by_rows + ffn->num_rows},
                                          {ffn->activations, ffn->activations + ffn->num_activations}});
    known->given.by_rows = nullptr;  // owned by Python, which frees it, as it does the names
    known->given.activations = nullptr;
  }
  const std::unique_lock guard(lock);
  for (auto of = known_ffns.begin(); of != known_ffns.end();) {
    auto& all = of->second;
    all.erase(std::remove_if(all.begin(), all.end(), [number](const auto& one) { return one->number == number; }), all.end());
    of = all.empty() ? known_ffns.erase(of) : std::next(of);
  }
  if (known) known_ffns[known->given.tensors.w1].push_back(std::move(known));
}

TORCH_LIBRARY_IMPL(tuner, CUDA, library) { library.impl("ffn", &ffn); }
