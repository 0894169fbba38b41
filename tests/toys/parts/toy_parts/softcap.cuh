// cap * tanh(x / cap), where (1 + tanh z) / 2 is the logistic function of 2 z.
struct Softcap {
  float cap;

  __device__ __forceinline__ float operator()(float x, int, int) const {
    return times_logistic(2.0f * cap, 2.0f * x / cap) - cap;
  }
};
