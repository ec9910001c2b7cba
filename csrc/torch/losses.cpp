// log_prob and cross_entropy, and torch's nll_loss: a row's logits are read once, and no softmax is written.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Reduction.h>
#include <torch/library.h>

#include <limits>

#include "applied.h"
#include "gradient.h"
#include "results.h"
#include "rows.h"

namespace gpureduce::rows {

namespace {

// Classes of rows. They are widened to int64 first: ignore_index may be no number of their dtype.
struct Targets {
  Tensor ignored;

  Targets(const Tensor& target, const c10::SymInt& ignore_index) : wide_(target.to(at::kLong)) {
    ignored = wide_.eq(ignore_index);
  }

  // Their indices: 0 for those to ignore.
  const Tensor& index() const {
    if (!index_.defined()) index_ = wide_.masked_fill(ignored, 0);
    return index_;
  }

  // Raises torch's error. The host cannot read a GPU's targets: there the assertion of at() stops the kernel.
  void check(int64_t classes, const char* name) const {
    if (!ignored.is_cpu() || ignored.numel() == 0) return;
    const auto [low, high] = index().aminmax();
    const int64_t least = low.item<int64_t>(), most = high.item<int64_t>();
    const bool fits = least >= 0 && (most < classes || (classes == 0 && ignored.all().item<bool>()));
    TORCH_CHECK_INDEX(fits, name, "(): Target ", least < 0 ? least : most, " is out of bounds.");
  }

  // What `values` have of each target's class along dim d: any number for one to ignore.
  Tensor at(const Tensor& values, int64_t d) const {
    if (!has_none(values.sym_size(d))) return values.gather(d, index().unsqueeze(d)).squeeze(d);
    if (ignored.is_cuda()) at::_assert_async(ignored.all(), "a target is out of bounds: there are no classes");
    return at::zeros_symint(ignored.sym_sizes(), values.options());
  }

  // True if there are no classes.
  static bool has_none(const c10::SymInt& classes) { return TORCH_GUARD_OR_FALSE(classes.sym_eq(0)); }

