"""What Inductor makes of our operators, beside eager code: the same bits, in few kernels. test_inductor.py runs it.

python tests/compile/inductor_cases.py cuda    compiled, on a GPU
python tests/compile/inductor_cases.py cpu     what Inductor writes for GPUs, in Triton's interpreter; slow

Either prints the errors as JSON.
"""

import contextlib
import functools
import json
import os
import sys
import tempfile
import traceback
import types

DEVICE = "cpu"
if __name__ == "__main__":
    DEVICE = sys.argv[1]
    os.environ["TORCH_REDUCE_FUSE"] = "1"
    if DEVICE == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch._inductor.config as config  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402
from torch.testing import assert_close  # noqa: E402

import torch_reduce as R  # noqa: E402
from support import assert_same_bits, data  # noqa: E402

# --- running on a CPU what Inductor writes for GPUs -------------------------------------------------------------------


class Interpreted:
    """A kernel of Inductor's, launched as Inductor launches it."""

    ROWS = 8  # in a program: the interpreter takes as long for one, and a batch of 9 still has two programs

    def __init__(self, kernel, constants):
        self._kernel, self._constants = kernel, constants

    def run(self, *args, stream=None):
        names = self._kernel.arg_names
        constants = {name: value for name, value in self._constants.items() if name in names}
        given = dict(zip([name for name in names if name not in constants], args, strict=True))
        grid = tuple(-(-given.get(f"{d}numel", 1) // constants.get(f"{d.upper()}BLOCK", 1)) for d in "xy")
        self._kernel[grid](*args, **constants)


class Library:
    """Functions of CUDA's library that eager code on a CPU computes in the same way."""

    def rsqrt(self, x):
        from triton.runtime.interpreter import TensorHandle

        found = (1 / np.sqrt(x.handle.data)).astype(x.handle.data.dtype)
        return type(x)(TensorHandle(found, x.handle.dtype), x.type)

    def isnan(self, x):
        return x != x


def interpret():
    """Makes Inductor write Triton for the CPU, and run it in the interpreter."""
    import torch.utils._triton
    import triton.runtime.interpreter as interpreter
    from torch._inductor import async_compile, graph
    from torch._inductor.runtime import triton_helpers, triton_heuristics

    from interpreter import patch_language_once

    def heuristic(**constants):
        def decorate(configs=({},), **_):
            most = max(config.get("XBLOCK", constants["XBLOCK"]) for config in configs)
            rows = min(most, constants["XBLOCK"])
            return lambda kernel: Interpreted(kernel, {**configs[0], **constants, "XBLOCK": rows})

        return decorate

    def autotune(*given, **others):  # of a kernel of ours all are named
        return given_autotune(*given, **others) if given else heuristic(XBLOCK=Interpreted.ROWS)(**others)

    given_autotune = triton_heuristics.cached_autotune
    heuristics = {
        "pointwise": heuristic(XBLOCK=512, YBLOCK=16),
        "persistent_reduction": heuristic(XBLOCK=Interpreted.ROWS),
        "reduction": heuristic(XBLOCK=Interpreted.ROWS, R0_BLOCK=256),
        "cached_autotune": autotune,
        "config_from_dict": dict,
    }

    folder = tempfile.TemporaryDirectory()  # Triton reads the sources again, until the process ends

    def compile_kernel(self, name, source, device_str=None):
        with tempfile.NamedTemporaryFile("w", suffix=".py", dir=folder.name, delete=False) as file:
            file.write(source)
        module = types.ModuleType(name)
        module.__file__ = file.name
        with contextlib.ExitStack() as stack:
            for each, function in heuristics.items():
                stack.enter_context(patched(triton_heuristics, each, function))
            exec(compile(source, file.name, "exec"), vars(module))
        return vars(module)[name]

    def patch_tensor(tensor, scope):
        given_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))  # in range(0, n, ...)

    def reduce_slowly(self, input):
        if self.combine_fn is triton_helpers._any_combine:  # numpy has it, and this takes an element at a time
            found = np.bitwise_or.reduce(input[0].handle.data, axis=self.axis, keepdims=self.keep_dims)
            return [self.to_tensor(found, input[0].dtype)]
        return given_reduce(self, input)

    given_tensor, interpreter._patch_lang_tensor = interpreter._patch_lang_tensor, patch_tensor
    given_reduce, interpreter.ReduceOps.generic_reduce = interpreter.ReduceOps.generic_reduce, reduce_slowly
    patch_language_once()
    async_compile.AsyncCompile.triton = compile_kernel
    triton_helpers.libdevice = Library()
    torch.utils._triton.triton_hash_with_backend = lambda: "interpreter"
    graph.GraphLowering.is_unspec_arg = lambda self, name: False  # a tensor on the CPU is one on the device
    config.cpu_backend = "triton"


