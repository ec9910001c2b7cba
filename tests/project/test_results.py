"""Measured results: the documentation says what the results files say, and the files say what they were measured on."""

import contextlib
import copy
import functools
import hashlib
import importlib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import types

import pytest
import torch

import torch_reduce
from torch_reduce import ladder

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "bench" / "results").glob("*/*.json"))

sys.path.insert(0, str(ROOT / "bench"))
import bars  # noqa: E402
import cases  # noqa: E402
import compiled_report  # noqa: E402
import contenders  # noqa: E402
import exact_report  # noqa: E402
import family_report  # noqa: E402
import figures  # noqa: E402
import grid  # noqa: E402
import models  # noqa: E402
import models_report  # noqa: E402
import parts  # noqa: E402
import peers_report  # noqa: E402
import pictures  # noqa: E402
import provenance  # noqa: E402
import report  # noqa: E402
import slower  # noqa: E402
import times_report  # noqa: E402
import timing  # noqa: E402
import views  # noqa: E402
from torch_reduce.tuning.problems import random_view  # noqa: E402
from torch_reduce.tuning.race import Race  # noqa: E402


def bench(*arguments):
    """Runs a script of bench/."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)


def without_comments(text):
    """C++ without comments, as a reader goes through it: character by character."""
    kept, at = [], 0
    while at < len(text):
        if text.startswith("//", at):
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
        elif text.startswith("/*", at):
            at = text.index("*/", at) + 2
            kept.append(" ")
        elif text[at] in "\"'" and (end := re.compile(r"(?:\\.|[^\\\n])*?" + text[at]).match(text, at + 1)):
            kept.append(text[at : end.end()])
            at = end.end()
        else:
            kept.append(text[at])
            at += 1
    return " ".join("".join(kept).split())


def source_hash(pattern, code):
    """SHA-256 over the sorted relative paths that match, and these files or their code, each with a NUL."""
    files = {}
    for folder, _, names in os.walk(ROOT / "csrc"):
        for name in names:
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, ROOT).replace(os.sep, "/")
            if re.match(pattern, relative):
                with open(path, "rb") as file:
                    files[relative] = file.read()
                if code:
                    files[relative] = without_comments(files[relative].decode()).encode()
    text = b"".join(name.encode() + b"\0" + files[name] + b"\0" for name in sorted(files))
    return hashlib.sha256(text).hexdigest()


# --- what is in the repository ------------------------------------------------------------------------------


def test_table_of_functions_says_when_it_is_old():
    """README's table says in a line when it was measured, and whether the sources have changed since."""
    results = json.loads((ROOT / "bench" / "results" / "h200" / "family.json").read_text(encoding="utf-8"))
    now = {"sums": provenance.csrc_hash(ROOT, "sums")}
    for known, is_old in ((now, False), ({"sums": "0" * 64}, True)):
        text = "\n".join(family_report.summary([results | {"sources": known}], ROOT))
        assert f"Measured on NVIDIA H200, {results['date']}, torch" in text
        assert ("since then the kernels of sums have changed" in text) == is_old
    others = [results | {"gpu": "another", "sources": {"sums": "1" * 64}}]
    fresh = [results | {"sources": now}]
    text = "\n".join(family_report.summary(fresh + others, ROOT))
    assert "eager torch, NVIDIA" in text and "another" not in text  # measured on today's sources, and not
    assert "eager torch, another" in "\n".join(family_report.summary(others, ROOT))


PLACE = {"gpu": "a GPU", "driver": "1", "cuda": "13.0", "date": "2026-11-25", "torch": "2.11.0"}
PLACE |= {"sources": {"sums": provenance.csrc_hash(ROOT, "sums")}}


def test_table_of_functions_compares_with_the_fastest_way():
    """Sums of segments with the fastest of torch's, sums of powers with torch's of the same list."""
    segments = {"segment_sum": 2.0, "sum": 1.0, "index_add": 6.0, "segment_reduce": 4.0}
    assert family_report.ratios_of({"rows": [{"us": segments}], "columns": []}, "segments") == [(2.0, None)]
    lists = {"lists": [{"powsum": {"us": 2.0}, "torch powsum": {"us": 5.0}}]}
    assert family_report.ratios_of(lists, "powsum") == [(2.5, None)]
    text = "\n".join(family_report.summary([PLACE | {"rows": [{"us": segments}], "columns": []}], ROOT))
    assert "`segment_mean`, beside the fastest of torch's ways: 2.00 × eager torch, a GPU." in text
    assert "| functions |" not in text  # as no function was measured beside both rivals
    kin = [{"operation": "prod", "us": 1.0, "torch_us": 3.0, "compiled_us": 2.0}]
    text = "\n".join(family_report.summary([PLACE | {"kin": kin}], ROOT))
    assert "| `prod` | 3.00 | 2.00 |" in text and "`nansum`" not in text


def test_no_cell_is_empty():
    """Rows that lack cells have tables without these columns, and each row is in one."""
    rows = [["a", "1", "2"], ["b", "", "3"], ["c", "4", "5"]]
    assert report.table(["x", "y", "z"], rows) == [
        *("| x | y | z |", "| :-- | --: | --: |", "| a | 1 | 2 |", "| c | 4 | 5 |", ""),
        *("| x | z |", "| :-- | --: |", "| b | 3 |"),
    ]
    assert report.table(["x", "y"], []) == ["| x | y |", "| :-- | --: |"]
    row = {"shape": "rows", "dtype": "int8", "sum_us": 2.0, "us": 1.0, "torch_us": 3.0}
    names = ["a", "b", "c", "d", "e"]
    text = "\n".join(family_report.operations([row | {"operation": name} for name in names]))
    assert "| int8 | our sum | a | b | c |" in text and "| int8 | our sum | d | e |" in text
    assert text.count("1.00 (3.00×)") == len(names)


def test_pages_have_a_summary():
    """A row for each operation: the mean of torch's times over ours, the least and the largest; of the newest GPU."""
    row = {"operation": "prod", "us": 2.0, "torch_us": 4.0, "compiled_us": 3.0}
    rows, views = [row, row | {"torch_us": 16.0}], [{"operation": "prod", "us": 2.0, "torch_us": 1.0}]
    assert "| prod | 4.00 (2.00 to 8.00) | 1.50 (1.50 to 1.50) | 0.50 |" in family_report.by_operation(rows, views)
    assert "| prod | 4.00 (2.00 to 8.00) | 1.50 (1.50 to 1.50) |" in family_report.by_operation(rows, [])
    days = [{"date": "2026-01-02"}, {"date": "2026-01-03"}, {"date": "2025-12-31"}]
    assert report.newest(days) == [days[1]] and report.newest([]) == []
    times = {"segment_sum": 2.0, "sum": 1.0, "segment_reduce": 4.0, "index_add": 1.0}
    results = {"rows": [{"lengths": "all of 1", "us": times}], "columns": []}
    assert "| all of 1 | 1 | 2.00 | 0.50 | 50% |" in family_report.segments(results)


TIMES = {  # of docs/times.md: {section: (our time of a measurement, as it stands in a cell)}
    **dict.fromkeys(("norms", "kin", "converted"), lambda row: f"| {report.number(row['us'])} ("),
    "weighted": lambda row: f"| {report.number(row['us']['weighted_sum'])} |",
    "segments": lambda row: f"| {report.number(row['us']['segment_sum'])} |",
    "rows": lambda row: f"| {report.number(row['us'])}, ",
    "sums": lambda row: f"| {report.number(row['us']['sort'])} |",
    "exact": lambda row: f"| {report.number(row['us']['exact'])} |",
    "ranks": lambda row: f"| {report.number(row['us'])} |",
}


@pytest.mark.parametrize("section", TIMES)
def test_times_are_all_there(section):
    """docs/times.md has our time of each measurement, under the name of its GPU."""
    text = (ROOT / times_report.PAGE).read_text(encoding="utf-8")
    text = text.split(f"<!-- times:{section} -->")[1].split(f"<!-- /times:{section} -->")[0]
    file, key, _ = times_report.PARTS[section]
    measured = [results for _, results in report.load_results(ROOT, file) if key in results]
    for results in measured:
        of_gpu = text.split(f"<details><summary>{results['gpu']}</summary>")[1].split("</details>")[0]
        rows = slower.rows_of(results) if section == "rows" else results[key]
        assert all(TIMES[section](row) in of_gpu for row in rows)
    assert measured and text.count("<details>") == len(measured)


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_tables_have_no_empty_cells(page):
    """In a page's measured tables."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    made = [line for line in lines if line.startswith("|") and ("µs" in line or "×" in line)]
    assert not [line for line in made if re.search(r"\|\s*–?\s*\|", line)]


def test_table_of_exact_sums_names_products():
    """Results of products have lines beside the sums', which older files have alone."""
    row = {"rows": 2, "columns": 4096, "dim": 1, "dtype": "float32", "data": "normal", "us": {"exact": 3, "ordered": 2}}
    names = {"dot": "dot of two of 4,096", "vector_norm": "norms of rows", "weighted_sum": "weighted rows"}
    for given, name in [({}, "rows"), *(({"function": function}, name) for function, name in names.items())]:
        assert f"| {name}" in "\n".join(exact_report.sums([row | given]))


@pytest.mark.parametrize("script", [name for name in figures.pages() if name != "ladder_report"])  # it has its own test
def test_documentation_is_what_the_results_give(script):
    """README's sections, docs/performance.md, docs/models.md and the pictures; that needs no package to tell."""
    result = bench("-S", f"bench/{script}.py", "--check")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("section", peers_report.SECTIONS)
def test_page_of_peers_names_each_library(section):
    """What a library has stands in a section, with a link; and its time, or that it was not measured."""
    text = (ROOT / peers_report.PAGE).read_text(encoding="utf-8")
    (whole,) = (part for part in text.split("\n## ") if f"<!-- peers:{section} -->" in part)
    hand, made = whole.split(f"<!-- peers:{section} -->")
    has = re.findall(r"^- \*\*(\w[\w.]*)\*\*: (.*?)(?=\n- |\n\n)", hand, re.MULTILINE | re.DOTALL)
    peers = peers_report.SECTIONS[section][1]
    assert tuple(name for name, _ in has) == peers
    assert all(re.search(r"\]\[[^]]+\]", what) for _, what in has)
    measured = {peers_report.peer_of(row.split(" | ")[1]) for row in made.splitlines() if "×" in row}
    absent = re.search(r"Not measured: (.*)\.", made)
    assert sorted([*measured, *(absent[1].split(", ") if absent else [])]) == sorted(peers)


