// log_prob and cross_entropy, and torch's nll_loss: a row's logits are read once, and no softmax is written.
//
// One launch writes the losses of all rows, with what each counts; another one adds up both, and writes their quotient. The
// gradient is one launch. Calls that are batched, traced, smoothed or differentiated twice are composed of smaller operators.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Reduction.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "../core/torch/applied.h"
#include "../core/torch/gradient.h"
#include "../core/torch/results.h"
#include "../indexed/torch_gathered.h"
#include "torch.h"

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

// How much each target counts: the weight of its class, or nothing where it is to be ignored.
Tensor counts_of(const Targets& targets, const Tensor& weight, at::ScalarType dtype) {
  if (!weight.defined()) return targets.ignored.logical_not().to(dtype);
  const Tensor wide = weight.to(dtype);
  const c10::SymInt classes = wide.sym_size(0);
  if (wide.requires_grad()) {  // a gradient of torch's index adds in no order; targets to ignore are a class of their own
    const Tensor rows = at::where(targets.ignored, classes, targets.index()).reshape(-1);
    return gathered::along(at::cat({wide, at::zeros({1}, wide.options())}), {}, {rows, {}, {}}, {}, 0, dtype)
        .view_symint(targets.ignored.sym_sizes());
  }
  return (Targets::has_none(classes) ? at::zeros_like(targets.ignored, wide.options()) : wide.index({targets.index()}))
      .masked_fill(targets.ignored, 0);
}

// The weights of classes beside logits, whose classes are dim d.
Tensor beside(const Tensor& weight, const Tensor& logits, int64_t d, at::ScalarType dtype) {
  const Tensor wide = weight.to(dtype);
  c10::SmallVector<c10::SymInt, kCommonRank> alone(logits.dim(), 1), others;
  alone[d] = wide.sym_size(0);
  for (int64_t k = 0; k < logits.dim(); ++k)
    if (k != d) others.push_back(logits.sym_size(k));
  if (!wide.requires_grad()) return wide.view_symint(alone);
  // Each row reads the same weights, so that their gradient is a sum by index: torch's of a broadcast adds in no fixed order.
  const Tensor zeros = at::zeros_symint(others, wide.options().dtype(at::kInt)).reshape(-1);
  others.push_back(wide.sym_size(0));
  return gathered::along(wide.unsqueeze(0), {}, {zeros, {}, {}}, {}, 0, dtype).view_symint(others).movedim(-1, d);
}

void check_weight(const char* name, const Tensor& weight, const c10::SymInt& classes) {
  TORCH_CHECK(!weight.defined() || (weight.dim() == 1 && weight.sym_size(0) == classes), name,
              "(): weight: expected a number for each of ", classes, " classes, but got the size ",
              weight.defined() ? weight.sym_sizes() : c10::SymIntArrayRef());
}

// The targets as kernels read them. On a CPU wrong ones raise torch's error.
Tensor read_targets(RowLoss& loss, const Tensor& target, int64_t ignore_index, int64_t classes, const char* name) {
  const Tensor found = plain(target);
  loss.targets = {found.const_data_ptr(), dtype_of(found.scalar_type(), "a target of dtype"), classes, ignore_index};
  const auto check = [&](const auto* each) {
    for (int64_t i = 0, n = found.numel(); i < n; ++i) {
      const int64_t index = each[i];
      TORCH_CHECK_INDEX((index >= 0 && index < classes) || index == ignore_index, name, "(): Target ", index,
                        " is out of bounds.");
    }
  };
  if (found.is_cuda() && classes == 0)
    at::_assert_async(Targets(target, ignore_index).ignored.all(), "a target is out of bounds: there are no classes");
  if (!found.is_cpu()) return found;
  if (found.scalar_type() == at::kLong) check(found.const_data_ptr<int64_t>());
  else if (found.scalar_type() == at::kInt) check(found.const_data_ptr<int32_t>());
  else check(found.const_data_ptr<uint8_t>());
  return found;
}

// The incoming gradient of rows as kernels read it: one number for all, or one per row.
Tensor read_grad(RowLoss& loss, const Tensor& grad, at::ScalarType computed) {
  bool one = !grad.is_neg();
  for (int64_t d = 0; d < grad.dim(); ++d) one = one && (grad.size(d) == 1 || grad.stride(d) == 0);
  const Tensor wide = at::isFloatingType(grad.scalar_type()) ? grad : grad.to(computed), found = one ? wide : plain(wide);
  loss.grad = found.const_data_ptr();
  loss.grad_dtype = dtype_of(found.scalar_type(), "a gradient of dtype");
  loss.step = one ? 0 : 1;
  return found;
}