 private:
  Tensor wide_;
  mutable Tensor index_;
};

// --- log_prob ---------------------------------------------------------------------------------------------------------------

void check_target(const char* name, const Tensor& logits, const Tensor& target, int64_t dim) {
  real_dtype(logits, name);
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(logits.scalar_type()), name, "(): logits: expected a floating dtype, but got ",
                              logits.scalar_type());
  TORCH_CHECK(logits.dim() > 0, name, "(): logits: expected at least one dim");
  const at::ScalarType type = target.scalar_type();
  TORCH_CHECK(type == at::kLong || type == at::kInt || type == at::kByte, name,
              "(): target: expected int64, int32 or uint8, but got ", type);
  TORCH_CHECK(target.device() == logits.device(), name, "(): Expected all tensors to be on the same device, but found ",
              target.device(), " and ", logits.device());
  c10::SmallVector<c10::SymInt, kCommonRank> sizes(logits.sym_sizes().begin(), logits.sym_sizes().end());
  sizes.erase(sizes.begin() + c10::maybe_wrap_dim(dim, logits.dim()));
  TORCH_CHECK(target.sym_sizes() == c10::SymIntArrayRef(sizes), name, "(): target: expected the size ",
              c10::SymIntArrayRef(sizes), ", but got ", target.sym_sizes());
}

// Per row: the logarithm of its target's probability, m and log S. A row whose target is to be ignored gives 0.
ThreeTensors log_prob_meta(const Tensor& logits, const Tensor& target, int64_t dim, c10::SymInt) {
  check_target("log_prob", logits, target, dim);
  const auto options = logits.options().dtype(computed_in({logits, {}, {}, {}, {}}));
  c10::SmallVector<c10::SymInt, kCommonRank> kept(logits.sym_sizes().begin(), logits.sym_sizes().end());
  kept[c10::maybe_wrap_dim(dim, logits.dim())] = 1;
  return {at::empty_symint(target.sym_sizes(), options), at::empty_symint(kept, options), at::empty_symint(kept, options)};
}

ThreeTensors log_prob(const Tensor& logits, const Tensor& target, int64_t dim, int64_t ignore_index) {
  auto results = log_prob_meta(logits, target, dim, ignore_index);
  auto& [found, m, log_sum] = results;
  const int64_t d = c10::maybe_wrap_dim(dim, logits.dim());
  if (target.numel() == 0) return results;
  const Targets targets(target, ignore_index);
  targets.check(logits.size(d), "log_prob");
  if (logits.size(d) == 0) log_sum.copy_(m.fill_(-std::numeric_limits<double>::infinity()));
  RowsCall call = make_call(RowFunction::log_sum, {logits, {}, {}, {}, {}}, one_dim(logits, d), "log_prob");
  call.mean = m.data_ptr();
  call.r = log_sum.data_ptr();
  run(call, logits);
  const Tensor at_target = targets.at(without_float8(logits), d).to(m.scalar_type());
  found = (at_target - m.squeeze(d)).sub_(log_sum.squeeze(d)).masked_fill_(targets.ignored, 0);
  return results;
}

void check_log_prob_backward(const Tensor& grad, const Tensor& logits, const Tensor& target, int64_t dim, const Tensor& m,
                             const Tensor& log_sum) {
  constexpr const char* kName = "_log_prob_backward";
  check_target(kName, logits, target, dim);
  TORCH_CHECK(grad.sym_sizes() == target.sym_sizes(), kName, "(): grad: expected the size ", target.sym_sizes(), ", but got ",
              grad.sym_sizes());
  const auto check = [&](const Tensor& x, const char* argument) {
    TORCH_CHECK(x.device() == logits.device(), kName, "(): ", argument, ": expected to be on ", logits.device(), ", but is on ",
                x.device());
    real_dtype(x, kName);
    TORCH_SYM_CHECK(x.sym_numel().sym_eq(target.sym_numel()), kName, "(): ", argument, ": expected a number for each of ",
                    target.sym_numel(), " rows, but got ", x.sym_numel());
  };
  check(grad, "grad");
  check(m, "m");
  check(log_sum, "log_sum");
}

Tensor log_prob_backward(const Tensor& grad, const Tensor& logits, const Tensor& target, int64_t dim, int64_t ignore_index,
                         const Tensor& m, const Tensor& log_sum) {
  check_log_prob_backward(grad, logits, target, dim, m, log_sum);
  const Targets targets(target, ignore_index);
  targets.check(logits.size(c10::maybe_wrap_dim(dim, logits.dim())), "_log_prob_backward");
  const at::ScalarType computed = computed_in({logits, {}, {}, {}, {}});
  const Tensor own_m = plain(m.to(computed)), own_sum = plain(log_sum.to(computed));
  const Tensor row_grad = plain(grad.to(computed).masked_fill(targets.ignored, 0));
  const Tensor index = targets.index().contiguous();
  const DimMask mask = one_dim(logits, dim);
  const Tensor x = together(logits, mask, logits), found = room(x, mask, logits.scalar_type());
  RowsCall call = make_call(RowFunction::log_prob_backward, {x, {}, {}, {}, found}, mask, "_log_prob_backward");
  call.mean = own_m.data_ptr();
  call.r = own_sum.data_ptr();
  call.row_grad = row_grad.data_ptr();
  call.target = index.const_data_ptr<int64_t>();
  run(call, logits);
  return found.contiguous();
}

Tensor log_prob_backward_meta(const Tensor& grad, const Tensor& logits, const Tensor& target, int64_t dim, c10::SymInt,
                              const Tensor& m, const Tensor& log_sum) {
  check_log_prob_backward(grad, logits, target, dim, m, log_sum);
  return new_result(logits, logits.scalar_type());
}

// The same by operators that torch can differentiate again, with the same bits.
Tensor log_prob_backward_composed(const Tensor& grad, const Tensor& logits, const Tensor& target, int64_t dim,
                                  const c10::SymInt& ignore_index) {
  const Targets targets(target, ignore_index);
  const int64_t d = c10::maybe_wrap_dim(dim, logits.dim());
  const at::ScalarType computed = computed_in({logits, {}, {}, {}, {}});
  const Tensor g = grad.to(computed).masked_fill(targets.ignored, 0).unsqueeze(d);
  const Tensor y = softmax_operator<true>().call(logits, d, computed);
  const Tensor zeros = at::zeros_like(g).detach();
  const Tensor powers = apply(Formula::exponent, y, {at::ones_like(zeros), zeros}, computed);
  const Tensor own = Targets::has_none(logits.sym_size(d)) ? y : at::zeros_like(y).scatter(d, targets.index().unsqueeze(d), g);
  return rounded(own - multiplied(powers, g), logits.scalar_type()).contiguous();
}

struct LogProbFacts {
  int64_t dim = 0;
  c10::SymInt ignore_index = 0;

  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.dim);
    f(self.ignore_index);
  }
};

