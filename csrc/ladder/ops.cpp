// The ladder's operators: which rung, what it is given, and how long it takes.
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include <chrono>
#include <deque>

#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_profiler_api.h>
#endif

#include "rung.h"

namespace gpureduce::ladder {

namespace {

constexpr const char* kOps[] = {"sum", "product", "max", "min"};  // in the order of Op
constexpr const char* kFinishes[] = {"again", "atomic", "all_atomic", "recursive", "library", "written", "exact"};

// --- what is asked for -----------------------------------------------------------------------------------------------------

// What has a lesson; for its time also what has none, the ceilings.
const Rung& find(const std::string& name, bool lesson = true) {
  const bool known = std::string(kLessons).find("\"name\": \"" + name + "\"") != std::string::npos;
  const auto found = registry().find(name);
  if (found != registry().end() && (known || !lesson)) return found->second;
  TORCH_CHECK_VALUE(known, "rung: there is no '", name, "'; torch_reduce.ladder.rungs() lists them");
  TORCH_CHECK(false, "rung: '", name, "' runs on a GPU, and this library was built without CUDA (GPUREDUCE_CUDA=0, or a torch ",
              "without it)");
}

int chosen(const char* what, std::optional<int64_t> value, const std::vector<int>& allowed, const std::string& rung) {
  if (!value) return allowed.empty() ? 1 : allowed[0];
  std::vector<int> sorted = allowed;
  std::sort(sorted.begin(), sorted.end());
  TORCH_CHECK_VALUE(std::count(allowed.begin(), allowed.end(), *value), what, ": ", *value, " is not possible for '", rung,
                    "'; ", sorted.empty() ? "it leaves no choice" : "possible are ", c10::Join(", ", sorted));
  return static_cast<int>(*value);
}

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::f32;
    case at::kDouble: return DType::f64;
    case at::kInt: return DType::i32;
    case at::kLong: return DType::i64;
    default: TORCH_CHECK_NOT_IMPLEMENTED(false, "x: the ladder's dtypes are float32, float64, int32 and int64, not ", type);
  }
}

// The checks that need no memory; what they leave open in the call is its pointers.
Call make_call(const Rung& rung, const at::Tensor& x, const std::string& name, std::optional<int64_t> block,
               std::optional<int64_t> elements, const std::string& op) {
  Call call{};
  call.dtype = dtype_of(x.scalar_type());
  const auto* which = std::find(std::begin(kOps), std::end(kOps), op);
  TORCH_CHECK_VALUE(which != std::end(kOps), "op: '", op, "' is none of sum, product, max, min");
  call.op = static_cast<Op>(which - kOps);
  TORCH_CHECK_VALUE(std::count(rung.ops.begin(), rung.ops.end(), call.op), "op: '", name, "' has no ", op,
                    ", as its lesson has none");
  call.block = chosen("block", block, rung.blocks, name);
  call.elements = chosen("elements_per_thread", elements, rung.elements, name);
  return call;
}

at::Scalar identity(Op op, at::ScalarType type) {
  if (op == Op::sum || op == Op::product) return static_cast<int64_t>(op == Op::product);
  const bool max = op == Op::max;
  if (at::isFloatingType(type)) return max ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  if (type == at::kInt) return max ? std::numeric_limits<int32_t>::lowest() : std::numeric_limits<int32_t>::max();
  return max ? std::numeric_limits<int64_t>::lowest() : std::numeric_limits<int64_t>::max();
}

// --- a run -----------------------------------------------------------------------------------------------------------------

// One call with its memory. prepare() is everything that is not the rung: copies, padding, the output's first value.
class Run {
 public:
  Run(const Rung& rung, const at::Tensor& x, const std::string& name, std::optional<int64_t> block,
      std::optional<int64_t> elements, const std::string& op)
      : x_(x), rung_(rung), call_(make_call(rung, x, name, block, elements, op)) {
    TORCH_CHECK(x.is_cpu() == rung_.on_cpu, "x: '", name, "' runs on ", rung_.on_cpu ? "the CPU" : "a GPU", ", not on ",
                x.device());
    TORCH_CHECK(x.is_contiguous(), "x: the rungs take contiguous tensors, as the lessons do");
    TORCH_CHECK(x.numel() > 0 || call_.op == Op::sum || call_.op == Op::product, "x: ", op, " of no elements has no value");
    call_.n = x.numel();
    TORCH_CHECK(rung_.blocks.empty() || ceil_div(call_.n, call_.tile()) < int64_t{1} << 31,
                "x: too many elements for one grid");
    const bool written = rung_.finish == Finish::written;
    out_ = at::empty(written ? x.sizes() : at::IntArrayRef(), x.options());
    call_.output = out_.mutable_data_ptr();
    call_.input = const_cast<void*>(x.const_data_ptr());
    if (call_.n == 0) return;
    if (rung_.in_place) {
      copy_ = at::empty({ceil_div(call_.n, call_.tile()) * call_.tile()}, x.options());
      call_.input = copy_.mutable_data_ptr();
    }
    if (rung_.scratch_bytes) {
      scratch_ = at::empty({static_cast<int64_t>(rung_.scratch_bytes(call_))}, x.options().dtype(at::kByte));
      call_.scratch = scratch_.mutable_data_ptr();
    }
  }

