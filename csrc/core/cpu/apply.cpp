#include "apply.h"

#include <algorithm>

#include "exact_floats.h"

namespace gpureduce::cpu {

namespace {

constexpr int kBlock = 128;  // elements that are converted, computed and stored together

template <class A>
void load(DType dtype, const char* from, int64_t stride, int n, A* to) {
  switch (dtype) {
#define GPUREDUCE_LOAD(name, type, kind, accumulator, wide, family)                                         \
  case DType::name:                                                                                         \
    if constexpr (Kind::kind != Kind::complex) {                                                            \
      const auto at = [&](int i) { return operand<A>(*reinterpret_cast<const type*>(from + i * stride)); }; \
      if (stride == 0) std::fill_n(to, n, at(0));                                                           \
      else if (stride == sizeof(type))                                                                      \
        for (int i = 0; i < n; ++i) to[i] = operand<A>(reinterpret_cast<const type*>(from)[i]);             \
      else                                                                                                  \
        for (int i = 0; i < n; ++i) to[i] = at(i);                                                          \
    }                                                                                                       \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_LOAD)
#undef GPUREDUCE_LOAD
  }
}

template <class A>
void store(DType dtype, char* to, int64_t stride, int n, const A* from) {
  switch (dtype) {
#define GPUREDUCE_STORE(name, type, kind, accumulator, wide, family)                                   \
  case DType::name:                                                                                    \
    if constexpr (Kind::kind == Kind::floating)                                                        \
      for (int i = 0; i < n; ++i) *reinterpret_cast<type*>(to + i * stride) = round_to<type>(from[i]); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_STORE)
#undef GPUREDUCE_STORE
  }
}

template <class A>
void apply_in(Formula formula, double number, const DType (&dtypes)[2 + kOthers], char* const (&data)[2 + kOthers],
              const int64_t (&strides)[2 + kOthers], int64_t n) {
  A x[1 + kOthers][kBlock], y[kBlock];
  for (int o = 0; o < kOthers; ++o)
    if (!data[2 + o]) std::fill_n(x[1 + o], kBlock, static_cast<A>(missing(formula, o)));
  for (int64_t first = 0; first < n; first += kBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kBlock, n - first));
    for (int i = 0; i < 1 + kOthers; ++i)
      if (data[1 + i] && (first == 0 || strides[1 + i] != 0))
        load(dtypes[1 + i], data[1 + i] + first * strides[1 + i], strides[1 + i], strides[1 + i] == 0 ? kBlock : count, x[i]);
    with_formula(formula, [&](auto f) {
      for (int i = 0; i < count; ++i) y[i] = applied<f.value>(x[0][i], x[1][i], x[2][i], x[3][i], static_cast<A>(number));
    });
    store(dtypes[0], data[0] + first * strides[0], strides[0], count, y);
  }
}

}  // namespace

void apply(Formula formula, bool wide, double number, const DType (&dtypes)[2 + kOthers], char* const (&data)[2 + kOthers],
           const int64_t (&strides)[2 + kOthers], int64_t n) {
  const ExactFloats exact;
  if (wide) apply_in<double>(formula, number, dtypes, data, strides, n);
  else apply_in<float>(formula, number, dtypes, data, strides, n);
}

}  // namespace gpureduce::cpu