// The weights of classes, in the dtype of `like`, whose device must be theirs.
Tensor read_weight(RowLoss& loss, const OptionalTensor& weight, const Tensor& like, const char* name) {
  if (!tensor_of(weight).defined()) return {};
  TORCH_CHECK(weight->device() == like.device(), name, "(): weight: expected to be on ", like.device(), ", but is on ",
              weight->device());
  const Tensor found = plain(weight->to(like.scalar_type()));
  loss.weight = found.const_data_ptr();
  return found;
}

// Writes m and log S of each row, and to `found` what the loss is.
void run_forward(RowLoss& loss, const Tensor& found, const Tensor& m, const Tensor& log_sum, const Tensor& logits,
                 const Tensor& target, int64_t dim, int64_t ignore_index, const char* name) {
  const int64_t classes = logits.size(dim);
  const Tensor own = read_targets(loss, target, ignore_index, classes, name);
  if (classes == 0) {
    found.zero_();
    log_sum.copy_(m.fill_(-std::numeric_limits<double>::infinity()));
  }
  loss.found = found.data_ptr();
  loss.dtype = dtype_of(found.scalar_type(), "a result of dtype");
  RowsCall call = make_call(RowFunction::log_sum, {logits, {}, {}, {}, {}}, one_dim(logits, dim), name);
  call.mean = m.data_ptr();
  call.r = log_sum.data_ptr();
  call.loss = loss;
  run(call, logits);
}

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

// m and log S of each row.
TwoTensors numbers_of_rows(const char* name, const Tensor& logits, const Tensor& target, int64_t dim) {
  check_target(name, logits, target, dim);
  const auto options = logits.options().dtype(computed_in({logits, {}, {}, {}, {}}));
  c10::SmallVector<c10::SymInt, kCommonRank> kept(logits.sym_sizes().begin(), logits.sym_sizes().end());
  kept[c10::maybe_wrap_dim(dim, logits.dim())] = 1;
  return {at::empty_symint(kept, options), at::empty_symint(kept, options)};
}

// Per row: the logarithm of its target's probability, m and log S. A row whose target is to be ignored gives 0.
ThreeTensors log_prob_meta(const Tensor& logits, const Tensor& target, int64_t dim, c10::SymInt) {
  const auto [m, log_sum] = numbers_of_rows("log_prob", logits, target, dim);
  return {at::empty_symint(target.sym_sizes(), m.options()), m, log_sum};
}

ThreeTensors log_prob(const Tensor& logits, const Tensor& target, int64_t dim, int64_t ignore_index) {
  const auto results = log_prob_meta(logits, target, dim, ignore_index);
  const auto& [found, m, log_sum] = results;
  RowLoss loss;
  run_forward(loss, found, m, log_sum, logits, target, c10::maybe_wrap_dim(dim, logits.dim()), ignore_index, "log_prob");
  return results;
}

void check_log_prob_backward(const Tensor& grad, const Tensor& logits, const Tensor& target, int64_t dim, const Tensor& m,
                             const Tensor& log_sum, const OptionalTensor& weight, double z_loss, const OptionalTensor& shift,
                             const OptionalTensor& divisor) {
  constexpr const char* kName = "_log_prob_backward";
  check_target(kName, logits, target, dim);
  TORCH_CHECK(grad.dim() == 0 || grad.sym_sizes() == target.sym_sizes(), kName, "(): grad: expected the size ",
              target.sym_sizes(), ", but got ", grad.sym_sizes());
  const auto check = [&](const Tensor& x, const char* argument, const c10::SymInt& count) {
    TORCH_CHECK(x.device() == logits.device(), kName, "(): ", argument, ": expected to be on ", logits.device(), ", but is on ",
                x.device());
    real_dtype(x, kName);
    TORCH_SYM_CHECK(x.sym_numel().sym_eq(count), kName, "(): ", argument, ": expected a number for each of ", count,
                    " rows, but got ", x.sym_numel());
  };
  check(grad, "grad", grad.sym_numel());
  check(m, "m", target.sym_numel());
  check(log_sum, "log_sum", target.sym_numel());
  check_weight(kName, tensor_of(weight), logits.sym_size(dim));
  TORCH_CHECK(z_loss == 0 || tensor_of(shift).defined(), kName, "(): shift: expected m + log S of each row");
  if (z_loss != 0) check(*shift, "shift", target.sym_numel());
  if (tensor_of(divisor).defined()) check(*divisor, "divisor", 1);
}