  void prepare() {
    if (rung_.finish != Finish::written) out_.fill_(identity(call_.op, x_.scalar_type()));
    if (scratch_.defined()) scratch_.zero_();  // digits to add to, and partial sums that fill whole tiles
    if (!copy_.defined()) return;
    copy_.narrow(0, 0, call_.n).copy_(x_.view({-1}));
    copy_.narrow(0, call_.n, copy_.numel() - call_.n).zero_();
  }

  void climb(bool first_pass = false) {
    if (call_.n == 0) return;
    call_.first_pass = first_pass;
#ifdef GPUREDUCE_WITH_CUDA
    if (x_.is_cuda()) {
      call_.stream = at::cuda::getCurrentCUDAStream(x_.get_device());
      C10_CUDA_CHECK(static_cast<cudaError_t>(rung_.run(call_)));
      return;
    }
#endif
    rung_.run(call_);
  }

  const at::Tensor& result() const { return out_; }

 private:
  const at::Tensor& x_;
  const Rung& rung_;
  Call call_;
  at::Tensor out_, copy_, scratch_;
};

at::Tensor run(const at::Tensor& x, const std::string& rung, std::optional<int64_t> block, std::optional<int64_t> elements,
               const std::string& op) {
#ifdef GPUREDUCE_WITH_CUDA
  const c10::cuda::OptionalCUDAGuard guard(x.is_cuda() ? std::make_optional(x.device()) : std::nullopt);
#endif
  Run run(find(rung), x, rung, block, elements, op);
  run.prepare();
  run.climb();
  return run.result();
}

at::Tensor run_meta(const at::Tensor& x, const std::string& rung, std::optional<int64_t> block, std::optional<int64_t> elements,
                    const std::string& op) {
  make_call(find(rung), x, rung, block, elements, op);
  if (find(rung).finish == Finish::written) return at::empty_symint(x.sym_sizes(), x.options());
  return at::empty({}, x.options());
}

// --- its time --------------------------------------------------------------------------------------------------------------

#ifdef GPUREDUCE_WITH_CUDA
struct Event {
  cudaEvent_t event;
  Event() { C10_CUDA_CHECK(cudaEventCreate(&event)); }
  ~Event() { cudaEventDestroy(event); }
  void record(cudaStream_t stream) { C10_CUDA_CHECK(cudaEventRecord(event, stream)); }
};
#endif

