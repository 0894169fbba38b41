// A CUDA context and zeroed memory, through the driver library; a program that links CUDA gets both its own way.
#pragma once
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

class Device {
 public:
  Device() {
    const char* named = std::getenv("TUNER_LIBCUDA");
    library_ = dlopen(named != nullptr ? named : "libcuda.so.1", RTLD_NOW);
    if (library_ == nullptr) throw std::runtime_error("there is no NVIDIA driver here");
    int device = 0;
    void* context = nullptr;
    call<int(unsigned)>("cuInit", 0u);
    call<int(int*, int)>("cuDeviceGet", &device, 0);
    call<int(void**, int)>("cuDevicePrimaryCtxRetain", &context, device);
    call<int(void*)>("cuCtxSetCurrent", context);
  }
  // Memory stays until the program ends.
  void* zeros(std::size_t num_bytes) const {
    std::uint64_t address = 0;
    call<int(std::uint64_t*, std::size_t)>("cuMemAlloc_v2", &address, num_bytes);
    call<int(std::uint64_t, unsigned char, std::size_t)>("cuMemsetD8_v2", address, '\0', num_bytes);
    return reinterpret_cast<void*>(address);
  }
  void wait() const { call<int()>("cuCtxSynchronize"); }

 private:
  template <class Signature, class... Values>
  void call(const char* name, Values... values) const {
    const auto function = reinterpret_cast<Signature*>(dlsym(library_, name));
    if (function == nullptr || function(values...) != 0) throw std::runtime_error(std::string(name) + " failed");
  }
  void* library_;
};
