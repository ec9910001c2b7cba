"""The package: import, errors of import, explain, `python -m torch_reduce`, and what the library holds."""

import concurrent.futures
import ctypes
import fcntl
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest
import torch

import torch_reduce
from support import FAMILY, NORMS, OPERATIONS, POWSUMS, assert_same_bits, data
from table import SEGMENTS
from torch_reduce._library import CORE, GLUE, MINOR, RELEASE, entry, fits

PACKAGE = pathlib.Path(torch_reduce.__file__).resolve().parent
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
import install_torch  # noqa: E402
import toolkit  # noqa: E402
import torches  # noqa: E402
import wheels  # noqa: E402


def run(*command, path=PACKAGE.parent):
    """Runs Python with the package of `path`."""
    env = dict(os.environ, PYTHONPATH=str(path))
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, cwd=path, timeout=300)


# --- the interface ----------------------------------------------------------------------------------------------------


def test_signature(op):
    """The function and the operator have the documented signatures."""
    names = [(p.name, p.kind.name, p.default) for p in inspect.signature(op.function).parameters.values()]
    assert names == [
        ("input", "POSITIONAL_OR_KEYWORD", inspect.Parameter.empty),
        ("dim", "POSITIONAL_OR_KEYWORD", None),
        ("keepdim", "POSITIONAL_OR_KEYWORD", False),
        ("dtype", "KEYWORD_ONLY", None),
        ("out", "KEYWORD_ONLY", None),
        ("exact", "KEYWORD_ONLY", False),
    ]
    schema = "(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None"
    for name in (str(op), f"exact_{op}"):
        operator = getattr(torch.ops.gpureduce, name)
        assert str(operator.default._schema) == f"gpureduce::{name}{schema}) -> Tensor"
        assert str(operator.out._schema) == f"gpureduce::{name}.out{schema}, Tensor(a!) out) -> Tensor(a!)"


