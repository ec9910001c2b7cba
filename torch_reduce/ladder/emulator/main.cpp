// The program: one rung, or one learner's kernel, on an input of small integers or on the --size elements that a file --input
// holds, and what it did as a JSON object.
//
//   rungs NAME --size 65536 --block 512 --elements 8 --dtype float32 --op sum --descending --in-step --trace --sampled 16
//
// Of a learner's kernel: --count 1 (the result is the number of elements that are not 0), --to int64 (another dtype of the
// results), --width 32 (threads of a block in a row). With --order 1 the input is floats whose sums round, or -0.0 with --order
// zeros, and the result that is wanted has the contract's bits; --partials 1: the kernel leaves one sum a block, which are
// joined.
#ifdef __linux__
#include <signal.h>
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>
#include <string>

#include "contract.h"
#include "emulator.h"
#include "learner.h"
#include "rung.h"

namespace emulate {

Learner& learner() {
  static Learner learner;
  return learner;
}

}  // namespace emulate

namespace {

using namespace gpureduce::ladder;

const std::map<std::string, DType> kDTypes = {
    {"float32", DType::f32}, {"float64", DType::f64}, {"int32", DType::i32}, {"int64", DType::i64}};

// 1 to 255 without a pattern, so that a sum that takes the wrong elements is wrong.
int element(int64_t i) { return static_cast<int>((static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u >> 40) % 255) + 1; }

const std::map<std::string, Op> kOps = {{"sum", Op::sum}, {"product", Op::product}, {"max", Op::max}, {"min", Op::min}};

// The same for another op. The last element alone is the largest or the smallest; a zero that is not in the input would change
// every result; products are exact.
int element(Op op, int64_t i, int64_t n) {
  switch (op) {
    case Op::product: return i == n - 1 ? 3 : i % (n / 16 + 1) == 0 ? 2 : 1;
    case Op::max: return i == n - 1 ? -1 : -1 - element(i);
    case Op::min: return i == n - 1 ? 1 : 1 + element(i);
    default: return element(i);
  }
}
double combine(Op op, double a, double b) {
  switch (op) {
    case Op::product: return a * b;
    case Op::max: return std::max(a, b);
    case Op::min: return std::min(a, b);
    default: return a + b;
  }
}
template <class T>
T identity(Op op) {
  using Limits = std::numeric_limits<T>;
  const T most = Limits::has_infinity ? Limits::infinity() : Limits::max();
  const T least = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  return op == Op::max ? least : op == Op::min ? most : T(op == Op::product);
}

template <class T>
void fill(void* where, Op op, int64_t n, const std::string& file) {
  if (file.empty()) {
    for (int64_t i = 0; i < n; ++i) static_cast<T*>(where)[i] = static_cast<T>(element(op, i, n));
    return;
  }
  std::FILE* const opened = std::fopen(file.c_str(), "rb");
  if (!opened || std::fread(where, sizeof(T), static_cast<size_t>(n), opened) != static_cast<size_t>(n))
    emulate::fault(file + " does not hold " + std::to_string(n) + " elements");
  std::fclose(opened);
}
template <class T>
double joined(Op op, const void* where, int64_t n) {
  double total = identity<double>(op);
  for (int64_t i = 0; i < n; ++i) total = combine(op, total, static_cast<double>(static_cast<const T*>(where)[i]));
  return total;
}

// A kernel that finds how many elements are not 0: a third of them are.
template <class T>
int64_t make_zeros(void* where, int64_t n) {
  int64_t others = 0;
  for (int64_t i = 0; i < n; ++i) {
    T& x = static_cast<T*>(where)[i];
    if (element(i) % 3 == 0) x = T(0);
    else if (element(i) % 3 == 1) x = T(-x);
    others += x != T(0);
  }
  return others;
}

// f of a null pointer to the dtype's type.
template <class F>
auto with(DType dtype, F f) {
  switch (dtype) {
    case DType::f32: return f(static_cast<float*>(nullptr));
    case DType::f64: return f(static_cast<double*>(nullptr));
    case DType::i32: return f(static_cast<int32_t*>(nullptr));
    default: return f(static_cast<int64_t*>(nullptr));
  }
}

// A number as Python's json reads it: -0.0 too, which is an integer without its point.
std::string text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char written[40];
  std::snprintf(written, sizeof written, "%.17g", value);
  return std::string(written) + (std::strpbrk(written, ".e") ? "" : ".0");
}