@contextlib.contextmanager
def patched(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# --- comparing --------------------------------------------------------------------------------------------------------


def compare(
    f, *inputs, kernels=None, calls=None, dynamic=None, replace=False, text="", compare_results=assert_same_bits
):
    """f compiled has the bits of f; Inductor writes so many kernels, so many calls of our operators, and this text."""
    torch._dynamo.reset()
    inputs = [x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in inputs]
    with R.replace(devices=DEVICE) if replace else contextlib.nullcontext():
        right = f(*inputs)
        got, written = run_and_get_code(torch.compile(f, dynamic=dynamic), *inputs)
    compare_results(cpu(got), cpu(right))
    lines = [line.partition("#")[0] for code in written for line in code.splitlines()]
    for name, found, wanted in (
        ("kernels", [line for line in lines if ".run(" in line], kernels),
        ("calls", [line for line in lines if "= torch.ops.gpureduce." in line], calls),
    ):
        assert wanted is None or len(found) == wanted, f"{len(found)} {name}, and not {wanted}: {found}"
    assert any(text in code for code in written), text


def cpu(x):
    return tuple(map(cpu, x)) if isinstance(x, (tuple, list)) else x.cpu()


def gradients(f):
    """f's results, and the gradients of those that it has."""

    def run(*inputs):
        inputs = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
        results = f(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        wanted = [(torch.arange(y.numel(), device=y.device) % 7 - 3).view(y.shape).to(y.dtype) / 8 for y in results]
        inputs = [x for x in inputs if x.requires_grad]
        found = torch.autograd.grad(results, inputs, wanted, allow_unused=True, materialize_grads=True)
        return (*(y.detach() for y in results), *found)

    return run


# bfloat16 on a GPU: the interpreter's own conversions to it are wrong.
HALF = "bfloat16" if DEVICE == "cuda" else "float16"
ROWS = [(768, HALF), (1001, "float32"), (4500, "float32"), (96, "float64")]
BATCH = 33 if DEVICE == "cuda" else 9


def some(items, k=0):
    """All of them on a GPU, and every second one in the interpreter, which takes long."""
    return list(items) if DEVICE == "cuda" else list(items)[k::2]


def reductions(x, w):
    """All of them: of one row, Inductor makes one kernel."""
    y = x * 3
    norms = [R.vector_norm(y, ord, 1) for ord in (1, 2, float("inf"), -float("inf"))]
    missing = torch.where(y > 2, float("nan"), y)
    return (
        *(R.sum(y, 1), R.mean(y, 1, keepdim=True) * y, R.nansum(missing, 1), R.prod(1 + y / 4096, 1), *norms),
        *(R.powsum(y, 2, 1), R.powsum(y, 3, 1), R.amax(y, 1), R.amin(y, 1), *R.var_mean(y, 1), R.std(y, 1)),
        *(R.logsumexp(y, 1), R.weighted_sum(y, w, 1), R.sum(y, -1, dtype=torch.float64)),
        *(R.any(y > 9, 1), R.all(y > -9, 1)),
    )


def case_reductions():
    for n, dtype in some([*ROWS, (9001, HALF), (3, "float32")], 1):
        compare(reductions, data((6, n), dtype, 1), data((n,), dtype, 2), calls=0)


def case_rows_in_tiles():
    """A kernel that does not hold whole rows reads 512 elements after the other, or 4096 where a row has more."""
    from torch_reduce._inductor import _kernels

    def f(x, w):
        numbers = R.sum(x * 2, 1), R.prod(1 + x / 4096, 1), R.amax(x, 1), R.logsumexp(x, 1), *R.var_mean(x, 1)
        return *numbers, R.rms_norm(x, w.shape, w) * 2

    with patched(_kernels, "_WHOLE", 0):
        for n, tile in some([(700, 512), (4096, 512), (4097, 4096), (16_000, 4096), (9001, 4096)]):
            x, w = data((6, n), "float32", 1), data((n,), "float32", 2)
            compare(f, x, w, calls=0, text=f"'R0_BLOCK': {tile}")


def case_one_kernel():
    for n, dtype in ROWS[::2]:
        compare(lambda x: R.sum(x * 2, 1) + 1, data((6, n), dtype, 1), kernels=1, calls=0)
        norm = lambda x, w: R.rms_norm(x, w.shape, w, 1e-6) * 2  # noqa: E731
        compare(norm, data((6, n), dtype, 1), data((n,), dtype, 2), kernels=1, calls=0)
        compare(lambda x: R.softmax(x * 2, 1) + 1, data((6, n), dtype, 1), kernels=1, calls=0)


def case_softmaxes():
    for n, dtype in some(ROWS):
        x = data((6, n), dtype, 1)
        compare(gradients(lambda x: (R.softmax(x * 2, 1) * 3, R.log_softmax(x + 1, -1) * 3)), x, calls=0)


def case_norms():
    for n, dtype in some(ROWS, 1):
        x, w = data((3, 2, n), dtype, 1), data((n,), dtype, 2)

        def norms(x, w, n=n):
            y = x * 3
            return R.rms_norm(y, n, w, 1e-6) * 2, R.layer_norm(y, n, w, w + 1) * 2, R.layer_norm(y, n)

        compare(gradients(norms), x, w)  # the weights' gradients are calls


def case_losses():
    for n, dtype in some(ROWS):  # the interpreter rounds a number of float64 to float32
        target = torch.tensor([1, 5, -100, 7, 0, n - 1])
        w = data((n,), dtype, 2)

        def losses(x, w, target):
            y = x * 2
            smooth = R.cross_entropy(y, target, w, label_smoothing=0.1)  # the weight's gradient is a call
            return R.cross_entropy(y, target), smooth, R.log_prob(y, target.clamp(0)) * 3

        compare(gradients(losses), data((6, n), dtype, 1), w, target)


def case_gradients_of_reductions():
    for n, dtype in some(ROWS[:2], 1):

        def functions(x):
            y = x * 2
            norms = [R.vector_norm(y, ord, 1) for ord in (1, 2, float("inf"))]
            others = [f(y, 1) for f in (R.sum, R.mean, R.nansum, R.amax, R.amin, R.logsumexp, R.std, R.var)]
            return (*norms, *others, R.powsum(y, 2, 1), R.powsum(y, 3, 1), R.prod(1 + y / 4096, 1))

        compare(gradients(functions), data((6, n), dtype, 1))


def as_transformers(x, w):
    """The norm of transformers' models."""
    y = x.float()
    return w * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def case_replaced():
    n, target = 768, torch.tensor([1, 5, -100, 7, 0, 3])
    x, w = data((6, n), HALF, 1), data((n,), HALF, 2)
    norms = gradients(lambda x, w: (F.layer_norm(x * 2, (n,), w, w), F.rms_norm(x * 2, (n,), w), as_transformers(x, w)))
    compare(norms, x, w, replace=True)
    compare(gradients(lambda x: torch.softmax(x * 2, 1) * torch.sum(x, 1, keepdim=True)), x, replace=True, calls=0)
    for reduction in ("mean", "sum", "none"):

        def loss(x, w, target, reduction=reduction):
            return F.cross_entropy(x.float(), target, reduction=reduction), F.nll_loss(x, target, w.detach())

        compare(gradients(loss), x, w, target, replace=True)


def case_kept_for_the_backward_pass():
    """Of a log_softmax its input and two numbers per row, and not the result, which is in float32."""
    x, target = data((6, 768), HALF, 1), torch.tensor([1, 5, -100, 7, 0, 3])

    def loss(x, target):
        return F.cross_entropy((x * 2).float(), target)

    def theirs(x, _):
        return F.log_softmax(x.float(), 1) * 3

    for f, replace in (loss, True), (theirs, True), (lambda x, _: R.log_softmax(x, 1) * 3, False):
        compare(gradients(f), x, target, replace=replace)
        given = x.to(DEVICE).requires_grad_()
        torch._dynamo.reset()
        with R.replace(devices=DEVICE) if replace else contextlib.nullcontext():
            result = torch.compile(f)(given, target.to(DEVICE))
        large = [kept for kept in result.grad_fn.saved_tensors if kept.numel() > 12]
        assert [kept.data_ptr() for kept in large] == [given.data_ptr()], [(kept.shape, kept.dtype) for kept in large]


def case_results_are_not_written_by_the_backward_pass():
    """A pass takes the copy away that lies between a result and what the backward pass reads."""

    def stacked(x):
        y = torch.stack([x, x + 1])
        norms = [R.vector_norm(y, ord, 0) for ord in (2, 3, float("inf"))]
        return tuple(torch.stack([each]) for each in (*norms, *(f(y, 0) for f in (R.amax, R.amin, R.logsumexp, R.std))))

    def copies(*inputs):
        x, y, z = (R.softmax(each, 1) for each in inputs)
        return x.clone()[None], torch.cat([y[None]]).flatten(), torch.stack([z.clone()])

    rows = [data((6, 70), "float32", seed) for seed in range(3)]
    for dynamic in some([False, True]):
        compare(gradients(stacked), data((1000,), "float32", 1), dynamic=dynamic)
    for dynamic in some([False, True], 1):
        compare(gradients(copies), *rows, dynamic=dynamic)


def case_sizes_known_only_from_the_data():
    """Two calls of each name of test_compile.py on a vector whose size nobody knows before, in turns: that file traces
    all of them. In the interpreter, of every fourth name. torch adds up the gradients."""
    from test_compile import UNKNOWN, of_positive, with_gradient

    x, close = torch.tensor([1.0, -2, 3, 4, -5, 6, 7, 2.5]), functools.partial(assert_close, equal_nan=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for k, (name, calls) in some(some(enumerate(UNKNOWN.items()))):
            two = [calls[k % len(calls)], calls[(k + 3) % len(calls)]]
            compare(functools.partial(with_gradient, of_positive(name, calls=two)), x, compare_results=close)
        # The backward pass reads a concatenation, and what is a part of it and no result.
        calls = [*UNKNOWN["logsumexp"][1:4], UNKNOWN["dot"][0]]
        compare(functools.partial(with_gradient, of_positive("dot", calls)), x, compare_results=close)


def case_halves_are_rounded():
    """What is fused is rounded as eager code rounds it, in front of a sum and behind it."""

    def f(x):
        y = (x * 3 + 1) * x
        z = torch.addcmul(y, x, x, value=0.3)  # one function, which torch decomposes
        total = R.sum(z, 1, keepdim=True)
        wide = R.sum(z, 1, dtype=torch.float32), R.sum(R.softmax(x, 1), 1, dtype=torch.float32)
        return *wide, R.sum(total * z, 1), (z.float() * 1.7).to(x.dtype) * total

    compare(f, data((6, 768), HALF, 1), calls=0)
    compare(f, data((6, 4500), HALF, 1), calls=0)


def case_conversions():
    """Values that are converted to another dtype and back are rounded to it, if the graph has a reduction of ours."""
    x = data((6, 768), "float32", 1) + data((6, 768), "float32", 2) / 4096
    half = getattr(torch, HALF)

    def f(x):
        y = (x * 3).half()
        z = torch.addcmul(torch.addcmul(y, y, y, value=0.3), y, y, value=0.7)  # torch decomposes both
        wide = (x.double() / 3).float().double(), x.to(half).float(), y.float().half()
        return z, y.float() * x, *wide, *(R.sum(each, 1, dtype=torch.float64) for each in (z, *wide))

    def branches(x):
        return torch.cond(x.sum() > 0, lambda x: R.sum(x.half().float(), 1), lambda x: x[:, 0].half().float(), (x,))

    compare(gradients(f), x, calls=0)
    compare(branches, x)
    compare(lambda x: R.sum((x * 9).int().float(), 1), x, calls=0)

    torch._dynamo.reset()
    x, of_torch = x.to(DEVICE), torch.compile(lambda x: x.half().float() * 3)
    assert_same_bits(cpu(of_torch(x)), cpu(x * 3), "a graph of torch's is as it was")


def case_around():
    """Other kernels that take what ours make, tiles of three dims, sizes that are computed, and branches."""
    x, y = data((6, 700), "float32", 1), data((32, 32), "float32", 2)
    compare(lambda x: torch._foreach_mul([R.softmax(x, 1), R.log_softmax(x, 1)], 2.0), x)
    compare(lambda z, y: R.sum(z * y.t()[..., None], -1), data((32, 32, 64), "float32", 3), y)
    compare(lambda x: R.sum(x[:, 2:] * 3, 1), x, dynamic=True)
    compare(lambda x: torch.cond(x.sum() > 0, lambda x: R.softmax(x * 2, 1) * 3, lambda x: R.softmax(x, 1), (x,)), x)


def case_special_numbers():
    x = data((8, 700), "float32", 1)
    x[0, 3], x[1, 5], x[2, 600] = float("nan"), float("inf"), -float("inf")
    x[3], x[4], x[5] = -0.0, float("-inf"), 1e-42
    x[6] *= 1e38
    w = data((700,), "float32", 2)
    compare(reductions, x, w)
    compare(lambda x, w: (R.softmax(x, 1), R.log_softmax(x, 1), R.layer_norm(x, 700), R.rms_norm(x, 700, w)), x, w)


def case_batches_and_sizes():
    """A row has the same bits in every batch, and a function that was compiled once for all sizes too."""

    def f(x):
        return R.sum(x * 2, 1), R.softmax(x, 1), R.log_softmax(x, 1), R.layer_norm(x, x.shape[1:])

    compiled = torch.compile(f, dynamic=True)
    for n in some([70, 700, 5000]):
        x = data((BATCH, n), "float32", n).to(DEVICE)
        right = cpu(f(x))
        for rows in (2, BATCH):
            assert_same_bits(cpu(compiled(x[:rows])), tuple(y[:rows] for y in right), (n, rows))


def case_other_calls():
    """What has no form here is a call, whose inputs lie as in eager code."""
    x = data((40, 30, 50), "float32", 1)
    compare(lambda x: (R.sum(x * 2, 0) + 1, R.log_softmax(x * 2, 0)), x)
    compare(lambda x: R.sum(x * 2, (1, 2)) + 1, x, calls=1)
    compare(lambda x: R.sum((x * 2).permute(2, 0, 1), (0, 2)), x)
    compare(lambda x: R.sum((x * 9).long(), 1), x)
    compare(lambda x: (R.sum(x[:, :1] * 2, 1), R.sum(x[:, :0], 1), R.sum(x[0, 0, 0] * 2)), x)
    compare(lambda x: R.layer_norm(x * 2, (30, 50)), x)
    compare(lambda x: R.sum(x.flatten() * 2), data((40000,), "float32", 1), calls=1)


class Normed(torch.nn.Module):
    def forward(self, x):
        return R.rms_norm(x * 2, x.shape[1:]) + 1


def case_packages():
    """AOTInductor's program launches the fused kernel, and calls no operator that a library would have to bring."""
    program = torch.export.export(Normed(), (data((6, 768), "float32", 1).to(DEVICE),))
    written = []

    def compile_program(graph, wrapper, *_, **__):
        written.append(wrapper)
        raise NotImplementedError  # a C++ compiler would need a GPU's kernels

    with patched(torch._inductor.codecache.AotCodeCompiler, "compile", compile_program), contextlib.suppress(Exception):
        torch._inductor.aoti_compile_and_package(program)
    (wrapper,) = written
    lines = [line.partition("//")[0] for line in wrapper.partition("::run_impl(")[2].splitlines()]
    launches = [line for line in lines if "triton_" in line]
    assert len(launches) == 1, launches
    assert not any("gpureduce" in line or "proxy_executor_call" in line for line in lines), wrapper


def case_losses_of_norms():
    """The case of test_rounding.py; and torch's sum by index in the kernel of a single row adds each number once."""

    def losses(x, w, target):
        y = R.layer_norm(R.rms_norm(x, 37, w), 37, w, w)
        found, entropy = R.log_prob(R.log_softmax(y, -1), target, temperature=0.7, return_entropy=True)
        loss = R.cross_entropy(R.softmax(y, -1), target, w.abs(), label_smoothing=0.1)
        return found, entropy, loss

    def summed(x, w, target):
        return torch.func.grad(lambda x, w: sum(y.sum() for y in losses(x, w, target)), (0, 1))(x, w)

    rows, classes = (70, 37) if DEVICE == "cuda" else (20, 7)  # more rows than classes, and than a program has
    x, w, target = data((rows, 37), "float32", 7), data((37,), "float32", 8), torch.arange(rows) % classes
    target[3] = -100
    compare(losses, x, w, target, compare_results=assert_close)
    compare(summed, x, w, target, compare_results=assert_close)

    def by_index(v, target):
        y = v * 2
        return R.sum(y), torch.zeros(37, device=v.device).index_put((target,), y, accumulate=True)

    compare(by_index, x[:, 0], target.clamp(0), compare_results=assert_close)


CASES = {name.removeprefix("case_"): case for name, case in list(globals().items()) if name.startswith("case_")}


def main():
    torch._inductor.config.force_disable_caches = True
    if DEVICE == "cpu":
        interpret()
    errors = {}
    for name in sys.argv[2:] or CASES:
        try:
            with contextlib.redirect_stdout(sys.stderr), np.errstate(all="ignore"):
                CASES[name]()
        except Exception:
            errors[name] = traceback.format_exc()
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
