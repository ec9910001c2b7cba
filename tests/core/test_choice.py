"""What plans are chosen by: a file a GPU, that of the most similar one, a user's own, and calls that were timed."""

import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import threading

import pytest
import torch

import torch_reduce
from support import assert_same_bits, invalid_argument
from torch_reduce import __main__ as command
from torch_reduce.tuning import tune
from torch_reduce.tuning.problems import random_problem

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = sorted((ROOT / "csrc" / "core" / "plan" / "data").glob("*.inc"))
OPS = torch.ops.gpureduce
NAMES = [name.split("(")[0] for name in OPS._features().split()]
ROWS = ([700, 20000], [20000, 1], [1], torch.float32, torch.float32)


def text_of(path):
    """A file of csrc/core/plan/data without what makes it a string of C++."""
    return re.fullmatch(r'R"choice\((.*)\)choice"\n', path.read_text(), re.DOTALL)[1]


def plan(view=ROWS, **device):
    return json.loads(OPS._plan(*view, "", ",".join(f"{key}={value}" for key, value in device.items())))


def stump(feature, threshold, left, right):
    """A choice of one tree: plans whose feature is not above the threshold get `left`, and others `right`."""
    node = f"{threshold} {NAMES.index(feature)} 2, {left} 255 0, {right} 255 0"
    head = f"torch_reduce choice 1\ngpu NVIDIA Test\nabout a test\nfeatures {OPS._features()}\n"
    return head + f"multiprocessors 10\nl2_bytes 1000000\nbandwidth 1000000000\ntree 3\n{node}\n"


@pytest.fixture
def choice(tmp_path):
    """Writes a choice to a new file, and returns its path."""

    def write(text):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.txt"
        path.write_text(text)
        return path

    return write


def test_a_file_decides(choice):
    """Plans follow the data that they are given: few splits or many, by the same planner."""
    few, many = (choice(stump("splits", 1.5, left, 1 - left)) for left in (0, 1))
    wide = ([1, 1 << 22], [1 << 22, 1], [1], torch.float32, torch.float32)
    assert plan(choice=few)["splits"] == 1 < plan(choice=many)["splits"]
    assert plan(wide, choice=many)["splits"] > 1
    cells = [OPS._candidates(*ROWS, "", f"choice={path}") for path in (few, many)]
    assert torch.equal(*cells)  # what is proposed does not depend on it


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.stem)
def test_files_that_come_with_it(path, choice):
    """Each file of csrc/core/plan/data is the choice of a GPU of its name, and of GPUs like it."""
    text = text_of(path)
    facts = dict(re.findall(r"^(gpu|multiprocessors|l2_bytes|bandwidth) (.+)$", text, re.MULTILINE))
    name = facts.pop("gpu")
    device = ",".join(f"{key}={value}" for key, value in facts.items())
    assert OPS._known_choice("", device) == name
    assert OPS._known_choice(name, "multiprocessors=1,l2_bytes=1,bandwidth=1") == name
    smaller = ",".join(f"{key}={int(value) * 15 // 16}" for key, value in facts.items())
    assert OPS._known_choice("another", smaller) == name
    rng, own = random.Random(1), choice(text)
    for _ in range(100):
        problem = random_problem(rng, "mixed")
        dtype = getattr(torch, problem.dtype)
        result = torch_reduce.sum(torch.empty(1, dtype=dtype)).dtype
        view = (problem.sizes, problem.strides, problem.dims, dtype, result)
        assert plan(view, **facts) == plan(view, **facts, choice=own)