def test_page_of_peers_links_what_it_says():
    """Each claim has a link, and each link an address."""
    text = (ROOT / peers_report.PAGE).read_text(encoding="utf-8")
    text = re.sub(r"(?<=\S)\n +", " ", text)  # an entry of a list in a line
    claims = re.findall(r"^- \*\*(?!torch_reduce).*?(?=^- |\n\n)", text, re.MULTILINE | re.DOTALL)
    link = r"\]\[|\[[^\]]+\](?=[,)])|\]\("
    assert len(claims) > 30 and all(re.search(link, claim) for claim in claims)
    named = set(re.findall(r"\]\[([^\]]+)\]|(?<!\])\[([^\]]+)\](?![\[(:])", text))
    named = {first or second for first, second in named}
    defined = set(re.findall(r"^\[([^\]]+)\]: https://", text, re.MULTILINE))
    assert named == defined


def test_page_of_peers_says_who_was_not_measured():
    """And who is faster, in how many cells."""
    peers = peers_report.SECTIONS["rows"][1]
    assert peers_report.speed("rows", [], ROOT) == [f"Not measured: {', '.join(peers)}.", ""]
    row = {"function": "softmax", "shape": "rows of 128", "dtype": "float32", "us": 2.0, "torch_us": 1.0}
    lines = peers_report.speed("rows", [("rows", PLACE | {"rows": [row]})], ROOT)
    assert "| `softmax` | torch | a | **0.500×** | **0.500×** | **0.500×** | 1 of 1 |" in lines
    assert "Not measured: torch.compile, Liger, quack, batch_invariant_ops." in lines
    train = {"compiled": {"ours": [2.0, 4.0], "torch": [3.0, 3.0]}}
    lines = peers_report.speed("models", [("models", PLACE | {"train": train})], ROOT)
    assert any("compiled, noise | torch.compile | a | 1.00×" in line for line in lines)
    cells = [{"name": "n", "family": "columns", "shape": [9, n], "us": {"ours": 1.0, "torch": n}} for n in (4, 100)]
    for section, ratio in (("columns", "4.00×"), ("sums", "100.00×")):
        lines = peers_report.speed(section, [("grid", PLACE | {"cases": cells})], ROOT)
        assert [ratio in line for line in lines if "torch.sum" in line] == [True]


@pytest.mark.parametrize(
    "arguments,pattern",
    [
        ([], "csrc/(?!ladder/)"),
        (["--ladder"], r"csrc/(ladder/|core/numeric/(exact|dtypes)\.h|core/order\.h)"),
        (["--cpu"], r"csrc/(?!ladder/|core/cuda/|core/plan/|.*\.cuh?$)"),
        (["--calls"], r"csrc/(core/torch/|\w+/torch[\w.]+$)"),
        (["--sums"], r"csrc/(core|pairs)/(?!cpu[/\w]*\.\w+$|cpu/|torch/|torch\w*\.\w+$)"),
        (["--index"], r"csrc/(core|segments|indexed)/(?!cpu[/\w]*\.\w+$|cpu/|torch/|torch\w*\.\w+$)"),
    ],
    ids=["engine", "ladder", "cpu", "calls", "sums", "index"],
)
def test_provenance(arguments, pattern):
    """bench/provenance.py prints the hash of the engine's sources, or of the code of a part."""
    result = bench("bench/provenance.py", *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1] == source_hash(pattern, code=bool(arguments))


def test_comments_make_no_result_old(tmp_path):
    """Comments, and where a line breaks, do not count; a string with // in it, and every other letter, does."""
    file = tmp_path / "csrc" / "rows" / "one.cu"
    file.parent.mkdir(parents=True)

    def hash_of(text):
        file.write_text(text)
        return provenance.csrc_hash(tmp_path, "rows")

    first = hash_of('// one\nint a = 1; /* two\nlines */ auto b = "//";\n')
    assert hash_of('int a = 1;\n\n  auto b = "//"; // another') == first
    assert hash_of('int a = 2; auto b = "//";') != first and hash_of('int a = 1; auto b = "/";') != first


def test_lowerings_are_a_part(tmp_path):
    """What Inductor makes of our functions makes results of compiled functions old."""
    file = tmp_path / provenance.INDUCTOR / "one.py"
    file.parent.mkdir(parents=True)
    file.write_text("a = 1")
    before = provenance.csrc_hash(tmp_path, "inductor")
    file.write_text("a = 2")
    assert provenance.changed({"inductor": before}, tmp_path) == ["inductor"]
    assert "inductor" in provenance.RESULTS["compiled.json"].parts


def test_old_results(tmp_path):
    """`--old` lists each file that is older than its part of the sources, and the command that measures it."""
    (tmp_path / "csrc" / "rows").mkdir(parents=True)
    (tmp_path / "csrc" / "rows" / "one.cu").write_text("int a;")
    folder = tmp_path / "bench" / "results" / "example"
    folder.mkdir(parents=True)
    now = {"rows": provenance.csrc_hash(tmp_path, "rows"), "index": provenance.csrc_hash(tmp_path, "index")}
    (folder / "rows.json").write_text(json.dumps({"csrc": "0", "sources": {"rows": now["rows"]}}))
    (folder / "index.json").write_text(json.dumps({"csrc": "0", "sources": {"index": now["index"]}}))
    assert provenance.old(tmp_path) == []
    (tmp_path / "csrc" / "rows" / "one.cu").write_text("int b;")
    assert provenance.old(tmp_path) == [(folder / "rows.json", ["rows"])]
    (line,) = provenance.told(provenance.old(tmp_path))
    assert line == "example/rows.json; since then the kernels of rows have changed; make figures ARGS='--only rows'"


def test_every_file_of_results_is_known():
    """provenance.RESULTS has every file of results but the reports of tests, and its scripts are there."""
    assert {path.name for path in RESULTS if not path.name.startswith("tests")} <= set(provenance.RESULTS)
    for file, measured in provenance.RESULTS.items():
        script = (ROOT / measured.script).read_text()
        assert "--save" in script or "parts.parser" in script, file
        assert all(provenance.csrc_files(part=part) for part in measured.parts), file


def test_provenance_of_an_unknown_part():
    """A part that there is not is refused by name."""
    result = bench("bench/provenance.py", "--gpu")
    assert result.returncode == 2 and "--gpu" in result.stderr


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


@pytest.mark.parametrize(
    "path",
    [path for path in RESULTS if path.name.startswith("tests")],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_reports_of_tests_name_their_failures(path):
    """Each failed test has its name and a reason, in its own file; so has each skipped one where they are listed."""
    facts = json.loads(path.read_text())
    assert len(facts["failures"]) == facts["failed"]
    assert all(failure["test"].strip() and failure["reason"].strip() for failure in facts["failures"])
    assert "tests.json" not in json.dumps(facts)
    if "skips" in facts:
        assert sum(facts["skips"].values()) == facts["skipped"] and all(facts["skips"])


MADE_TO_FAIL = """
import time

import pytest

def test_passes():
    time.sleep(0.5)

def test_fails():
    assert max([1, 2]) == 3, "first\\nthe bits differ"

@pytest.fixture
def broken():
    raise OSError("no room")

def test_error(broken):
    pass

@pytest.mark.parametrize("k", range(3))
def test_skips(k):
    pytest.skip("needs a GPU" if k else "slow")
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_report_names_failures_and_skips(workers, tmp_path):
    """`--report` writes failed tests with their last error lines, the reasons to skip, and what took how long."""
    (tmp_path / "test_made.py").write_text(MADE_TO_FAIL)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", *workers]
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    result = subprocess.run(
        [*command, "--report", "report.json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    found = json.loads((tmp_path / "report.json").read_text())
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 2, 3)
    assert sorted((failure["test"], failure["reason"]) for failure in found["failures"]) == [
        ("test_made.py::test_error", "OSError: no room"),
        ("test_made.py::test_fails", "the bits differ"),
    ]
    assert found["skips"] == {"needs a GPU": 2, "slow": 1}
    assert found["durations"]["test_made.py::test_passes"] >= 0.5  # it sleeps as long
    assert [*found["durations"].values()] == sorted(found["durations"].values(), reverse=True)


@pytest.mark.parametrize("results", [pytest.param(r, id=slug) for slug, r in report.load_results(ROOT, "grid.json")])
def test_grid_was_timed_in_both_ways(results):
    """All cells of a file are timed between kernels, or all are timed back to back alone."""
    assert len({bars.between(case) for case in bars.measured(results["cases"])}) <= 1


# --- the grid -----------------------------------------------------------------------------------------------


def test_cells_have_names_of_their_own():
    """A cell is found again by its name; the short grid and README's table name cells that exist."""
    grid = cases.gpu_cases()
    names = [case.name for case in grid]
    assert len(names) == len(set(names))
    assert len(cases.short_cases(grid)[0]) == len(cases.SHORT)
    assert len(cases.short_cases(cases.cpu_cases(), cases.SHORT_CPU)[0]) == len(cases.SHORT_CPU) == 21
    assert set(report.SHOWN) <= set(names)
    assert {case.family for case in grid} == set(report.FAMILIES)


def test_grid_on_the_cpu(tmp_path):
    """bench/grid.py checks and measures cells of the CPU, keeps them in a file, and does not measure them twice."""
    file = tmp_path / "grid.json"
    command = ["bench/grid.py", "--cpu", "--only", r"(full|rows) bfloat16 (2\^10|\(65536, 100\))$", "--resume", file]
    result = bench(*command)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "NO GPU IS USED HERE" in result.stdout and result.stdout.count("rows bfloat16 (65536, 100)  ") == 1
    assert "\n2 cells beside torch.sum on the CPU: " in result.stdout
    found = json.loads(file.read_text())["cpu"]["cases"]
    assert [case["name"] for case in found] == ["full bfloat16 2^10", "rows bfloat16 (65536, 100)"]
    assert all(case["us"]["ours"] > 0 and case["us"]["torch"] > 0 for case in found)
    assert all(case["repeats"] >= 33 for case in found)  # eleven in each of three passes
    assert bench(*command).returncode == 0
    assert json.loads(file.read_text())["cpu"]["cases"] == found
    results = json.loads(file.read_text())
    cell = made_up("full float32 2^10") | {"us_back_to_back": {}}
    other = {"sources": results["sources"] | {"sums": "0" * 64}, "cases": [cell]}
    file.write_text(json.dumps(results | other))  # the kernels changed
    text = bench(*command).stdout
    assert "measuring the GPU's cells anew" in text and "measuring the CPU's" not in text
    assert json.loads(file.read_text())["cpu"]["cases"] == found
    other = {"cpu": results["cpu"] | {"csrc": "0" * 64}}
    file.write_text(json.dumps(results | other | {"cases": [cell]}))  # the CPU's did
    text = bench(*command).stdout
    assert "measuring the CPU's cells anew" in text and "measuring the GPU's" not in text
    kept = json.loads(file.read_text())
    assert kept["cpu"]["cases"] != found and kept["cases"] == [cell] and kept["sources"] == results["sources"]
    file.write_text(json.dumps(results | {"torch": "1.0", "cases": [cell]}))
    assert "of another torch: measuring everything anew" in bench(*command).stdout
    assert not json.loads(file.read_text())["cases"]


@pytest.mark.parametrize("a_cell, passes", [(1, 3), (8, 2), (100, 2)])
def test_short_grid_on_the_cpu(a_cell, passes, monkeypatch, capsys):
    """A short run has fewer passes where cells take long, prints a row a cell and says how much time is left."""
    cells = cases.cpu_cases()[:3]
    clock = types.SimpleNamespace(now=0.0, enough=lambda seconds: True)
    clock.elapsed = lambda: clock.now
    kept, calls = [], []

    def measure(case, against, **named):
        clock.now += a_cell
        calls.append((case.name, named["last"], named["seconds"]))
        return made_up(case.name, torch=2.0)

    monkeypatch.setattr(grid, "measure_cpu", measure)
    results = types.SimpleNamespace(has=lambda *args, **named: False, add=lambda result, cpu: kept.append(result))
    options = types.SimpleNamespace(short=True, against=("torch",))
    assert grid.run_cpu(cells, results, options, clock, False) == []
    assert calls == [(c.name, p == passes, 0.4) for p in range(1, passes + 1) for c in cells]
    assert [result["name"] for result in kept] == [c.name for c in cells]
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(cells[0].name) for line in lines) == 1
    assert f"pass 1 of 3: 1 of 3 cells, 0:{a_cell % 60:02d}, about" in "\n".join(lines) or a_cell >= 60
    assert lines[-1].endswith("about 0:00 left]")


