// The C runtime for C++17: owners of packs and of prepared FFNs, and exceptions for failures. Header only.
#ifndef TUNER_TUNER_HPP
#define TUNER_TUNER_HPP

#include <tuner/tuner.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace tuner {

// A call failed; `what` is the runtime's sentence.
class Error : public std::runtime_error {
 public:
  explicit Error(tuner_status failed) : std::runtime_error(tuner_error()), status(failed) {}
  const tuner_status status;
};

inline tuner_status checked(tuner_status status) {
  if (status < 0) throw Error(status);
  return status;
}

// The pack's choice for a shape and a number of rows: a kernel or the library.
struct Choice : tuner_choice {
  bool is_kernel = false;
};

// A prepared kernel, which only one thread and one stream may use at a time. The pack must outlive it.
class Ffn {
 public:
  Ffn(tuner_pack* pack, const Choice& choice, void* memory, void* stream, std::uint32_t flags, std::uint32_t num_cached) {
    tuner_ffn* made = nullptr;
    checked(tuner_ffn_prepare(pack, &choice, memory, stream, flags, num_cached, &made));
    ffn_.reset(made);
  }
  // Enqueues the launches; may be captured in a graph.
  void launch(int m, const tuner_tensors& tensors, void* stream, std::uint32_t flags = 0) {
    checked(tuner_ffn_launch(ffn_.get(), m, &tensors, stream, flags));
  }
  // Why a launch was aborted since the last reset, if one was; does not call the driver.
  std::optional<tuner_abort_record> aborted() const {
    tuner_abort_record record;
    if (checked(tuner_abort_poll(ffn_.get(), &record)) != TUNER_ABORTED) return std::nullopt;
    return record;
  }
  void reset(void* stream) { checked(tuner_reset(ffn_.get(), stream)); }

 private:
  struct Release {
    void operator()(tuner_ffn* ffn) const { tuner_ffn_release(ffn); }
  };
  std::unique_ptr<tuner_ffn, Release> ffn_;
};

// The pack's choice for an attention, a number of sequences and a context: kernels or the library.
struct AttentionChoice : tuner_attention_choice {
  bool is_kernel = false;
};

// A prepared attention, with the projection after it if its shape has one. Only one thread and one stream may use it at
// a time. All layers of a model may share it. The pack must outlive it.
class Attention {
 public:
  Attention(tuner_pack* pack, const AttentionChoice& choice, void* memory, void* stream, std::uint32_t num_cached) {
    tuner_attention* made = nullptr;
    checked(tuner_attention_prepare(pack, &choice, memory, stream, num_cached, &made));
    attention_.reset(made);
  }
  // Enqueues the launches; may be captured in a graph.
  void launch(const tuner_attention_tensors& tensors, void* stream, std::uint32_t flags = 0) {
    checked(tuner_attention_launch(attention_.get(), &tensors, stream, flags));
  }
  // The first invalid input of a launch since the last reset, if there was one; waits for the stream.
  std::optional<tuner_attention_refusal> refused(void* stream) const {
    tuner_attention_refusal found;
    if (checked(tuner_attention_refused(attention_.get(), stream, &found)) != TUNER_ABORTED) return std::nullopt;
    return found;
  }
  void reset(void* stream) { checked(tuner_attention_reset(attention_.get(), stream)); }

 private:
  struct Release {
    void operator()(tuner_attention* attention) const { tuner_attention_release(attention); }
  };
  std::unique_ptr<tuner_attention, Release> attention_;
};

// The pack's choice for a layer, a number of sequences and a context: kernels or the library.
struct LayerChoice : tuner_attention_choice {
  bool is_kernel = false;
};