struct LogProbRule : RuleOf<LogProbFacts> {
  static constexpr std::array<bool, 4> kKept = {false, false, false, false};  // logits, target, m, log S

  static std::string name() { return "gpureduce_log_prob_backward"; }

  static variable_list gradients(variable_list grads, const LogProbFacts& facts, const std::array<Tensor, 4>& kept) {
    if (!grads[0].defined()) return {Tensor()};
    return {log_prob_backward_operator().call(grads[0], kept[0], kept[1], facts.dim, facts.ignore_index, kept[2], kept[3])};
  }
};

ThreeTensors log_prob_differentiable(c10::DispatchKeySet keys, const Tensor& logits, const Tensor& target, int64_t dim,
                                     c10::SymInt ignore_index) {
  return with_derivatives<LogProbRule>(
      std::tie(logits),
      [&] { return log_prob_operator().redispatch(keys & c10::after_autograd_keyset, logits, target, dim, ignore_index); },
      [&] { return LogProbFacts{dim, ignore_index}; },
      [&](const ThreeTensors& results) { return std::array{logits, target, std::get<1>(results), std::get<2>(results)}; },
      [&](const ThreeTensors& results) {
        const int64_t d = c10::maybe_wrap_dim(dim, logits.dim());
        const at::ScalarType computed = std::get<1>(results).scalar_type();
        const Tensor t = logits._fw_grad(/*level=*/0).to(computed), primal = logits._fw_primal(/*level=*/0);
        const Targets targets(target, ignore_index);
        const Tensor mean = total(softmax_operator<false>().call(primal, d, computed) * t, d).squeeze(d);
        return (targets.at(t, d) - mean).masked_fill(targets.ignored, 0);
      });
}

Tensor log_prob_backward_differentiable(c10::DispatchKeySet keys, const Tensor& grad, const Tensor& logits,
                                        const Tensor& target, int64_t dim, c10::SymInt ignore_index, const Tensor& m,
                                        const Tensor& log_sum) {
  if (is_tracked(grad, logits)) return log_prob_backward_composed(grad, logits, target, dim, ignore_index);
  const at::AutoDispatchBelowADInplaceOrView below;
  return log_prob_backward_operator().redispatch(keys & c10::after_autograd_keyset, grad, logits, target, dim, ignore_index, m,
                                                 log_sum);
}

ThreeTensors log_prob_batched(const Tensor& logits, const Tensor& target, int64_t dim, c10::SymInt ignore_index) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level("log_prob");
  auto [x, x_batched] = in_front(logits, level);
  auto [t, t_batched] = in_front(target, level);
  if (!x_batched && !t_batched) return log_prob_operator().call(x, t, dim, ignore_index);
  if (!x_batched) x = repeated(x, t.sym_size(0));
  if (!t_batched) t = repeated(t, x.sym_size(0));
  return with_batch(log_prob_operator().call(x, t, c10::maybe_wrap_dim(dim, x.dim() - 1) + 1, ignore_index), 0, level);
}

Tensor log_prob_of(const Tensor& logits, const Tensor& target, int64_t dim, double temperature, int64_t ignore_index) {
  TORCH_CHECK(temperature > 0, "log_prob(): temperature: expected a number above 0, but got ", temperature);
  if (temperature == 1) return std::get<0>(log_prob_operator().call(logits, target, dim, ignore_index));
  const Tensor wide = without_float8(logits).to(computed_in({logits, {}, {}, {}, {}}));
  const Tensor softened = apply(Formula::quotient, wide, {{}, {}, {}, 0, -temperature}, wide.scalar_type());
  return std::get<0>(log_prob_operator().call(softened, target, dim, ignore_index));
}

// --- cross_entropy ----------------------------------------------------------------------------------------------------------

Tensor sum_of_all(const Tensor& x) { return functional<Operation::sum>().call(x, std::nullopt, false, std::nullopt); }

Tensor reduced(const Tensor& losses, const Tensor& divisor, int64_t reduction, at::ScalarType dtype) {
  if (reduction == at::Reduction::None) return rounded(losses, dtype);
  const Tensor sum = sum_of_all(losses);
  return rounded(reduction == at::Reduction::Mean ? divided(sum, divisor) : sum, dtype);
}

// The share of a smoothed target that each class gets.
Tensor share_of_each(double smoothing, const c10::SymInt& classes, const Tensor& like) {
  return apply(Formula::quotient, number_like(smoothing, like), {{}, {}, {}, classes}, like.scalar_type());
}