# --- what the numbers say -----------------------------------------------------------------------------------


def made_up(name, ours=100.0, read=98.0, nbytes=2**30, hot=False, shape=(2**21, 128), **rivals):
    """A cell as grid.py writes it, made from its ratios to the rivals."""
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
        "stages": {"1024 elements": dict(zip(bars.STAGES, (5.0, 0.25, 0.5, 1.375), strict=True))},
        "empty_launches": dict(zip(bars.LAUNCHES, (1.0, 1.25, 1.125), strict=True)),
    }


def test_losses():
    """A rival at 0.9× is a loss, at 1× not; the worst comes first, and noise is told apart."""
    cells = made_up_results()["cases"]
    found = bars.losses(cells)
    assert [(case["family"], rival) for case, rival, _ in found] == [("inside", "compile"), ("inside", "torch")]
    assert found[0][2] == pytest.approx(0.9)
    assert [bars.settled(case, rival) for case, rival, _ in found] == [True, False]


def test_verdicts():
    """A line for each rival counts who is faster, but for what is within the noise."""
    assert bars.verdicts(made_up_results()) == [
        "4 cells beside torch.sum: 3 faster, 0 slower, 1 as fast; geometric mean 1.84×",
        "2 cells beside torch.compile: 1 faster, 1 slower; geometric mean 1.06×",
        "2 cells beside CUB: 0 faster, 0 slower, 2 as fast; geometric mean 1.00×",
        "1 cells beside torch.sum on the CPU: 0 faster, 1 slower; geometric mean 0.50×",
    ]


def test_means():
    """Geometric mean, median and worst for each rival that ran."""
    cells = [made_up("a b c", torch=8.0), made_up("a b d", torch=0.5), made_up("a b f", torch=2.0)]
    found = bars.means([*cells, made_up("a b e", cub=2.0)])
    assert found == {
        "torch": bars.Means(3, pytest.approx(2.0), 2.0, 1, 0.5, "a b d"),
        "cub": bars.Means(1, pytest.approx(2.0), 2.0, 0, 2.0, "a b e"),
    }


def test_classes():
    """Each cell of the grid is in one class of each rival, every class has cells, and classes are not mixed."""
    described = [grid.describe(case, ("torch",)) for case in cases.gpu_cases()]
    held = {}
    for rival in bars.RIVALS:
        for case in described:
            held.setdefault((rival, bars.class_of(case, rival).name), []).append(case)
    assert set(held) == {(rival, some.name) for some in bars.CLASSES for rival in some.rivals}
    for case in held["torch", "float32 and bfloat16, 64 MiB and more"]:
        assert case["dtype"] in ("float32", "bfloat16") and case["input_bytes"] >= 2**26 and not case["sum_dtype"]
        assert case["family"] not in ("rows", "odd") or case["shape"][1] >= 512
    assert {case["dtype"] for case in held["torch", "8-bit and integer dtypes"]} == {
        *("int8", "uint8", "bool", "int32", "int64", "float8_e4m3fn")
    }
    of_classes = bars.means_of_classes(
        [
            made_up("rows float32 a", shape=(9, 8), torch=9.0) | {"dim": [1]},
            made_up("full float32 b", torch=2.0, cub=1.5),
            made_up("full int8 b", torch=7.0),
            made_up("rows float32 c", cub=30.0) | {"dim": [1]},
        ]
    )
    assert [(rival, some.name, m.cells, round(m.mean, 1)) for rival, some, m in of_classes] == [
        ("torch", "rows of fewer than 512 elements", 1, 9.0),
        ("torch", "8-bit and integer dtypes", 1, 7.0),
        ("torch", "float32 and bfloat16, 64 MiB and more", 1, 2.0),
        ("cub", "sums of all elements", 1, 1.5),
        ("cub", "segments: sums of rows", 1, 30.0),
    ]


def timed_between(cell, back_to_back=0.5):
    """The cell as it is since the headline is the time between kernels."""
    tight = {name: us * back_to_back for name, us in cell["us"].items()}
    return cell | {"us_back_to_back": tight, "spread_back_to_back": cell["spread"]}


RATE = {"ceiling": {"gbps": 2**30 / 98.0 / 1e3}, "l2_bytes": 2**20}  # of made_up's reading kernel


@pytest.mark.parametrize(
    ("cell", "word"),
    [
        (dict(read=99.9), None),
        (dict(read=103.0), "noise"),
        (dict(read=105.0), ""),
        (dict(read=105.0, nbytes=2**20), "short"),
        (dict(read=105.0, nbytes=2**20, hot=True), "cache"),
        (dict(read=105.0, nbytes=2**21, hot=True), ""),
    ],
)
def test_above_read(cell, word):
    """A cell above 100% of read has the reason that its data give, or none, and then the bar is not met."""
    case = timed_between(made_up("full float32 2^28", **cell))
    assert bars.above_read(case, RATE) == word
    (bar,) = [bar for bar in bars.bars(RATE | {"cases": [case]}) if bar.what.startswith("no cell above 100%")]
    assert bar.met == (word != "") and bool(bar.below) == (word == "")


def test_above_read_by_its_result():
    """A large result counts as moved bytes; the reading kernel moves none of these."""
    case = timed_between(made_up("rows float32 (2^28, 2)", read=90.0)) | {"bytes": 3 * 2**29}
    assert bars.percent(case) == pytest.approx(135) and bars.above_read(case, RATE) == "result"
    assert bars.above_read(case | {"us": {"ours": 80.0, "read": 90.0}}, RATE) == ""


def test_above_read_of_older_files():
    """Where only times back to back are known, that is the reason."""
    assert bars.above_read(made_up("full float32 2^28", read=110.0), RATE) == "back to back"


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
        ("no cell above 100%", dict(), True),
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


@pytest.mark.parametrize(("launch", "met"), [(1.25, True), (1.375, False)])
def test_bar_of_stages(launch, met):
    """Description, plan and launch together: the memory of the result is no part of it."""
    results = made_up_results()
    results["stages"]["1024 elements"]["launch"] = launch
    (bar,) = [bar for bar in bars.bars(results) if bar.what.startswith("planning")]
    assert bar.met is met and f"{0.75 + launch:.2f} µs" in bar.found


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


def test_back_to_back_stands_beside(repository):
    """The headline is the time between kernels; back to back stands beside it under that name. Older files say so."""
    results = made_up_results()
    write(repository, results)
    older = "**Back to back** are the times of 4 of 4 cells"
    for path in ("README.md", report.PAGE):
        text = (repository / path).read_text()
        assert older in text and "| back to back | µs" not in text and "And back to back, the mean" not in text
    small = timed_between(made_up("full float32 2^28", torch=1.5, cub=2.0))
    small["us_back_to_back"]["torch"] = 120.0
    write(repository, results | {"cases": [small]})
    page, readme = ((repository / path).read_text() for path in (report.PAGE, "README.md"))
    assert "| float32 2^28 | 1.0 GiB | 100 | 10,737 | 98.0% | 1.50× | 2.00× |\n" in page
    assert (
        "| back to back | µs | × torch.sum | × CUB |\n| :-- | --: | --: | --: |\n| float32 2^28 | 50.00 | 2.40× |"
        in page
    )
    assert "\n| (2097152, 128) | all | float32 | 100 | 1.50× |\n" in readme
    assert "All 1 measured shapes: 1.50× torch.sum in the median (1.50× in the geometric mean)." in readme
    assert "| all | 1 | 1.50× / 1.50× | 0 | 1.50× | full float32 2^28 |\n" in page and older not in page + readme
    assert "\n| all | 2.40× / 2.40× |\n" in page and "gives each segment a block" in page
    write(repository, results | {"cases": [small], "cub_segments": bars.FIXED_SIZE})
    assert "segments of one fixed size" in (repository / report.PAGE).read_text()
    assert "between kernels" in (repository / "docs/images/heat-example.svg").read_text()