std::string blocks = "[]";  // those that the rung takes, as JSON

void say(const char* name, const Call& call, double found, double wanted, const char* how, const std::string& more = "") {
  std::ostringstream out;
  out << "{\"name\": \"" << name << "\", \"size\": " << call.n << ", \"elements\": " << call.elements
      << ", \"found\": " << text(found) << ", \"wanted\": " << text(wanted) << ", \"how\": \"" << how
      << "\", \"blocks\": " << blocks << ", " << more << emulate::report() << "}\n";
  emulate::tell(out.str());
}

// A learner's kernel leaves one result, or one a block: `out` has room for these.
template <class To>
void run_learner(const Call& call, double wanted, int64_t blocks, unsigned width) {
  const auto& learner = emulate::learner();
  void* const out = emulate::allocate(static_cast<size_t>(blocks) * sizeof(To), sizeof(To), learner.out);
  for (int64_t b = 0; b < blocks; ++b) static_cast<To*>(out)[b] = identity<To>(call.op);
  const auto threads = static_cast<unsigned>(call.block);
  if (width && threads % width) emulate::fault("blocks of " + std::to_string(threads) + " threads have no whole rows");
  learner.launch(static_cast<unsigned>(blocks), width ? dim3(width, threads / width) : dim3(threads), call.input, out, call.n);
  const double first = static_cast<double>(*static_cast<To*>(out)), all = joined<To>(call.op, out, blocks);
  // One result that atomics made, or one a block; with a single block they are the same.
  say("learner", call, first == wanted ? first : all, wanted, first == wanted ? "one" : "a block");
}

// Of both signs, of sizes from 2^-6 to 2^6, and now and then a large number whose opposite comes half of the elements later:
// what is added to it in the meantime loses digits, so that another order has other bits.
template <class T>
T uneven(int64_t i, int64_t n) {
  const int64_t half = n / 122 * 61;
  const bool large = i % 61 == 30 && i < 2 * half, second = large && i >= half;
  uint64_t bits = (static_cast<uint64_t>(second ? i - half : i) + 1) * 0x9E3779B97F4A7C15u;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
  bits ^= bits >> 27;
  if (large) return static_cast<T>((second == bits % 2 ? 1 : -1) * (sizeof(T) == 4 ? 0x1p20 : 0x1p50));
  const double value = static_cast<double>(static_cast<int64_t>(bits)) / 0x1p63;  // -1 to 1
  return static_cast<T>(std::ldexp(value, static_cast<int>(bits % 13) - 6));
}

// A learner's kernel whose result has to have the contract's bits.
template <class T>
void compare_order(const Call& call, bool zeros, int64_t blocks, unsigned width, bool partials) {
  T* const in = static_cast<T*>(call.input);
  for (int64_t i = 0; i < call.n; ++i) in[i] = zeros ? T(-0.0) : uneven<T>(i, call.n);
  const auto add = [](T a, T b) { return a + b; };
  const double wanted = emulate::in_order(call.n, [in](int64_t i) { return in[i]; }, add);
  const auto& learner = emulate::learner();
  if (learner.begin) learner.begin(in, call.n, sizeof(T) == 8);
  T* const out = static_cast<T*>(emulate::allocate(static_cast<size_t>(blocks) * sizeof(T), sizeof(T), learner.out));
  const auto threads = static_cast<unsigned>(call.block);
  learner.launch(static_cast<unsigned>(blocks), width ? dim3(width, threads / width) : dim3(threads), in, out, call.n);
  const int64_t sums = partials ? blocks : 1;
  double found = 0;
  std::string more;
  if (learner.end) more = learner.end(out, sums, call.n, &found);
  else found = emulate::nearest(std::vector<T>(out, out + sums), add);
  say("learner", call, found, wanted, partials ? "a block" : "one", more);
}

}  // namespace

