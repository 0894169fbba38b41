// Stores the result a second time, times a factor of its column, as the next products read it. Each element is a
// separate store, since there are few rows.
struct Operand {
  const float* factors;
  Element::Bits* values;
  int columns;

  __device__ __forceinline__ float operator()(float x, int row, int column) const {
    values[static_cast<long long>(row) * columns + column] = static_cast<Element::Bits>(Element::narrow(x * factors[column]));
    return x;
  }
};
