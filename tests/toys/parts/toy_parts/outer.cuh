// An element, plus the product of its column's factor and its row's factor.
struct Outer {
  const float* columns;
  const Element::Bits* rows;

  __device__ __forceinline__ float operator()(float x, int row, int column) const {
    return x + columns[column] * Element::widen(rows[row]);
  }
};