int main(int count, char** arguments) {
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // who stops the course stops a kernel that does not end, too
#endif
  const std::string name = count > 1 ? arguments[1] : "";
  std::map<std::string, std::string> options;
  for (int i = 2; i < count; ++i) {
    const std::string option = arguments[i];
    if (option == "--descending") emulate::descending = true;
    else if (option == "--in-step") emulate::in_step = true;
    else if (option == "--trace") emulate::traced = true;
    else if (option == "--last-block-first") emulate::last_block_first = true;
    else if (i + 1 < count) options[option] = arguments[++i];
  }
  const auto number = [&](const char* option, int64_t otherwise) {
    return options.count(option) ? std::stoll(options[option]) : otherwise;
  };
  emulate::sampled = number("--sampled", 16);
  const auto& rungs = registry();
  const bool learned = name == "learner";
  if (!learned && !rungs.count(name)) emulate::fault("no rung " + name);
  const Rung rung = learned ? Rung{} : rungs.at(name);
  const bool written = !learned && rung.finish == Finish::written;

  Call call{};
  const std::string dtype = options.count("--dtype") ? options["--dtype"] : "float32";
  call.dtype = kDTypes.at(dtype);
  call.op = options.count("--op") ? kOps.at(options["--op"]) : Op::sum;
  call.n = number("--size", 1 << 16);
  call.block = static_cast<int>(number("--block", rung.blocks.empty() ? 1 : rung.blocks[0]));
  call.elements = static_cast<int>(number("--elements", rung.elements.empty() ? 1 : rung.elements[0]));
  if (!learned && !std::count(rung.elements.begin(), rung.elements.end(), call.elements))
    emulate::fault(name + " does not take " + std::to_string(call.elements) + " elements per thread");
  if (!learned && !std::count(rung.ops.begin(), rung.ops.end(), call.op)) emulate::fault(name + " has no " + options["--op"]);
  std::vector<int> sorted = rung.blocks;
  std::sort(sorted.begin(), sorted.end());
  std::string listed;
  for (const int block : sorted) listed += (listed.empty() ? "" : ", ") + std::to_string(block);
  blocks = "[" + listed + "]";
  const int64_t tiles = ceil_div(call.n, call.tile());
  const bool padded = !learned && rung.in_place;

  with(call.dtype, [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    const size_t size = sizeof(T);
    call.input = emulate::allocate(static_cast<size_t>(padded ? tiles * call.tile() : call.n) * size, size,
                                   learned ? emulate::learner().in : "in");
    fill<T>(call.input, call.op, call.n, options["--input"]);
    const double wanted = [&] {
      if (number("--count", 0)) return static_cast<double>(make_zeros<T>(call.input, call.n));
      double total = identity<double>(call.op);
      for (int64_t i = 0; i < call.n; ++i)
        total = combine(call.op, total, static_cast<double>(static_cast<const T*>(call.input)[i]));
      return total;
    }();
    if (options.count("--order")) {
      if constexpr (std::is_floating_point_v<T>)
        compare_order<T>(call, options["--order"] == "zeros", tiles, static_cast<unsigned>(number("--width", 0)),
                         number("--partials", 0) != 0);
      return;
    }
    if (learned) {
      with(kDTypes.at(options.count("--to") ? options["--to"] : dtype), [&](auto* to) {
        run_learner<std::remove_pointer_t<decltype(to)>>(call, wanted, tiles, static_cast<unsigned>(number("--width", 0)));
      });
      return;
    }
    if (rung.scratch_bytes) call.scratch = emulate::allocate(rung.scratch_bytes(call), size, "partial");
    call.output = emulate::allocate(static_cast<size_t>(written ? call.n : 1) * size, size, "out");
    *static_cast<T*>(call.output) = identity<T>(call.op);
    rung.run(call);
    if (written) {
      // A rung that writes: 100 or 200 for each element.
      bool right = true;
      for (int64_t i = 0; i < call.n; ++i)
        right &= static_cast<T*>(call.output)[i] == 100 || static_cast<T*>(call.output)[i] == 200;
      const double sum = joined<T>(Op::sum, call.output, call.n);
      say(name.c_str(), call, sum, right ? sum : -1, "written");
    } else {
      say(name.c_str(), call, static_cast<double>(*static_cast<T*>(call.output)), wanted, "one");
    }
  });
  return 0;
}
