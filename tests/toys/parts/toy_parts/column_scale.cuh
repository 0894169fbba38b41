// A sum, times the factor of its row of W.
struct ColumnScale {
  const float* factors;

  __device__ __forceinline__ float operator()(float x, int row, int column) const { return x * factors[column]; }
};
