"""The package: import, errors of import, explain, `python -m torch_reduce`, and what the library holds."""

import importlib
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch

import torch_reduce
from support import OPERATIONS, assert_same_bits, data

PACKAGE = pathlib.Path(torch_reduce.__file__).resolve().parent
LIBRARY = PACKAGE / "libtorch_reduce.so"


def run(*command, path=PACKAGE.parent):
    """Runs Python with the package of `path`."""
    env = dict(os.environ, PYTHONPATH=str(path))
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, cwd=path, timeout=300)


# --- the interface ----------------------------------------------------------------------------------------------------


def test_signature(op):
    """The function and the operator have the documented signatures."""
    names = [(p.name, p.kind.name, p.default) for p in inspect.signature(op.function).parameters.values()]
    assert names == [
        ("input", "POSITIONAL_OR_KEYWORD", None),
        ("dim", "POSITIONAL_OR_KEYWORD", None),
        ("keepdim", "POSITIONAL_OR_KEYWORD", False),
        ("dtype", "KEYWORD_ONLY", None),
        ("out", "KEYWORD_ONLY", None),
        ("others", "VAR_KEYWORD", inspect.Parameter.empty),
    ]
    schema = "(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None"
    assert str(op.operator.default._schema) == f"gpureduce::{op}{schema}) -> Tensor"
    assert str(op.operator.out._schema) == f"gpureduce::{op}.out{schema}, Tensor(a!) out) -> Tensor(a!)"


def test_every_operation_is_tested():
    """What is registered with an out= overload is what tests/support.py knows, and a function of the package."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("gpureduce::")]
    assert sorted(name[11:-4] for name in names if name.endswith(".out")) == sorted(map(str, OPERATIONS))
    assert all(callable(op.function) for op in OPERATIONS)


def test_documented_and_typed():
    """Everything public has a docstring and type hints, methods of classes too, and the package says it is typed."""
    assert (PACKAGE / "py.typed").exists()
    wanted = {"__version__", "explain", "ladder", "replace_torch_sum", *map(str, OPERATIONS)}
    assert set(torch_reduce.__all__) == wanted
    public = {name: getattr(torch_reduce, name) for name in wanted}
    for name, member in public.copy().items():
        if inspect.isclass(member):
            public |= {f"{name}.{k}": v for k, v in vars(member).items() if not k.startswith("_") or k == "__init__"}
    for name, member in public.items():
        if not isinstance(member, str):
            assert inspect.getdoc(member), name
        if inspect.isfunction(member):
            hints = inspect.get_annotations(member)
            assert set(hints) == {*inspect.signature(member).parameters, "return"} - {"self"}, name
    assert {"sum", "replace_torch_sum.__init__", "replace_torch_sum.on", "replace_torch_sum.off"} <= set(public)


def test_reload(op):
    """Importing again, and loading the library again, changes nothing."""
    x = data((3, 700), "float32")
    before = op.function(x, 1)
    importlib.reload(torch_reduce)
    torch.ops.load_library(str(LIBRARY))
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
    for fact in (torch_reduce.__version__, torch.__version__, "order version 1", "CUDA", "self-check"):
        assert fact in result.stdout
    assert re.search(r"self-check +cpu: passed", result.stdout)
    if torch.cuda.is_available():
        assert torch.cuda.get_device_name(0) in result.stdout
        assert re.search(r"self-check +cuda:0: passed", result.stdout)


def test_main_fails_when_bits_are_wrong(monkeypatch, capsys):
    """The self-check notices one wrong bit, and the exit status says so."""
    main = importlib.import_module("torch_reduce.__main__").main
    assert main() == 0
    real = torch_reduce.sum

    def wrong(*args, **kwargs):
        result = real(*args, **kwargs)
        return torch.nextafter(result, torch.full_like(result, torch.inf))

    monkeypatch.setattr(torch_reduce, "sum", wrong)
    assert main() == 1
    assert "FAILED" in capsys.readouterr().out


# --- imports that cannot work -----------------------------------------------------------------------------------------


def package_copy(folder, **facts):
    """A copy of the package that claims to have been built for something else."""
    copy = folder / "torch_reduce"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    built = json.loads((copy / "_build.json").read_text())
    (copy / "_build.json").write_text(json.dumps(dict(built, **facts)))
    return copy


def import_error(folder):
    """The last line that a failing import prints."""
    result = run("-c", "import torch_reduce", path=folder)
    assert result.returncode == 1
    return result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("facts", [dict(torch="2.9.1"), dict(torch="3.0.0"), dict(cuda="12.8")], ids=str)
def test_import_under_the_wrong_torch(tmp_path, facts):
    """One readable sentence: what it was built for, what is there, what to do. No undefined symbol."""
    package_copy(tmp_path, **facts)
    message = import_error(tmp_path)
    assert message.startswith("ImportError: ") and "undefined symbol" not in message
    assert next(iter(facts.values())) in message  # what it was built for
    assert torch.__version__.split("+")[0] in message  # what is there
    assert "install" in message  # what to do


def test_import_without_the_library(tmp_path):
    """A source tree that was never built says how to build it."""
    (package_copy(tmp_path) / "libtorch_reduce.so").unlink()
    message = import_error(tmp_path)
    assert message.startswith("ImportError: ") and "make build" in message


# --- the library ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
def test_library_holds_no_python():
    """The library neither links libpython nor leaves symbols of Python open, so it loads under any Python."""
    dynamic = subprocess.run(
        ["readelf", "--dynamic", "--wide", LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert any(name.startswith("libtorch") for name in needed)
    assert not [name for name in needed if "python" in name], needed
    symbols = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    assert "gpureduce" in symbols or "TorchLibraryInit" in symbols or "torch" in symbols
    assert not re.findall(r"UND +_?(Py[A-Z]\w+)", symbols)


def test_library_size():
    """At most 25 MB for one architecture."""
    architectures = json.loads((PACKAGE / "_build.json").read_text())["architectures"]
    assert LIBRARY.stat().st_size <= 25e6 * max(1, len(architectures))


def test_library_does_not_name_its_build_folder():
    """No path of the machine that built it is in the library."""
    root = os.fsencode(PACKAGE.parent / "csrc")
    assert root not in LIBRARY.read_bytes()