def test_losses_come_first(repository):
    """A lost cell stands before every table of cells, the worst first; bars that are not met say so."""
    write(repository, made_up_results())
    page = (repository / report.PAGE).read_text()
    worst = "| inside float16 (64, 4096, 1024) dim 1 | torch.compile | 0.900× |\n"
    noise = "| inside float16 (64, 4096, 1024) dim 1 | torch.sum | 0.950×, within the noise |\n"
    cpu = "| full float32 2^10 on the CPU | torch.sum | 0.500× |\n"
    assert page.index(worst + noise + cpu) < page.index("### Cells")
    assert page.index("rows bool (8, 2^23): no bits") < page.index(worst)
    assert "| geometric mean of 2.5× over torch.sum | **NOT MET** |" in page
    assert "| 2^10 to 2^20 elements in a graph no slower than CUB | met | 1 of 1 are; worst 1.000× |" in page
    assert "`Error: a \\| b`" in page
    assert "1.20×" in page


def test_many_losses(repository):
    """docs/performance.md shows the worst ones at once, says how many more there are, and has them all."""
    results = made_up_results()
    results["cases"] += [made_up(f"awkward int8 ({i},) case", torch=0.5 + i / 1000) for i in range(40)]
    write(repository, results)
    page = (repository / report.PAGE).read_text()
    assert "<details><summary>The other 33</summary>" in page
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


def test_stages_of_a_call(repository):
    """The page says where a call's time goes: the stages, and what is left of it for Python."""
    write(repository, made_up_results())
    page = (repository / report.PAGE).read_text()
    for row in (
        "Python and PyTorch's dispatcher: the rest | 3.38",
        "launch | 1.38",
        "description, plan and launch | 2.12",
    ):
        assert f"| {row} |\n" in page
    assert "without arguments 1.00 µs, with 512 bytes of them 1.25 µs, with" in " ".join(page.split())


@pytest.mark.parametrize("lacking", [{"cpu": {"cases": []}}, {"cases": []}, {"small_calls": {}}, {"stages": {}}])
def test_incomplete_results(repository, lacking):
    """A run that was cut off early gives pages all the same."""
    write(repository, made_up_results() | lacking)
    assert check(repository) is None


def test_pictures_of_the_ladder():
    """A dot a rung; what sums nothing stands in a panel of its own, under the sums and their axis."""
    results = dict(report.load_results(ROOT, "ladder.json"))["h200"]
    steps = [step for step in results["climb"]["rungs"] if step["name"] != "host_recursive"]
    picture = pictures.ladder(results, ladder.rungs())
    chapters = len({rung.chapter for rung in ladder.rungs() if rung.device == "cuda"}) - 1
    assert picture.count("<circle") == len(steps) + chapters and picture.count("<rect") == 1
    assert picture.index("engine") < picture.index("sum nothing") < picture.index("math_kernel1")
    assert picture.count("the axis is logarithmic") == 2 and "µs" in picture


def test_picture_of_a_chapter():
    """A row a rung: bars from zero, dots on a logarithmic axis, words; a dash where there is no number."""
    columns = [
        pictures.Column("bytes", {"one": 4, "two": 8}, "{} B".format, line=2),
        pictures.Column("time", {"one": 10, "two": 1000}, log=True),
        pictures.Column("order", {"one": "by block"}),
    ]
    assert columns[0].place(4) == 0.5 and columns[1].place(10) == 0 and columns[1].place(1000) == 1
    picture = pictures.chapter("Chapter", ["one", "two"], columns, "#c0392b", "Dashed: two")
    assert all(f">{text}</text>" in picture for text in ("4 B", "8 B", "10", "1000", "by block", "–", "100", "1,000"))
    assert picture.count("<circle") == 2 and picture.count("<rect") == 3 and picture.count("stroke-dasharray") == 1


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_follow_the_screen(path):
    """Each picture has colours for a dark screen: its ground, its text, and each grey that it draws with."""
    picture = path.read_text()
    assert "prefers-color-scheme: dark" in picture and 'id="ground"' in picture
    for grey in set(re.findall(r'stroke="(#(?:ddd|eee|222)\w+)"', picture)) | set(
        re.findall(r'fill="(#666666)"', picture)
    ):
        assert f'"{grey}"]' in pictures.DARK


def test_batch_picture_shows_what_differs():
    """Layouts in which no sum's bits ever change are named, and drawn only if none changes; torch has its version."""
    cases = [
        {"layout": name, "dtype": "float32", "patterns": {"torch.sum": numbers, "torch_reduce.sum": [0, 0]}}
        for name, numbers in (("rows", [0, 1]), ("columns", [0, 0]))
    ]
    results = {"gpu": "G", "torch": "2.11.0", "n": 16000, "sizes": [1, 2], "cases": cases}
    picture = pictures.batch_invariance(results)
    assert ">rows, float32<" in picture and pictures.WHY[0].split("'")[0] in picture and ">G, torch 2.11.0:" in picture
    assert ">columns" not in picture and ">Not shown, as no result differs there: columns, float32.<" in picture
    picture = pictures.batch_invariance(results | {"cases": cases[1:]})
    assert ">columns, float32<" in picture and "Not shown" not in picture


def test_heat_map_shows_every_ratio():
    """Each cell and rival has its number; losses are bold, and 1× lies between the colours."""
    picture = pictures.heat_map(made_up_results())
    for text in ("4.00", "1.25", "0.900", "0.950~", "1.50"):
        assert f">{text}</text>" in picture
    assert pictures.colour(1.0)[0] == "#ffffff"
    assert pictures.colour(0.99)[0] != "#ffffff" != pictures.colour(1.1)[0]
    assert pictures.colour(0.1) == pictures.colour(0.8) and pictures.colour(50) == pictures.colour(4)


# --- inside models ------------------------------------------------------------------------------------------


def found(name):
    """The committed results of that name, as parameters."""
    return [pytest.param(results, id=slug) for slug, results in report.load_results(ROOT, name)]


@pytest.mark.parametrize("results", found(models_report.TIMES))
def test_times_are_of_every_part(results):
    """Each part was measured, with all that bench/models.py has today."""
    assert set(models.PARTS) <= set(results)
    cells = [(case["operation"], tuple(case["shape"]), f"torch.{case['dtype']}") for case in results["gradients"]]
    assert cells == [(op, shape, str(dtype)) for op in models.OPERATIONS for shape, dtype in models.CASES]
    assert {op: list(calls) for op, calls in results["host"].items()} == {
        op: list(models.functions(op)) for op in models.OPERATIONS
    }


@pytest.mark.parametrize("results", found(models_report.TIMES))
def test_replacement_is_batch_invariant(results):
    """The gradients that were compared on the GPU differ under torch's sum, and never under ours."""
    torchs, ours = (results["replace"][name] for name in ("torch", "ours"))
    assert any(torchs["batches"].values())
    assert not any(ours["batches"].values()) and ours["again"] == 0


@pytest.mark.parametrize("results", found(models_report.INVARIANCE))
def test_figure_shows_what_it_says(results):
    """README's picture: up to a batch of 4096, ours has one result everywhere, and torch.sum has more somewhere."""
    assert results["sizes"][0] == 1 and results["sizes"][-1] == 4096 and len(results["cases"]) == 6
    counts = {
        name: [len(set(c["patterns"][name])) for c in results["cases"]] for name in results["cases"][0]["patterns"]
    }
    assert set(counts["torch_reduce.sum"]) == {1}
    assert max(counts["torch.sum"]) > 1


@pytest.mark.parametrize("slug", [slug for slug, _ in report.load_results(ROOT, models_report.TIMES)])
def test_models_were_measured_together(slug):
    """`make figures` writes both files, so both are of the same sources."""
    both = [dict(report.load_results(ROOT, name))[slug] for name in (models_report.TIMES, models_report.INVARIANCE)]
    assert both[0]["csrc"] == both[1]["csrc"]


def made_up_models():
    """(times, patterns): as bench/models.py and examples/batch_invariance.py write them."""
    facts = {key: value for key, value in made_up_results().items() if isinstance(value, (str, int))}
    pair = {"ours": 2.0, "torch": 5.0}
    case = {"operation": "sum", "shape": [32, 64], "dtype": "float32", "us": {"forward": pair, "both": pair}}
    times = facts | {
        "gradients": [case | {"eager_us": {"ours": 40.0, "torch": 30.0}}],
        "host": {"sum": {"torch.sum": {"plain": 4.0, "grad": 5.0}, "torch_reduce.sum": {"plain": 3.0, "grad": 6.0}}},
        "train": {"eager": {"ours": [2.0, 2.5, 2.1], "torch": [5.0, 4.0, 6.0]}},
        "replace": {
            "torch": {"batches": {"2": 17, "5": 192}, "again": 3, "ms": 4.0},
            "ours": {"batches": {"2": 0, "5": 0}, "again": 0, "ms": 3.0},
        },
    }
    numbers = {"torch.sum": [0, 1, 1, 2], "torch_reduce.sum": [0, 0, 0, 0]}
    cases = [{"layout": "rows", "dtype": "float32", "patterns": numbers}]
    return times, facts | {"n": 4000, "sizes": [1, 2, 3, 4], "cases": cases}


@pytest.fixture
def models_repository(repository):
    """A repository with made-up results of models, and what is made from them."""
    (repository / "docs").mkdir()
    shutil.copy(ROOT / models_report.PAGE, repository / "docs")
    for name, results in zip((models_report.TIMES, models_report.INVARIANCE), made_up_models(), strict=True):
        path = repository / "bench" / "results" / "example" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results))
    models_report.main(["--root", str(repository)])
    return repository


