// Stores the result a second time, multiplied by its column's factor, as the next products read it. Each element is
// stored separately, since there are few rows.
struct Operand {
  const float* factors;
  Element::Bits* values;
  int columns;

  __device__ __forceinline__ float operator()(float x, int row, int column) const {
    values[static_cast<long long>(row) * columns + column] = static_cast<Element::Bits>(Element::narrow(x * factors[column]));
    return x;
  }
};
