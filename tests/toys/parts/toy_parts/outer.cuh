// An element, plus what its column has times what its row brings.
struct Outer {
  const float* columns;
  const Element::Bits* rows;

  __device__ __forceinline__ float operator()(float x, int row, int column) const {
    return x + columns[column] * Element::widen(rows[row]);
  }
};
