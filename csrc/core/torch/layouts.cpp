// Registration of kernels, and what refuses tensors that are not strided.
#include "plumbing.h"

namespace gpureduce {

void put_function(torch::Library& m, Key key, const std::string& name, torch::CppFunction&& function) {
  m.impl(name.c_str(), torch::dispatch(key, std::move(function)));
}

namespace {

void refuse(const c10::OperatorHandle& op, const char* kind) {
  const std::string& name = op.schema().name();
  TORCH_CHECK_NOT_IMPLEMENTED(false, function_name(name.substr(name.find("::") + 2)), "(): ", kind,
                              " tensors are not supported");
}

void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse(op, "sparse"); }
void refuse_mkldnn(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse(op, "MKLDNN"); }
void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse(op, "nested"); }
void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse(op, "quantized"); }

template <c10::BoxedKernel::BoxedKernelFunction* refusal>
void put_refusal(torch::Library& m, const std::string& name, std::initializer_list<Key> keys) {
  for (const Key key : keys) put(m, key, name, torch::CppFunction::makeFromBoxedFunction<refusal>());
}

}  // namespace

void refuse_layouts(torch::Library& m, const std::string& name) {
  put_refusal<&refuse_sparse>(
      m, name, {Key::SparseCPU, Key::SparseCUDA, Key::SparseMeta, Key::SparseCsrCPU, Key::SparseCsrCUDA, Key::SparseCsrMeta});
  put_refusal<&refuse_mkldnn>(m, name, {Key::MkldnnCPU});
  put_refusal<&refuse_nested>(m, name, {Key::NestedTensorCPU, Key::NestedTensorCUDA});
  put_refusal<&refuse_quantized>(m, name, {Key::QuantizedCPU, Key::QuantizedCUDA});
}

}  // namespace gpureduce