// The gradient of the logits: of a logarithm per row; or of a loss, where grad / divisor may be one number for all rows.
Tensor log_prob_backward_meta(const Tensor& grad, const Tensor& logits, const Tensor& target, int64_t dim, c10::SymInt,
                              const Tensor& m, const Tensor& log_sum, bool, const OptionalTensor& weight, double z_loss,
                              const OptionalTensor& shift, const OptionalTensor& divisor) {
  check_log_prob_backward(grad, logits, target, dim, m, log_sum, weight, z_loss, shift, divisor);
  return new_result(logits, logits.scalar_type());
}

Tensor log_prob_backward(const Tensor& grad, const Tensor& logits, const Tensor& target, int64_t dim, int64_t ignore_index,
                         const Tensor& m, const Tensor& log_sum, bool is_loss, const OptionalTensor& weight, double z_loss,
                         const OptionalTensor& shift, const OptionalTensor& divisor) {
  constexpr const char* kName = "_log_prob_backward";
  check_log_prob_backward(grad, logits, target, dim, m, log_sum, weight, z_loss, shift, divisor);
  const at::ScalarType computed = computed_in({logits, {}, {}, {}, {}});
  const DimMask mask = one_dim(logits, dim);
  const Tensor x = together(logits, mask, logits), found = room(x, mask, logits.scalar_type());
  RowsCall call = make_call(RowFunction::log_prob_backward, {x, {}, {}, {}, found}, mask, kName);
  RowLoss& loss = call.loss;
  const auto numbers = [&](const OptionalTensor& of) { return tensor_of(of).defined() ? plain(of->to(computed)) : Tensor(); };
  const Tensor own = read_targets(loss, target, ignore_index, logits.size(dim), kName), own_m = numbers(m),
               own_sum = numbers(log_sum), own_weight = read_weight(loss, weight, own_m, kName), own_shift = numbers(shift),
               own_divisor = numbers(divisor), own_grad = read_grad(loss, grad, computed);
  call.mean = own_m.data_ptr();
  call.r = own_sum.data_ptr();
  loss.is_loss = is_loss;
  loss.z = z_loss;
  if (own_shift.defined()) loss.shift = own_shift.data_ptr();
  if (own_divisor.defined()) loss.divisor = own_divisor.const_data_ptr();
  run(call, logits);
  return found.contiguous();
}

// m + log S of each row, as kernels compute it.
Tensor shift_of(const Tensor& logits, int64_t dim, at::ScalarType computed) {
  return functional(Operation::_logsumexp).call(without_float8(logits), dim, false, computed);
}

// The same by operators that torch can differentiate again, with the same bits.
Tensor log_prob_backward_composed(const Tensor& grad, const Tensor& logits, const Tensor& target, int64_t dim,
                                  const c10::SymInt& ignore_index, bool is_loss, const Tensor& weight, double z_loss,
                                  const Tensor& divisor) {
  const Targets targets(target, ignore_index);
  const int64_t d = c10::maybe_wrap_dim(dim, logits.dim());
  const at::ScalarType computed = computed_in({logits, {}, {}, {}, {}});
  const auto of_rows = [&](const Tensor& x) { return x.masked_fill(targets.ignored, 0).unsqueeze(d); };
  Tensor share = grad.to(computed), g = share;
  if (divisor.defined()) share = divided(share, divisor.squeeze(0));
  if (share.dim() < target.dim()) share = share.expand_symint(target.sym_sizes());
  if (is_loss) g = -(weight.defined() ? share * counts_of(targets, weight, computed) : share);
  g = of_rows(g);
  const Tensor y = softmax_operator<true>().call(logits, d, computed);
  const Tensor zeros = at::zeros_like(g).detach();
  const Tensor powers = apply(Formula::exponent, y, {at::ones_like(zeros), zeros}, computed);
  const Tensor own = Targets::has_none(logits.sym_size(d)) ? y : at::zeros_like(y).scatter(d, targets.index().unsqueeze(d), g);
  if (z_loss != 0) {
    const Tensor half = multiplied(share, number_like(z_loss, share)) * shift_of(logits, d, computed);
    g = g - of_rows(half + half);
  }
  return rounded(own - multiplied(powers, g), logits.scalar_type()).contiguous();
}

struct LogProbFacts {
  int64_t dim = 0;
  c10::SymInt ignore_index = 0;
  bool is_loss = false;
  double z_loss = 0;

