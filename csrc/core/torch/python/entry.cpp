// The short way from Python to the ops: torch_reduce._entry.sum(input, dim, keepdim, dtype, out) and so on, with positional
// arguments; and torch_reduce._entry.call(function, *args, **kwargs), for calls that take the long way.
//
// torch.ops matches every call against the schema and boxes its arguments, which takes longer than a small sum. Here a call in
// a usual form goes straight to the dispatcher, as torch.sum does, and so to dispatch modes, functorch and tracing. For other
// forms, or if __torch_function__ is overridden, a function returns NotImplemented: torch_reduce.sum then calls torch.ops,
// which handles every case.
//
// Warnings of the C++ code reach Python's filters, as with torch.sum. torch.ops would print them to stderr.
//
// This file uses only Python's limited C API (setup.py sets Py_LIMITED_API), so one binary serves every Python from 3.10 on.
#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Dtype.h>

#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "../dispatch.h"

// Declarations from torch/csrc/autograd/python_variable.h and torch/csrc/Exceptions.h, whose pybind11 needs the full C API.
extern PyObject *THPVariableClass, *ParameterClass;
PyObject* THPVariable_Wrap(const at::TensorBase& tensor);
namespace torch {
void translate_exception_to_python(const std::exception_ptr& exception);
}

namespace {

struct PythonTensor {  // the beginning of THPVariable; PyInit__entry checks it
  PyObject head;
  at::Tensor tensor;
};

const at::Tensor& unpack(PyObject* object) { return reinterpret_cast<PythonTensor*>(object)->tensor; }

bool is_plain_tensor(PyObject* object) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  return type == THPVariableClass || type == ParameterClass;
}

using namespace gpureduce;

constexpr int kMaxDims = 64;  // most dims in a call

struct Dims {
  int64_t values[kMaxDims];
  int64_t count = -1;  // -1: None

  OptionalDims ref() const { return count < 0 ? OptionalDims() : OptionalDims(at::IntArrayRef(values, count)); }

  bool add(PyObject* item) {
    if (Py_TYPE(item) != &PyLong_Type) return false;
    int overflow = 0;
    values[count++] = PyLong_AsLongLongAndOverflow(item, &overflow);
    return overflow == 0;
  }

  // Returns false if the argument does not have a usual form.
  bool read(PyObject* dim) {
    if (dim == Py_None) return true;
    count = 0;
    if (Py_TYPE(dim) == &PyLong_Type) return add(dim);
    const bool tuple = Py_TYPE(dim) == &PyTuple_Type;
    if (!tuple && Py_TYPE(dim) != &PyList_Type) return false;
    const Py_ssize_t size = tuple ? PyTuple_Size(dim) : PyList_Size(dim);
    if (size > kMaxDims) return false;
    for (Py_ssize_t i = 0; i < size; ++i)
      if (!add(tuple ? PyTuple_GetItem(dim, i) : PyList_GetItem(dim, i))) return false;
    return true;
  }
};

// Releases the GIL while it lives.
class NoGil {
 public:
  NoGil() : state_(PyEval_SaveThread()) {}
  ~NoGil() { PyEval_RestoreThread(state_); }
  NoGil(const NoGil&) = delete;

 private:
  PyThreadState* state_;
};

PyObject* not_implemented() {
  Py_INCREF(Py_NotImplemented);
  return Py_NotImplemented;
}

// Collects warnings, since passing them to Python needs the GIL and may raise.
struct Kept : c10::WarningHandler {
  std::vector<c10::Warning> warnings;

  void process(const c10::Warning& warning) override { warnings.push_back(warning); }
};

// True if a frame runs a function of this package.
bool is_ours(PyObject* frame) {
  PyObject* const globals = PyObject_GetAttrString(frame, "f_globals");
  PyObject* const name = globals ? PyDict_GetItemString(globals, "__name__") : nullptr;
  PyObject* const text = name ? PyUnicode_AsUTF8String(name) : nullptr;
  const std::string module = text ? std::string(PyBytes_AsString(text)) + '.' : "";
  const bool ours = module.rfind("torch_reduce.", 0) == 0;
  Py_XDECREF(text);
  Py_XDECREF(globals);
  return ours;
}