def operators(overload=""):
    """The names of our operators that have this overload."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("gpureduce::")]
    names = [name.removeprefix("gpureduce::").partition(".") for name in names]
    return {name for name, dot, rest in names if dot + rest == overload}


def test_every_operation_is_tested():
    """Each op with an out= overload is in tests/support.py, or takes the power of such ones; all have functions."""
    names = operators(".out")
    public = {name for name in names if not name.startswith("_")}
    others = {"dot", "linalg_powsum", "linalg_vector_norm", "std", "var", "weighted_sum", *map(str, SEGMENTS)}
    others |= {"softmax", "log_softmax"}  # tests/rows/test_rows.py
    others |= {"exact_sum", "exact_mean", "exact_nansum"}  # tests/exact/test_exact.py
    others |= {"exact_dot", "exact_weighted_sum", "exact_linalg_powsum", "exact_linalg_vector_norm"}
    others |= {"exact_segment_sum"}  # tests/exact/test_exact_segment.py
    others |= {"index_sum", "index_mean", "index_amax", "index_amin"}  # tests/indexed/test_indexed.py
    others |= {"gather_sum", "gather_mean", "gather_amax", "gather_amin"}  # tests/indexed/test_gather.py
    others |= {"argmax", "argmin", "max", "min", "aminmax"}  # tests/pairs/test_extrema.py
    assert public == {*map(str, [*OPERATIONS, *FAMILY]), *others}
    assert names >= {*map(str, NORMS), *map(str, POWSUMS)}
    assert all(callable(op.function) for op in [*OPERATIONS, *FAMILY, *NORMS, *POWSUMS])


def test_documented_and_typed():
    """Everything public has a docstring and type hints, methods of classes too, and the package says it is typed."""
    assert (PACKAGE / "py.typed").exists()
    wanted = {"__version__", "decompositions", "distributed", "exact", "explain", "ladder", "replace_torch_sum", "tune"}
    wanted |= {*map(str, OPERATIONS)}
    wanted |= {"powsum", "vector_norm", "get_total_norm", "clip_grad_norm_", "weighted_sum", "dot", "replace"}
    wanted |= {*map(str, [*FAMILY, *SEGMENTS]), "segment_softmax", "std", "var", "var_mean"}
    wanted |= {"softmax", "log_softmax", "rms_norm", "layer_norm", "log_prob", "log_prob_of", "cross_entropy"}
    wanted |= {"Fp8", "quantize", "silu_mul"}
    wanted |= {
        "check_batch_invariance",
        "contract",
        "drift",
        "IndexPlan",
        "index_plan",
        "index_sum",
        "index_mean",
        "index_amax",
        "index_amin",
    }
    wanted |= {"index_reduce", "index_reduce_", "scatter_reduce"}
    wanted |= {"GatherPlan", "gather_plan", "gather_sum", "gather_mean", "gather_amax", "gather_amin"}
    wanted |= {"argmax", "argmin", "max", "min", "aminmax"}
    wanted |= {"MoePlan", "moe_plan", "moe_dispatch", "moe_combine"}
    wanted |= {"index_add", "index_add_", "scatter_add", "embedding", "embedding_bag", "bincount"}
    assert set(torch_reduce.__all__) == wanted
    public = {name: getattr(torch_reduce, name) for name in wanted}
    for name, member in public.copy().items():
        if inspect.isclass(member):
            fields = getattr(member, "__dataclass_fields__", {})  # which their class's text documents
            members = {k: v for k, v in vars(member).items() if k not in fields}
            public |= {f"{name}.{k}": v for k, v in members.items() if not k.startswith("_") or k == "__init__"}
    for name, member in public.items():
        if not isinstance(member, str):
            assert inspect.getdoc(member), name
        if inspect.isfunction(member):
            signature = inspect.signature(member)
            hints = [p.annotation for p in signature.parameters.values() if p.name != "self"]
            assert inspect.Parameter.empty not in (*hints, signature.return_annotation), name
            takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
            assert takes_any == (name == "explain"), name  # whose arguments are another function's
    assert {"sum", "replace_torch_sum.__init__", "replace.__init__", "replace.on", "replace.off"} <= set(public)


def functions():
    """The public functions of tensors."""
    others = {"__version__", "check_batch_invariance", "contract", "drift", "clip_grad_norm_", "get_total_norm"}
    others |= {"decompositions", "distributed", "exact", "ladder"}
    others |= {"Fp8", "GatherPlan", "IndexPlan", "MoePlan", "replace", "replace_torch_sum"}
    return sorted(set(torch_reduce.__all__) - others)


@pytest.mark.parametrize("name", functions())
def test_errors_name_the_function(name):
    """What a wrong argument raises names the function that was called, and neither its operator nor one like it."""
    function = getattr(torch_reduce, name)
    two = name in ("dot", "segment_mean", "segment_sum", "weighted_sum")
    odd = torch.ones(3).to(torch.float8_e5m2fnuz)
    calls = [([1.0],), ([1.0], torch.ones(1)) if two else (1.0,), (odd, odd) if name == "dot" else (odd,)]
    if name.startswith("segment"):
        calls[2] = (odd, torch.tensor([0, 3]))
    elif name == "weighted_sum":
        calls[2] = (torch.ones(3), odd)
    named = [rf"^{name}\(\)"] * 2 + [rf"\b{name}\b" if name not in ("std", "tune", "var_mean") else "."]
    for call, pattern in zip(calls, named, strict=True):
        with pytest.raises((TypeError, NotImplementedError, ValueError)) as caught:
            function(*call)
        first = str(caught.value).splitlines()[0]
        assert re.search(pattern, first) and "gpureduce" not in first and "linalg_" not in first, first
    with pytest.raises(TypeError, match=rf"^{name}\(\)"):
        function(torch.ones(3), nothing=1)


def test_reload(op):
    """Importing again, and loading the library again, changes nothing."""
    x = data((3, 700), "float32")
    before = op.function(x, 1)
    importlib.reload(torch_reduce)
    torch.ops.load_library(str(GLUE))
    assert_same_bits(op.function(x, 1), before)


def test_import_needs_torch_alone():
    """Importing takes no module but torch's, its own and the standard library's."""
    code = (
        "import sys, torch; before = set(sys.modules); import torch_reduce\n"
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    result = run("-c", code)
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.split()) <= {"torch_reduce", "torch"}


def test_import_reads_little():
    """Importing reads no more of torch, no module that takes long, and of its own none that few need."""
    result = run(
        "-c", "import sys, torch; before = set(sys.modules); import torch_reduce; print(*{*sys.modules} - before)"
    )
    assert result.returncode == 0, result.stderr
    read = set(result.stdout.split())
    assert not [name for name in read if name.split(".")[0] == "torch"]
    own = {name for name in read if name.split(".")[0] == "torch_reduce"}
    needless = r"(distributed|ladder|tuning\.(fit|problems|tune)|_selfcheck|__main__)\b"
    assert "torch_reduce._sum" in own and not [name for name in own if re.match(rf"torch_reduce\.{needless}", name)]
    assert not read & {"argparse", "asyncio", "decimal", "numpy", "statistics", "subprocess", "unittest"}


# --- explain ----------------------------------------------------------------------------------------------------------


def test_explain(device):
    """explain describes the call in words: dtypes, outputs, elements; it reads nothing and refuses what sum refuses."""
    text = torch_reduce.explain(data((7, 4097), "bfloat16", device=device), 1, dtype=torch.float64)
    assert "BFloat16" in text and "Double" in text and "float64" in text
    assert re.search(r"\b7\b", text) and re.search(r"\b4097\b", text)
    assert torch_reduce.explain(torch.ones(1, device=device).expand(1 << 40))
    assert torch_reduce.explain(torch.ones(0, 3, device=device), 0)
    with pytest.raises(IndexError):
        torch_reduce.explain(torch.ones(2, 3, device=device), 2)
    with pytest.raises(RuntimeError, match="multiple times"):
        torch_reduce.explain(torch.ones(2, 3, device=device), (0, 0))


def test_explain_tells_layouts_apart(device):
    """Rows and columns are not explained alike."""
    x = torch.ones(512, 512, device=device)
    assert torch_reduce.explain(x, 0) != torch_reduce.explain(x, 1)


# --- python -m torch_reduce -------------------------------------------------------------------------------------------


def test_main():
    """python -m torch_reduce: versions, architectures, devices, and a self-check that passes."""
    result = run("-m", "torch_reduce")
    assert result.returncode == 0, result.stdout + result.stderr
    for fact in (
        torch_reduce.__version__,
        torch.__version__,
        CORE.name,
        GLUE.name,
        "order version 1",
        "CUDA",
        "self-check",
    ):
        assert fact in result.stdout
    assert re.search(r"self-check +cpu: passed", result.stdout)
    strings = set(re.findall(r"^contract +\w+(?::\d+)?: (gpureduce-1:[0-9a-f]{64})$", result.stdout, re.MULTILINE))
    assert strings == {str(torch_reduce.contract("cpu"))}
    if torch.cuda.is_available():
        assert torch.cuda.get_device_name(0) in result.stdout
        assert re.search(r"self-check +cuda:0: passed", result.stdout)


def test_version():
    """--version says the version that pip and CITATION.cff name, and nothing else."""
    assert run("-m", "torch_reduce", "--version").stdout == f"torch_reduce {torch_reduce.__version__}\n"
    assert f"\nversion: {torch_reduce.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## {re.escape(torch_reduce.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_changes_name_what_is_public():
    """CHANGELOG.md names each public name, as code if it may be a word of English."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    marked = " ".join(re.findall(r"`[^`]+`|\*\*[^*]+\*\*", text))
    named = {*re.findall(r"\w+", marked), *re.findall(r"\w+_\w*", text)}
    assert not set(torch_reduce.__all__) - named


def test_operators_are_documented(op):
    """An operator has the documentation of the function that calls it."""
    assert op.operator.__doc__ == op.function.__doc__
    assert torch.ops.gpureduce.linalg_vector_norm.__doc__ == torch_reduce.vector_norm.__doc__
    public = {name for name in operators() if not name.startswith("_")} - {"ladder_run"}
    assert all(getattr(torch.ops.gpureduce, name).__doc__ for name in public)


def test_main_says_what_else_there_is():
    """The report ends with the commands that a newcomer may try next, and each of them exists."""
    lines = run("-m", "torch_reduce", path=ROOT).stdout.split("Next:\n")[1].splitlines()
    on_a_gpu = torch.cuda.is_available()
    assert len(lines) == 5 + on_a_gpu and any("this GPU" in line for line in lines) == on_a_gpu
    for line in lines:
        command = line.split("  ")[1].split()
        if command[0] == "make":
            assert f"\n{command[1]}:" in (ROOT / "Makefile").read_text()
        else:
            path = command[2].replace(".", "/") if command[1] == "-m" else command[1]
            assert any((ROOT / f"{path}{rest}").exists() for rest in ("", ".py", "/__main__.py")), line


@pytest.mark.parametrize(
    ("version", "environment", "error", "pattern"),
    [
        (None, {}, None, r"torch \S+ was built without CUDA: install"),
        ("13.0", {"CUDA_VISIBLE_DEVICES": ""}, None, r"CUDA_VISIBLE_DEVICES is '' and may hide them: unset it"),
        (
            "13.0",
            {},
            RuntimeError("The NVIDIA driver is too old (found version 12020).\nUpdate it."),
            r"12020\). Update",
        ),
        ("13.0", {}, None, "the driver knows of none"),
    ],
)
def test_why_no_gpu(monkeypatch, version, environment, error, pattern):
    """Without a GPU there is one sentence that says why: no CUDA in torch, hidden GPUs, no driver or an old one."""

    def init():
        if error:
            raise error

    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = importlib.import_module("torch_reduce.__main__").why_no_gpu()
    assert re.search(pattern, said) and "\n" not in said


def commands():
    """Every script and module that a person can start, because it has a main."""
    paths = [
        p for folder in ("torch_reduce", "bench", "tools", "examples") for p in sorted((ROOT / folder).glob("*.py"))
    ]
    return [path.relative_to(ROOT) for path in paths if 'if __name__ == "__main__"' in path.read_text()]


HELPS = """
import contextlib, io, json, os, runpy, sys
before, found = list(sys.path), []
for file, *rest in json.loads(sys.argv[1]):
    said, status = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(said):
            if file == "-m":
                sys.argv = rest
                runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
            else:
                sys.argv, sys.path[:] = [file, *rest], [os.path.dirname(file), *before]
                runpy.run_path(file, run_name="__main__")
    except SystemExit as end:
        status = end.code
    found.append((status or 0, said.getvalue()))
print(json.dumps(found))
"""


def helps(commands):
    """How each command ends, and what it says to --help: all in one process, as most of them import torch."""
    result = run("-c", HELPS, json.dumps([[*map(str, command), "--help"] for command in commands]))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_help_of_every_command():
    """--help says how a command is called, with an example to copy, and does nothing else."""
    found = {}
    for path in commands():
        module = ".".join(path.with_suffix("").parts).removesuffix(".__main__")
        found[path] = ["-m", module] if path.parts[0] == "torch_reduce" else [ROOT / path]
    assert len(found) >= 19
    for path, (status, said) in zip(found, helps(found.values()), strict=True):
        assert status == 0 and said.startswith("usage: "), f"{path}: {said}"
        example = " ".join(found[path]) if path.parts[0] == "torch_reduce" else str(path)
        assert re.search(rf"^ +.*python {re.escape(example)}", said, re.MULTILINE), f"{path}: no example"


def test_help_of_every_action():
    """So do the actions of commands that have some."""
    ladder = [["-m", "torch_reduce.ladder", name] for name in ("list", "run", "show", "step", "try", "exercise")]
    actions = [*ladder, ["-m", "torch_reduce", "tune"]]
    for action, (status, said) in zip(actions, helps(actions), strict=True):
        assert status == 0 and re.search(rf"^ *python {re.escape(' '.join(action))} ", said, re.MULTILINE), said


def test_main_fails_when_bits_are_wrong(monkeypatch, capsys):
    """The self-check notices one wrong bit, and the exit status says so."""
    main = importlib.import_module("torch_reduce.__main__").main
    assert main([]) == 0
    real = torch_reduce.sum

    def wrong(*args, **kwargs):
        result = real(*args, **kwargs)
        return torch.nextafter(result, torch.full_like(result, torch.inf)) if result.dtype == torch.float32 else result

    monkeypatch.setitem(importlib.import_module("torch_reduce._selfcheck")._FUNCTIONS, "sum", wrong)
    assert main([]) == 1
    said = capsys.readouterr().out
    assert "FAILED" in said and re.search(r"\n +not gpureduce-1:[0-9a-f]{64}: sum\b", said)


# --- imports that cannot work -----------------------------------------------------------------------------------------


def package_copy(folder, **facts):
    """A copy of the package that claims to have been built for something else."""
    copy = folder / "torch_reduce"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    built = json.loads((copy / "_build.json").read_text())
    (copy / "_build.json").write_text(json.dumps(dict(built, **facts)))
    return copy


def import_error(folder, before=""):
    """The last line that a failing import prints."""
    result = run("-c", before + "import torch_reduce", path=folder)
    assert result.returncode == 1
    return result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("facts", [dict(torch=["2.9.1", "2.10.0"]), dict(torch=["3.0.0"]), dict(cuda="12.8")], ids=str)
def test_import_under_the_wrong_torch(tmp_path, facts):
    """One readable sentence: what it was built for, what is there, what to do. No undefined symbol."""
    package_copy(tmp_path, **facts)
    message = import_error(tmp_path)
    assert message.startswith("ImportError: ") and "undefined symbol" not in message
    (wanted,) = facts.values()
    assert (wanted if "cuda" in facts else " or ".join(wanted)) in message  # what it was built for
    assert torch.__version__.split("+")[0] in message  # what is there
    assert "install" in message  # what to do


def test_which_torch_a_glue_fits():
    """A glue fits its torch's minor version; what is no final release fits itself alone."""
    assert fits("2.14.0", "2.14.0") and fits("2.14.0", "2.14.1") and fits("2.14.1", "2.14.0")
    assert not fits("2.1.0", "2.14.0") and not fits("2.14.0", "2.1.0") and not fits("2.14.0", "3.14.0")
    assert fits("2.14.0a0", "2.14.0a0") and not fits("2.14.0", "2.14.0a0") and not fits("2.14.0.dev1", "2.14.0.dev2")


def test_glue_is_chosen_by_torch(tmp_path):
    """Of several glues the one of this torch is loaded: others may be there that cannot be."""
    copy = package_copy(tmp_path, torch=["2.0.0", RELEASE, "2.99.0"])
    for name in ("libtorch_reduce_2_0.so", "libtorch_reduce_2_99.so"):
        (copy / name).write_bytes(b"no library")
    result = run("-m", "torch_reduce", path=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"built for 2.0.0, {RELEASE}, 2.99.0\n" in result.stdout
    assert re.search(rf"^glue +{re.escape(str(copy))}/{GLUE.name} .*, built for torch {RELEASE}$", result.stdout, re.M)


ALONE = f"import sys; sys.path = [folder for folder in sys.path if folder != {str(PACKAGE.parent)!r}]\n"


@pytest.mark.parametrize("missing", ["libtorch_reduce_core.so", "_build.json"])
def test_import_without_the_library(missing, tmp_path):
    """A source tree that was never built says how to build it, where no other torch_reduce is installed."""
    (package_copy(tmp_path) / missing).unlink()
    message = import_error(tmp_path, ALONE)
    assert message.startswith("ImportError: ") and "make build" in message and "pip install" in message


IMPORTS = """
import pathlib, sys
for text in texts:
    pathlib.Path(record).write_bytes(text)
    try:
        import torch_reduce
    except ImportError as error:
        print(error)
    else:
        print("imported")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch_reduce"]:
        del sys.modules[name]
"""


def test_import_with_a_broken_record(tmp_path):
    """One sentence that names the file and says what to do."""
    record = package_copy(tmp_path) / "_build.json"
    texts = [b"", b"{", b"\xff", b"[]", b"3", b"{}", b'{"torch": 3}', b'{"torch": [3], "compiler": ""}']
    texts.append(json.dumps(json.loads(record.read_text()) | {"architectures": 9}).encode())  # a part of it is wrong
    result = run("-c", f"{ALONE}record, texts = {str(record)!r}, {texts!r}\n{IMPORTS}", path=tmp_path)
    assert result.returncode == 0, result.stderr
    said = result.stdout.splitlines()
    assert len(said) == len(texts)
    for message in said:
        assert message.startswith(f"torch_reduce: {record}, which says what was built, cannot be read (")
        assert message.endswith("): build again by `make clean build`, or install torch_reduce again.")


def test_import_in_a_clone_beside_an_installed_one(tmp_path):
    """A source tree that was not built imports the installed package, all of it: also as a module, and anew."""
    clone, site = tmp_path / "clone", tmp_path / "site"
    (package_copy(site) / "only_here.py").touch()
    shutil.copytree(site / "torch_reduce", clone / "torch_reduce")
    for name in ("_build.json", "only_here.py", *(path.name for path in PACKAGE.glob("*.so"))):
        (clone / "torch_reduce" / name).unlink()
    for folder, version in ((clone, "1.0.clone"), (site, "1.0.site")):
        init = folder / "torch_reduce" / "__init__.py"
        init.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', init.read_text()))
    code = ALONE + (
        f"sys.path.append({str(site)!r})\n"
        "import importlib, torch, torch_reduce, torch_reduce.only_here\n"
        "import torch.distributed.tensor, torch_reduce.distributed, torch_reduce.ladder\n"
        "for again in (torch_reduce, importlib.reload(torch_reduce)):\n"
        "    assert again is sys.modules['torch_reduce'] and again.sum(torch.ones(3)) == 3\n"
        "    print(again.__version__, again.__file__, again.__spec__.origin, *again.__path__)\n"
        "ours = [module for name, module in sys.modules.items() if name.startswith('torch_reduce')]\n"
        "print(*sorted({module.__file__.rpartition('/')[0] for module in ours}))\n"
    )
    result = run("-c", code, path=clone)
    folders = " ".join(map(str, [init.parent, *(init.parent / name for name in ("distributed", "ladder", "tuning"))]))
    assert result.stdout.splitlines() == 2 * [f"1.0.site {init} {init} {init.parent}"] + [folders], result
    env = dict(os.environ, PYTHONPATH=str(site))
    command = [sys.executable, "-m", "torch_reduce", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, cwd=clone, env=env, check=True, timeout=300)
    assert said.stdout == "torch_reduce 1.0.site\n"


# --- the library ------------------------------------------------------------------------------------------------------


needs_readelf = pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")


def elf(library):
    """The libraries that a library needs, the symbols that it leaves open, and those that it exports."""

    def said(what):
        return subprocess.run(["readelf", what, "--wide", library], capture_output=True, text=True, check=True).stdout

    symbols = [line.split() for line in said("--dyn-syms").splitlines()]
    symbols = [(line[6], line[7].partition("@")[0]) for line in symbols if len(line) >= 8 and line[0] != "Num:"]
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", said("--dynamic"))
    return needed, {name for at, name in symbols if at == "UND"}, {name for at, name in symbols if at != "UND"}


@needs_readelf
def test_libraries_hold_no_python():
    """Neither library links libpython or leaves symbols of Python open, so they load under any Python."""
    for library in (CORE, GLUE):
        needed, wanted, _ = elf(library)
        assert not [name for name in needed if "python" in name], needed
        assert wanted and not [name for name in wanted if re.match(r"_?Py[A-Z]", name)]


@needs_readelf
def test_core_holds_no_torch():
    """The core serves every torch: it links none of torch's libraries, and no symbol names torch, c10 or OpenMP."""
    of_torch = re.compile(r"N[VK]*(2at|3c10|5torch|6caffe2)\d|^(GOMP|omp)_")
    needed, wanted, exported = elf(CORE)
    assert not [name for name in needed if re.match(r"lib(torch|c10|gomp|omp)", name)], needed
    assert not [name for name in wanted | exported if of_torch.search(name)]
    needed, wanted, _ = elf(GLUE)  # which shows that the test would see them
    assert {"libtorch_cpu.so", CORE.name} <= set(needed)
    assert {"_ZN2at", "_ZN3c1", "GOMP_p"} <= {name[:6] for name in wanted if of_torch.search(name)}


@needs_readelf
def test_core_exports_what_the_glue_calls():
    """All of our own that the glue leaves open is in the core, and the core exports little more (csrc/core/api.h)."""
    ours = re.compile(r"_ZNK?9gpureduce")
    _, wanted, _ = elf(GLUE)
    wanted = {name for name in wanted if ours.match(name)}
    exported = {name for name in elf(CORE)[2] if ours.match(name)}
    assert wanted and wanted <= exported, wanted - exported
    assert len(exported) <= len(wanted) + 25, exported - wanted


def test_library_size():
    """A core has at most 6 MiB, 15 MiB for each architecture and 3 MiB for each PTX; a glue has at most 2.5 MiB."""
    architectures = json.loads((PACKAGE / "_build.json").read_text())["architectures"]
    ptx = sum(name.endswith("+PTX") for name in architectures)
    assert CORE.stat().st_size <= (6 + 15 * len(architectures) + 3 * ptx) * 2**20
    assert GLUE.stat().st_size <= 2.5 * 2**20


def test_libraries_do_not_name_their_build_folder():
    """No path of the machine that built them is in the libraries."""
    root = os.fsencode(PACKAGE.parent / "csrc")
    assert not [library for library in PACKAGE.glob("*.so") if root in library.read_bytes()]


# --- building ---------------------------------------------------------------------------------------------------------

ODD = "a b,c$d:e'f"  # what ninja's files, shells, nvcc's lists and linkers' options take apart
TINY = {  # a library that takes seconds, for setup.py and tools/ as they are
    "csrc/number.h": "#define NUMBER 1\n",
    "csrc/tiny.cpp": """
        #include <ATen/Parallel.h>
        #include <atomic>
        #include "number.h"
        #define TINY extern "C" __attribute__((visibility("default")))
        TINY int number() { return NUMBER; }
        #ifdef __OPTIMIZE_SIZE__
        #error for speed
        #endif
        TINY const char* file() { return __FILE__; }
        TINY bool parallel() {  // whether two threads are in a loop at once
          std::atomic<int> inside{0};
          std::atomic<bool> met{false};
          at::parallel_for(0, 2, 1, [&](int64_t, int64_t) {
            ++inside;
            for (int64_t i = 0; i < 2000000000 && !met; ++i) met = inside == 2 || met;
          });
          return met;
        }
        TINY int grows(int x) { return x + 1 > x; }  // always, where an overflow is taken for impossible
        TINY int thrown() {  // what an exception in a loop brings out of it
          try {
            at::parallel_for(0, 2, 1, [&](int64_t begin, int64_t) { if (begin == 1) throw 7; });
          } catch (int thrown) { return thrown; }
          return 0;
        }
    """,
    "csrc/foreach/torch.cpp": """
        #include <ATen/Parallel.h>
        #ifdef __OPTIMIZE_SIZE__
        extern "C" __attribute__((visibility("default"))) int foreach_is_small() { return 1; }
        #endif
    """,
    "csrc/core.cpp": """
        extern "C" __attribute__((visibility("default"))) int core() { return 1; }
    """,
    "csrc/core/torch/python/entry.cpp": "int unused;\n",
    "csrc/ladder/readme.md": "No rungs.\n",
}
TINY_CUDA = {
    "csrc/core/cuda/tiny.cu": """
        #include "../../number.h"
        __global__ void kernel(int* x) { *x = NUMBER; }
        extern "C" __attribute__((visibility("default"))) int cuda_number() { return NUMBER; }
        extern "C" __attribute__((visibility("default"))) const char* cuda_file() { return __FILE__; }
    """,
    "csrc/rows/native/typed.cu": "__global__ void typed(int* x) { *x = 1; }\n",
}


def tiny_tree(folder, sources=TINY):
    """The repository with other C++."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "_build.json")
    for name in ("tools", "torch_reduce", "csrc/missing"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name, text in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def setup_py(folder, *arguments, before="", **env):
    """Starts setup.py as pip does, with output and errors together. `before` is run first, in the same process."""
    code = f"import runpy, sys\nsys.argv = ['setup.py', *{arguments!r}]\n{before}\n"
    code += "runpy.run_path('setup.py', None, '__main__')"
    temporary = folder.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    ours = dict(PYTHONPATH="", GPUREDUCE_CUDA="0", MAX_JOBS="2", TMPDIR=str(temporary))
    env = dict(os.environ, **{**ours, **env})
    env = {name: value for name, value in env.items() if value is not None}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=env, **pipes)


def in_place(folder, core=False, **options):
    """The output of a build in place, which must succeed, and the glue, or the core."""
    process = setup_py(folder, "build_ext", "--inplace", **options)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    loaded = folder.parent / f"loaded-{len(list(folder.parent.iterdir()))}"  # dlopen loads no path twice
    shutil.copytree(folder / "torch_reduce", loaded, ignore=lambda *_: ["__pycache__"])
    return said, ctypes.CDLL(str(loaded / (CORE if core else GLUE).name))


def refusal(folder, **options):
    """The last line of a build that fails before it compiles anything."""
    process = setup_py(folder, "build_ext", "--inplace", **options)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 1, said
    assert "Traceback" not in said and not list(folder.rglob("*.o"))
    return said.strip().splitlines()[-1]


def launcher(folder, name="ccache"):
    """A program on a PATH that runs the command in its arguments, and writes that down."""
    folder.mkdir()
    program = folder / name
    program.write_text(f'#!/bin/sh\necho "$@" >> "{folder}/log"\nexec "$@"\n')
    program.chmod(0o755)
    return dict(PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(("name", "cxx"), [(ODD, "ccache c++"), ("tree", "clang++")])
def test_build_in_any_folder_with_any_compiler(tmp_path, set_threads, name, cxx):
    """The library loads, runs loops in parallel, names no folder, has small parts, and follows a changed header."""
    if not shutil.which(cxx.split()[-1]):
        pytest.skip(f"needs {cxx}")
    folder = tiny_tree(tmp_path / name)
    env = dict(launcher(tmp_path / "bin"), CXX=cxx, CFLAGS="-fno-wrapv", CXXFLAGS="-fno-wrapv")  # as no Python's flags
    said, library = in_place(folder, **env)
    assert (library.grows(2**31 - 1), library.grows(0)) == (0, 1)
    library.file.restype = ctypes.c_char_p
    library.parallel.restype = ctypes.c_bool
    assert (library.number(), library.file()) == (1, b"csrc/tiny.cpp")
    assert library.foreach_is_small() == 1  # a file that no plain call runs through; tiny.cpp is built for speed
    core = ctypes.CDLL(str(next(tmp_path.glob(f"loaded-*/{CORE.name}"))))
    assert core.core() == 1 and not hasattr(core, "number")  # what includes no header of torch is in the core
    set_threads(2)
    assert library.parallel()
    assert library.thrown() == 7
    assert "WARNING" not in said
    record, built = folder / "torch_reduce" / "_build.json", folder / "torch_reduce" / GLUE.name
    facts = json.loads(record.read_text())
    assert facts["compiler"] and ("clang" in facts["compiler"]) == (cxx == "clang++")
    assert record.stat().st_mtime < built.stat().st_ctime  # so that `make` sees what was edited during the build
    if cxx == "ccache c++":
        log = (tmp_path / "bin" / "log").read_text()
        assert "tiny.cpp" in log and "-shared" in log
        compiled = [line for line in log.splitlines() if " -c " in line]
        assert compiled and all("-fvect-cost-model=dynamic -fno-trapping-math" in line for line in compiled)
    (folder / "csrc" / "number.h").write_text("#define NUMBER 2\n")
    said, library = in_place(folder, **env)
    assert library.number() == 2
    assert "no work to do" in said  # for _entry: a link has the same name every time


def test_build_shows_its_progress(tmp_path):
    """A file is a line with its number and, where ninja knows it, the time that is left; whole commands are shown of
    what fails, with its message, or by VERBOSE=1."""
    folder = tiny_tree(tmp_path / "tree")

    def build(**env):
        process = setup_py(folder, "build_ext", "--inplace", **env)
        said = process.communicate(timeout=300)[0]
        return process.returncode, said

    status, said = build(USE_CUDA="0", GPUREDUCE_CUDA=None)
    files = re.findall(r"^\[(\d+)/\d+(  [\d:]+, about [\d:?]+ left)?\] (\S+)$", said, re.MULTILINE)
    assert status == 0 and "(USE_CUDA=0)" in said
    assert {file for *_, file in files} >= {"csrc/tiny.cpp", "csrc/core/torch/python/entry.cpp"} and files[0][0] == "1"
    version = subprocess.run(["ninja", "--version"], capture_output=True, text=True, check=True).stdout.split(".")
    assert {bool(left) for _, left, _ in files} == {tuple(map(int, version[:2])) >= (1, 12)}
    assert max(map(len, said.splitlines())) < 240 and "-ffp-contract" not in said and "-shared" not in said
    tiny = (folder / "csrc" / "tiny.cpp").read_text()
    (folder / "csrc" / "tiny.cpp").write_text("#error wrong on purpose\n")
    status, said = build()
    assert status != 0 and "error: #error wrong on purpose" in said
    assert re.search(r"^.* -c \S*csrc/tiny.cpp .*-ffp-contract=off.*$", said, re.MULTILINE)
    (folder / "csrc" / "tiny.cpp").write_text(tiny)
    status, said = build(LDFLAGS="-lno-such-library")
    assert status != 0 and re.search(r"^.* -shared .*-lno-such-library.*core\.o.*$", said, re.MULTILINE)
    status, said = build(VERBOSE="1")
    assert status == 0 and re.search(r"^.* -shared .*tiny\.o.*$", said, re.MULTILINE)


def test_cuda_is_left_out(monkeypatch):
    """GPUREDUCE_CUDA decides, then torch's USE_CUDA, each off by any of torch's words."""
    for ours, torchs, said in (
        (None, None, None),
        ("", "", None),
        ("0", None, "GPUREDUCE_CUDA=0"),
        (None, "0", "USE_CUDA=0"),
        ("", "OFF", "USE_CUDA=OFF"),
        (None, "no", "USE_CUDA=no"),
        ("1", "0", None),
        ("0", "1", "GPUREDUCE_CUDA=0"),
        (None, "1", None),
    ):
        for name, value in (("GPUREDUCE_CUDA", ours), ("USE_CUDA", torchs)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        assert toolkit.left_out() == said


class Pip:
    """Stands for pip in tools/install_torch.py: an index has some wheels. PyTorch's own index `answers` or not."""

    def __init__(self, monkeypatch, there, *wheels, answers=False):
        self.there, self.wheels, self.commands = there, wheels, []
        monkeypatch.setattr(install_torch, "answers", lambda index: answers)
        monkeypatch.setattr(install_torch.subprocess, "run", self)
        monkeypatch.setattr(install_torch.importlib.metadata, "version", self.version)

    def version(self, name):
        if self.there is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return self.there

    def __call__(self, command, check=False, **options):
        assert command[:3] == [sys.executable, "-m", "pip"]
        self.commands.append(command[3:])
        failed = command[3] == "install" and command[-1] not in self.wheels
        if failed and check:
            raise subprocess.CalledProcessError(1, command)
        return subprocess.CompletedProcess(command, int(failed))


@pytest.mark.parametrize(
    ("there", "cpu", "wheels", "commands"),
    [
        (None, False, ["torch==2.11.0"], ["install torch==2.11.0"]),
        (None, True, ["torch==2.11.0", "torch==2.11.0+cpu"], ["install torch==2.11.0+cpu"]),
        (None, True, ["torch==2.11.0"], ["install torch==2.11.0+cpu", "install torch==2.11.0"]),
        ("2.12.0+cu130", True, ["torch==2.11.0+cpu"], ["install torch==2.11.0+cpu"]),
        ("2.11.0+cu130", True, ["torch==2.11.0"], ["install torch==2.11.0"]),  # it serves: nothing is fetched
        ("2.11.0+cpu", True, ["torch==2.11.0"], ["install torch==2.11.0"]),
        ("2.11.0+cpu", False, ["torch==2.11.0"], ["uninstall --yes torch", "install torch==2.11.0"]),
    ],
)
def test_which_torch_is_installed(there, cpu, wheels, commands, monkeypatch, capsys):
    """CUDA=0 takes the wheel without CUDA where an index has it, and else the usual one, and says so."""
    pip = Pip(monkeypatch, there, *wheels)
    install_torch.install("2.11.0", cpu, None, [])
    assert [" ".join(command) for command in pip.commands] == commands
    assert ("TORCH_INDEX=URL" in capsys.readouterr().out) == (len(commands) == 2 and cpu)

    def with_index(url):
        more = f"install --extra-index-url {url} --group test torch"
        return [line.replace("install torch", more) for line in commands]

    pip = Pip(monkeypatch, there, *wheels)
    install_torch.install("2.11.0", cpu, "https://index", ["--group", "test"])
    assert [" ".join(command) for command in pip.commands] == with_index("https://index")
    pip = Pip(monkeypatch, there, *wheels, answers=True)
    install_torch.install("2.11.0", cpu, None, ["--group", "test"])
    fetched = commands[0].endswith("+cpu")
    assert ([" ".join(command) for command in pip.commands] == with_index(install_torch.PYTORCH)) == fetched


def test_no_torch_to_install(monkeypatch):
    """Where pip finds none, the command ends with pip's status."""
    Pip(monkeypatch, None)
    monkeypatch.setattr(sys, "argv", ["install_torch.py", "2.11.0", "--cpu", "--group", "test"])
    with pytest.raises(SystemExit, match="1"):
        install_torch.main()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_without_cuda(tmp_path):
    """make takes CUDA=0, GPUREDUCE_CUDA=0 and torch's USE_CUDA=0, and hands TORCH_INDEX on; its help names it.

    Where none is given and there is no GPU, it leaves CUDA out, and says so. Wheels have it all the same."""

    def said(goal, *settings, gpus="/dev/nvidia0", **env):
        names = ("CUDA", "GPUREDUCE_CUDA", "USE_CUDA", "TORCH_INDEX", "TORCH_CUDA_ARCH_LIST", "JOBS", "MAKEFLAGS")
        env = {name: value for name, value in os.environ.items() if name not in names} | env
        command = ["make", "--dry-run", goal, f"VENV={tmp_path}/venv", "TORCH=2.11.0", f"GPUS={gpus}", *settings]
        said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=True).stdout
        return said.replace("\\\n", "")

    def dry(*settings, **env):
        return re.search(r"tools/install_torch.py (.*?)--group", said("build", *settings, **env))[1].split()

    assert dry() == dry(USE_CUDA="0", GPUREDUCE_CUDA="1") == dry("CUDA=1", USE_CUDA="0") == ["2.11.0"]
    assert dry(gpus="") == ["2.11.0", "--cpu"]
    assert dry("CUDA=1", gpus="") == dry(gpus="", TORCH_CUDA_ARCH_LIST="9.0") == ["2.11.0"]
    note = "for the CPU alone: no NVIDIA GPU is here (CUDA=1"
    assert note in said("test", gpus="") and note not in said("test", "CUDA=0", gpus="") + said("test")
    assert said("wheels", gpus="").count("tools/wheels.py build") == 2
    assert said("wheels", "CUDA=0").count("tools/wheels.py build") == 1
    assert re.search("-m pytest -n [1-8] ", said("test", gpus="")) and not re.search("-m pytest .*-n ", said("test"))
    assert dry("CUDA=0") == dry(GPUREDUCE_CUDA="0") == dry(USE_CUDA="0") == dry(USE_CUDA="OFF") == ["2.11.0", "--cpu"]
    index = ["2.11.0", "--cpu", "--index", "https://index"]
    assert dry("CUDA=0", "TORCH_INDEX=https://index") == dry("CUDA=0", TORCH_INDEX="https://index") == index
    assert "TORCH_INDEX=URL" in subprocess.run(["make", "help"], capture_output=True, text=True, cwd=ROOT).stdout


needs_nvcc = pytest.mark.skipif(not (torch.version.cuda and toolkit.find()), reason="needs torch's CUDA toolkit")


def nvcc_lines(said):
    """The sources in csrc/ that nvcc compiled in a build with VERBOSE=1, and its commands."""
    return [(line[1], line[0]) for line in re.finditer(r"^.*nvcc.* -c \S*/csrc/(\S+\.cu) .*$", said, re.MULTILINE)]


@needs_nvcc
def test_build_cuda_in_any_folder(tmp_path):
    """nvcc too takes sources, headers and its own folder from any path, and CC with a launcher; PTX is made of some."""
    folder = tiny_tree(tmp_path / ODD, TINY | TINY_CUDA)
    home = tmp_path / f"cuda {ODD}"
    home.symlink_to(toolkit.find())
    env = dict(GPUREDUCE_CUDA="1", CUDA_HOME=str(home), CC="ccache cc -DTINY", TORCH_CUDA_ARCH_LIST="Hopper;")
    env = dict(launcher(tmp_path / "bin"), **env)
    said, library = in_place(folder, True, VERBOSE="1", **env)
    library.cuda_file.restype = ctypes.c_char_p
    assert (library.cuda_number(), library.cuda_file()) == (1, b"csrc/core/cuda/tiny.cu")
    facts = json.loads((folder / "torch_reduce" / "_build.json").read_text())
    assert facts["architectures"] == ["9.0+PTX"] and "architectures 9.0+PTX" in said
    made = {name: set(re.findall(r",code=(\w+)", line)) for name, line in nvcc_lines(said)}
    assert made == {"core/cuda/tiny.cu": {"sm_90", "compute_90"}, "rows/native/typed.cu": {"sm_90"}}
    (folder / "csrc" / "number.h").write_text("#define NUMBER 2\n")
    assert in_place(folder, True, **env)[1].cuda_number() == 2


def test_which_files_have_ptx():
    """Flags for PTX are dropped for folders named native alone, and only where machine code remains."""
    code = "import runpy, sys; print(runpy.run_path('setup.py')['without_ptx'](sys.stdin.read()), end='')"

    def rewritten(flags):
        sources = ("core/cuda/compiled/native/typed.cu", "rows/native/float.cu", "core/cuda/native.cu", "rows/rows.cu")
        builds = [f"build {name}.o: cuda_compile {ROOT}/csrc/{name}\n" for name in sources]
        text = f"cuda_post_cflags = -O2 {flags} -std=c++17\nnothing = else\n\n" + "\n".join(builds)
        command, env = [sys.executable, "-c", code], dict(os.environ, GPUREDUCE_CUDA="0")
        done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, env=env, check=True)
        return text, done.stdout

    ptx, machine_code = (f"-gencode=arch=compute_90,code={kind}_90" for kind in ("compute", "sm"))
    older = "-gencode=arch=compute_80,code=sm_80"
    before, after = rewritten(f"{ptx} {older} {machine_code}")
    assert after.count(ptx) == before.count(ptx) == 1
    assert f"\nnative_post_cflags = -O2 {older} {machine_code} -std=c++17\n" in after
    assert after.count("  cuda_post_cflags = $native_post_cflags\n") == 2
    for name in ("native/typed.cu", "native/float.cu"):
        assert f"{name}\n  cuda_post_cflags = $native_post_cflags\n" in after
    before, after = rewritten(ptx)
    assert after == before


@needs_nvcc
def test_architectures(monkeypatch):
    """Every form that torch takes is recorded as the numbers nvcc compiles for, and what neither knows is refused."""
    known = {
        "9.0": ["9.0"],
        "Hopper": ["9.0+PTX"],
        "Ampere": ["8.0", "8.6+PTX"],
        "8.0+PTX 9.0a;": ["8.0+PTX", "9.0a"],
        " 9.0 ; 8.0 ": ["8.0", "9.0"],
        "12.1a;10.0": ["10.0", "12.1a"],
        "Blackwell": ["10.0", "10.3", "12.0", "12.1+PTX"],
    }
    for asked, numbers in known.items():
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", asked)
        assert toolkit.architectures(toolkit.find())[2] == numbers
        assert os.environ["TORCH_CUDA_ARCH_LIST"] == asked
    for asked in ("Hoper", "9", "9.0,8.0", "native 9.0", "1.0"):
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", asked)
        with pytest.raises(ValueError, match=f"TORCH_CUDA_ARCH_LIST='{asked}': Unknown.*such as"):
            toolkit.architectures(toolkit.find())
    if toolkit.version(toolkit.find()).startswith("13."):
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Pascal 9.0")
        with pytest.raises(ValueError, match=r"does not compile for 6\.0, 6\.1\+PTX, but for .*9\.0"):
            toolkit.architectures(toolkit.find())
    for asked in ("", "native", None):  # the visible GPUs', or 9.0
        if asked is None:
            monkeypatch.delenv("TORCH_CUDA_ARCH_LIST")
        else:
            monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", asked)
        numbers = toolkit.architectures(toolkit.find())[2]
        gpus = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())} or {(9, 0)}
        assert numbers[-1] == "{}.{}+PTX".format(*max(gpus)) and len(numbers) == len(gpus)


def test_has_code_for():
    """Which GPUs a library serves, by what it was built for."""
    has_code_for = importlib.import_module("torch_reduce.__main__").has_code_for
    served = {
        "9.0": [(9, 0)],
        "8.0": [(8, 0), (8, 6), (8, 9)],
        "8.6": [(8, 6), (8, 9)],
        "8.6+PTX": [(8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)],
        "8.0 9.0+PTX": [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)],
        "9.0a": [(9, 0)],
        "10.0a+PTX": [(10, 0)],
        "10.0f": [(10, 0), (10, 3)],
        "10.0f+PTX": [(10, 0), (10, 3)],
        "12.1a": [(12, 1)],
        "": [],
    }
    every = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)]
    for architectures, gpus in served.items():
        assert [gpu for gpu in every if has_code_for(gpu, architectures.split())] == gpus, architectures


@needs_nvcc
def test_a_library_that_the_system_cannot_load(tmp_path):
    """As one that was built on a newer system: the error says what to do."""
    (package_copy(tmp_path) / GLUE.name).write_bytes(b"not a library")
    last = import_error(tmp_path)
    assert last.startswith("ImportError: torch_reduce's libraries cannot be loaded on this system (")
    assert last.endswith("build torch_reduce here with `pip install --no-build-isolation .` in its source tree.")


def test_build_refuses_architectures_nobody_knows(tmp_path):
    last = refusal(tiny_tree(tmp_path / "tree"), GPUREDUCE_CUDA="1", TORCH_CUDA_ARCH_LIST="9.0 Hoper")
    assert last.startswith("torch_reduce: TORCH_CUDA_ARCH_LIST='9.0 Hoper': Unknown CUDA arch (Hoper)")


def test_build_refuses_what_it_cannot_use(tmp_path):
    """A torch that cannot be seen, as in the environment that pip builds in by itself; an old one; no compiler."""
    folder = tiny_tree(tmp_path / "tree")
    last = refusal(folder, before="sys.modules['torch'] = None")
    assert "`pip install --no-build-isolation .`" in last and "install torch first" in last
    last = refusal(folder, before="import torch; torch.__version__ = '2.9.1+cpu'")
    assert last == "torch_reduce: it needs torch 2.11 to 2.15, and this is torch 2.9.1+cpu."
    last = refusal(folder, before="import setuptools; setuptools.__version__ = '65.5.0'")
    wanted = 'run `pip install "setuptools>=77"`.'
    assert last == f"torch_reduce: building needs setuptools 77 or newer, and this is 65.5.0: {wanted}"
    (tmp_path / "tmp" / f"torch_reduce-{os.getuid()}").symlink_to(tmp_path)
    last = refusal(tiny_tree(tmp_path / ODD))
    assert f"/torch_reduce-{os.getuid()} belongs to another user: set TMPDIR" in last
    assert refusal(folder, CXX="ccache no-such-compiler").startswith("torch_reduce: CXX='ccache no-such-compiler'")


def test_isolated_builds_fetch_no_torch():
    """pip installs the requirements of a build before it runs any of our code."""
    requires = re.search(r"^requires = (.+)$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert "setuptools" in requires and "torch" not in requires


def test_builds_of_one_tree_wait_for_each_other(tmp_path):
    """A second build says that it waits, compiles nothing until the first one is done, and succeeds."""
    folder = tiny_tree(tmp_path / "tree")
    (folder / "build").mkdir()
    with open(folder / "build" / "lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        process = setup_py(folder, "build_ext", "--inplace")
        line = ""
        while "waiting" not in line:
            line = process.stdout.readline()
            assert line, "it ended and did not wait"
        assert line == f"torch_reduce: another build in {folder} is running: waiting until it is done\n"
        assert process.poll() is None and not list(folder.rglob("*.o"))
    both = [process, setup_py(folder, "build_ext", "--inplace"), setup_py(folder, "bdist_wheel")]
    # All are read at once: a build whose pipe is full would keep the lock that another one waits for.
    with concurrent.futures.ThreadPoolExecutor(len(both)) as pool:
        for each, (said, _) in zip(both, pool.map(lambda one: one.communicate(timeout=300), both), strict=True):
            assert each.returncode == 0, said
    assert (folder / "torch_reduce" / GLUE.name).exists() and len(list(folder.glob("dist/*.whl"))) == 1


BUILT = """
import pathlib, shutil, setuptools
built, setup = pathlib.Path({built!r}), setuptools.setup
def setup_without_compiling(cmdclass, **options):
    class Copy(cmdclass["build_ext"]):
        def run(self):
            for extension in self.extensions:
                path = pathlib.Path(self.get_ext_fullpath(extension.name))
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(built / path.name, path)
            shutil.copy(built / "_build.json", path.parent)
    setup(cmdclass=cmdclass | {{"build_ext": Copy}}, **options)
setuptools.setup = setup_without_compiling
"""


@pytest.mark.skipif(not entry(), reason="this Python's library has no _entry to put into a wheel")
def test_wheel_without_a_compiler(tmp_path):
    """The wheel of this library works in a new environment that has torch, where no compiler is to be found.

    There it passes the self-check and has the pinned bits of every operation, and the first result takes ten seconds
    at most.
    """
    process = setup_py(tiny_tree(tmp_path / "tree"), "bdist_wheel", before=BUILT.format(built=str(PACKAGE)))
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    (wheel,) = tmp_path.glob("tree/dist/*.whl")
    shutil.rmtree(tmp_path / "tree" / "torch_reduce")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "new"], check=True, timeout=120)
    (folder,) = tmp_path.glob("new/lib/python*/site-packages")
    there = {str(pathlib.Path(module.__file__).parent.parent) for module in (torch, pytest)}
    (folder / "there.pth").write_text("\n".join(there))  # instead of 5 GB
    new = tmp_path / "new" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", new, "install", "--no-index", wheel]  # torch must suffice
    result = subprocess.run(install, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CXX", "CC", "CUDA_HOME")}
    bare["PATH"] = str(tmp_path / "empty")

    def in_new(*command):
        result = subprocess.run([new, *command], cwd=tmp_path, env=bare, capture_output=True, text=True, timeout=600)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    said = in_new("-m", "torch_reduce")
    assert re.search(r"self-check +cpu: passed", said) and str(folder / "torch_reduce") in said
    assert "entry          there" in said and "make bench" not in said
    assert re.search(rf"^wheel +{re.escape(torch_reduce.__version__)}, cp310-abi3-linux_", said, re.MULTILINE)
    code = (
        "import time, torch; began = time.process_time(); import torch_reduce\n"
        "print(torch.ops.gpureduce.sum(torch.arange(5)), began, time.process_time())"
    )
    found, *seconds = in_new("-c", code).split()
    began, ended = map(float, seconds)  # of the processor, on all threads, since Python began
    assert found == "tensor(10)" and ended < 10 and ended - began < 2
    tests = [ROOT / "tests" / name for name in ("core/test_selfcheck.py", "core/test_bits.py")]
    said = in_new("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cpu and (selfcheck or pinned)", *tests)
    assert int(re.search(r"(\d+) passed", said)[1]) >= 30


def fetched(cache, release):
    """A release of torch as tools/torches.py leaves it in a cache folder, with this torch's headers."""
    folder = cache / "torches" / release
    package = pathlib.Path(torch.__file__).parent
    archive = cache / "torch.whl"
    cache.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive, "w") as wheel:
        wheel.writestr("torch/include/ATen/only_here.h", "")
        wheel.writestr("torch/lib/libtorch_cpu.so", "a gigabyte")
        wheel.writestr("torch/utils/cpp_extension.py", (package / "utils" / "cpp_extension.py").read_text())
    torches.unpack(archive, folder)
    assert (folder / "torch" / "include" / "ATen" / "only_here.h").exists()
    shutil.rmtree(folder / "torch" / "include")
    (folder / "torch" / "include").symlink_to(package / "include")
    return folder / "torch"


@needs_readelf
def test_wheel_for_several_torches(tmp_path, monkeypatch):
    """GPUREDUCE_TORCHES="2.11.0 2.98.0" makes a wheel with one core, and a glue and an entry for each torch."""
    monkeypatch.setenv("TORCH_REDUCE_CACHE", str(tmp_path / "cache"))
    other = fetched(tmp_path / "cache", "2.98.0")
    assert torches.folder("2.98.0") == other and torches.standard(other).startswith("-std=c++")
    folder = tiny_tree(tmp_path / "tree")
    env = dict(GPUREDUCE_TORCHES=f"{RELEASE} 2.98.0", TORCH_REDUCE_CACHE=str(tmp_path / "cache"))
    process = setup_py(folder, "bdist_wheel", **env)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    (wheel,) = folder.glob("dist/*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "wheel")
    built = tmp_path / "wheel" / "torch_reduce"
    glues = [f"libtorch_reduce_{MINOR}.so", "libtorch_reduce_2_98.so"]
    entries = [f"_entry_{MINOR}.so", "_entry_2_98.so"] if entry() else []
    assert {path.name for path in built.glob("*.so")} == {CORE.name, *glues, *entries}
    assert json.loads((built / "_build.json").read_text())["torch"] == [RELEASE, "2.98.0"]
    (metadata,) = tmp_path.glob("wheel/*.dist-info/METADATA")
    first = int(MINOR.split("_")[1])
    gaps = "".join(f"!=2.{minor}.*," for minor in range(first + 1, 98))
    wanted = set(f"{gaps}<2.99,>=2.{first}".split(","))
    assert set(re.search(r"^Requires-Dist: torch(.+)$", metadata.read_text(), re.MULTILINE)[1].split(",")) == wanted
    for name in glues:  # libraries without symbols are linked all the same
        needed = elf(built / name)[0]
        assert {"libtorch_cpu.so", "libc10.so"} <= set(needed)
    last = refusal(tiny_tree(tmp_path / "other"), GPUREDUCE_TORCHES="2.97.0")
    assert last == "torch_reduce: there are no headers of torch 2.97.0: run `python tools/torches.py 2.97.0`."


def test_wheel_for_another_processor(tmp_path):
    """_PYTHON_HOST_PLATFORM names the platform that a cross build is for: its headers are taken, and the wheel says it.

    The compiler is this machine's here, and the headers are this torch's.
    """
    cross = dict(_PYTHON_HOST_PLATFORM="linux-aarch64", TORCH_REDUCE_CACHE=str(tmp_path / "cache"))
    last = refusal(tiny_tree(tmp_path / "other"), **cross)  # the headers of the installed torch do not serve
    wanted = f"run `python tools/torches.py {RELEASE}`."
    assert last == f"torch_reduce: there are no headers of torch {RELEASE}: {wanted}"
    fetched(tmp_path / "cache", f"linux-aarch64/{RELEASE}")
    folder = tiny_tree(tmp_path / "tree")
    process = setup_py(folder, "bdist_wheel", **cross)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    (wheel,) = folder.glob("dist/*.whl")
    assert wheel.name.endswith("-linux_aarch64.whl")


needs_auditwheel = pytest.mark.skipif(
    not importlib.util.find_spec("auditwheel"), reason="needs auditwheel: `pip install --group wheels`"
)


@needs_auditwheel
def test_wheel_with_a_tag(tmp_path):
    """tools/wheels.py makes a wheel for the CPU that names the oldest system it serves, without torch's libraries."""
    folder = tiny_tree(tmp_path / "tree")
    env = dict(os.environ, PYTHONPATH="", MAX_JOBS="2")
    command = [sys.executable, "tools/wheels.py", "build", "--cpu", RELEASE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("dist/*.whl")
    version = re.escape(torch_reduce.__version__)
    assert re.fullmatch(rf"torch_reduce-{version}\+cpu-cp\d+-.*manylinux_2_\d+_.*\.whl", wheel.name)
    assert f"{wheel}: " in done.stdout
    with zipfile.ZipFile(wheel) as archive:
        libraries = {name for name in archive.namelist() if ".so" in name}
    entries = {f"torch_reduce/_entry_{MINOR}.so"} if entry() else set()
    assert libraries == {f"torch_reduce/{CORE.name}", f"torch_reduce/{GLUE.name}", *entries}


@needs_nvcc
def test_sizes_of_architectures(tmp_path):
    """tools/wheels.py finds in a library what each architecture takes."""
    (tmp_path / "a.cu").write_text("__global__ void kernel(int* x) { *x = 1; }\n")
    pairs = [("80", "sm_80"), ("90", "sm_90"), ("90", "compute_90")]
    targets = [f"-gencode=arch=compute_{arch},code={code}" for arch, code in pairs]
    nvcc = [f"{toolkit.find()}/bin/nvcc", "-c", "-Xfatbin=-compress-all", *targets, "a.cu", "-o", "a.o"]
    subprocess.run(nvcc, cwd=tmp_path, check=True, timeout=300)
    found = dict(wheels.fatbins((tmp_path / "a.o").read_bytes()))
    assert set(found) == {"sm_80", "sm_90", "PTX 90"}
    assert all(200 < size < (tmp_path / "a.o").stat().st_size for size in found.values())
    assert not list(wheels.fatbins(b"x" + bytes.fromhex("50ed55ba0100") + bytes(100)))


@pytest.mark.parametrize("free_threaded", [False, True], ids=["gil", "free-threaded"])
def test_wheel(tmp_path, free_threaded):
    """One wheel serves every Python with a GIL; a Python without one gets its own, which has no _entry."""
    folder = tiny_tree(tmp_path / "tree")
    before = f"""import sysconfig
real = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: {int(free_threaded)} if name == "Py_GIL_DISABLED" else real(name)
"""
    process = setup_py(folder, "bdist_wheel", before=before)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    (wheel,) = folder.glob("dist/*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"torch_reduce/{name}" for name in (CORE.name, GLUE.name, "_build.json", "__init__.py")} <= set(names)
    assert {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*.py")} <= set(names)
    course = {"sources/ladder/readme.md", "emulator/emulator.cpp", "emulator/cuda_runtime.h", "_emulate.py"}
    course.add("programs/sum.cu")
    course |= {f"exercises/{path.name}" for path in (PACKAGE / "ladder" / "exercises").glob("*.cu")}
    assert {f"torch_reduce/ladder/{name}" for name in course} <= set(names)
    version = sysconfig.get_config_var("py_version_nodot")
    assert ("-cp310-abi3-" in wheel.name) != free_threaded
    assert (f"-cp{version}-cp{version}" in wheel.name) == free_threaded
    assert bool([name for name in names if "_entry" in name]) != free_threaded
    assert ("without _entry" in said) == free_threaded
    metadata = zipfile.ZipFile(wheel).read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert f"\nRequires-Dist: torch=={'.'.join(MINOR.split('_'))}.*\n" in metadata