def check_models(repository):
    """The complaint of `models_report.py --check`, or None."""
    try:
        models_report.main(["--root", str(repository), "--check"])
    except SystemExit as end:
        return str(end)
    return None


def test_models_page(models_repository):
    """Each part has its table; what is slower is bold; README has the picture, which numbers the results."""
    page = (models_repository / models_report.PAGE).read_text()
    for row in (
        "| sum float32 (32, 64) | 2.00 | 2.50× | 2.00 | 2.50× | 40.00 | **0.750×** |",
        "| `torch.sum` | 4.00 | 1.00× | 5.00 | 1.00× |\n| `torch_reduce.sum` | 3.00 | 0.75× | 6.00 | 1.20× |",
        "| eager | 2.10 | 5.00 | 2.38× | 2.00 to 2.50 | 4.00 to 6.00 |",
        "| values that differ in a batch of 5 | 192 | 0 |\n| values that differ in a second run | 3 | 0 |",
        "| rows, float32 | 3 | 1 |",
    ):
        assert row in page
    assert page.count(";\nengine at `000000000000`; since then the engine has changed.\n") == 2
    assert "not measured yet" not in page
    readme = (models_repository / "README.md").read_text()
    assert "(docs/images/batch-invariance-example.svg)" in readme
    assert (
        "- `torch.sum` of torch 2.11.0, float32: 3 in each layout;\n- `torch_reduce.sum`, in all of these: 1." in readme
    )
    picture = (models_repository / "docs/images/batch-invariance-example.svg").read_text()
    assert "torch.sum: 3 results" in picture and "torch_reduce.sum: 1 result<" in picture
    assert [picture.count(f">{n}</text>") for n in (1, 2, 3, 4)] == [1 + 5, 1 + 2, 1 + 1, 1]


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("README.md", "batch-invariance-example", "batch-invariance-other"),
        (models_report.PAGE, "| 40.00 |", "| 4.00 |"),
        (models_report.PAGE, "| rows, float32 | 3 |", "| rows, float32 | 9 |"),
        ("docs/images/batch-invariance-example.svg", "3 results", "9 results"),
    ],
)
def test_check_sees_a_changed_model(models_repository, path, old, new):
    """A number that the results do not give fails the check."""
    assert check_models(models_repository) is None
    file = models_repository / path
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    assert path in check_models(models_repository)


def test_models_not_measured_yet(models_repository):
    """Each file may be there alone. Without both the pages say so; pictures of results that are gone go too."""
    results = models_repository / "bench" / "results" / "example"
    for name, left in ((models_report.TIMES, 1 + len(models_report.PARTS)), (models_report.INVARIANCE, None)):
        (results / name).unlink()
        assert models_report.PAGE in check_models(models_repository)
        models_report.main(["--root", str(models_repository)])
        assert check_models(models_repository) is None
        if left:
            assert (models_repository / models_report.PAGE).read_text().count("not measured yet") == left
    assert (models_repository / models_report.PAGE).read_text().count("not measured yet") == 2 + len(
        models_report.PARTS
    )
    assert not list((models_repository / "docs" / "images").glob("batch-invariance-*"))


def test_models_need_their_markers(models_repository):
    """A page without the place for a table is an error, and not silently incomplete."""
    file = models_repository / models_report.PAGE
    file.write_text(file.read_text().replace("<!-- models:train -->", ""))
    with pytest.raises(SystemExit, match="models:train"):
        models_report.main(["--root", str(models_repository)])


NOTE = "; since then the "


@pytest.mark.parametrize("page", ["grid", "models", "views"])
def test_results_of_other_sources_are_noted(page, models_repository):
    """If csrc/ has changed since the results were measured, the pages say so, and the check fails until they do."""
    program = models_report if page == "models" else report
    name = {"grid": "grid.json", "models": models_report.TIMES, "views": report.VIEWS}[page]
    results = {"grid": made_up_results(), "models": made_up_models()[0], "views": made_up_views()}[page]
    path = models_repository / "bench" / "results" / "example" / name
    for other in {models_report.TIMES, models_report.INVARIANCE} - {name}:
        (path.parent / other).unlink()
    made = [models_report.PAGE, "README.md"] if page == "models" else [report.PAGE, "README.md"]

    def note_in(hashes):
        path.write_text(json.dumps(results | hashes))
        for each in {program, report}:
            each.main(["--root", str(models_repository)])
        texts = [(models_repository / file).read_text() for file in made]
        # README has parts of several programs: its list of what is slower is of all results.
        (texts[1],) = re.findall("<!-- bench:slower -->.*?<!-- /bench:slower -->", texts[1], flags=re.DOTALL)
        assert check(models_repository) is None
        return [NOTE in text for text in texts]

    hashes = {"sums": provenance.csrc_hash(models_repository, "sums")}
    on_cpu = provenance.csrc_hash(models_repository, "cpu")
    cpu = {"cpu": results["cpu"] | {"csrc": on_cpu}} if page == "grid" else {}
    assert note_in({"csrc": "0" * 64} | cpu) == [True, True]
    assert note_in({"csrc": provenance.csrc_hash(models_repository)} | cpu) == [False, False]
    assert note_in({"sources": {"sums": "0" * 64}} | cpu) == [True, True]
    assert note_in({"sources": hashes} | cpu) == [False, False]
    (models_repository / "csrc" / "core" / "cpu").mkdir(parents=True)
    (models_repository / "csrc" / "core" / "cpu" / "sum.cpp").write_text("another_CPU_backend")
    checked = check if program is report else check_models
    if page == "grid":
        assert "run: python bench/report.py" in checked(models_repository)
        report.main(["--root", str(models_repository)])
        assert f"{NOTE}engine on the CPU has changed.\n" in (models_repository / made[0]).read_text()
    (models_repository / "csrc" / "ladder").mkdir()
    (models_repository / "csrc" / "ladder" / "one.cu").write_text("another_ladder")
    assert checked(models_repository) is None  # of no concern to these
    (models_repository / "csrc" / "core" / "plan").mkdir()
    (models_repository / "csrc" / "core" / "plan" / "plan.h").write_text("another_plan")
    assert "run: python bench/" in checked(models_repository)
    program.main(["--root", str(models_repository)])
    assert checked(models_repository) is None and NOTE in (models_repository / made[0]).read_text()
    (models_repository / "csrc" / "core" / "plan" / "plan.h").write_text("and_another_one")
    assert checked(models_repository) is None  # the note is there already


def test_older_results_of_batch_invariance_are_noted(models_repository):
    """README's summary and the page name the date and what has changed since; of today's sources they do not."""
    path = models_repository / "bench" / "results" / "example" / models_report.INVARIANCE
    results = made_up_models()[1]
    today = {"sums": provenance.csrc_hash(models_repository, "sums")}
    for older in (True, False):
        path.write_text(json.dumps(results | {"sources": {"sums": "0" * 64} if older else today}))
        models_report.main(["--root", str(models_repository)])
        readme = (models_repository / "README.md").read_text()
        (summary,) = re.findall("<!-- models:summary -->.*?<!-- /models:summary -->", readme, flags=re.DOTALL)
        note = f", measured on {results['date']}{NOTE}kernels of sums have changed:"
        summary = " ".join(summary.split())
        assert (note in summary) == older and summary.count(NOTE) == older
        assert check_models(models_repository) is None


