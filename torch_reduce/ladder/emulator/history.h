// Numbers that know how they were made: a kernel that adds Float instead of float has the same bits, and each addition is
// kept. `try --order` compares them with the contract's.
//
// A Float is the number of a node, in 4 bytes as a float: node 0 is 0.0, node 1 is -0.0, and each element and each addition
// has one of its own. x[0] + x[512] makes the node {+, x[0], x[512]}, with the place in the kernel and the thread.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "cuda_runtime.h"

namespace emulate {

// Nodes: history.cpp. `wide`: of double. A place that is null is the one that the function returns to.
uint32_t constant(double value);
uint32_t joined(char op, uint32_t a, uint32_t b, bool wide, const void* place = nullptr);
uint32_t converted(uint32_t a, bool wide);
double value_of(uint32_t node);

#define EMULATE_INLINE __attribute__((always_inline))

template <class F>
class Traced {
 public:
  using Bits = std::conditional_t<sizeof(F) == 4, uint32_t, uint64_t>;
  static constexpr bool kWide = sizeof(F) == 8;

  Traced() = default;
  template <class N, class = std::enable_if_t<std::is_arithmetic_v<N>>>
  EMULATE_INLINE constexpr Traced(N value) : node(value == N(0) ? is_negative(value) : constant(static_cast<F>(value))) {}
  template <class Other, class = std::enable_if_t<!std::is_same_v<F, Other>>, class = void>
  EMULATE_INLINE Traced(Traced<Other> other) : node(converted(other.id(), kWide)) {}
  template <class N, class = std::enable_if_t<std::is_arithmetic_v<N>>>
  EMULATE_INLINE explicit operator N() const {
    return static_cast<N>(value_of(id()));
  }

  EMULATE_INLINE uint32_t id() const { return static_cast<uint32_t>(node); }
  EMULATE_INLINE static Traced of(Bits node) {
    Traced made;
    made.node = node;
    return made;
  }

  EMULATE_INLINE friend Traced operator+(Traced a, Traced b) { return of(joined('+', a.id(), b.id(), kWide)); }
  EMULATE_INLINE friend Traced operator-(Traced a, Traced b) { return of(joined('-', a.id(), b.id(), kWide)); }
  EMULATE_INLINE friend Traced operator*(Traced a, Traced b) { return of(joined('*', a.id(), b.id(), kWide)); }
  EMULATE_INLINE friend Traced operator/(Traced a, Traced b) { return of(joined('/', a.id(), b.id(), kWide)); }
  EMULATE_INLINE Traced operator-() const { return of(joined('-', 1, id(), kWide)); }
  EMULATE_INLINE Traced operator+() const { return *this; }
  EMULATE_INLINE Traced& operator+=(Traced b) { return *this = *this + b; }
  EMULATE_INLINE Traced& operator-=(Traced b) { return *this = *this - b; }
  EMULATE_INLINE Traced& operator*=(Traced b) { return *this = *this * b; }
  EMULATE_INLINE Traced& operator/=(Traced b) { return *this = *this / b; }
  EMULATE_INLINE friend bool operator==(Traced a, Traced b) { return value_of(a.id()) == value_of(b.id()); }
  EMULATE_INLINE friend bool operator!=(Traced a, Traced b) { return value_of(a.id()) != value_of(b.id()); }
  EMULATE_INLINE friend bool operator<(Traced a, Traced b) { return value_of(a.id()) < value_of(b.id()); }
  EMULATE_INLINE friend bool operator>(Traced a, Traced b) { return value_of(a.id()) > value_of(b.id()); }
  EMULATE_INLINE friend bool operator<=(Traced a, Traced b) { return value_of(a.id()) <= value_of(b.id()); }
  EMULATE_INLINE friend bool operator>=(Traced a, Traced b) { return value_of(a.id()) >= value_of(b.id()); }

 private:
  template <class N>
  static constexpr bool is_negative(N value) {
    if constexpr (std::is_floating_point_v<N>) return __builtin_signbit(value);
    return false;
  }
  Bits node;
};
using Float = Traced<float>;
using Double = Traced<double>;

// Of both types: in double, as in C++.
#define EMULATE_MIXED(op)                                                      \
  template <class A, class B, class = std::enable_if_t<!std::is_same_v<A, B>>> \
  EMULATE_INLINE inline Double operator op(Traced<A> a, Traced<B> b) {         \
    return Double(a) op Double(b);                                             \
  }
EMULATE_MIXED(+)
EMULATE_MIXED(-)
EMULATE_MIXED(*)
EMULATE_MIXED(/)

// Bits stand for the number: a loop around atomicCAS hands them back as they were.
inline int float_as_int(Float x) { return static_cast<int>(x.id()); }
inline Float int_as_float(int bits) { return Float::of(static_cast<uint32_t>(bits)); }
inline long long double_as_longlong(Double x) { return x.id(); }
inline Double longlong_as_double(long long bits) { return Double::of(static_cast<uint64_t>(bits)); }

struct alignas(8) Float2 { Float x, y; };
struct alignas(16) Float4 { Float x, y, z, w; };
struct alignas(16) Double2 { Double x, y; };
inline Float2 make_Float2(Float x, Float y) { return {x, y}; }
inline Float4 make_Float4(Float x, Float y, Float z, Float w) { return {x, y, z, w}; }
inline Double2 make_Double2(Double x, Double y) { return {x, y}; }

}  // namespace emulate

template <class F>
struct std::numeric_limits<emulate::Traced<F>> : std::numeric_limits<F> {};

template <class F>
EMULATE_ATOMIC emulate::Traced<F> atomicAdd(emulate::Traced<F>* where, std::common_type_t<emulate::Traced<F>> value) {
  const void* const place = __builtin_return_address(0);
  using T = emulate::Traced<F>;
  return emulate::change(where, place,
                         [&](T old) { return T::of(emulate::joined('+', old.id(), value.id(), T::kWide, place)); });
}
