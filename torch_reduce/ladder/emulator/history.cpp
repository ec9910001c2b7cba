// The additions that a kernel made of numbers that know their history, and the first of them that is not the contract's.
//
// An example: 1024 elements. The contract's tree begins with x[0] + x[512], x[1] + x[513], ...; a kernel that adds neighbours
// first makes x[0] + x[1]. Each node of the kernel is looked up in the contract's tree: a sum is there if its two operands are
// there and have the same parent. The first that is not, and that the result was made of, is told.
#include "history.h"

#include <cmath>
#include <sstream>
#include <string>

#include "contract.h"
#include "emulator.h"
#include "learner.h"

namespace emulate {

namespace {

constexpr uint32_t kZero = 0, kMinusZero = 1, kUnknown = 2, kElements = 3;  // nodes; the elements follow
constexpr uint32_t kHost = UINT32_MAX;                                      // no thread, but who joins the blocks' sums

struct Node {
  double value;
  char op;  // e element, c constant, ? unknown, w conversion to the other type, or + - * /
  bool wide;
  uint32_t left, right, thread, block;
  uintptr_t place;
};
std::vector<Node> nodes = {
    {0.0, 'c', false, 0, 0, 0, 0, 0}, {-0.0, 'c', false, 0, 0, 0, 0, 0}, {std::nan(""), '?', false, 0, 0, 0, 0, 0}};
bool wide_elements = false, hosts = false;

uint32_t known(uint32_t node) { return node < nodes.size() ? node : kUnknown; }

uint32_t made(double value, char op, bool wide, uint32_t left, uint32_t right, const void* place) {
  const uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  nodes.push_back({wide ? value : static_cast<float>(value), op, wide, left, right, hosts ? kHost : thread(), block,
                   reinterpret_cast<uintptr_t>(place)});
  return static_cast<uint32_t>(nodes.size() - 1);
}

double computed(char op, double a, double b, bool wide) {
  const auto of = [op](auto a, auto b) { return op == '+' ? a + b : op == '-' ? a - b : op == '*' ? a * b : a / b; };
  return wide ? of(a, b) : static_cast<double>(of(static_cast<float>(a), static_cast<float>(b)));
}

// The contract's tree over n elements; its first n nodes are these.
struct Sum {
  int parent = -1, left = -1, right = -1;
  int64_t first = 0, elements = 1;  // its first element, and how many it has
  bool in_lane = true;              // elements of one lane
};
struct Contract {
  std::vector<Sum> sums;
  int64_t n;

  explicit Contract(int64_t n) : sums(static_cast<size_t>(n)), n(n) {
    for (int64_t i = 0; i < n; ++i) sums[static_cast<size_t>(i)].first = i;
    in_order(
        n, [](int64_t i) { return static_cast<int>(i); },
        [&](int left, int right) {
          const Sum a = at(left), b = at(right);
          const bool in_lane = a.in_lane && b.elements == 1 && b.first == a.first + a.elements * gpureduce::kLanes;
          const int sum = static_cast<int>(sums.size());
          sums.push_back({-1, left, right, a.first, a.elements + b.elements, in_lane});
          sums[static_cast<size_t>(left)].parent = sums[static_cast<size_t>(right)].parent = sum;
          return sum;
        });
  }

  const Sum& at(int sum) const { return sums[static_cast<size_t>(sum)]; }
  int root() const { return static_cast<int>(sums.size()) - 1; }

  std::string element(int64_t i) const { return learner().in + ("[" + std::to_string(i) + "]"); }

  // x[5], (x[5] + x[517]), lane 5 of chunk 0, lanes 4 to 7 of chunk 0, chunk 3, chunks 0 to 3
  std::string name(int sum) const {
    const Sum& found = at(sum);
    const int64_t chunk = found.first / gpureduce::kChunk, lane = found.first % gpureduce::kLanes;
    const std::string of = " of chunk " + std::to_string(chunk);
    if (found.elements == 1) return element(found.first);
    if (found.in_lane) {
      const int64_t last = found.first + (found.elements - 1) * gpureduce::kLanes;
      if (last + gpureduce::kLanes >= std::min(n, (chunk + 1) * gpureduce::kChunk)) return "lane " + std::to_string(lane) + of;
      return "(" + element(found.first) + (found.elements > 2 ? " + … + " : " + ") + element(last) + ")";
    }
    int last = sum;  // the last lane of it
    while (!at(last).in_lane) last = at(last).right;
    const int64_t last_chunk = at(last).first / gpureduce::kChunk, last_lane = at(last).first % gpureduce::kLanes;
    if (last_chunk > chunk) return "chunks " + std::to_string(chunk) + " to " + std::to_string(last_chunk);
    const int64_t lanes = std::min<int64_t>(gpureduce::kLanes, n - chunk * gpureduce::kChunk);
    if (lane == 0 && last_lane == lanes - 1) return "chunk " + std::to_string(chunk);
    return "lanes " + std::to_string(lane) + " to " + std::to_string(last_lane) + of;
  }
  std::string addition(int sum) const { return name(at(sum).left) + " + " + name(at(sum).right); }
};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value == std::trunc(value) && std::fabs(value) < 1e6 ? "%.1f" : "%g", value);
  return text;
}

struct Compared {
  const Contract& contract;
  std::vector<int> sum;  // of each node its place in the contract's tree, or -1

  std::string name(uint32_t node) const {
    if (sum[node] >= 0) return contract.name(sum[node]);
    return nodes[node].op == 'c' ? number(nodes[node].value) : "a number of unknown origin";
  }