def test_what_has_changed_since(tmp_path):
    """A date names each part that is not today's, as the ladder's page needs it of the ladder and of its engine."""
    for name in ("ladder/one.cu", "core/cuda/sum.cu", "core/cpu/sum.cpp", "rows/cpu.cpp"):
        (tmp_path / "csrc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "csrc" / name).write_text(name)
    now = {part: provenance.csrc_hash(tmp_path, part) for part in ("ladder", "sums")}

    def since(hashes):
        return provenance.since(provenance.changed(hashes, tmp_path))

    assert since(now) == ""
    assert since(now | {"ladder": "0" * 64}) == f"{NOTE}ladder has changed"
    assert since(now | {"sums": None}) == f"{NOTE}kernels of sums have changed"
    assert since(dict.fromkeys(now, "0" * 64)) == f"{NOTE}kernels of sums and the ladder have changed"
    several = dict.fromkeys(("index", "calls", "rows", "cpu"))
    assert (
        since(several)
        == f"{NOTE}kernels of sums by index and rows, the operators and the engine on the CPU have changed"
    )
    for name in ("core/cpu/sum.cpp", "rows/cpu.cpp"):
        (tmp_path / "csrc" / name).write_text("other")
    assert since(now) == ""


def made_up_views():
    facts = {key: value for key, value in made_up_results().items() if isinstance(value, (str, int))}
    rows = [{"view": f"float32 ({i},) dims (0,)", "us": 2.0, "torch_us": t} for i, t in enumerate((4.0, 0.72, 2.0))]
    return facts | {"count": 3, "seed": 1, "log2": [12, 25], "views": rows}


def test_a_step_that_is_noise():
    """A step is called slower where every model with ours is slower than every one with torch's."""
    assert slower.is_noise({"ours": [2.0, 3.0], "torch": [1.0, 2.0]})
    assert not slower.is_noise({"ours": [2.1, 3.0], "torch": [1.0, 2.0]})
    assert "| eager | 2.10 | 5.00 | 2.38× | 2.00 to 2.50 | 4.00 to 6.00 |" in models_report.train(made_up_models()[0])


def test_what_is_slower(models_repository):
    """README has what is slower of all results, the class with the worst cell first; another page by function."""
    folder = models_repository / "bench" / "results" / "example"
    rows = [
        {"function": "softmax", "shape": "rows of 8", "us": 2.0, "torch_us": 4.0, "compiled_us": 1.0},
        {"function": "softmax backward", "shape": "rows of 9", "us": 2.0, "torch_us": 0.5},
    ]
    rows = [row | {"dtype": "float32"} for row in rows]
    facts = {key: value for key, value in made_up_results().items() if isinstance(value, (str, int))}
    (folder / "rows.json").write_text(json.dumps(facts | {"softmax": rows}))
    (folder / report.VIEWS).write_text(json.dumps(made_up_views()))
    write(models_repository, made_up_results())
    readme, page = ((models_repository / path).read_text() for path in ("README.md", report.PAGE))
    lines = readme.split("<!-- bench:slower -->")[1].split("<!-- /bench:slower -->")[0].strip().splitlines()
    rows_of, views_of, grid_of, models_of = (slower.KINDS[kind] for kind in ("rows", "views", "grid", "models"))
    assert lines[1:] == [
        "",
        "Measured on NVIDIA Example, 2026-01-01, torch 2.11.0; since then the engine has changed.",
        f'"Their time / ours" is a geometric mean. [{report.PAGE}]({report.PAGE}#where-it-is-slower) names the worst',
        "cells.",
        "",
        "| " + " | ".join(report.CLASS) + " |",
        "| :-- | :-- | --: | --: | --: |",
        *(
            f"| {what} | {numbers} |"
            for what, numbers in (
                (rows_of, "torch | 1 of 2 | **0.707×** | **0.250×**"),
                (views_of, "torch | 1 of 3 | **0.896×** | **0.360×**"),
                (rows_of, "torch.compile | 1 of 1 | **0.500×** | **0.500×**"),
                (f"{grid_of} on the CPU", "torch.sum | 1 of 1 | **0.500×** | **0.500×**"),
                (models_of, "torch | 2 of 6 | 1.37× | **0.750×**"),
                (grid_of, "torch.compile | 1 of 2 | 1.06× | **0.900×**"),
                (grid_of, "torch.sum | 1 of 4 | 1.84× | **0.950×**"),
            )
        ),
    ]
    section = page.split("## Where it is slower\n")[1].split("\n## ")[0]
    for what in ("`softmax` backward | torch | 1 of 1 | **0.250×**", "`sum`: inside | torch.sum | 1 of 1 | **0.950×**"):
        assert f"| {what} | " in section
    assert "\n- `softmax` backward, torch: **0.250×**, rows of 9, float32; Example\n" in section
    assert "`softmax` | torch |" not in section  # ours is faster
    assert "\n- float32 (1,) dims (0,): 2.00, 0.72, **0.360×**\n" in page and "(0,) dims" not in page
    (folder / "rows.json").write_text(json.dumps(facts | {"softmax": rows[:1]}))
    assert "README.md" in check(models_repository)


@pytest.mark.parametrize("kind", slower.FILES)
def test_every_kind_of_results_may_be_slower(kind):
    """The list of what is slower is of each kind of committed results, and compares something in each file."""
    for results in (results for name, results in slower.load(ROOT) if name == kind):
        ratios = [ratio for *_, ratio in slower.FILES[kind](results)]
        assert ratios and min(ratios) > 0
    known = {path.stem for path in RESULTS if not path.stem.startswith(("tests", "ladder", "batch_invariance"))}
    assert known <= slower.FILES.keys() == slower.KINDS.keys()


def test_place_of_results(tmp_path, monkeypatch, capsys):
    """Results of a GPU have a place of their own, those of a CPU none; a named file is taken for both."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    place = tmp_path / "bench" / "results" / "example" / "a.json"
    provenance.save({"gpu": None}, "a.json", pathlib.Path())
    assert "nothing is saved" in capsys.readouterr().out and not list(tmp_path.iterdir())
    provenance.save({"gpu": "NVIDIA Example"}, "a.json", pathlib.Path())
    assert json.loads(place.read_text()) == {"gpu": "NVIDIA Example"} and str(place) in capsys.readouterr().out
    provenance.save({"gpu": None}, "a.json", tmp_path / "b" / "c.json")
    assert json.loads((tmp_path / "b" / "c.json").read_text()) == {"gpu": None}


# --- bench/models.py on the CPU -----------------------------------------------------------------------------


@pytest.fixture
def small_models(monkeypatch, set_threads):
    """bench/models.py with small cases, and without Inductor."""
    monkeypatch.setattr(models, "CASES", (((40, 300), torch.bfloat16), ((8, 16), torch.float32)))
    monkeypatch.setattr(models, "REPEATS", 3)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    set_threads(1)  # the work is too little to share
    return models


def test_models_on_the_cpu(small_models, tmp_path, capsys):
    """All parts are measured on the CPU, printed, and kept in a file."""
    file = tmp_path / "models.json"
    models.main(["--cpu", "--save", str(file)])
    text, results = capsys.readouterr().out, json.loads(file.read_text())
    assert "NO GPU IS USED HERE" in text and results["gpu"] is None
    for part in models_report.PARTS.values():
        assert "\n".join(part(results)).rstrip() in text
    for case in results["gradients"]:
        assert all(us > 0 for pair in (*case["us"].values(), case["eager_us"]) for us in pair.values())
    assert len(results["gradients"]) == 4 and set(results["train"]) == {"eager", "compiled"}
    assert results["replace"]["ours"]["batches"] == {"2": 0, "5": 0}
    assert all(us > 0 for calls in results["host"].values() for kinds in calls.values() for us in kinds.values())


def test_one_part_of_models(small_models, capsys):
    """--only measures one; it is not kept where only results of a GPU are expected."""
    models.main(["--cpu", "--only", "host"])
    text = capsys.readouterr().out
    assert "`torch_reduce.mean`" in text and "examples/train.py" not in text
    models.main(["--cpu", "--only", "host", "--save"])
    assert "nothing is saved" in capsys.readouterr().out


def test_compiled_functions_and_steps():
    """The page has a row per function, with the least and the most, and one per model; all may be slower."""
    rows = [
        {"shape": [64, n], "dtype": "bfloat16", "us": us, "same_bits": n == 8}
        for n, us in ((8, (2, 1, 6)), (9, (2, 4, 6)))
    ]
    for row in rows:
        row["us"] = dict(zip(("torch", "fused", "called"), row["us"], strict=True))
    step = {"model": "GPT-2", "ms": {"torch": 10.0, "fused": 11.0, "called": 12.5}}
    results = PLACE | {"sum": rows, "rms_norm of a model": rows[:1], "steps": [step]}
    text = "\n".join(compiled_report.times(results, ROOT))
    assert "| `sum` | 2 | 1.00 (0.50 to 2.00) | 0.33 (0.33 to 0.33) | not in all |" in text
    assert "| rms_norm of a model | 1 | 2.00 | 0.33 | yes |" in text
    assert "| GPT-2 | 10.0 | 11.0 | **0.909×** | **0.800×** |" in text
    found = list(slower.FILES["compiled"](results))
    assert ("`sum` between products, compiled", "torch.compile", "(64, 9) bfloat16", 0.5) in found
    assert ("a compiled step", "torch.compile", "GPT-2", 10 / 11) in found and len(found) == 4


# --- bench/parts.py and bench/figures.py ----------------------------------------------------------------------


class Measured:
    """Two parts, and which of them have been measured."""

    def __init__(self, path):
        self.path, self.done = path, []

    def run(self, *arguments, **facts):
        made = {name: functools.partial(self.measure, name) for name in ("one", "two")}
        options = parts.parser("", made).parse_args(["--save", str(self.path), *arguments])
        self.done.clear()
        facts = {"gpu": "NVIDIA Example", "torch": "2.11.0", "sources": {"rows": "0"}, "date": "today"} | facts
        return parts.run("a.json", made, options, facts, lambda results: [f"told {next(iter(results))}"])

    def measure(self, name):
        self.done.append(name)
        return [len(self.done)]

    def kept(self, suffix=""):
        path = self.path.with_name(self.path.name + suffix)
        return json.loads(path.read_text()) if path.exists() else None


def test_parts_are_measured_once(tmp_path, capsys):
    """What is of today is kept, in a file of its own until all of it is there; another GPU or source begins anew."""
    measured = Measured(tmp_path / "a.json")
    results = measured.run("--only", "two")
    assert measured.done == ["two"] and "one" not in results and "left" not in capsys.readouterr().out
    assert measured.kept() is None and measured.kept(".partial")["two"] == [1]
    results = measured.run()
    assert measured.done == ["one"] and measured.kept(".partial") is None and measured.kept() == results
    assert set(results["seconds"]) == {"one", "two"} and "told one" in capsys.readouterr().out
    assert measured.run(date="tomorrow")["one"] == [1] and measured.done == []
    measured.run("--anew", "--only", "one")
    assert measured.done == ["one"] and measured.kept()["two"] == [1]
    for other in ({"gpu": "another"}, {"torch": "2.12.0"}, {"sources": {"rows": "1"}}, {"seed": 1}, {"eager": True}):
        measured.run(**other)
        assert measured.done == ["one", "two"] and other.items() <= measured.kept().items()


def test_parts_that_a_budget_has_no_room_for(tmp_path, capsys):
    """Nothing begins once the seconds are spent, and the whole file of before stays until all parts are there."""
    measured = Measured(tmp_path / "a.json")
    before = measured.run()
    measured.run("--budget", "-1", sources={"rows": "1"})
    assert measured.done == [] and "left: one, two; the same command" in capsys.readouterr().out
    assert measured.kept() == before
    measured.run("--only", "one", sources={"rows": "1"})
    assert measured.kept() == before and measured.kept(".partial")["sources"] == {"rows": "1"}
    measured.path.with_name("a.json.partial").write_text("{")  # cut off by a full disk, say
    measured.run(sources={"rows": "1"})
    assert measured.done == ["one", "two"] and "cannot be read" in capsys.readouterr().out


def test_a_part_that_lacks_what_it_needs(tmp_path, capsys):
    """It stays open, and the others are kept beside the whole file of before."""
    measured = Measured(tmp_path / "a.json")
    measured.measure = lambda name: None if name == "two" else [1]
    assert "two" not in measured.run() and "left: two" in capsys.readouterr().out
    assert measured.kept() is None and measured.kept(".partial")["one"] == [1]


def test_results_of_a_cpu_have_no_place(tmp_path, monkeypatch, capsys):
    """--save alone keeps results of a GPU, in its folder."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    for facts in ({"gpu": None}, {"gpu": "NVIDIA Example", "eager": True}):
        assert parts.place("a.json", parts.STANDARD, facts) is None and "name a file" in capsys.readouterr().out
    place = parts.place("a.json", parts.STANDARD, {"gpu": "NVIDIA Example"})
    assert place == tmp_path / "bench" / "results" / "example" / "a.json"


@pytest.fixture
def figures_of(tmp_path, monkeypatch):
    """Runs bench/figures.py on a GPU that is made up: gives the scripts that it runs, and their arguments."""
    ran = []
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "visible", lambda: ("NVIDIA Example", 1))
    monkeypatch.setattr(figures, "run", lambda *command: ran.append(command) or int("weighted" in command[0]))

    def run(*arguments):
        ran.clear()
        with contextlib.suppress(SystemExit):
            figures.main(list(arguments))
        return list(ran)

    return run


