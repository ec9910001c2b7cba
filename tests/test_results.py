"""Measured results: the documentation says what the results files say, and the files say what they were measured on."""

import copy
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = sorted((ROOT / "bench" / "results").glob("*/*.json"))

sys.path.insert(0, str(ROOT / "bench"))
import bars  # noqa: E402
import cases  # noqa: E402
import pictures  # noqa: E402
import report  # noqa: E402


def bench(*arguments):
    """Runs a script of bench/."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)


def source_hash(ladder):
    """SHA-256 over the sorted relative paths and contents of the engine's or the ladder's files, each with a NUL."""
    files = {}
    for folder, _, names in os.walk(ROOT / "csrc"):
        for name in names:
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, ROOT).replace(os.sep, "/")
            if relative.startswith("csrc/ladder/") == ladder:
                with open(path, "rb") as file:
                    files[relative] = file.read()
    text = b"".join(name.encode() + b"\0" + files[name] + b"\0" for name in sorted(files))
    return hashlib.sha256(text).hexdigest()


# --- what is in the repository ------------------------------------------------------------------------------


def test_documentation_is_what_the_results_give():
    """README's section, docs/performance.md and the pictures are up to date; that needs no package to tell."""
    result = bench("-S", "bench/report.py", "--check")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("arguments", [[], ["--ladder"]], ids=["engine", "ladder"])
def test_provenance(arguments):
    """bench/provenance.py prints the hash of the engine's sources, or of the ladder's: each alone."""
    result = bench("bench/provenance.py", *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1] == source_hash(bool(arguments))


