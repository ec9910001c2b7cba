"""Times what torch.compile makes of reductions: Inductor's own, ours fused by Inductor, and ours as calls.

    python bench/compiled.py                 functions of rows, fused with the code around them; steps of models
    python bench/compiled.py --only sum      one of the functions
    python bench/compiled.py --only steps    training steps of models of transformers and torchvision, where installed
    python bench/compiled.py --only steps --model BERT --kernels 30    of one model, with the 30 longest kernels
    python bench/compiled.py --save          all, into bench/results/<gpu>/compiled.json, which docs/models.md shows

GPU time between kernels that do not start early, cold (bench/timing.py), in microseconds, and of steps from end to end
in milliseconds; then ours over Inductor's own. It says so where ours has other bits than eager code with our functions.
"""

import contextlib
import functools
import statistics
import sys

import torch
import torch.nn.functional as F

import contenders
import parts
import timing
import torch_reduce

SHAPES = ((16_384, 4096), (16_384, 4095), (65_536, 768), (65_536, 1001), (262_144, 128), (524_288, 64), (8192, 8192))
KINDS = ("torch", "fused", "called")


def transformers_norm(x, w):
    y = x.float()
    return w * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


FUNCTIONS = {
    "sum": lambda x, w: (x * 2).sum(1) + 1,
    "amax": lambda x, w: (x * 2).amax(1) + 1,
    "rms_norm": lambda x, w: F.rms_norm(x * 2, w.shape, w, 1e-6) * 3,
    "transformers' rms_norm": transformers_norm,
    "layer_norm": lambda x, w: F.layer_norm(x * 2, w.shape, w, w) * 3,
    "softmax": lambda x, w: torch.softmax(x * 2, 1) * 3,
}


PARTS = (*FUNCTIONS, "steps")


@contextlib.contextmanager
def as_kind(kind):
    """What is compiled here is of this kind."""
    from torch_reduce._inductor import _lowerings

    torch._dynamo.reset()
    _lowerings.fuses = kind == "fused"
    with torch_reduce.replace(devices="cuda") if kind != "torch" else contextlib.nullcontext():
        yield
    _lowerings.fuses = True


def race(name, rows, n):
    base = torch.randn(rows * n, device="cuda").bfloat16()
    w = torch.rand(n, device="cuda").bfloat16()
    x, f, compiled = base.view(rows, n), FUNCTIONS[name], {}
    with torch_reduce.replace(devices="cuda"):
        right = f(x, w)
    for kind in KINDS:
        with as_kind(kind):
            compiled[kind] = torch.compile(lambda x, w, f=f: f(x, w), dynamic=False)
            got = compiled[kind](x, w)
            if kind == "fused":
                same = torch.equal(got, right)
            call = compiled[kind]
            # A compiled function asks what is replaced whenever it is called: capture what it runs now.
            candidate = timing.Candidate(kind, lambda view, _, call=call: call(view, w))
            buffers = timing.Buffers(base, lambda flat: flat.view(rows, n))
            compiled[kind] = timing.Race([candidate], buffers, lambda: None).run(7).timings()[kind].us
    row = {"shape": [rows, n], "dtype": "bfloat16", "us": compiled, "same_bits": same}
    print(told(f"{name} of ({rows}, {n}) bfloat16, µs", compiled) + ("" if same else "  not the bits of eager code"))
    torch.cuda.empty_cache()
    return row


def told(what, times):
    """The times of each kind as text, and ours over Inductor's own."""
    each = "  ".join(f"{kind} {time:8.2f}" for kind, time in times.items())
    return f"{what}:  {each}  {times['fused'] / times['torch']:.2f}"


def races(name):
    """A row per shape."""
    return [race(name, *shape) for shape in SHAPES]


# --- models -----------------------------------------------------------------------------------------------------------


def models():
    """{name: (a model, its inputs)} of those whose library is installed."""
    found = {}
    with contextlib.suppress(ImportError):
        import transformers as t

        tokens = torch.randint(0, 30_000, (8, 1024), device="cuda")
        llama = t.LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=6, num_attention_heads=16)
        found["Llama, 6 x 2048"] = t.LlamaForCausalLM(llama), {"input_ids": tokens[:4], "labels": tokens[:4]}
        part, bert = tokens[:, :512].contiguous(), t.BertConfig(num_hidden_layers=6)
        found["BERT, 6 x 768"] = t.BertForMaskedLM(bert), {"input_ids": part, "labels": part}
        gpt2 = t.GPT2Config(n_layer=6)
        found["GPT-2, 6 x 768"] = t.GPT2LMHeadModel(gpt2), {"input_ids": tokens[:4], "labels": tokens[:4]}
    with contextlib.suppress(ImportError):
        import torchvision

        images = torch.randn(32, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
        found["ConvNeXt tiny"] = torchvision.models.convnext_tiny(), images
    return found


def steps(chosen, count):
    """A row per model whose name has `chosen`; prints `count` kernels of each that take longest."""
    found = models()
    if not found:
        print("steps: neither transformers nor torchvision is installed")
        return None
    return [step_times(name, *made, count) for name, made in found.items() if chosen in name]


def step_times(name, model, inputs, count):
    """A forward and a backward pass as a training step has them."""
    model = model.to("cuda", torch.bfloat16)

    def step():
        result = model(**inputs).loss if isinstance(inputs, dict) else model(inputs).float().logsumexp(1).mean()
        result.backward()
        model.zero_grad(set_to_none=True)

    found = {}
    for kind in KINDS:
        with as_kind(kind):
            compiled = torch.compile(step)
            for _ in range(3):
                compiled()
            samples = []
            for _ in range(15):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                compiled()
                end.record()
                end.synchronize()
                samples.append(start.elapsed_time(end))
            found[kind] = statistics.median(samples)
            if count:
                print_kernels(kind, compiled, count)
    print(told(f"a step of {name}, ms", found), flush=True)
    return {"model": name, "ms": found}


def print_kernels(kind, step, count):
    """The kernels of a step that take longest: their time and number in a step."""
    steps = 3
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    kernels = sorted(profile.key_averages(), key=lambda event: -event.device_time_total)
    busy = sum(event.device_time_total for event in kernels) / steps / 1000
    print(f"{kind}: {sum(event.count for event in kernels) / steps:.0f} kernels, together {busy:.2f} ms")
    for event in kernels[:count]:
        ms, times = event.device_time_total / steps / 1000, event.count / steps
        print(f"  {ms:8.3f} ms  {times:5.0f} x  {event.key[:100]}")


def main(arguments=None):
    parser = parts.parser(__doc__, PARTS)
    parser.add_argument("--model", default="", metavar="NAME", help="steps of the models whose name has this")
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="and a step's N longest kernels")
    options = parser.parse_args(arguments)
    if options.model and options.save is not None:
        parser.error("--model measures some of the models, which are not kept alone")
    if not torch.cuda.is_available():
        sys.exit("bench/compiled.py needs an NVIDIA GPU")
    torch._inductor.config.force_disable_caches = True
    measured = {name: functools.partial(races, name) for name in FUNCTIONS}
    measured["steps"] = functools.partial(steps, options.model, options.kernels)
    parts.run("compiled.json", measured, options, contenders.environment("compiled.json"))


if __name__ == "__main__":
    main()