def test_figures(figures_of, tmp_path, capsys):
    """What is old or missing is measured, in order, and then the pages are made; failures are named at the end."""
    of_today = provenance.hashes_of("rows.json", root=tmp_path)
    place = provenance.place("rows.json", "NVIDIA Example")
    place.parent.mkdir(parents=True)
    results = {"csrc": "0", "gpu": "NVIDIA Example", "sources": of_today} | dict.fromkeys(
        importlib.import_module("rows").PARTS
    )
    place.write_text(json.dumps(results))
    pages = [f"bench/{name}.py" for name in figures.pages()]
    ran = figures_of("--budget", "100")
    expected = [m.script for file, m in provenance.RESULTS.items() if file not in ("rows.json", "ranks.json")]
    assert [script for script, *_ in ran] == expected + pages and "bench/report.py" in pages
    assert ran[0] == ("bench/grid.py", "--resume", "--budget", "100")
    text = capsys.readouterr().out
    assert "rows.json is of today" in text and "ranks.json is left out: it needs 2 GPUs" in text
    lacking = {name: value for name, value in results.items() if name != "softmax"}
    for other in (results | {"sources": {"rows": "0"}}, results | {"gpu": "NVIDIA Example PCIe"}, lacking, "{"):
        place.write_text(other if other == "{" else json.dumps(other))
        assert not figures.is_of_today("rows.json", "NVIDIA Example")
    place.write_text(json.dumps(lacking))
    assert figures_of("--only", "rows")[0] == ("bench/rows.py", "--save", "--budget", "inf")
    assert [script for script, *_ in figures_of("--budget", "0")] == pages
    assert "rows.json is left for the next run" in capsys.readouterr().out
    assert [script for script, *_ in figures_of("--pages")] == pages
    with pytest.raises(SystemExit, match=r"failed: weighted\.json$"):
        figures.main([])


def test_what_a_grid_lacks(monkeypatch):
    """Cells that are missing or failed, on the GPU or the CPU, and cells of another CPU backend, are measured again."""
    here = {"csrc": provenance.csrc_hash(part="cpu"), "cases": [{}] * len(cases.cpu_cases())}
    whole = {"cells": 2, "cases": [{}, {}], "cpu": here}
    assert not figures.lacks("grid.json", whole)
    for other in ({"cases": [{}]}, {"cases": [{}, {"error": "no bits"}]}, {"cpu": here | {"cases": []}}):
        assert figures.lacks("grid.json", whole | other)
    assert figures.lacks("grid.json", whole | {"cpu": here | {"csrc": "0"}})


def test_names_of_gpus():
    """Short, and of different GPUs different."""
    names = {"NVIDIA H100 80GB HBM3": "H100", "NVIDIA GeForce RTX 4090": "RTX 4090", "NVIDIA RTX A6000": "RTX A6000"}
    assert {name: provenance.short(name) for name in names} == names


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x, dim: torch.sum(x, dim) * (1 if x.requires_grad else 2), "bits are not the CPU backend's"),
        (lambda x, dim: torch.sum(x, dim) + (x - x.detach()).sum(dim), "gradient is not torch's"),
    ],
    ids=["bits", "gradient"],
)
def test_wrong_sums_are_not_timed(wrong, message, small_models, monkeypatch):
    """A sum whose bits or whose gradient are wrong ends the run."""
    monkeypatch.setattr(models.torch_reduce, "sum", wrong)
    with pytest.raises(SystemExit, match=message):
        models.gradients(torch.device("cpu"))


def test_random_views():
    """bench/views.py makes the same views of a seed, and its summary begins with those that torch.sum sums faster."""
    made = [[random_view(random.Random(seed), 8, 14) for seed in range(200)] for _ in range(2)]
    assert made[0] == made[1] and len({str(view) for view in made[0]}) > 190
    for view in made[0]:
        x = view.of(torch.zeros(view.elements(), dtype=view.dtype))
        assert x.dim() == len(view.stored) and set(view.dims) <= set(range(x.dim())), view
    lines = list(views.summary([(made[0][0], 1.0, 4.0), (made[0][1], 4.0, 2.0), (made[0][2], 1.0, 2.0)]))
    assert lines[0].startswith("3 views: 1.59 times") and "median 2.00; in 1 torch.sum" in lines[0]
    assert str(made[0][1]) in lines[2] and str(made[0][0]) in lines[4]


def test_views_are_measured(cuda, capsys, tmp_path):
    """bench/views.py checks and measures views, and keeps what it has measured."""
    views.main(["--count", "5", "--seed", "7", "--log2", "8", "12", "--save", str(tmp_path / "views.json")])
    assert "5 views" in capsys.readouterr().out
    kept = json.loads((tmp_path / "views.json").read_text())
    assert len(kept["views"]) == 5 and kept["csrc"] == provenance.csrc_hash()
    assert all(row["us"] > 0 and row["torch_us"] > 0 for row in kept["views"])


SEPARATOR_US = 1.5
COSTS = {"ours": (3.0, 1.0), "torch": (4.0, 0.0), "slow": (30_000.0, 0.0), "separators": (SEPARATOR_US, 0.0)}