BROKEN = {
    "another format": (lambda text: text.replace("choice 1", "choice 2"), "does not begin"),
    "other plans": (lambda text: text.replace("splits", "slits"), "other plans"),
    "cut off": (lambda text: text[: text.rindex(",")], "cut off"),
    "words": (lambda text: text + "some words\n", "a line is none"),
    "a branch out of its tree": (lambda text: re.sub(r"(\d+ )2,", r"\g<1>3,", text), "broken"),
    "a branch back": (lambda text: re.sub(r"(\d+ )2,", r"\g<1>0,", text), "broken"),
    "an unknown feature": (lambda text: re.sub(r" \d+ 2,", " 200 2,", text), "broken"),
    "a tree that takes nodes of none": (
        lambda text: text.replace("tree 3", "tree 9000", 1) + "tree -8997\n",
        "cut off",
    ),
    "no GPU": (lambda text: text.replace("bandwidth 1000000000\n", "bandwidth 0\n"), "what its GPU is"),
    "nothing": (lambda text: "", "does not begin"),
    "an unknown base": (lambda text: text.replace("tree 3", "on NVIDIA None\ntree 3"), "stands on data"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_refused(how, choice):
    """No file leads a choice out of its memory."""
    change, message = BROKEN[how]
    text = stump("splits", 1.5, 0, 1)
    assert change(text) != text
    with pytest.raises(invalid_argument(), match=message):
        plan(choice=choice(change(text)))
    with pytest.raises(invalid_argument(), match="there is no file"):
        plan(choice="/nowhere/at.all")


def test_a_choice_on_another(choice):
    """A choice that stands on a known one decides as that one where its trees add nothing, and otherwise by the sum."""
    known = OPS._known_choice("", "")
    rows = OPS._candidates(*ROWS)
    guesses, few = OPS._guesses(rows, known), rows[:, NAMES.index("splits")] <= 1.5
    for left, right in ((0, 0), (0, 9), (9, 0)):
        text = stump("splits", 1.5, left, right).replace("tree 3", f"on {known}\ntree 3")
        best = int((guesses + torch.where(few, left, right)).argmin())
        assert plan(choice=choice(text)) == json.loads(OPS._plan(*ROWS, f"candidate={best}", ""))
    for wrong in (rows[:, 1:], rows.to("meta")):  # their elements are read on the CPU
        with pytest.raises(RuntimeError, match="features: expected"):
            OPS._guesses(wrong, known)


def made_up_times(best, count=150):
    """Rows as tune.measure returns them, where the plan of a problem with the largest `best` is the fastest."""
    rng, rows = random.Random(2), []
    index = NAMES.index(best)
    facts = {"multiprocessors": 132}
    for _ in range(count):
        problem = random_problem(rng, "contiguous")
        features = tune.candidates(problem, facts)
        us = {str(k): 10.0 + 5.0 * (max(row[index] for row in features) - row[index]) for k, row in enumerate(features)}
        rows.append({"problem": {}, "features": features, "us": us | {"ours": 10.0}})
    return rows


def test_the_fit(tmp_path, capsys):
    """`python -m torch_reduce tune` learns from times what is fastest, says how sure it is, and writes what is read."""
    pytest.importorskip("lightgbm")
    gpu = {"name": "NVIDIA Test", "multiprocessors": 99, "l2_bytes": 1 << 20, "bandwidth": 1 << 40}
    kept = {"gpu": gpu, "features": OPS._features(), "problems": made_up_times("warps")}
    (tmp_path / "times.json").write_text(json.dumps(kept))
    for written in ("choice.txt", "choice.inc"):
        assert command.main(["tune", "--times", str(tmp_path / "times.json"), "--write", str(tmp_path / written)]) == 0
    said = capsys.readouterr().out
    assert "150 problems" in said and "NVIDIA Test" in said and "left out of the fit: 1.0" in said
    assert "\non NVIDIA" in (tmp_path / "choice.txt").read_text()
    assert text_of(tmp_path / "choice.inc") == (tmp_path / "choice.txt").read_text()
    right = 0
    for seed in range(60):
        problem = random_problem(random.Random(1000 + seed), "contiguous")
        dtype = getattr(torch, problem.dtype)
        result = torch_reduce.sum(torch.empty(1, dtype=dtype)).dtype
        view = (problem.sizes, problem.strides, problem.dims, dtype, result)
        most = max(
            json.loads(OPS._plan(*view, f"candidate={k}", ""))["warps"] for k in range(len(OPS._candidates(*view)))
        )
        right += plan(view, choice=tmp_path / "choice.txt")["warps"] == most
    assert right > 50
    assert command.main(["tune", "--times", str(tmp_path / "times.json")]) == 1  # into this user's cache
    assert "not of this GPU" in capsys.readouterr().err
    (tmp_path / "times.json").write_text(json.dumps(kept | {"features": "others"}))
    assert command.main(["tune", "--times", str(tmp_path / "times.json"), "--write", str(tmp_path / "none")]) == 1
    assert "another version" in capsys.readouterr().err
    kept["problems"][0]["wrong"] = ["3"]
    (tmp_path / "times.json").write_text(json.dumps(kept))
    assert command.main(["tune", "--times", str(tmp_path / "times.json"), "--write", str(tmp_path / "none")]) == 1
    assert "other bits" in capsys.readouterr().err and not (tmp_path / "none").exists()


GPU = {"name": "NVIDIA Test", "multiprocessors": 99, "l2_bytes": 1 << 20, "bandwidth": 1 << 40}


def kept_times(gpu=GPU, **row):
    """What --times keeps, of one problem."""
    row = {"features": [[0.0] * len(NAMES)] * 2, "us": {"0": 9.0, "1": 8.0}, **row}
    return json.dumps({"gpu": gpu, "features": OPS._features(), "problems": [row]})


NO_TIMES = {
    "empty": "",
    "cut": kept_times()[:200],
    "no text": "\udcff",
    "list": "[]",
    "number": "3",
    "no gpu": "{}",
    "gpu of a list": kept_times(gpu=[]),
    "gpu without a name": kept_times(gpu={}),
    "gpu without facts": kept_times(gpu={"name": "NVIDIA Test"}),
    "facts that are no numbers": kept_times(gpu=GPU | {"multiprocessors": [1]}),
    "problems of numbers": json.dumps({"gpu": GPU, "features": "", "problems": [3]}),
    "no problems": json.dumps({"gpu": GPU, "features": OPS._features(), "problems": []}),
    "one time": kept_times(us={"0": 9.0}),
    "times of texts": kept_times(us={"0": "a", "1": "b"}),
    "times of nothing": kept_times(us={"0": None, "1": 8.0}),
    "a time that is none": kept_times(us={"0": math.nan, "1": 8.0}),
    "times in a list": kept_times(us=[9.0, 8.0]),
    "features that are no numbers": kept_times(features=[["a"] * len(NAMES)] * 2),
    "few features": kept_times(features=[[0.0]] * 2),
    "ragged features": kept_times(features=[[0.0] * len(NAMES), []]),
    "features in a number": kept_times(features=3),
}


@pytest.mark.parametrize("how", NO_TIMES)
def test_times_that_cannot_be_read(how, tmp_path, capsys):
    """One sentence on stderr that names the file, exit status 1, and nothing is written."""
    pytest.importorskip("lightgbm")
    path = tmp_path / "times.json"
    path.write_bytes(NO_TIMES[how].encode("utf-8", "surrogateescape"))
    assert command.main(["tune", "--times", str(path), "--write", str(tmp_path / "none"), "--alone"]) == 1
    out, said = capsys.readouterr()
    assert said.startswith(f"{path}: ") and said.endswith(": measure again\n") and said.count("\n") == 1 and not out
    assert not (tmp_path / "none").exists()


def test_times_in_a_folder(tmp_path, capsys):
    pytest.importorskip("lightgbm")
    assert command.main(["tune", "--times", str(tmp_path), "--write", str(tmp_path / "none")]) == 1
    assert "Is a directory" in capsys.readouterr().err


def test_tune_needs_a_gpu(capsys):
    """Without a GPU both ways to tune say so."""
    with pytest.raises(ValueError, match="tune: input must be on a CUDA device, but is on cpu"):
        torch_reduce.tune(torch.ones(4))
    with pytest.raises(TypeError, match="must be Tensor"):
        torch_reduce.tune(4)
    if not torch.cuda.is_available():
        pytest.importorskip("lightgbm")
        assert command.main(["tune"]) == 1
        assert "needs an NVIDIA GPU" in capsys.readouterr().err


OWN = "import json, torch, torch_reduce; print(json.loads(torch.ops.gpureduce._device(0))['choice'])"


def test_a_users_own_choice(cuda, tmp_path):
    """A file in the cache folder is taken, one of another version is reported and not taken."""
    path = pathlib.Path(OPS._choice_path(0))
    own = tmp_path / path.name

    def found():
        environment = os.environ | {"TORCH_REDUCE_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
        return subprocess.run([sys.executable, "-c", OWN], env=environment, capture_output=True, text=True, check=True)

    assert found().stdout.strip() == OPS._known_choice(torch.cuda.get_device_name(0), "")
    own.write_text(stump("splits", 1.5, 0, 1))
    assert found().stdout.strip() == "NVIDIA Test"
    own.write_text("nonsense")
    ran = found()
    assert ran.stdout.strip() != "NVIDIA Test" and "is not used" in ran.stderr and "tune" in ran.stderr


@pytest.mark.parametrize("dtype", [None, torch.float32])
@pytest.mark.parametrize("shape, dim", [((300, 5000), 1), ((5000, 300), 0), ((64, 33), None)])
def test_tune_remembers(shape, dim, dtype, cuda):
    """The fastest plan of a call is taken from then on, in every thread and for means too; the bits stay."""
    x = torch.randn(shape, device=cuda, dtype=torch.bfloat16)
    wanted = torch_reduce.sum(x, dim, dtype=dtype)
    before = torch_reduce.explain(x, dim, dtype=dtype)
    dims = None if dim is None else [dim]
    plans = OPS._plans(x, dims, dtype=dtype)
    other = next(k for k in range(plans) if OPS._explain(x, dims, dtype=dtype, tuning=f"candidate={k}") != before)
    OPS._remember(x, dims, dtype=dtype, candidate=other)
    forced = OPS._explain(x, dims, dtype=dtype, tuning=f"candidate={other}")
    seen = [torch_reduce.explain(x, dim, dtype=dtype)]
    thread = threading.Thread(target=lambda: seen.append(torch_reduce.explain(x, dim, dtype=dtype)))
    thread.start()
    thread.join()
    assert seen == [forced, forced] and forced != before
    found = torch_reduce.tune(x, dim, dtype=dtype)
    assert found.plans == plans and min(found.us, found.before_us) > 0
    assert found.plan == torch_reduce.explain(x, dim, dtype=dtype)
    assert_same_bits(torch_reduce.sum(x, dim, dtype=dtype), wanted)
    OPS._remember(x, dims, dtype=dtype, candidate=-1)
    assert torch_reduce.explain(x, dim, dtype=dtype) == before
    with pytest.raises(IndexError, match=f"expected one of {plans} plans"):
        OPS._remember(x, dims, dtype=dtype, candidate=plans)


def test_tune_takes_any_input(cuda):
    """Views with gaps, at odd addresses, lazy ones, leaves that need gradients; but nothing while capturing."""
    x = torch.randn(300, 700, device=cuda)
    for view in (x[:, 1:], x.t(), x[::2, ::3], torch._neg_view(x), x[:1].expand(50, -1), x.clone().requires_grad_()):
        wanted = torch_reduce.sum(view, 1)
        assert torch_reduce.tune(view, 1).plans >= 1
        assert_same_bits(torch_reduce.sum(view, 1).detach(), wanted.detach())
        assert_same_bits(wanted.detach().cpu(), torch_reduce.sum(view.detach().cpu(), 1))
    with pytest.raises(ValueError, match="nothing to time"):
        torch_reduce.tune(x[:0], 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(RuntimeError, match="capture"):
        torch_reduce.tune(x, 1)


@pytest.mark.parametrize("more", [{"weight": 1}, {"function": "var"}], ids=["weighted_sum", "var"])
def test_tune_remembers_other_functions(more, cuda):
    """Weighted sums and variances are explained and tuned as sums are; the bits stay."""
    x = torch.randn(300, 5000, device=cuda, dtype=torch.bfloat16)
    w = torch.randn(300, 5000, device=cuda, dtype=torch.bfloat16)
    more = {"weight": w} if "weight" in more else more
    call = (lambda: torch_reduce.weighted_sum(x, w, 1)) if "weight" in more else (lambda: torch_reduce.var(x, 1))
    wanted, before = call(), torch_reduce.explain(x, 1, **more)
    assert "kernel" in before and before != torch_reduce.explain(x, 1)
    found = torch_reduce.tune(x, 1, **more)
    assert found.plans > 3 and min(found.us, found.before_us) > 0
    assert found.plan == torch_reduce.explain(x, 1, **more)
    assert_same_bits(call(), wanted)
    inputs, begin = ((x, w), "_weighted_sum") if "weight" in more else ((x,), "_var_mean")
    explain, remember = (getattr(OPS, f"{begin}_{name}") for name in ("explain", "remember"))
    plans = [explain(*inputs, [1], tuning=f"candidate={k}") for k in range(found.plans)]
    other = next(k for k, plan in enumerate(plans) if plan != found.plan)
    remember(*inputs, [1], candidate=other)
    assert torch_reduce.explain(x, 1, **more) == plans[other]
    remember(*inputs, [1], candidate=-1)
    assert torch_reduce.explain(x, 1, **more) == before


def test_explain_other_functions():
    """What explain says of weighted sums and variances on the CPU, and what it refuses."""
    x = torch.ones(300, 5000)
    assert "Float * Bool -> Float" in torch_reduce.explain(x, 1, weight=torch.ones(5000, dtype=torch.bool))
    text = torch_reduce.explain(x, 0, function="var")
    assert "added in float64" in text and text == torch_reduce.explain(x, 0, function="std")
    for ask in (torch_reduce.explain, torch_reduce.tune):
        with pytest.raises(ValueError, match="function must be one of sum, mean, var"):
            ask(x, function="median")
        with pytest.raises(ValueError, match="a weight belongs to weighted_sum"):
            ask(x, function="var", weight=x)
        with pytest.raises(TypeError, match="argument 'weight' must be Tensor, not int"):
            ask(x, weight=1)
