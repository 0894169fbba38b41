// The operand is made of whole tiles: group_scale_wgmma.cuh.
struct GroupOperand {
  const float* factors;
  Element::Bits* values;
  float* scales;
  int columns;

  __device__ __forceinline__ float operator()(float x, int, int) const { return x; }
};