  template <class Self, class F>
  static void each(Self& self, F f) {
    f(self.dim);
    f(self.ignore_index);
    f(self.is_loss);
    f(self.z_loss);
  }
};

struct LogProbRule : RuleOf<LogProbFacts> {
  using Tensors = std::array<Tensor, 7>;  // logits, target, m, log S, weight, m + log S, divisor
  static constexpr std::array<bool, 7> kKept = {};

  static std::string name() { return "gpureduce_log_prob_backward"; }

  static variable_list gradients(variable_list grads, const LogProbFacts& facts, const Tensors& kept) {
    if (!grads[0].defined()) return {Tensor()};
    const auto given = [](const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; };
    return {log_prob_backward_operator().call(grads[0], kept[0], kept[1], facts.dim, facts.ignore_index, kept[2], kept[3],
                                              facts.is_loss, given(kept[4]), facts.z_loss, given(kept[5]), given(kept[6]))};
  }
};

ThreeTensors log_prob_differentiable(c10::DispatchKeySet keys, const Tensor& logits, const Tensor& target, int64_t dim,
                                     c10::SymInt ignore_index) {
  return with_derivatives<LogProbRule>(
      std::tie(logits),
      [&] { return log_prob_operator().redispatch(keys & c10::after_autograd_keyset, logits, target, dim, ignore_index); },
      [&] { return LogProbFacts{dim, ignore_index}; },
      [&](const ThreeTensors& results) {
        return LogProbRule::Tensors{logits, target, std::get<1>(results), std::get<2>(results)};
      },
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
                                        const Tensor& log_sum, bool is_loss, const OptionalTensor& weight, double z_loss,
                                        const OptionalTensor& shift, const OptionalTensor& divisor) {
  if (is_tracked(grad, logits))
    return log_prob_backward_composed(grad, logits, target, dim, ignore_index, is_loss, tensor_of(weight), z_loss,
                                      tensor_of(divisor));
  const at::AutoDispatchBelowADInplaceOrView below;
  return log_prob_backward_operator().redispatch(keys & c10::after_autograd_keyset, grad, logits, target, dim, ignore_index, m,
                                                 log_sum, is_loss, weight, z_loss, shift, divisor);
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

Tensor sum_of_all(const Tensor& x) { return functional(Operation::sum).call(x, std::nullopt, false, std::nullopt); }

Tensor reduced(const Tensor& losses, const Tensor& divisor, int64_t reduction, at::ScalarType dtype) {
  if (reduction == at::Reduction::None) return rounded(losses, dtype);
  const Tensor sum = sum_of_all(losses);
  return rounded(reduction == at::Reduction::Mean ? divided(sum, divisor) : sum, dtype);
}

// The share of a smoothed target that each class gets.
Tensor share_of_each(double smoothing, const c10::SymInt& classes, const Tensor& like) {
  return apply(Formula::quotient, number_like(smoothing, like), {{}, {}, {}, classes}, like.scalar_type());
}

void check_reduction(const char* name, int64_t reduction) {
  TORCH_CHECK(reduction >= at::Reduction::None && reduction < at::Reduction::END, name,
              "(): reduction: expected 0 (none), 1 (mean) or 2 (sum), but got ", reduction);
}

void check_divisor(const Tensor& divisor, int64_t reduction) {
  if (!divisor.defined()) return;
  TORCH_CHECK(reduction == at::Reduction::Mean, "cross_entropy(): divisor: only a mean has one");
  TORCH_CHECK(divisor.dim() == 0 && !divisor.is_complex(), "cross_entropy(): divisor: expected a real number, but got ",
              divisor.scalar_type(), " of the size ", divisor.sym_sizes());
}

int64_t class_dim(const Tensor& self) { return self.dim() == 1 ? 0 : 1; }

// The loss, rounded once to `dtype`; m and log S of each row, and their sum if there is a z_loss; and what losses that are
// added up are divided by.
FiveTensors cross_entropy_of_classes_meta(const Tensor& logits, const Tensor& target, const OptionalTensor& weight,
                                          int64_t reduction, c10::SymInt, double z_loss, const OptionalTensor& divisor,
                                          at::ScalarType dtype) {
  TORCH_CHECK(logits.dim() > 0, "cross_entropy(): input: expected at least one dim");
  const auto [m, log_sum] = numbers_of_rows("cross_entropy", logits, target, class_dim(logits));
  check_reduction("cross_entropy", reduction);
  check_weight("cross_entropy", tensor_of(weight), logits.sym_size(class_dim(logits)));
  check_divisor(tensor_of(divisor), reduction);
  TORCH_CHECK(at::isFloatingType(dtype), "_cross_entropy(): dtype: expected a floating one, but got ", dtype);
  const bool each = reduction == at::Reduction::None;
  return {at::empty_symint(each ? target.sym_sizes() : c10::SymIntArrayRef(), logits.options().dtype(dtype)), m, log_sum,
          z_loss == 0 ? at::empty({0}, m.options()) : at::empty_symint(target.sym_sizes(), m.options()),
          at::empty({each ? 0 : 1}, m.options())};
}

FiveTensors cross_entropy_of_classes(const Tensor& logits, const Tensor& target, const OptionalTensor& given_weight,
                                     int64_t reduction, int64_t ignore_index, double z_loss,
                                     const OptionalTensor& given_divisor, at::ScalarType dtype) {
  const auto results =
      cross_entropy_of_classes_meta(logits, target, given_weight, reduction, ignore_index, z_loss, given_divisor, dtype);
  const auto& [found, m, log_sum, shift, divided_by] = results;
  const auto for_each_row = [&] {  // one loss of 0 that counts 0, where there is none
    const int64_t rows = std::max<int64_t>(target.numel(), 1);
    return logits.numel() == 0 ? at::zeros({rows}, m.options()) : at::empty({rows}, m.options());
  };
  const bool each = reduction == at::Reduction::None;
  const Tensor losses = each ? found : for_each_row(), counts = each ? Tensor() : for_each_row();
  RowLoss loss;
  const Tensor weight = read_weight(loss, given_weight, m, "cross_entropy");
  loss.is_loss = true;
  loss.z = z_loss;
  loss.shift = shift.data_ptr();
  if (logits.numel() == 0) shift.zero_();
  if (!each) loss.count = counts.data_ptr();
  run_forward(loss, losses, m, log_sum, logits, target, class_dim(logits), ignore_index, "cross_entropy");
  if (each) return results;

  RowsCall mean = make_call(RowFunction::quotient, {losses, counts, {}, {}, {}}, {true}, "cross_entropy");
  Tensor divisor = tensor_of(given_divisor);
  if (divisor.defined() && divisor.is_cpu()) mean.loss.number = divisor.item<double>();
  else if (divisor.defined()) mean.loss.divisor = (divisor = divisor.to(m.options())).const_data_ptr();
  mean.loss.by_counts = reduction == at::Reduction::Mean && !divisor.defined();
  mean.loss.found = found.data_ptr();
  mean.loss.dtype = dtype_of(dtype, "a result of dtype");
  mean.loss.count = divided_by.data_ptr();
  run(mean, logits);
  return results;
}

FiveTensors cross_entropy_differentiable(c10::DispatchKeySet keys, const Tensor& logits, const Tensor& target,
                                         const OptionalTensor& weight, int64_t reduction, c10::SymInt ignore_index,
                                         double z_loss, const OptionalTensor& divisor, at::ScalarType dtype) {
  return with_derivatives<LogProbRule>(
      std::tie(logits),
      [&] {
        return cross_entropy_operator().redispatch(keys & c10::after_autograd_keyset, logits, target, weight, reduction,
                                                   ignore_index, z_loss, divisor, dtype);
      },
      [&] { return LogProbFacts{class_dim(logits), ignore_index, true, z_loss}; },
      [&](const FiveTensors& results) {
        const auto& [found, m, log_sum, shift, divided_by] = results;
        return LogProbRule::Tensors{logits,
                                    target,
                                    m,
                                    log_sum,
                                    tensor_of(weight),
                                    z_loss == 0 ? Tensor() : shift,
                                    reduction == at::Reduction::None ? Tensor() : divided_by};
      },
      [&](const FiveTensors&) -> Tensor { TORCH_CHECK(false, "_cross_entropy(): forward mode is cross_entropy's"); });
}

// Whether a call is one of plain tensors, and needs no derivatives but the gradient of the logits.
bool is_plain(const Tensor& logits, const Tensor& target, const Tensor& weight, double z_loss) {
  for (const Tensor* x : {&logits, &target, &weight}) {
    if (!x->defined()) continue;
    const c10::DispatchKeySet keys = x->key_set();
    const bool transformed = keys.has(Key::FuncTorchBatched) || keys.has(Key::FuncTorchGradWrapper);
    if (transformed || x->layout() != at::kStrided) return false;
    if (z_loss == 0 && keys.has(Key::Python)) return false;  // traces show the smaller operators, which compilers fuse
  }
  return !torch::autograd::isFwGradDefined(logits) && !is_tracked(weight);
}

// torch's loss, which torch.autocast makes float32 on every device. The mean is one quotient of two sums in the contract's
// order.
Tensor cross_entropy(const Tensor& input, const Tensor& target, const OptionalTensor& given_weight, int64_t reduction,
                     c10::SymInt ignore_index, double smoothing, const OptionalTensor& given_divisor, double z_loss) {
  const int64_t d = class_dim(input);
  real_dtype(input, "cross_entropy");
  TORCH_CHECK(input.dim() > 0, "cross_entropy(): input: expected at least one dim");
  TORCH_CHECK(smoothing >= 0 && smoothing <= 1, "cross_entropy(): label_smoothing: expected from 0 to 1, but got ", smoothing);
  check_reduction("cross_entropy", reduction);
  const Tensor weight = tensor_of(given_weight), divisor = given_divisor ? given_divisor->detach() : Tensor();
  check_divisor(divisor, reduction);
  const c10::SymInt classes = input.sym_size(d);
  check_weight("cross_entropy", weight, classes);
  const at::ScalarType computed = computed_in({input, {}, weight, {}, {}});
  const at::ScalarType dtype = is_autocast(input) ? at::kFloat : input.scalar_type();
  const bool has_classes = !at::isFloatingType(target.scalar_type());
  const Tensor logits = has_classes && computed == at::kDouble ? input.to(at::kDouble) : input;
  if (has_classes && smoothing == 0 && is_plain(input, target, weight, z_loss))
    return std::get<0>(cross_entropy_operator().call(logits, target, given_weight, reduction, ignore_index, z_loss,
                                                     divisor.defined() ? OptionalTensor(divisor) : std::nullopt, dtype));
  const Tensor of_class = weight.defined() ? beside(weight, input, d, computed) : Tensor();
  const auto with_shift = [&](const Tensor& losses, const Tensor& ignored) {
    if (z_loss == 0) return losses;
    const Tensor shift = shift_of(input, d, computed), part = multiplied(shift * shift, number_like(z_loss, shift));
    return losses + (ignored.defined() ? part.masked_fill(ignored, 0) : part);
  };
  const auto divisor_or = [&](const Tensor& counts) {
    return divisor.defined() ? divisor.to(counts.options()) : counts.dim() > 0 ? sum_of_all(counts) : counts;
  };

  if (!has_classes) {  // but probabilities
    TORCH_CHECK(target.sym_sizes() == input.sym_sizes(), "cross_entropy(): target: expected probabilities of the size ",
                input.sym_sizes(), ", but got ", target.sym_sizes());
    TORCH_CHECK(TORCH_GUARD_OR_TRUE(ignore_index.sym_lt(0)),
                "cross_entropy(): ignore_index is not supported for floating point target");
    Tensor share = target.to(computed);
    if (smoothing > 0) share = multiplied(share, number_like(1 - smoothing, share)) + share_of_each(smoothing, classes, share);
    if (of_class.defined()) share = share * of_class;
    const Tensor losses = -total(softmax_operator<true>().call(input, d, computed) * share, d).squeeze(d);
    return reduced(with_shift(losses, {}), divisor_or(at::scalar_tensor(losses.sym_numel(), losses.options())), reduction,
                   dtype);
  }

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
  return reduced(with_shift(losses, targets.ignored), divisor_or(counts), reduction, dtype);
}

// --- nll_loss, which torch's own cross_entropy calls (replace/torch.cpp) ----------------------------------------------------

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
      "_log_prob_backward(Tensor grad, Tensor logits, Tensor target, int dim, SymInt ignore_index, Tensor m, Tensor log_sum, "
      "bool is_loss=False, Tensor? weight=None, float z_loss=0.0, Tensor? shift=None, Tensor? divisor=None) -> Tensor");
  define_operator<cross_entropy_of_classes, cross_entropy_of_classes_meta, cross_entropy_differentiable>(
      m,
      "_cross_entropy(Tensor logits, Tensor target, Tensor? weight, int reduction, SymInt ignore_index, float z_loss, Tensor? "
      "divisor, ScalarType dtype) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
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
                   "float label_smoothing=0.0, *, Tensor? divisor=None, float z_loss=0.0) -> Tensor",
                   &cross_entropy);
}