// How many levels up the frame is that called this package, counted as warnings do. No error is left.
int caller_level() {
  int level = 1;
  PyObject* const get = PySys_GetObject("_getframe");  // borrowed
  PyObject* frame = get ? PyObject_CallNoArgs(get) : nullptr;
  while (frame && is_ours(frame)) {
    PyObject* const back = PyObject_GetAttrString(frame, "f_back");
    Py_DECREF(frame);
    frame = back;
    ++level;
  }
  Py_XDECREF(frame);
  PyErr_Clear();
  return level;
}

// Passes warnings to Python in torch's words, at the line that called this package. Returns false if a filter made an error of
// one. If the call itself has raised, the filter's error is only printed, as torch does.
bool give(const std::vector<c10::Warning>& warnings) {
  if (warnings.empty()) return true;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  const int level = caller_level();
  for (const c10::Warning& warning : warnings) {
    std::ostringstream text;
    text << warning.msg() << " (Triggered internally at " << warning.source_location().file << ':'
         << warning.source_location().line << ".)";
    const bool deprecation = std::holds_alternative<c10::DeprecationWarning>(warning.type());
    if (PyErr_WarnEx(deprecation ? PyExc_DeprecationWarning : PyExc_UserWarning, text.str().c_str(), level) == 0) continue;
    if (type == nullptr) return false;
    PyErr_Print();
  }
  PyErr_Restore(type, value, traceback);
  return true;
}

// Returns the object that `f` makes, or nullptr if `f` raises or one of its warnings becomes an error.
template <class F>
PyObject* guarded(F f) {
  Kept kept;
  PyObject* result = nullptr;
  try {
    const c10::WarningUtils::WarningHandlerGuard guard(&kept);
    result = f();
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
  }
  if (give(kept.warnings)) return result;
  Py_XDECREF(result);
  return nullptr;
}

PyObject* reduced(Which which, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5) return not_implemented();
  PyObject *input = arguments[0], *dim = arguments[1], *keepdim = arguments[2], *dtype = arguments[3], *out = arguments[4];
  Dims dims;
  if (!is_plain_tensor(input) || !dims.read(dim) || (keepdim != Py_False && keepdim != Py_True) ||
      (info(which.op).typing == Typing::truth && dims.count == 0) || (dtype != Py_None && !THPDtype_Check(dtype)) ||
      (out != Py_None && !is_plain_tensor(out)) || at::impl::torch_function_mode_enabled())
    return not_implemented();
  OptionalDtype type;
  if (dtype != Py_None) type = reinterpret_cast<THPDtype*>(dtype)->scalar_type;
  const at::Tensor self = unpack(input);  // our own reference, since swap_tensors may change the object meanwhile
  return guarded([&] {
    if (out != Py_None) {
      at::Tensor result = unpack(out);
      {
        const NoGil no_gil;
        out_variant(which).call(self, dims.ref(), keepdim == Py_True, type, result);
      }
      Py_INCREF(out);
      return out;
    }
    at::Tensor result;
    {
      const NoGil no_gil;
      result = functional(which).call(self, dims.ref(), keepdim == Py_True, type);
    }
    return THPVariable_Wrap(result);
  });
}

template <Operation op, bool exact = false>
PyObject* reduce(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return reduced({op, exact}, arguments, count);
}

// Reads the correction of var. Returns false if it does not have a usual form.
bool read_correction(PyObject* correction, std::optional<at::Scalar>& scalar) {
  if (correction == Py_None) return true;
  if (Py_TYPE(correction) == &PyFloat_Type) {
    scalar = PyFloat_AsDouble(correction);
    return true;
  }
  if (Py_TYPE(correction) != &PyLong_Type) return false;
  int overflow = 0;
  scalar = int64_t{PyLong_AsLongLongAndOverflow(correction, &overflow)};
  return overflow == 0;
}

