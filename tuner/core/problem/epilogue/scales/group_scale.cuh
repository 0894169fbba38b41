// A tile's scales need all of its columns: epilogue_grouped.cuh.
struct GroupScale {
  float* factors;
  int columns;

  __device__ __forceinline__ float operator()(float x, int, int) const { return x; }
};