// How much each target counts: the weight of its class, or nothing where it is to be ignored.
Tensor counts_of(const Targets& targets, const Tensor& weight, at::ScalarType dtype) {
  if (!weight.defined()) return targets.ignored.logical_not().to(dtype);
  const Tensor wide = weight.to(dtype);
  return (Targets::has_none(wide.sym_size(0)) ? at::zeros_like(targets.ignored, wide.options()) : wide.index({targets.index()}))
      .masked_fill(targets.ignored, 0);
}

void check_reduction(const char* name, int64_t reduction) {
  TORCH_CHECK(reduction >= at::Reduction::None && reduction < at::Reduction::END, name,
              "(): reduction: expected 0 (none), 1 (mean) or 2 (sum), but got ", reduction);
}

void check_weight(const char* name, const Tensor& weight, const c10::SymInt& classes) {
  TORCH_CHECK(!weight.defined() || (weight.dim() == 1 && weight.sym_size(0) == classes), name,
              "(): weight: expected a number for each of ", classes, " classes, but got the size ",
              weight.defined() ? weight.sym_sizes() : c10::SymIntArrayRef());
}

// torch's loss, which torch.autocast makes float32 on every device. The mean is one quotient of two sums in the contract's
// order.
Tensor cross_entropy(const Tensor& input, const Tensor& target, const OptionalTensor& given_weight, int64_t reduction,
                     c10::SymInt ignore_index, double smoothing) {
  const int64_t d = input.dim() == 1 ? 0 : 1;
  real_dtype(input, "cross_entropy");
  TORCH_CHECK(input.dim() > 0, "cross_entropy(): input: expected at least one dim");
  TORCH_CHECK(smoothing >= 0 && smoothing <= 1, "cross_entropy(): label_smoothing: expected from 0 to 1, but got ", smoothing);
  check_reduction("cross_entropy", reduction);
  const Tensor weight = tensor_of(given_weight);
  const c10::SymInt classes = input.sym_size(d);
  check_weight("cross_entropy", weight, classes);
  const at::ScalarType computed = computed_in({input, {}, weight, {}, {}});
  const at::ScalarType dtype = is_autocast(input) ? at::kFloat : input.scalar_type();
  c10::SmallVector<c10::SymInt, kCommonRank> along(input.dim(), 1);
  along[d] = classes;
  const Tensor of_class = weight.defined() ? weight.to(computed).view_symint(along) : Tensor();

  if (at::isFloatingType(target.scalar_type())) {  // probabilities of classes
    TORCH_CHECK(target.sym_sizes() == input.sym_sizes(), "cross_entropy(): target: expected probabilities of the size ",
                input.sym_sizes(), ", but got ", target.sym_sizes());
    TORCH_CHECK(TORCH_GUARD_OR_TRUE(ignore_index.sym_lt(0)),
                "cross_entropy(): ignore_index is not supported for floating point target");
    Tensor share = target.to(computed);
    if (smoothing > 0) share = multiplied(share, number_like(1 - smoothing, share)) + share_of_each(smoothing, classes, share);
    if (of_class.defined()) share = share * of_class;
    const Tensor losses = -total(softmax_operator<true>().call(input, d, computed) * share, d).squeeze(d);
    c10::SymInt rows = 1;
    for (int64_t k = 0; k < input.dim(); ++k)
      if (k != d) rows *= input.sym_size(k);
    return reduced(losses, at::scalar_tensor(rows, losses.options()), reduction, dtype);
  }

  const Tensor logits = computed == at::kDouble ? input.to(at::kDouble) : input;
  const Tensor found = std::get<0>(log_prob_operator().call(logits, target, d, ignore_index));  // refuses wrong targets
  const Targets targets(target, ignore_index);
  const Tensor counts = counts_of(targets, weight, computed);
  Tensor losses = (weight.defined() ? -found * counts : -found).masked_fill(targets.ignored, 0);  // -0 would be -0.0
  if (smoothing > 0) {
    const Tensor logarithms = softmax_operator<true>().call(input, d, computed);
    const Tensor weighted = of_class.defined() ? logarithms * of_class : logarithms;
    const Tensor smooth = (-total(weighted, d).squeeze(d)).masked_fill(targets.ignored, 0);
    losses =
        multiplied(losses, number_like(1 - smoothing, losses)) + multiplied(smooth, share_of_each(smoothing, classes, smooth));
  }
  return reduced(losses, sum_of_all(counts), reduction, dtype);
}