  std::string who(const Node& node) const {
    return node.thread == kHost ? "the join of the blocks' sums" : called(node.thread, node.block);
  }

  // "thread 0 of block 0 adds x[0] + x[1], where the contract adds x[0] + x[512]"
  std::string told(uint32_t number) const {
    const Node& node = nodes[number];
    const std::string who = this->who(node);
    const char* const type = wide_elements ? "double" : "float";
    if (node.op == 'w')
      return who + " converts " + name(node.left) + (node.wide ? " to double" : " to float") +
             ", where the contract stays with " + type;
    const std::string does = node.op == '+' ? " adds " : " computes ";
    std::string text = who + does + name(node.left) + " " + node.op + " " + name(node.right);
    if (node.wide != wide_elements)
      return text + (node.wide ? " in double" : " in float") + ", where the contract adds in " + type;
    for (const uint32_t operand : {node.left, node.right}) {
      const int place = sum[operand];
      if (place < 0) continue;
      const int parent = contract.at(place).parent;
      if (parent < 0) return text + ", where the contract's sum is complete";
      return text + ", where the contract adds " + contract.addition(parent);
    }
    return text + ", where the contract adds elements of " + learner().in;
  }
};

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

void begin(void* in, int64_t n, bool wide) {
  wide_elements = wide;
  for (int64_t i = 0; i < n; ++i) {
    const double value = wide ? static_cast<double*>(in)[i] : static_cast<double>(static_cast<float*>(in)[i]);
    const auto node = static_cast<uint32_t>(nodes.size());
    nodes.push_back({value, 'e', wide, 0, 0, 0, 0, 0});
    if (wide) static_cast<Double*>(in)[i] = Double::of(node);
    else static_cast<Float*>(in)[i] = Float::of(node);
  }
}

// What the result was made of, as members of a JSON object; `blocks` above 1: the blocks' sums are joined first.
std::string end(const void* out, int64_t blocks, int64_t n, double* result) {
  std::vector<uint32_t> sums;
  for (int64_t b = 0; b < blocks; ++b)
    sums.push_back(known(wide_elements ? static_cast<const Double*>(out)[b].id() : static_cast<const Float*>(out)[b].id()));
  hosts = true;
  const uint32_t last = nearest(sums, [](uint32_t a, uint32_t b) { return joined('+', a, b, wide_elements); });
  *result = nodes[last].value;

  std::vector<bool> counts(nodes.size());  // whether the result was made of it
  counts[last] = true;
  for (size_t i = nodes.size(); i-- > kElements;) {
    const Node& node = nodes[i];
    if (!counts[i] || node.op == 'e' || node.op == 'c') continue;
    counts[node.left] = true;
    if (node.op != 'w') counts[node.right] = true;
  }

  const Contract contract(n);
  Compared compared{contract, std::vector<int>(nodes.size(), -1)};
  int64_t additions = 0, others = 0;
  uint32_t first = 0, zero = 0;
  for (uint32_t i = kElements; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    int& sum = compared.sum[i];
    if (node.op == 'e') sum = static_cast<int>(i - kElements);
    if (node.op == 'e' || node.op == 'c') continue;
    const int a = compared.sum[node.left], b = compared.sum[node.right];
    if (node.op == '+' && node.wide == wide_elements) {
      if (node.right <= kMinusZero || node.left <= kMinusZero) {  // -0.0 changes no sum; 0.0 changes -0.0 alone
        sum = node.right <= kMinusZero ? a : b;
        if (!zero && counts[i] && (node.right == kZero || node.left == kZero)) zero = i;
        continue;
      }
      if (a >= 0 && b >= 0 && a != b && contract.at(a).parent == contract.at(b).parent) sum = contract.at(a).parent;
    }
    if (!counts[i]) continue;
    additions += node.op == '+';
    if (sum >= 0) continue;
    ++others;
    if (!first) first = i;
  }
  std::string text;
  if (first) text = compared.told(first);
  else if (compared.sum[last] != contract.root()) text = "the result is " + compared.name(last) + ", and not the whole sum";
  std::string zeros;
  if (zero) {
    const Node& node = nodes[zero];
    zeros = compared.who(node) + " adds " + compared.name(node.left) + " + " + compared.name(node.right) +
            ", where the contract adds nothing";
  }
  std::ostringstream said;
  said << "\"order\": {\"additions\": " << additions << ", \"others\": " << others << ", \"text\": " << quoted(text)
       << ", \"place\": " << (first ? nodes[first].place : 0) << ", \"zeros\": " << quoted(zeros)
       << ", \"zeros_place\": " << (zero ? nodes[zero].place : 0) << "}, ";
  return said.str();
}

const bool set = [] {
  learner().begin = begin;
  learner().end = end;
  return true;
}();

}  // namespace

uint32_t constant(double value) { return made(value, 'c', true, 0, 0, nullptr); }
double value_of(uint32_t node) { return nodes[known(node)].value; }
uint32_t converted(uint32_t a, bool wide) {
  a = known(a);
  return a <= kMinusZero ? a : made(nodes[a].value, nodes[a].op == 'c' ? 'c' : 'w', wide, a, a, __builtin_return_address(0));
}
uint32_t joined(char op, uint32_t a, uint32_t b, bool wide, const void* place) {
  a = known(a);
  b = known(b);
  if (op == '+' && a <= kMinusZero && b <= kMinusZero) return a & b;  // -0.0 if both are
  return made(computed(op, nodes[a].value, nodes[b].value, wide), op, wide, a, b, place ? place : __builtin_return_address(0));
}

}  // namespace emulate
