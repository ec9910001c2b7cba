// Errors of operators that call others, or that get meta tensors beside others.
#include <c10/util/Exception.h>

#include <cctype>

#include "dispatch.h"

namespace gpureduce {

namespace {

std::optional<c10::OperatorHandle> operator_called(const std::string& name) {
  const size_t dot = std::min(name.find('.'), name.size());
  return c10::Dispatcher::singleton().findSchema(
      {"gpureduce::" + name.substr(0, dot), name.substr(std::min(dot + 1, name.size()))});
}

// The name that a text begins with, as "sum" of "sum(): " and of "sum: ". Empty if there is none.
std::string leading_name(const std::string& text) {
  size_t end = 0;
  while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
  const bool named = text.compare(end, 4, "(): ") == 0 || text.compare(end, 2, ": ") == 0;
  return named ? text.substr(0, end) : "";
}

}  // namespace

void rename(const c10::Error& error, const std::string& name) {
  const std::string text = error.what_without_backtrace(), other = leading_name(text);
  const std::string function = function_name(name.substr(0, name.find('.')));
  if (other.empty() || other == function || !(operator_called(other) || operator_called("_" + other))) return;
  const std::string renamed = function + "(): " + text.substr(text.find(": ") + 2);
  const std::type_info& type = typeid(error);
  if (type == typeid(c10::Error)) throw c10::Error(renamed, error.backtrace());
  if (type == typeid(c10::IndexError)) throw c10::IndexError(renamed, error.backtrace());
  if (type == typeid(c10::TypeError)) throw c10::TypeError(renamed, error.backtrace());
  if (type == typeid(c10::ValueError)) throw c10::ValueError(renamed, error.backtrace());
  if (type == typeid(c10::NotImplementedError)) throw c10::NotImplementedError(renamed, error.backtrace());
}

void OneDevice::check(const at::Tensor& x) {
  if (!x.defined()) return;
  if (!device_) {
    first_ = argument_;
    device_ = x.device();
  }
  if (x.device().type() == device_->type()) return;
  const std::vector<c10::Argument>& arguments = operator_called(name_)->schema().arguments();
  const std::string &one = arguments[first_].name(), &other = arguments[argument_].name();
  TORCH_CHECK(false, function_name(name_.substr(0, name_.find('.'))), "(): ", other,
              ": Expected all tensors to be on the same device, but ", one, " is on ", *device_, " and ", other, " is on ",
              x.device());
}

void OneDevice::check(const OptionalTensor& x) {
  if (x) check(*x);
}

void OneDevice::check(at::TensorList list) {
  for (const at::Tensor& x : list) check(x);
}

}  // namespace gpureduce