// --- nll_loss, which torch's own cross_entropy calls (replace.cpp) --------------------------------------------------------

int64_t class_dim(const Tensor& self) { return self.dim() == 1 ? 0 : 1; }

// The loss, and what its mean is divided by; 0 for losses one by one, as in torch.
TwoTensors nll_loss_meta(const Tensor& self, const Tensor& target, const OptionalTensor& weight, int64_t reduction,
                         c10::SymInt) {
  TORCH_CHECK(self.dim() > 0, "nll_loss(): self: expected at least one dim");
  check_target("nll_loss", self, target, class_dim(self));
  check_reduction("nll_loss", reduction);
  check_weight("nll_loss", tensor_of(weight), self.sym_size(class_dim(self)));
  const bool one_by_one = reduction == at::Reduction::None;
  return {at::empty_symint(one_by_one ? target.sym_sizes() : c10::SymIntArrayRef(), self.options()),
          at::empty({}, self.options())};
}

TwoTensors nll_loss(const Tensor& self, const Tensor& target, const OptionalTensor& weight, int64_t reduction,
                    int64_t ignore_index) {
  nll_loss_meta(self, target, weight, reduction, ignore_index);
  const int64_t d = class_dim(self);
  const at::ScalarType computed = computed_in({self, {}, tensor_of(weight), {}, {}}), dtype = self.scalar_type();
  const Targets targets(target, ignore_index);
  targets.check(self.size(d), "nll_loss");
  Tensor losses = -targets.at(self, d).to(computed);
  const Tensor counts = counts_of(targets, tensor_of(weight), computed), divisor = sum_of_all(counts);
  if (tensor_of(weight).defined()) losses.mul_(counts);
  losses.masked_fill_(targets.ignored, 0);
  const bool undivided = reduction == at::Reduction::None && self.dim() > 1;
  return {reduced(losses, divisor, reduction, dtype), undivided ? at::zeros({}, self.options()) : rounded(divisor, dtype)};
}

Tensor nll_loss_backward_meta(const Tensor&, const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                              int64_t reduction, c10::SymInt ignore_index, const Tensor&) {
  nll_loss_meta(self, target, weight, reduction, std::move(ignore_index));
  return new_result(self, self.scalar_type());
}

Tensor nll_loss_backward(const Tensor& grad, const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                         int64_t reduction, int64_t ignore_index, const Tensor& total_weight) {
  nll_loss_meta(self, target, weight, reduction, ignore_index);
  const int64_t d = class_dim(self);
  const at::ScalarType computed = computed_in({self, grad, tensor_of(weight), {}, {}});
  const Targets targets(target, ignore_index);
  targets.check(self.size(d), "nll_loss");
  Tensor share = grad.to(computed);
  if (reduction == at::Reduction::Mean) share = divided(share, total_weight.to(computed));
  share = tensor_of(weight).defined() ? share * counts_of(targets, tensor_of(weight), computed) : share.expand_as(target);
  share = rounded((-share).masked_fill_(targets.ignored, 0), self.scalar_type());
  const Tensor found = at::zeros_like(self, self.options(), at::MemoryFormat::Contiguous);
  return found.numel() == 0 ? found : found.scatter_(d, targets.index().unsqueeze(d), share.unsqueeze(d));
}

}  // namespace

}  // namespace gpureduce::rows

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  using namespace gpureduce;
  using namespace gpureduce::rows;
  define_operator<log_prob, log_prob_meta, log_prob_differentiable, log_prob_batched>(
      m, "_log_prob(Tensor logits, Tensor target, int dim, SymInt ignore_index=-100) -> (Tensor, Tensor, Tensor)");
  define_operator<log_prob_backward, log_prob_backward_meta, log_prob_backward_differentiable>(
      m,
      "_log_prob_backward(Tensor grad, Tensor logits, Tensor target, int dim, SymInt ignore_index, Tensor m, Tensor log_sum) "
      "-> Tensor");
  define_operator<nll_loss, nll_loss_meta>(
      m,
      "_nll_loss(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor "
      "total_weight)");
  define_operator<nll_loss_backward, nll_loss_backward_meta>(
      m,
      "_nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index, "
      "Tensor total_weight) -> Tensor");
  define_composite(
      m, "log_prob(Tensor logits, Tensor target, int dim=-1, *, float temperature=1.0, int ignore_index=-100) -> Tensor",
      &log_prob_of);
  define_composite(m,
                   "cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100, "
                   "float label_smoothing=0.0) -> Tensor",
                   &cross_entropy);
}
