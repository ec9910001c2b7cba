// torch's functorch headers include this one, and torch's wheels do not bring it (pytorch/pytorch#181565). These are the names
// that they mention; what mentions them is never called here, and so nothing has to be defined.
#pragma once

#include <string>

namespace nlohmann {

struct json {
  json();
  template <class T>
  explicit json(const T&);
  template <class T>
  T get() const;
  static json parse(const std::string&);
  std::string dump() const;
};

}  // namespace nlohmann
