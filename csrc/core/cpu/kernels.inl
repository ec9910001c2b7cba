// The kernels of one instruction set, in namespace GPUREDUCE_ISA: plain loops for the compiler to vectorise. A source file
// includes this at its end, after a pragma that enables the instruction set for all following code. So nothing here may be
// shared with other files: no std::, only always-inline functions from the headers, and all other code in an unnamed namespace.
// The files of kernels/ are parts of this one, in this namespace.

#ifdef __clang__
#pragma clang fp contract(off)  // other compilers are told by setup.py
#define GPUREDUCE_UNROLL _Pragma("unroll")
#define GPUREDUCE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")  // what iterations write, no other reads
#else
#define GPUREDUCE_UNROLL _Pragma("GCC unroll 32")
#define GPUREDUCE_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace gpureduce::cpu::GPUREDUCE_ISA {
namespace {

constexpr int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// clang-format off: each uses those before it
#include "kernels/vectors.inl"
#include "kernels/gather.inl"
#include "kernels/columns.inl"
#include "kernels/joins.inl"
#include "kernels/rows.inl"
#include "kernels/pieces.inl"
#include "kernels/tasks.inl"
#include "kernels/exact.inl"
#include "kernels/row_functions.inl"
// clang-format on

// The kernel for accumulators that are no sums, and for maps other than value and nonzero.
constexpr Kernel mapped_kernel_of(Accumulator accumulator) {
  switch (accumulator) {
    case Accumulator::f32: return sum_in_order<Unknown, float>;
    case Accumulator::f64: return sum_in_order<Unknown, double>;
    case Accumulator::largest_f32: return join_in_any_order<Largest<float>, float>;
    case Accumulator::largest_f64: return join_in_any_order<Largest<double>, double>;
    case Accumulator::product_i64: return join_in_any_order<Product<uint64_t>, uint64_t>;
    case Accumulator::product_f32: return join_in_order<Product<float>, float>;
    case Accumulator::product_f64: return join_in_order<Product<double>, double>;
    default: return nullptr;
  }
}

// Integers share kernels. Counts have one per size, for bool too. Sums of 64-bit integers, which wrap, have one for both signs.
template <class In>
constexpr Kernel kernel_of(Accumulator accumulator, Map map) {
  constexpr bool kBool = std::is_same_v<In, Boolean>;  // a sum of bools is a count
  constexpr bool kInteger = std::is_integral_v<In> || kBool;
  using Bits = std::conditional_t<kInteger, UnsignedOf<sizeof(In)>, In>;
  if (map == Map::nonzero || (kBool && map == Map::value && accumulator == Accumulator::i64))
    return sum_exactly<Bits, Map::nonzero>;
  if (map != Map::value) return nullptr;
  if constexpr (!IsComplex<In>::value) {  // complex numbers are summed as two real columns
    if constexpr (!kBool)
      if (accumulator == Accumulator::i64)
        return sum_exactly<std::conditional_t<sizeof(In) == 8 && kInteger, Bits, In>, Map::value>;
    if constexpr (!kInteger && !std::is_same_v<In, double>) {
      if (accumulator == Accumulator::f32) return sum_in_order<In, float>;
    }
    if constexpr (!kInteger || sizeof(In) == 8) {
      if (accumulator == Accumulator::f64) return sum_in_order<In, double>;
    }
  }
  return nullptr;
}

constexpr Kernel kernel_for(DType in, Accumulator accumulator, Map map) {
  if (!is_convertible(map, accumulator, info(in))) return nullptr;
  if (accumulator == Accumulator::largest_i64) {
    if (map != Map::value && map != Map::negative) return nullptr;  // find_largest knows no other
    switch (info(in).size) {
      case 1: return find_largest<int8_t>;
      case 2: return find_largest<int16_t>;
      case 4: return find_largest<int32_t>;
      default: return find_largest<int64_t>;
    }
  }
  if (accumulator >= Accumulator::largest_f32 || (map != Map::value && accumulator != Accumulator::i64))
    return mapped_kernel_of(accumulator);
  switch (in) {
#define GPUREDUCE_KERNEL(name, type, kind, own, wide, family) \
  case DType::name: return kernel_of<type>(accumulator, map);
    GPUREDUCE_DTYPES(GPUREDUCE_KERNEL)
#undef GPUREDUCE_KERNEL
  }
  return nullptr;
}

// With -fsanitize=undefined, GCC does not compare a pointer with nullptr in a constant. It does match template arguments.
template <Kernel kernel>
constexpr bool kIsKernel = true;
template <>
constexpr bool kIsKernel<nullptr> = false;

// A map of integers that maxima do not know has no kernel, so that its calls are refused.
#define GPUREDUCE_REFUSED(name)                                            \
  static_assert((Map::name == Map::value || Map::name == Map::negative) == \
                kIsKernel<kernel_for(DType::Int, Accumulator::largest_i64, Map::name)>);
GPUREDUCE_MAPS(GPUREDUCE_REFUSED)
#undef GPUREDUCE_REFUSED

template <class T>
void exponentials(const T* __restrict x, const T* m, int64_t step, int64_t n, T* __restrict to) {
  if (step == 0) {
    const T largest = *m;
    for (int64_t i = 0; i < n; ++i) to[i] = exponential_or_zero(x[i] - largest);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = exponential_or_zero(x[i] - m[i * step]);
  }
}

}  // namespace

#define GPUREDUCE_TEXT_OF(name) #name
#define GPUREDUCE_TEXT(name) GPUREDUCE_TEXT_OF(name)
InstructionSet functions() {
  return {GPUREDUCE_TEXT(GPUREDUCE_ISA),
          GPUREDUCE_VECTOR_BYTES,
          kernel_for,
          sum_chunk<float>,
          sum_chunk<double>,
          exponentials<float>,
          exponentials<double>,
          {exact_row<float>, exact_rows<float>, exact_columns<float>, convert_numbers<float>},
          {exact_row<double>, exact_rows<double>, exact_columns<double>, convert_numbers<double>},
          exact_row_if_loaded<Half>(),
          exact_row_if_loaded<BFloat16>(),
          kFuses ? exact_products : nullptr,
          rows_kernel,
          row_step_kernel,
          row_weights_kernel};
}

}  // namespace gpureduce::cpu::GPUREDUCE_ISA
