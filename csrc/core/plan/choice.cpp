#include "choice.h"

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "choose.h"
#include "gpu.h"

namespace gpureduce {

extern const char* const kKnownChoices[];  // the files of data/, in a source that setup.py makes; ends with null

namespace {

constexpr const char* kFormat = "torch_reduce choice 1";
constexpr int kLeaf = 255;

void expect(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

}  // namespace

Choice::Choice(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  expect(std::getline(lines, line) && line == kFormat, "it does not begin as a choice of this version");
  bool known = false;
  while (std::getline(lines, line)) {
    const size_t space = line.find(' ');
    const std::string key = line.substr(0, space), value = space == std::string::npos ? "" : line.substr(space + 1);
    if (key == "gpu") gpu_ = value;
    else if (key == "features") known = value == feature_names();
    else if (key == "on")
      base_ = &known_choice(value, {}), expect(base_->gpu_ == value, "it stands on data that are not there");
    else if (key == "multiprocessors") multiprocessors_ = std::atoll(value.c_str());
    else if (key == "l2_bytes") l2_bytes_ = std::atoll(value.c_str());
    else if (key == "bandwidth") bandwidth_ = std::atoll(value.c_str());
    else if (key == "tree") ends_.push_back((ends_.empty() ? 0 : ends_.back()) + std::atoi(value.c_str()));
    else if (key != "about") read_nodes(line);
  }
  expect(known, "it knows other plans than this version of torch_reduce has");
  check();
}

// "value feature right, value feature right, ..."
void Choice::read_nodes(const std::string& line) {
  char* at = const_cast<char*>(line.c_str());
  while (*at) {
    Node node;
    char* const begin = at;
    node.value = std::strtof(at, &at);
    node.feature = static_cast<uint16_t>(std::strtol(at, &at, 10));
    node.right = static_cast<uint16_t>(std::strtol(at, &at, 10));
    expect(at != begin && (*at == ',' || *at == '\0'), "a line is none of a choice");
    nodes_.push_back(node);
    if (*at) ++at;
  }
}

// Checks that every path through a tree stays in the tree, and ends.
void Choice::check() const {
  expect(multiprocessors_ > 0 && l2_bytes_ > 0 && bandwidth_ > 0, "it does not say what its GPU is");
  expect(!ends_.empty() && ends_.back() == static_cast<int>(nodes_.size()), "it is cut off");
  int begin = 0;
  for (int end : ends_) {
    expect(begin < end, "a tree has no nodes");
    expect(end <= static_cast<int>(nodes_.size()), "it is cut off");
    for (int i = begin; i < end; ++i) {
      const Node& n = nodes_[i];
      expect(n.feature == kLeaf || (n.feature < feature_count() && n.right > 1 && i + n.right < end), "a tree is broken");
    }
    begin = end;
  }
}

float Choice::guess(const float* known) const {
  float sum = base_ ? base_->guess(known) : 0;
  int begin = 0;
  for (int end : ends_) {
    const Node* node = nodes_.data() + begin;
    while (node->feature != kLeaf) node += known[node->feature] <= node->value ? 1 : node->right;
    sum += node->value;
    begin = end;
  }
  return sum;
}

double Choice::distance(const Device& d) const {
  const auto apart = [](double a, double b) { return std::fabs(std::log(a / b)); };
  return apart(static_cast<double>(multiprocessors_), d.multiprocessors) +
         apart(static_cast<double>(l2_bytes_), static_cast<double>(d.l2_bytes)) +
         apart(static_cast<double>(bandwidth_), static_cast<double>(d.bandwidth));
}

const Choice& known_choice(std::string_view gpu, const Device& device) {
  static const auto* const known = [] {
    auto* all = new std::vector<Choice>;
    for (const char* const* text = kKnownChoices; *text; ++text) all->emplace_back(*text);
    return all;
  }();
  const Choice* best = nullptr;
  for (const Choice& choice : *known) {
    if (choice.gpu() == gpu) return choice;
    if (!best || choice.distance(device) < best->distance(device)) best = &choice;
  }
  return *best;
}

std::string choice_path(const std::string& gpu) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  std::string folder = variable("TORCH_REDUCE_CACHE");
  if (folder.empty()) {
    const std::string cache = variable("XDG_CACHE_HOME");
    folder = (cache.empty() ? variable("HOME") + "/.cache" : cache) + "/torch_reduce";
  }
  std::string name = gpu;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(c)) : '-';
  return folder + "/" + name + ".txt";
}

const Choice* read_choice(const std::string& path) {
  std::ifstream file(path);
  if (!file) return nullptr;
  std::ostringstream text;
  text << file.rdbuf();
  return new Choice(text.str());
}

}  // namespace gpureduce
