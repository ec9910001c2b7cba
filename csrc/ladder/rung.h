// A rung of the ladder, as the rest of the library sees it: a function on raw pointers, and what may be asked of it. What a
// rung teaches stands in the comment at the head of its file, NN_name.cu or .cpp, which the build reads as well
// (torch_reduce/ladder/_lessons.py): a new rung is a new file. The ladder and the engine do not include each other;
// csrc/core/numeric serves both. Every kernel is a template over the element's type, where the lessons have int (in chapter 5:
// float); their indices are 32-bit ints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace gpureduce::ladder {

enum class DType { f32, f64, i32, i64 };
enum class Op { sum, product, max, min };

// How the results of threads and blocks become one. The tests derive from it how many roundings a float can go through.
enum class Finish {
  again,       // a result a block; the kernel runs again on those, pass after pass, until one is left
  atomic,      // each block combines its result with the output, atomically
  all_atomic,  // each thread does so
  recursive,   // halves of the array are added until one element is left
  library,     // in a library's own way
  written,     // not at all: this is no reduction, each thread writes one element of the output
  exact,       // as integers, which are rounded once
};

// One run of a rung. Everything that is not the rung itself is done before, so that it is not in its time.
struct Call {
  DType dtype;
  Op op;
  int block;     // threads a block
  int elements;  // a thread
  // n > 0 elements. For a rung that works in place it is a copy, filled up with the op's identity to a whole number of tiles.
  void* input;
  int64_t n;
  void* scratch;    // scratch_bytes(), which are 0
  void* output;     // one element that holds the op's identity; Finish::written: n elements
  void* stream;     // a cudaStream_t
  bool first_pass;  // of Finish::again: the lesson's own kernel alone, once; the output stays as it was

  int64_t tile() const { return int64_t{block} * elements; }  // elements a block
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Rung {
  int (*run)(const Call&);    // queues the kernels; a cudaError_t
  std::vector<int> blocks;    // threads a block that may be chosen, the default first; empty: no choice
  std::vector<int> elements;  // elements a thread, the same
  std::vector<Op> ops;
  Finish finish;
  bool in_place = false;
  bool on_cpu = false;
  size_t (*scratch_bytes)(const Call&) = nullptr;  // none is needed
};

// Bytes for the partial sums of Finish::again. Each pass has room for whole tiles, as a pass in place needs.
size_t bytes_of_passes(const Call& call);

const std::vector<int> kBlocks = {512, 64, 128, 256, 1024};
// For a template over the block, whose last warp then takes only the steps that the block has.
const std::vector<int> kTemplateBlocks = {512, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024};
const std::vector<Op> kAllOps = {Op::sum, Op::product, Op::max, Op::min};

// The common kinds of rungs.
inline Rung in_place(int elements, int (*run)(const Call&), std::vector<int> blocks = kBlocks) {
  return {run, std::move(blocks), {elements}, {Op::sum}, Finish::again, true, false, bytes_of_passes};
}
inline Rung in_passes(std::vector<int> elements, int (*run)(const Call&), std::vector<int> blocks = kBlocks,
                      std::vector<Op> ops = {Op::sum}) {
  return {run, std::move(blocks), std::move(elements), std::move(ops), Finish::again, false, false, bytes_of_passes};
}
inline Rung with_atomics(std::vector<int> elements, int (*run)(const Call&)) {
  return {run, kBlocks, std::move(elements), kAllOps, Finish::atomic};
}
inline Rung exactly(std::vector<int> elements, int (*run)(const Call&), size_t (*bytes_of_digits)(const Call&)) {
  return {run, kBlocks, std::move(elements), {Op::sum}, Finish::exact, false, false, bytes_of_digits};
}
inline Rung writing(int (*run)(const Call&)) { return {run, kBlocks, {1}, {Op::sum}, Finish::written}; }
inline Rung on_cpu(int (*run)(const Call&)) { return {run, {}, {}, {Op::sum}, Finish::recursive, true, true}; }
inline Rung from_library(int (*run)(const Call&)) { return {run, {}, {}, {Op::sum}, Finish::library}; }

// This and kLessons are exported, as csrc/core/api.h says. It is not included here: the emulator has
// this folder, core/numeric/ and core/order.h alone.
__attribute__((visibility("default"))) std::map<std::string, Rung>& registry();

// `const Register rung("name", …);` at the end of a file adds it.
struct Register {
  Register(const char* name, Rung rung) { registry().emplace(name, std::move(rung)); }
};

// What the heads of the files say, as JSON: written by setup.py.
__attribute__((visibility("default"))) extern const char* const kLessons;

}  // namespace gpureduce::ladder