// A prepared layer: products around an attention. It is used like an Attention, but its tensors have names.
class Layer {
 public:
  Layer(tuner_pack* pack, const LayerChoice& choice, void* memory, void* stream, std::uint32_t num_cached) {
    tuner_layer* made = nullptr;
    checked(tuner_layer_prepare(pack, &choice, memory, stream, num_cached, &made));
    layer_.reset(made);
    tuner_layer_tensor tensor;
    for (std::uint32_t i = 0; checked(tuner_layer_tensor_at(pack, &choice, i, &tensor)) == TUNER_OK; ++i)
      tensors_.push_back(tensor);
  }
  // The tensors that a launch takes, in order.
  const std::vector<tuner_layer_tensor>& tensors() const { return tensors_; }
  // The position of a tensor among them.
  std::size_t place(const std::string& name) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (name == tensors_[i].name) return i;
    throw std::out_of_range("the layer has no tensor " + name);
  }
  // Enqueues the launches; may be captured in a graph. `num_pages`: the pages of a paged cache.
  void launch(const std::vector<const void*>& addresses, void* stream, std::int64_t num_pages = 0,
              std::uint32_t flags = 0) {
    const tuner_layer_tensors given = {addresses.data(), static_cast<std::uint32_t>(addresses.size()), num_pages};
    checked(tuner_layer_launch(layer_.get(), &given, stream, flags));
  }
  // The same for a chain without an attention, with `m` rows.
  void launch_rows(int m, const std::vector<const void*>& addresses, void* stream, std::uint32_t flags = 0) {
    const tuner_layer_tensors given = {addresses.data(), static_cast<std::uint32_t>(addresses.size()), 0};
    checked(tuner_layer_launch_rows(layer_.get(), m, &given, stream, flags));
  }
  // The first invalid input of a launch since the last reset, if there was one; waits for the stream.
  std::optional<tuner_attention_refusal> refused(void* stream) const {
    tuner_attention_refusal found;
    if (checked(tuner_layer_refused(layer_.get(), stream, &found)) != TUNER_ABORTED) return std::nullopt;
    return found;
  }
  void reset(void* stream) { checked(tuner_layer_reset(layer_.get(), stream)); }

 private:
  struct Release {
    void operator()(tuner_layer* layer) const { tuner_layer_release(layer); }
  };
  std::unique_ptr<tuner_layer, Release> layer_;
  std::vector<tuner_layer_tensor> tensors_;
};

class Pack {
 public:
  explicit Pack(const std::string& path) {
    tuner_pack* opened = nullptr;
    checked(tuner_pack_open(path.c_str(), &opened));
    pack_.reset(opened);
  }
  // Opens a pack whose bytes stay where they are, such as those of tuner_add_pack.
  Pack(const void* bytes, std::size_t num_bytes) {
    tuner_pack* opened = nullptr;
    checked(tuner_pack_open_bytes(bytes, num_bytes, &opened));
    pack_.reset(opened);
  }
  // Throws if the kernels do not run on the device; returns false if their speed was measured on a different card.
  bool check(int device) const { return checked(tuner_pack_check(pack_.get(), device)) == TUNER_OK; }
  tuner_shape shape(std::uint32_t index) const {
    tuner_shape found;
    if (tuner_pack_shape(pack_.get(), index, &found, nullptr) != TUNER_OK) throw std::out_of_range("no such shape");
    return found;
  }
  Choice find(const tuner_shape& shape, int m) const {
    Choice choice;
    choice.is_kernel = checked(tuner_ffn_find(pack_.get(), &shape, m, &choice)) == TUNER_OK;
    return choice;
  }
  // `memory`: choice.memory_bytes of device memory, at a multiple of 256.
  Ffn prepare(const Choice& choice, void* memory, void* stream, std::uint32_t flags = 0, std::uint32_t num_cached = 0) {
    return Ffn(pack_.get(), choice, memory, stream, flags, num_cached);
  }
  tuner_attention_shape attention(std::uint32_t index) const {
    tuner_attention_shape found;
    if (tuner_pack_attention(pack_.get(), index, &found, nullptr) != TUNER_OK) throw std::out_of_range("no such attention");
    return found;
  }
  AttentionChoice find(const tuner_attention_shape& shape, int sequences, int length) const {
    AttentionChoice choice;
    choice.is_kernel = checked(tuner_attention_find(pack_.get(), &shape, sequences, length, &choice)) == TUNER_OK;
    return choice;
  }
  Attention prepare(const AttentionChoice& choice, void* memory, void* stream, std::uint32_t num_cached = 0) {
    return Attention(pack_.get(), choice, memory, stream, num_cached);
  }
  tuner_layer_shape layer(std::uint32_t index) const {
    tuner_layer_shape found;
    if (tuner_pack_layer(pack_.get(), index, &found, nullptr) != TUNER_OK) throw std::out_of_range("no such layer");
    return found;
  }
  LayerChoice find_layer(std::uint32_t index, int sequences, int length) const {
    LayerChoice choice;
    choice.is_kernel = checked(tuner_layer_find(pack_.get(), index, sequences, length, &choice)) == TUNER_OK;
    return choice;
  }
  Layer prepare(const LayerChoice& choice, void* memory, void* stream, std::uint32_t num_cached = 0) {
    return Layer(pack_.get(), choice, memory, stream, num_cached);
  }

 private:
  struct Close {
    void operator()(tuner_pack* pack) const { tuner_pack_close(pack); }
  };
  std::unique_ptr<tuner_pack, Close> pack_;
};

}  // namespace tuner
#endif
