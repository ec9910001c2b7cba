"""Measures sum and mean inside models, against torch's own, and writes what docs/models.md is made from.

    python bench/models.py                measures, and prints
    python bench/models.py --save         into bench/results/<gpu>/models.json, which bench/models_report.py reads
    python bench/models.py --save FILE    into FILE
    python bench/models.py --only host    a part of it: gradients, host, train or replace
    python bench/models.py --cpu          on the CPU, as always where there is no GPU: the examples at small sizes

Results, and gradients, are first compared with the CPU backend's and with torch's: wrong ones are not timed.
Everywhere ours and torch's take turns. Times in a CUDA graph are between kernels that do not start early (timing.py).
"""

import functools
import importlib.util
import sys

import torch

import contenders
import models_report
import parts
import timing
import torch_reduce

EXAMPLES = contenders.ROOT / "examples"
OPERATIONS = ("sum", "mean")
CASES = (((16384, 4096), torch.bfloat16), ((32, 64), torch.float32))  # rows are summed
REPEATS = 21
COPIES = 6  # of each model that is trained


def main(arguments=None):
    parser = parts.parser(__doc__, PARTS)
    parser.add_argument("--cpu", action="store_true", help="measure on the CPU")
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() and not options.cpu else "cpu")
    facts = contenders.environment(models_report.TIMES, device.type)
    if device.type == "cpu":
        print(f"NO GPU IS USED HERE: this measures the CPU backend, with {facts['cpu_threads']} threads.")
    print(models_report.source_line(facts), flush=True)
    measured = {name: functools.partial(measure, device) for name, measure in PARTS.items()}
    parts.run(models_report.TIMES, measured, options, facts, told)


def told(results):
    """What a part gave, as text."""
    return ["", *(line for name in results for line in models_report.PARTS[name](results))]


def functions(operation):
    """{name: function of (x, dim)}: torch's own, and ours as an operator and as a function."""
    return {
        f"torch.{operation}": getattr(torch, operation),
        f"torch.ops.gpureduce.{operation}": getattr(torch.ops.gpureduce, operation),
        f"torch_reduce.{operation}": getattr(torch_reduce, operation),
    }


# --- forward and backward -----------------------------------------------------------------------------------


def gradients(device):
    """Row sums and means with their backward passes: an entry for each operation and case."""
    return [gradient(operation, *case, device) for operation in OPERATIONS for case in CASES]


def gradient(operation, shape, dtype, device):
    """Microseconds of the forward pass, of both passes, and of an eager call until `.grad` is there."""
    host = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    flat, upstream = host.flatten().to(device), torch.linspace(-1, 1, shape[0]).to(device, dtype)
    sums = {"ours": getattr(torch_reduce, operation), "torch": getattr(torch, operation)}

    def view(base):
        return base.view(shape).requires_grad_()

    def forward(name):
        def call(x, _):
            with torch.no_grad():
                return sums[name](x, -1)

        return timing.Candidate(f"{name} forward", call)

    def both(name):
        return timing.Candidate(f"{name} both", lambda x, _: torch.autograd.grad(sums[name](x, -1), x, upstream)[0])

    leaf = view(flat)

    def backward(name):
        sums[name](leaf, -1).backward(upstream)
        leaf.grad = None

    right = sums["ours"](host, -1)
    wanted = both("torch").fn(leaf, None)
    if not contenders.same_bits(sums["ours"](leaf, -1).detach().cpu(), right):
        sys.exit(f"{operation} of {shape}: the GPU's bits are not the CPU backend's")
    if not contenders.same_bits(both("ours").fn(leaf, None), wanted):
        sys.exit(f"{operation} of {shape}: the gradient is not torch's")

    candidates = [make(name) for name in sums for make in (forward, both)]
    if device.type == "cuda":
        race = timing.gpu_times(candidates, timing.Buffers(flat, view), lambda: None, repeats=REPEATS)
    else:
        race = timing.cpu_times(candidates, leaf, lambda: None)
    calls = max(1, min(20, round(2e4 / race["torch both"].us)))
    eager = timing.end_to_end_times({name: lambda name=name: backward(name) for name in sums}, calls, repeats=11)
    return {
        "operation": operation,
        "shape": list(shape),
        "dtype": str(dtype).removeprefix("torch."),
        "us": {part: {name: round(race[f"{name} {part}"].us, 3) for name in sums} for part in ("forward", "both")},
        "eager_us": {name: round(eager[name].us, 3) for name in sums},
    }


# --- host time ----------------------------------------------------------------------------------------------


def host(device):
    """{operation: {function: {"plain": microseconds a call, "grad": where the input requires grad}}}."""
    plain = torch.randn(CASES[-1][0], device=device)
    inputs = {"plain": plain, "grad": plain.clone().requires_grad_()}
    calls = {
        (operation, name, kind): lambda f=f, x=x: f(x, -1)
        for operation in OPERATIONS
        for name, f in functions(operation).items()
        for kind, x in inputs.items()
    }
    found = {operation: {name: {} for name in functions(operation)} for operation in OPERATIONS}
    for (operation, name, kind), t in timing.host_times(calls, repeats=REPEATS).items():
        found[operation][name][kind] = round(t.us, 3)
    return found


# --- examples -----------------------------------------------------------------------------------------------


def example(name):
    """A new copy of an example, as a module."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(device):
    """{"eager" or "compiled": {"ours" or "torch": milliseconds a step of each of several models}} of examples/train.py.

    The host needs longer for a step than the GPU, and two copies of one model differ by a few percent, by where their
    memory lies: the copies' spread says what a difference between ours and torch's means.
    """
    torch._dynamo.reset()
    steps = {}
    modules = {name: example("train") for name in ("ours", "torch")}
    modules["torch"].torch_reduce = torch
    runs = {
        (kind, name): run
        for name, module in modules.items()
        for kind, run in {"eager": module.predict, "compiled": torch.compile(module.predict, fullgraph=True)}.items()
    }
    for copy in range(COPIES):
        for (kind, name), run in list(runs.items())[:: 1 if copy % 2 else -1]:
            module = modules[name]
            size = module.BIG if device.type == "cuda" else module.SMALL
            batch = module.make_batch(torch.Generator().manual_seed(1), size["batch"], size["sizes"]["length"], device)
            state = module.make(device, **size["sizes"])
            steps[kind, name, copy] = lambda f=module.step, run=run, state=state, batch=batch: f(run, *state, *batch)
            for _ in range(3):
                steps[kind, name, copy]()
    times = timing.end_to_end_times(steps, calls=5, repeats=REPEATS)
    found = {"eager": {"ours": [], "torch": []}, "compiled": {"ours": [], "torch": []}}
    for (kind, name, _), t in times.items():
        found[kind][name].append(round(t.us / 1e3, 4))
    return found


def replace(device):
    """What examples/replace.py compares."""
    module = example("replace")
    found = module.compare(*module.make(device, device.type == "cpu"), rounds=REPEATS)
    return {"torch": found["torch's sum"], "ours": found["replace_torch_sum()"]}


PARTS = {"gradients": gradients, "host": host, "train": train, "replace": replace}


if __name__ == "__main__":
    main()