class MadeUpRace(timing.Race):
    """A race on a made-up GPU. `COSTS` has, for each name, the microseconds of a call, and how many of them go on while
    the next call runs, if nothing stands between. From replay to replay everything gets slower."""

    def __init__(self, *arguments, **more):
        self.captured, self.replayed = [], []
        super().__init__(*arguments, warm_ms=0, **more)
        self.replayed.clear()

    def _separator(self):
        return lambda: self.captured.append("separator")

    def _is_lost(self):
        return False

    def _wait(self):
        self.waited = len(self.replayed)

    def _graph(self, candidate, views, outs, choose, separator=None):
        cost, hidden = COSTS[candidate.name.split()[0]]
        graph = types.SimpleNamespace(
            samples=[], calls=choose(cost, len(views)), name=candidate.name, outputs=lambda: outs
        )
        self.captured.clear()
        for view, out in zip(views, outs, strict=True):
            candidate.fn(view, out)
        graph.us = graph.calls * (cost + SEPARATOR_US if separator else cost - hidden)
        return graph

    def _replay(self, graph):
        self.replayed.append(graph.name)
        at, slowing = len(self.replayed), 1 + 0.01 * (len(self.replayed) // (len(self.graphs) + len(self.separators)))

        def took():
            assert at <= self.waited  # as an event must have happened
            return graph.us * slowing

        return took


def made_up_race(names, **more):
    views = [torch.zeros(1)] * 4
    buffers = types.SimpleNamespace(views=views, cold=False)
    candidates = [timing.Candidate(name, lambda view, out: None) for name in names]
    return MadeUpRace(candidates, buffers, lambda: torch.zeros(1), **more)


def test_times_between_kernels():
    """Of a graph of calls and separators, that of as many separators alone is taken off; all takes its turn a round."""
    race = made_up_race(["ours", "torch", "slow"], target_us=30, back_to_back=True)
    assert {name: graph.calls for name, graph in race.graphs.items()} == {"ours": 12, "torch": 12, "slow": 4}
    assert {n: graph.calls for n, graph in race.separators.items()} == {4: 4, 12: 12}
    race.run(2)
    assert race.replayed == 2 * ["separators", "separators", "ours", "torch", "slow"]
    found = race.timings()
    assert found["ours"].samples == pytest.approx([3.0, 3.0 * 1.01], rel=0.01) and found["ours"].repeats == 2
    assert [found[name].us for name in race.graphs] == pytest.approx([3.0, 4.0, 30_000.0], rel=0.02)
    assert found["torch"].ratio(found["ours"])[0] == pytest.approx(4 / 3, rel=0.02)
    race.replayed.clear()
    tight = race.run_back_to_back(4).timings_back_to_back()
    assert race.replayed == 4 * ["ours", "torch", "slow"]
    assert [tight[name].us for name in race.graphs] == pytest.approx([2.0, 4.0, 30_000.0], rel=0.02)
    assert tight["ours"].repeats == 4 and race.timings()["ours"].repeats == 2


def test_race_without_back_to_back():
    """What is not asked for is not captured."""
    race = made_up_race(["ours", "torch"])
    assert not race.beside and race.run(1).timings_back_to_back() == {}


def test_race_of_nothing(monkeypatch):
    """Calls that take no longer than the separators between them are an error, and no time."""
    monkeypatch.setitem(COSTS, "torch", (-0.1, 0.0))
    race = made_up_race(["ours", "torch"]).run(5)
    with pytest.raises(RuntimeError, match="the calls of torch took no longer than the separators"):
        race.timings()


def test_race_goes_on_without_what_fails():
    """A rival that raises is out of both ways, with its error; ours must run."""

    def broken(view, out):
        raise ValueError("not here")

    buffers = types.SimpleNamespace(views=[torch.zeros(1)], cold=False)
    ours, rival = timing.Candidate("ours", lambda view, out: None), timing.Candidate("torch", broken)
    race = MadeUpRace([ours, rival], buffers, lambda: None, back_to_back=True)
    assert race.failed == {"torch": "ValueError: not here"} and set(race.graphs) == set(race.beside) == {"ours"}
    with pytest.raises(ValueError, match="not here"):
        MadeUpRace([rival, ours], buffers, lambda: None)


def test_fastest_of_several():
    """Of the reading kernels, and of torch.compile's variants, the fastest counts."""
    us = {"ours": 5.0, "compile": 4.0, "compile PDL": 3.0, "read loads 2 x8": 2.0, "read bulk 8 x2": 2.5}
    times = {name: timing.Timing.of([value], 1) for name, value in us.items()}
    assert {name: t.us for name, t in grid.fastest(times).items()} == {"ours": 5.0, "compile": 3.0, "read": 2.0}
    assert grid.fastest({"ours": times["ours"]}) == {"ours": times["ours"]}


@pytest.fixture
def bench_without_gpu(monkeypatch):
    """grid.Bench on a made-up GPU; torch.compile is torch.sum, in two variants."""
    case = cases.parse("rows float32 (8, 2^10)")
    compiled = [
        timing.Candidate(name, lambda view, out: torch.sum(view, dim=1, out=out)) for name in contenders.COMPILED
    ]
    make_out = cases.Case.make_out
    monkeypatch.setattr(timing, "Race", MadeUpRace)
    monkeypatch.setattr(timing, "Flush", lambda: None)
    monkeypatch.setattr(timing, "l2_bytes", lambda device: 1 << 12)
    monkeypatch.setattr(timing.Buffers, "__init__", cold_on_the_cpu(timing.Buffers.__init__))
    monkeypatch.setattr(grid.Data, "of", lambda self, case: [case.flat("cpu"), case.flat("cpu")])
    monkeypatch.setattr(cases.Case, "make_out", lambda self, device: make_out(self, "cpu"))
    monkeypatch.setattr(contenders, "compiled_sums", lambda case, early: compiled)
    monkeypatch.setattr(contenders, "starts_early", lambda: True)
    monkeypatch.setitem(COSTS, "compile", (3.5, 1.0))
    return grid.Bench(None, [case]), case, compiled


def cold_on_the_cpu(init):
    def warm(self, *arguments):
        init(self, *arguments)
        self.cold = False

    return warm


def test_a_cell_in_both_ways(bench_without_gpu):
    """The headline is the time between kernels, in more rounds; back to back and all variants are kept beside it."""
    bench_, case, _ = bench_without_gpu
    found = bench_.measure(case, ("torch", "compile"))
    assert found["us"] == pytest.approx({"ours": 3.0, "torch": 4.0, "compile": 3.5}, rel=0.2)
    assert found["us_back_to_back"] == pytest.approx({"ours": 2.0, "torch": 4.0, "compile": 2.5}, rel=0.2)
    assert set(found["variants"]) == {"compile", "compile PDL"} and len(found["variants"]["compile"]) == 2
    assert found["repeats"] == grid.ROUNDS and bars.between(found) and "failed" not in found
    assert set(found["spread"]) == set(found["spread_back_to_back"]) == set(found["us"])


def test_a_wrong_rival_is_not_timed(bench_without_gpu):
    """A variant with a wrong result is left out and named. If our result is wrong, the cell is an error."""
    bench_, case, compiled = bench_without_gpu
    compiled[1].fn = lambda view, out: out.fill_(7)
    found = bench_.measure(case, ("torch", "compile"))
    assert found["failed"] == {"compile PDL": "another result than ours, by more than rounding"}
    assert set(found["us"]) == {"ours", "torch", "compile"} and set(found["variants"]) == {"compile"}


def test_a_cell_that_changes_its_bits(bench_without_gpu, monkeypatch):
    """Bits that change while it is timed make the cell an error."""
    bench_, case, _ = bench_without_gpu
    monkeypatch.setattr(contenders, "ours", lambda case: timing.Candidate("ours", lambda view, out: out.fill_(7)))
    assert bench_.measure(case, ())["error"] == "the bits changed while it was timed"


def test_results_are_resumed_in_both_ways(tmp_path):
    """A cell of a GPU that was measured back to back alone is measured again."""
    options = types.SimpleNamespace(save=None, resume=None)
    results = grid.Results(contenders.environment(), options)
    case = cases.parse("full float32 2^28")
    results.table["cases"] = [made_up(case.name, torch=2.0)]
    assert not results.has(case, ["torch"])
    results.table["cases"] = [timed_between(made_up(case.name, torch=2.0))]
    assert results.has(case, ["torch"]) and not results.has(case, ["torch", "cub"])


def test_what_pdl_adds():
    """A Triton kernel that may start early has the tuned choice of the same kernel that may not."""
    plain = "meta={'launch_pdl': False}\ndef k(a):\n    x = tl.load(a)\n    tl.store(a, x)"
    early = (
        "meta={'launch_pdl': True}\ndef k(a):\n    tl.extra.cuda.gdc_wait()\n    x = tl.load(a)\n"
        "    tl.extra.cuda.gdc_launch_dependents()\n    tl.store(a, x)"
    )
    assert plain != early and contenders.without_pdl(early) == contenders.without_pdl(plain) == plain


def test_kernels_are_tuned_once(tmp_path, monkeypatch, capsys):
    """Inductor reuses the tuning of a kernel for the same kernel with PDL, elsewhere too, and for no other kernel."""
    autotune_cache = pytest.importorskip("torch._inductor.runtime.autotune_cache")
    for name in ("_prepare_key", "_setup_local_cache"):  # as they are now, again afterwards
        monkeypatch.setattr(autotune_cache.AutotuneCache, name, autotune_cache.AutotuneCache.__dict__[name])
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with torch._inductor.config.patch(compile_threads=1):
        contenders._tune_once.__wrapped__()
    if "are tuned twice" in capsys.readouterr().out:
        pytest.skip("this torch's Inductor keeps its choices elsewhere")

    def cache_of(folder, source):
        path = tmp_path / folder / "kernel.py"
        path.parent.mkdir()
        path.write_text(source)
        return autotune_cache.AutotuneCache.create({"autotune_remote_cache": False}, str(path), "configs")

    config = types.SimpleNamespace(kwargs={"XBLOCK": 8}, num_warps=4, num_stages=1)
    cache_of("aa", "{'launch_pdl': False}\n    load").save(config, 1000, found_by_coordesc=True)
    early = cache_of("bb", "{'launch_pdl': True}\n    tl.extra.cuda.gdc_wait()\n    load")
    assert early._read()["XBLOCK"] == 8 and early._read()["found_by_coordesc"]
    assert cache_of("cc", "{'launch_pdl': False}\n    store")._read() is None


def test_compiled_sums_start_early_where_they_can(monkeypatch):
    """torch.compile takes part once, and a second time where kernels can start early."""
    monkeypatch.setattr(contenders, "_tune_once", lambda: None)
    case = cases.parse("rows float32 (64, 2^10)")
    found = [[c.name for c in contenders.compiled_sums(case, early)] for early in (False, True)]
    assert found == [["compile"], ["compile", "compile PDL"]]


def test_separators_stand_between(cuda):
    """A kernel that cannot start early takes the same time between kernels as back to back, without the separator's."""
    sleep = timing.Candidate("sleep", lambda view, out: torch.cuda._sleep(40_000))
    buffers = timing.Buffers(torch.zeros(1, device=cuda), lambda flat: flat, hot=True)
    race = timing.Race([sleep], buffers, lambda: None, target_us=500, warm_ms=5, back_to_back=True)
    between = race.run(7).timings()["sleep"].us
    back_to_back = race.run_back_to_back(7).timings_back_to_back()["sleep"].us
    assert between == pytest.approx(back_to_back, rel=0.1, abs=1.0)


@pytest.mark.parametrize("early", [False, True])
def test_compiled_sums(early, cuda):
    """torch.compile's sum, and that which starts early where it can, are right."""
    if early and not contenders.starts_early():
        pytest.skip("needs compute capability 9.0")
    case = cases.parse("rows float32 (64, 2^10)")
    x = case.view(case.flat(cuda))
    with torch._inductor.config.patch(compile_threads=1):
        for candidate in contenders.compiled_sums(case, early):
            assert contenders.close(candidate.fn(x, None), x.sum(1), 1024)


class MadeUpMark:
    def __init__(self, us):
        self.us = us

    def elapsed_time(self, later):
        return (later.us - self.us) / 1e3


class RaceOnAClock(Race):
    """A race on a made-up GPU. Calls move its clock on; the host is late by what `late` says, event by event."""

    def __init__(self, late):
        self.clock, self.late = 0.0, late
        self.repeats, self.alone, self.stream = 3, {}, None
        self.flush = self.separator = lambda: None

    def call(self, us):
        def f(x):
            self.clock += us
            return x

        return f

    def _timed(self, run):
        start = MadeUpMark(self.clock)
        run()
        self.clock += self.late.pop(0) if self.late else 0.0
        return start, MadeUpMark(self.clock)

    def _graph(self, calls, call):
        return types.SimpleNamespace(replay=lambda: [call(i) for i in range(calls)])


def test_race_of_functions_whose_host_was_held_up(monkeypatch):
    """A function counts as hopeless only if it still is with a head start for the host."""
    for name in ("synchronize", "_sleep"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    race = RaceOnAClock([0.0, 0.0, 900.0, 700.0])  # both guesses of the second function
    functions = {"first": race.call(30.0), "late": race.call(40.0), "hopeless": race.call(5000.0)}
    assert race.times([torch.zeros(1)] * 3, functions) == ({"first": 30.0, "late": 40.0, "hopeless": 5000.0}, [])


def test_cold_races_flush(cuda):
    """Cold inputs come from memory: the L2 is flushed before each graph, and buffers take turns."""
    flushes, read = [], set()

    class Flush(timing.Flush):
        def __call__(self):
            flushes.append(None)
            super().__call__()

    def ours(view, _):
        read.add(view.data_ptr())
        return torch_reduce.sum(view)

    def race(hot):
        read.clear()
        buffers = timing.Buffers(torch.ones(1 << 22, device=cuda), lambda flat: flat, hot)
        options = {"repeats": 3, "target_us": 200, "warm_ms": 5, "flush": Flush()}
        timing.gpu_times([timing.Candidate("ours", ours)], buffers, lambda: None, **options)

    race(hot=True)
    assert not flushes and len(read) == 1
    race(hot=False)
    assert len(flushes) >= 3 and len(read) > 1


def test_measures_take_turns():
    """Every measure once a round, each round beginning one further on; what the first round took does not count."""
    taken = []

    def measure(name):
        taken.append(name)
        return len(taken)

    found = timing.in_turns({name: lambda name=name: measure(name) for name in "ab"}, repeats=2)
    assert taken == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": [4, 5], "b": [3, 6]}
