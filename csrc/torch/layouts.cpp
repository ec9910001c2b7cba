// Refuses tensors that are not strided, with one message for all operators.
#include <torch/library.h>

#include "dispatch.h"

namespace gpureduce {

namespace {

void refuse(const c10::OperatorHandle& op, const char* kind) {
  std::string name = op.schema().name();
  name = name.substr(name.find("::") + 2);
  if (name[0] == '_') name = name.substr(1);
  if (name.rfind("norm_", 0) == 0) name = "linalg_vector_norm";
  if (name.rfind("powsum_", 0) == 0) name = "linalg_powsum";
  TORCH_CHECK_NOT_IMPLEMENTED(false, name, "(): ", kind, " tensors are not supported");
}

void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse(op, "sparse"); }
void refuse_mkldnn(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse(op, "MKLDNN"); }
void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse(op, "nested"); }
void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse(op, "quantized"); }

template <c10::BoxedKernel::BoxedKernelFunction* refusal>
void put(torch::Library& m) {
  const auto register_one = [&](const std::string& name) {
    for (const std::string& each : {name, name + ".out"})
      m.impl(each.c_str(), torch::CppFunction::makeFromBoxedFunction<refusal>());
  };
  for_each_operation([&](auto op) { register_one(name_of(op)); });
  for (const char* name : {"weighted_sum", "segment_sum", "segment_mean"}) register_one(name);
  m.impl("_var_mean", torch::CppFunction::makeFromBoxedFunction<refusal>());
}

}  // namespace

}  // namespace gpureduce

#define GPUREDUCE_REFUSE(key, kind) \
  TORCH_LIBRARY_IMPL(gpureduce, key, m) { gpureduce::put<&gpureduce::refuse_##kind>(m); }
GPUREDUCE_REFUSE(SparseCPU, sparse)
GPUREDUCE_REFUSE(SparseCUDA, sparse)
GPUREDUCE_REFUSE(SparseMeta, sparse)
GPUREDUCE_REFUSE(SparseCsrCPU, sparse)
GPUREDUCE_REFUSE(SparseCsrCUDA, sparse)
GPUREDUCE_REFUSE(SparseCsrMeta, sparse)
GPUREDUCE_REFUSE(MkldnnCPU, mkldnn)
GPUREDUCE_REFUSE(NestedTensorCPU, nested)
GPUREDUCE_REFUSE(NestedTensorCUDA, nested)
GPUREDUCE_REFUSE(QuantizedCPU, quantized)
GPUREDUCE_REFUSE(QuantizedCUDA, quantized)
#undef GPUREDUCE_REFUSE
