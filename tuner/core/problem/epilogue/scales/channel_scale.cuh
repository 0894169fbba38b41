// Multiplies a sum by the factor of its row of W.
struct ChannelScale {
  const float* factors;

  __device__ __forceinline__ float operator()(float x, int, int channel) const { return x * factors[channel]; }
};