// Microseconds of each of `repeats` runs, after one that is not counted. Between two runs everything is prepared again, and on
// a GPU four times its L2 is read, so that each begins with a cold cache. With `profile`, only the runs lie between
// cudaProfilerStart and Stop, each after a kernel that sleeps, by which a profiler's list can be cut into runs. With
// `first_pass` it is the time of the lesson's own kernel on x, without the passes that join the blocks' results; a rung that
// has no such passes is one kernel, and is timed as ever.
at::Tensor time(const at::Tensor& x, const std::string& rung, int64_t repeats, std::optional<int64_t> block,
                std::optional<int64_t> elements, const std::string& op, bool profile, bool first_pass) {
  TORCH_CHECK_VALUE(repeats > 0, "repeats: must be positive, not ", repeats);
  TORCH_CHECK_VALUE(!first_pass || find(rung, false).finish != Finish::library, "first_pass: '", rung,
                    "' is a library's sum, whose kernels are timed together; True is for the rungs with a kernel of their own");
  at::Tensor times = at::empty({repeats}, at::kDouble);
  double* us = times.mutable_data_ptr<double>();
  if (x.is_cpu()) {
    Run run(find(rung, false), x, rung, block, elements, op);
    for (int64_t i = -1; i < repeats; ++i) {
      run.prepare();
      const auto begin = std::chrono::steady_clock::now();
      run.climb(first_pass);
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      if (i >= 0) us[i] = took.count();
    }
    return times;
  }
#ifdef GPUREDUCE_WITH_CUDA
  const c10::cuda::CUDAGuard guard(x.device());
  Run run(find(rung, false), x, rung, block, elements, op);
  const int64_t l2 = at::cuda::getDeviceProperties(x.get_device())->l2CacheSize;
  const at::Tensor flush = at::empty({l2}, x.options().dtype(at::kFloat)).zero_();
  at::Tensor flushed = at::empty({}, flush.options());
  std::deque<Event> begin(repeats), end(repeats);
  const auto stream = at::cuda::getCurrentCUDAStream(x.get_device());
  for (int64_t i = -1; i < repeats; ++i) {
    run.prepare();
    at::sum_out(flushed, flush, at::OptionalIntArrayRef(), false, std::nullopt);
    if (profile && i >= 0) {
      C10_CUDA_CHECK(cudaStreamSynchronize(stream));
      C10_CUDA_CHECK(cudaProfilerStart());
    }
    at::cuda::sleep(200'000);  // about 0.1 ms, in which the host queues what follows: no gap is timed
    if (i >= 0) begin[i].record(stream);
    run.climb(first_pass);
    if (i >= 0) end[i].record(stream);
    if (profile && i >= 0) {
      C10_CUDA_CHECK(cudaStreamSynchronize(stream));
      C10_CUDA_CHECK(cudaProfilerStop());
    }
  }
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  for (int64_t i = 0; i < repeats; ++i) {
    float ms = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&ms, begin[i].event, end[i].event));
    us[i] = ms * 1e3;
  }
  return times;
#else
  TORCH_CHECK(false, "x: this library was built without CUDA");
#endif
}

// --- the list --------------------------------------------------------------------------------------------------------------

template <class T>
std::string list(const std::vector<T>& values) {
  return "[" + c10::Join(", ", values) + "]";
}

std::string lessons() { return kLessons; }

// What may be asked of the rungs that were built, by name.
std::string rungs() {
  std::vector<std::string> lines;
  for (const auto& [name, rung] : registry()) {
    std::vector<std::string> ops;
    for (const Op op : rung.ops) ops.push_back(std::string("\"") + kOps[static_cast<int>(op)] + "\"");
    lines.push_back("\"" + name + "\": {\"device\": \"" + (rung.on_cpu ? "cpu" : "cuda") +
                    "\", \"blocks\": " + list(rung.blocks) + ", \"elements_per_thread\": " + list(rung.elements) +
                    ", \"ops\": " + list(ops) + ", \"finish\": \"" + kFinishes[static_cast<int>(rung.finish)] +
                    "\", \"in_place\": " + (rung.in_place ? "true" : "false") + "}");
  }
  return "{" + c10::Join(",\n", lines) + "}";
}

}  // namespace

}  // namespace gpureduce::ladder

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  const std::string choice = "int? block=None, int? elements_per_thread=None, str op=\"sum\"";
  m.def(("ladder_run(Tensor x, str rung, *, " + choice + ") -> Tensor").c_str(), {at::Tag::pt2_compliant_tag});
  // For torch_reduce.ladder and bench/ladder.py; not part of the interface.
  const std::string options = choice + ", bool profile=False, bool first_pass=False";
  m.def(("_ladder_time(Tensor x, str rung, int repeats, *, " + options + ") -> Tensor").c_str());
  m.def("_ladder_lessons() -> str", &gpureduce::ladder::lessons);
  m.def("_ladder_rungs() -> str", &gpureduce::ladder::rungs);
}

#define GPUREDUCE_REGISTER(m)                    \
  m.impl("ladder_run", &gpureduce::ladder::run); \
  m.impl("_ladder_time", &gpureduce::ladder::time)

TORCH_LIBRARY_IMPL(gpureduce, CPU, m) { GPUREDUCE_REGISTER(m); }
#ifdef GPUREDUCE_WITH_CUDA
TORCH_LIBRARY_IMPL(gpureduce, CUDA, m) { GPUREDUCE_REGISTER(m); }
#endif
TORCH_LIBRARY_IMPL(gpureduce, Meta, m) { m.impl("ladder_run", &gpureduce::ladder::run_meta); }