def test_provenance_needs_the_standard_library_alone():
    """bench/provenance.py runs where nothing is installed."""
    result = bench("-I", "-S", "bench/provenance.py")
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(not RESULTS, reason="there are no results yet")
@pytest.mark.parametrize("path", RESULTS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_results_say_where_they_come_from(path):
    """Every results file names the sources, the GPU (or CPU), the torch and the day it was measured with."""
    facts = json.loads(path.read_text())
    assert re.fullmatch("[0-9a-f]{64}", facts["csrc"])
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", facts["date"])
    assert facts["torch"] and facts["gpu"] and facts["driver"]


# --- the grid -----------------------------------------------------------------------------------------------


def test_cells_have_names_of_their_own():
    """A cell is found again by its name; the short grid and README's table name cells that exist."""
    grid = cases.gpu_cases()
    names = [case.name for case in grid]
    assert len(names) == len(set(names))
    assert len(cases.short_cases(grid)[0]) == len(cases.SHORT)
    assert set(report.SHOWN) <= set(names)
    assert {case.family for case in grid} == set(report.FAMILIES)


def test_grid_on_the_cpu(tmp_path):
    """bench/grid.py checks and measures cells of the CPU, keeps them in a file, and does not measure them twice."""
    file = tmp_path / "grid.json"
    command = ["bench/grid.py", "--cpu", "--only", r"(full|rows) bfloat16 (2\^10|\(65536, 100\))$", "--resume", file]
    result = bench(*command)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "NO GPU IS USED HERE" in result.stdout
    found = json.loads(file.read_text())["cpu"]["cases"]
    assert [case["name"] for case in found] == ["full bfloat16 2^10", "rows bfloat16 (65536, 100)"]
    assert all(case["us"]["ours"] > 0 and case["us"]["torch"] > 0 for case in found)
    assert bench(*command).returncode == 0
    assert json.loads(file.read_text())["cpu"]["cases"] == found


# --- what the numbers say -----------------------------------------------------------------------------------


def made_up(name, ours=100.0, read=98.0, nbytes=2**30, hot=False, shape=(2**21, 128), **rivals):
    """A cell as grid.py writes it, of which the ratios to the rivals are given."""
    family, dtype, label = name.split(" ", 2)
    us = {"ours": ours, "read": read} | {rival: ours * value for rival, value in rivals.items()}
    facts = {"name": name, "family": family, "label": label, "dtype": dtype, "sum_dtype": None, "hot": hot}
    facts |= {"shape": list(shape), "dim": None, "bytes": nbytes + 4, "input_bytes": nbytes, "against": sorted(rivals)}
    return facts | {"us": us, "spread": dict.fromkeys(us, 0.01), "calls": 8, "repeats": 11}


def made_up_results():
    calls = {"torch.sum": 10.0, "torch.ops.gpureduce.sum": 12.0, "torch_reduce.sum": 10.5}
    lost = made_up("inside float16 (64, 4096, 1024) dim 1", torch=0.95, compile=0.9) | {"unsettled": ["torch"]}
    return {
        "torch": "2.11.0",
        "python": "3.12.0",
        "date": "2026-01-01",
        "csrc": "0" * 64,
        "cpu_name": "a CPU",
        "cpu_threads": 2,
        "gpu": "NVIDIA Example",
        "driver": "1.0",
        "cuda": "13.0",
        "cases": [
            made_up("full float32 2^28", torch=4.0, compile=1.25, cub=1.0),
            made_up("full float32 2^28 hot", hot=True, torch=1.5),
            made_up("full bfloat16 2^20", ours=4.0, read=2.0, nbytes=2**21, shape=(2**20,), torch=2.0, cub=1.0),
            lost,
            {key: value for key, value in made_up("rows bool (8, 2^23)").items() if key != "us"} | {"error": "no bits"},
        ],
        "cpu": {"cases": [made_up("full float32 2^10", torch=0.5) | {"failed": {"compile": "Error: a | b"}}]},
        "small_calls": {"1024 elements": {name: {"host_us": us, "end_to_end_us": us} for name, us in calls.items()}},
    }


def test_losses():
    """A rival at 0.9× is a loss, at 1× not; the worst comes first, and noise is told apart."""
    cells = made_up_results()["cases"]
    found = bars.losses(cells)
    assert [(case["family"], rival) for case, rival, _ in found] == [("inside", "compile"), ("inside", "torch")]
    assert found[0][2] == pytest.approx(0.9)
    assert [bars.settled(case, rival) for case, rival, _ in found] == [True, False]


def test_means():
    """(cells, geometric mean, worst) for each rival that ran."""
    found = bars.means([made_up("a b c", torch=4.0), made_up("a b d", torch=1.0), made_up("a b e", cub=2.0)])
    assert found == {"torch": (2, pytest.approx(2.0), 1.0), "cub": (1, pytest.approx(2.0), 2.0)}


def test_percent_of_read():
    """Our rate, which counts the output, over that of reading alone; None where nothing was read."""
    cell = made_up("full float32 2^28", ours=100.0, read=98.0)
    assert bars.percent(cell) == pytest.approx(98.0)
    del cell["us"]["read"]
    assert bars.percent(cell) is None


@pytest.mark.parametrize(
    ("what", "cell", "met"),
    [
        ("no cell slower", dict(torch=1.0), True),
        ("no cell slower", dict(torch=0.999), False),
        ("no cell slower", dict(), None),
        ("geometric mean", dict(torch=2.5), True),
        ("geometric mean", dict(torch=2.4), False),
        ("97% of read", dict(read=97.1), True),
        ("97% of read", dict(read=96.9), False),
        ("97% of read", dict(read=50.0, hot=True), None),
        ("97% of read", dict(read=90.1, nbytes=2**25), None),
        ("90% of read", dict(read=90.1, nbytes=2**25), True),
        ("90% of read", dict(read=89.9, nbytes=2**25), False),
    ],
)
def test_bars(what, cell, met):
    """Each bar, on the two sides of its edge, and where no cell can tell."""
    results = {"cases": [made_up("full float32 2^28", **cell)]}
    (bar,) = [bar for bar in bars.bars(results) if bar.what.startswith(what)]
    assert bar.met is met
    assert bool(bar.below) == (met is False and what != "geometric mean")


def test_bars_of_small_calls():
    """1.2 times torch.sum's host time is within the op's 1.3; 1.05 is not within the function's 1.0."""
    found = [bar for bar in bars.bars(made_up_results()) if bar.what.startswith("host time")]
    assert [bar.met for bar in found] == [True, False]
    assert "1.05×" in found[1].found


# --- what the documentation makes of them -------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path):
    """A copy of what report.py reads, without results."""
    shutil.copy(ROOT / "README.md", tmp_path)
    (tmp_path / "csrc").mkdir()
    return tmp_path


def write(repository, results, slug="example"):
    path = repository / "bench" / "results" / slug / "grid.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results))
    report.main(["--root", str(repository)])


def check(repository):
    """What `report.py --check` complains about; None if nothing."""
    try:
        report.main(["--root", str(repository), "--check"])
    except SystemExit as end:
        return str(end)
    return None


def test_nothing_measured_yet(repository):
    """Without results the pages say so, and pass the check; results that went away take their pictures along."""
    write(repository, made_up_results())
    (repository / "bench" / "results" / "example" / "grid.json").unlink()
    assert "heat-example.svg" in check(repository)
    report.main(["--root", str(repository)])
    assert check(repository) is None
    assert not list((repository / "docs" / "images").iterdir())
    for path in ("README.md", report.PAGE):
        assert "not measured yet" in (repository / path).read_text()


def test_losses_come_first(repository):
    """A lost cell stands before every table of cells, the worst first; bars that are not met say so."""
    write(repository, made_up_results())
    page = (repository / report.PAGE).read_text()
    readme = (repository / "README.md").read_text().split(report.BEGIN)[1].split(report.END)[0]
    worst = "| inside float16 (64, 4096, 1024) dim 1 | torch.compile | 0.900× |  |\n"
    noise = "| inside float16 (64, 4096, 1024) dim 1 | torch.sum | 0.950× | within the noise |\n"
    cpu = "| full float32 2^10 on the CPU | torch.sum | 0.500× |  |\n"
    for text, cells in ((page, "<details>"), (readme, "| cell | bytes |")):
        assert text.index(worst + noise + cpu) < text.index(cells)
    assert page.index("rows bool (8, 2^23): no bits") < page.index(worst)
    assert "| geometric mean of 2.5× over torch.sum | **NOT MET** |" in page
    assert "| 2^10 to 2^20 elements in a graph no slower than CUB | met | 1 of 1 are; worst 1.000× |" in page
    assert "`Error: a \\| b`" in page
    assert "1.20×" in page


def test_many_losses(repository):
    """README shows the worst ones and says how many more there are; docs/performance.md has them all."""
    results = made_up_results()
    results["cases"] += [made_up(f"awkward int8 ({i},) case", torch=0.5 + i / 1000) for i in range(40)]
    write(repository, results)
    page, readme = ((repository / path).read_text() for path in (report.PAGE, "README.md"))
    assert readme.count("| torch.sum | 0.5") == 10 and "and 33 more" in readme
    assert page.count("| torch.sum | 0.5") == 41


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("README.md", "0.900×", "1.100×"),
        (report.PAGE, "0.900×", "1.100×"),
        ("docs/images/heat-example.svg", "0.900", "1.100"),
        ("docs/images/bandwidth-example.svg", 'cx="', 'cx="1'),
    ],
)
def test_check_sees_a_changed_figure(repository, path, old, new):
    """A figure that the results do not give fails the check, in a page or in a picture."""
    write(repository, made_up_results())
    assert check(repository) is None
    file = repository / path
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    assert path in check(repository)
    file.unlink()
    assert check(repository)


def test_check_sees_other_results(repository):
    """A results file that changed without a new report fails the check."""
    results = made_up_results()
    write(repository, results)
    other = copy.deepcopy(results)
    other["cases"][0]["us"]["torch"] *= 2
    (repository / "bench" / "results" / "example" / "grid.json").write_text(json.dumps(other))
    assert check(repository)


@pytest.mark.parametrize("lacking", [{"cpu": {"cases": []}}, {"cases": []}, {"small_calls": {}}])
def test_incomplete_results(repository, lacking):
    """A run that was cut off early gives pages all the same."""
    write(repository, made_up_results() | lacking)
    assert check(repository) is None


def test_heat_map_shows_every_ratio():
    """Each cell and rival has its number; losses are bold, and 1× lies between the colours."""
    picture = pictures.heat_map(made_up_results())
    for text in ("4.00", "1.25", "0.900", "0.950~", "1.50"):
        assert f">{text}</text>" in picture
    assert pictures.colour(1.0)[0] == "#ffffff"
    assert pictures.colour(0.99)[0] != "#ffffff" != pictures.colour(1.1)[0]
    assert pictures.colour(0.1) == pictures.colour(0.8) and pictures.colour(50) == pictures.colour(4)