// _entry.var(input, dim, correction, keepdim), and std.
using Variance = at::Tensor(const at::Tensor&, OptionalDims, const std::optional<at::Scalar>&, bool);
template <bool root>
PyObject* variance(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 4) return not_implemented();
  PyObject *input = arguments[0], *keepdim = arguments[3];
  Dims dims;
  std::optional<at::Scalar> correction;
  if (!is_plain_tensor(input) || !dims.read(arguments[1]) || !read_correction(arguments[2], correction) ||
      (keepdim != Py_False && keepdim != Py_True) || at::impl::torch_function_mode_enabled())
    return not_implemented();
  const at::Tensor self = unpack(input);
  return guarded([&] {
    static const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(root ? "gpureduce::std" : "gpureduce::var", "").typed<Variance>();
    at::Tensor result;
    {
      const NoGil no_gil;
      result = handle.call(self, dims.ref(), correction, keepdim == Py_True);
    }
    return THPVariable_Wrap(result);
  });
}

PyObject* call(PyObject*, PyObject* arguments, PyObject* named) {
  PyObject* rest = PyTuple_GetSlice(arguments, 1, PyTuple_Size(arguments));
  if (rest == nullptr) return nullptr;
  PyObject* result = guarded([&] { return PyObject_Call(PyTuple_GetItem(arguments, 0), rest, named); });
  Py_DECREF(rest);
  return result;
}

using Call = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

#define GPUREDUCE_METHOD(name, ...)                                                                                  \
  {#name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Call(reduce<Operation::name>))), METH_FASTCALL, \
   #name "(input, dim, keepdim, dtype, out, /)\n--\n\nThe " #name ", or NotImplemented where torch.ops must be called."},
#define GPUREDUCE_EXACT(name, exact)                                                                                        \
  {#exact, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Call(reduce<Operation::name, true>))), METH_FASTCALL, \
   #exact "(input, dim, keepdim, dtype, out, /)\n--\n\nThe exact " #name ", or NotImplemented."},
#define GPUREDUCE_VARIANCE(name, root)                                                                      \
  {#name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Call(variance<root>))), METH_FASTCALL, \
   #name "(input, dim, correction, keepdim, /)\n--\n\nThe " #name ", or NotImplemented where torch.ops must be called."},
PyMethodDef methods[] = {
    GPUREDUCE_OPERATIONS(GPUREDUCE_METHOD)                                                                   //
    GPUREDUCE_EXACT(sum, exact_sum) GPUREDUCE_EXACT(mean, exact_mean) GPUREDUCE_EXACT(nansum, exact_nansum)  //
    GPUREDUCE_EXACT(_powsum_2, _exact_powsum_2) GPUREDUCE_EXACT(_norm_2, _exact_norm_2)                      //
    GPUREDUCE_VARIANCE(var, false) GPUREDUCE_VARIANCE(std, true)                                             //
    {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)), METH_VARARGS | METH_KEYWORDS,
     "call(function, *args, **kwargs)\n--\n\nCalls the function; what it warns of in C++ reaches Python's filters."},
    {}};
#undef GPUREDUCE_METHOD
#undef GPUREDUCE_EXACT
#undef GPUREDUCE_VARIANCE

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_entry", "The short way from Python to the op.", -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__entry() {
  const at::Tensor tensor(at::detail::empty_cpu({0}, at::kFloat));
  PyObject* object = THPVariable_Wrap(tensor);
  if (object == nullptr) return nullptr;
  const bool known = is_plain_tensor(object) && unpack(object).is_same(tensor);
  Py_DECREF(object);
  if (known) return PyModule_Create(&definition);
  PyErr_SetString(PyExc_ImportError, "this torch keeps its tensors in another way");
  return nullptr;
}
