"""Whole CUDA programs on the CPU: the one of chapter 0, and what is said of the faults that a newcomer makes in it."""

import pathlib
import subprocess
import sys

import pytest

from torch_reduce.ladder import _emulate, _program, _whole

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = _whole.FIRST.read_text(encoding="utf-8").replace("n = 1000000", "n = 10000").replace("4500000", "45000")

try:
    _emulate.compiler()
except _emulate.CannotEmulate as error:
    pytest.skip(str(error), allow_module_level=True)


def changed(folder, *pairs):
    """The program with texts replaced, each of them there once; and shorter, so that it runs at once."""
    text = TEXT
    for before, after in pairs:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    path = folder / "mine.cu"
    path.write_text(text, encoding="utf-8")
    return path


def line_of(path, part):
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if part in line)


def test_the_program_of_chapter_0():
    """In a clone, with Python's own library: what it prints, its counters, and its exit status."""
    command = [sys.executable, "-S", str(ROOT / "torch_reduce" / "ladder"), "program", str(_whole.FIRST)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    printed, counters = done.stdout.splitlines()
    assert printed == "the sum is 4500000: right"
    assert counters.startswith("emulated, its first launch, in blocks of 256: global load efficiency 100.0%, ")


COPY_THERE = "  check(cudaMemcpy(in, numbers.data(), n * sizeof(float), cudaMemcpyHostToDevice));"
COPY_BACK = "cudaMemcpy(found.data(), sums, threads * sizeof(float), cudaMemcpyDeviceToHost)"


@pytest.mark.parametrize("pairs, line, said", [
    ([(COPY_THERE, "")], "sum += in[i]",
     "thread 0 of block 0 reads in[0], and nothing has been copied or written to in"),
    ([("(in, sums, n);  // 3", "(numbers.data(), sums, n);  // 3")], "sum += in[i]",
     "thread 0 of block 0 reads the host's memory: a kernel reaches only what cudaMalloc gave"),
    ([("for (float sum : found) total += sum;", "for (int i = 0; i < threads; ++i) total += sums[i];"),
      ("  check(cudaFree(sums));\n", "")], "total += sums[i]",
     "the host reads sums[0], which is in the GPU's memory: only kernels and cudaMemcpy reach it"),
    ([(COPY_BACK, COPY_BACK.replace("DeviceToHost", "HostToDevice"))], "cudaMemcpyHostToDevice));  // 4",
     "cudaMemcpy: the first pointer, where it copies to, is no pointer of cudaMalloc's, but the kind of copy says"),
    ([(COPY_BACK, COPY_BACK.replace("threads *", "2 * threads *"))], "2 * threads",
     "the second pointer, where it copies from, has 16384 bytes left, and 32768 are asked for"),
    ([("for (int i = first; i < n; i", "for (int i = first; i <= n; i")], "sum += in[i]",
     "in[10000], 1 element behind its end (in has 10000)"),
    ([("sums[first] = sum;", "if (first < 4090) sums[first] = sum;")], "// 4. the sums come back",
     "cudaMemcpy copies sums[4090] and 5 more of its elements, and nothing has been copied or written there"),
    ([("numbers.data(), n * sizeof(float)", "numbers.data(), (n - 1) * sizeof(float)")], "sum += in[i]",
     "reads in[9999], and nothing has been copied or written there"),
    ([("float sum = 0;", "float sum;")], "sum += in[i]",
     "thread 0 of block 0 reads sum, a local variable that it has not written"),
    ([("  check(cudaFree(sums));\n", "")], None, "sums is never freed"),
    ([("  check(cudaFree(sums));\n", "  check(cudaFree(in));\n")], "check(cudaFree(in));\n", "or it is freed already"),
    ([("block = 256,", "block = 2048,")], None, "2048 threads per block; 1024 are the most"),
], ids=["not copied", "host pointer", "device pointer", "wrong kind", "too many bytes", "behind the end", "not written",
        "too few bytes", "no value", "not freed", "freed twice", "too many threads"])  # fmt: skip
def test_faults_are_found(tmp_path, capsys, pairs, line, said):
    """Each is said in a sentence, with its line, and the exit status is 1."""
    path = changed(tmp_path, *pairs)
    assert _program.main(["program", str(path)]) == 1
    printed = capsys.readouterr().out
    assert said in printed
    if line:
        text = path.read_text()
        number = text[: text.rindex(line)].count("\n") + 1
        assert f"{number}: " in printed, (number, printed)


def test_a_right_program_in_other_words(tmp_path, capsys):
    """Memory from cudaMemset, a launch with a type, (void**), arguments of main, and a kernel's __device__ variable."""
    path = tmp_path / "other.cu"
    path.write_text(r"""
#include <cstdio>
#include <cstdlib>
__device__ int calls;
template <class T> __global__ void add_one(T* data, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] += 1;
  if (i == 0) atomicAdd(&calls, 1);
}
int main(int count, char** arguments) {
  const int n = std::atoi(arguments[1]);
  double* data = nullptr;
  cudaMalloc((void**)&data, n * sizeof(double));
  cudaMemset(data, 0, n * sizeof(double));
  for (int i = 0; i < 3; ++i) add_one<double><<<(n + 127) / 128, 128>>>(data, n);
  double* back = (double*)malloc(n * sizeof(double));
  cudaMemcpy(back, data, n * sizeof(double), cudaMemcpyDeviceToHost);
  printf("%d %g %g\n", count, back[0], back[n - 1]);
  cudaFree(data);
  free(back);
}
""")
    assert _program.main(["program", str(path), "1000"]) == 0
    assert capsys.readouterr().out.startswith("2 3 3\nemulated, its first launch, in blocks of 128: ")


def test_errors(tmp_path, capsys):
    """A kernel alone, and what does not compile."""
    alone = tmp_path / "alone.cu"
    alone.write_text("__global__ void alone(float* x) { x[0] = 1; }\n")
    with pytest.raises(SystemExit):
        _program.main(["program", str(alone)])
    assert "it has no main()" in capsys.readouterr().err


@pytest.mark.parametrize("before, after, said", [
    ("float sum = 0;\n", "float sum = 0\n", "a semicolon, a bracket or a brace"),
    ("threads = blocks * block;", "threads = blocks * block, more = threads\n", "a semicolon, a bracket or a brace"),
    ("sums[first] = sum;\n}", "sums[first] = sum;\n", "a semicolon, a bracket or a brace"),
    ("<<<blocks, block>>>", "<<<blocks>>>", "`mine<<<blocks, threads>>>(in, out, n);`"),
    ("cudaGetLastError", "cudaGetLastErr", "is it spelt as where it is declared"),
])  # fmt: skip
def test_what_does_not_compile(tmp_path, capsys, before, after, said):
    """The program's own lines, and a plain sentence; exit status 2."""
    path = changed(tmp_path, (before, after))
    assert _program.main(["program", str(path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"{path}:") and said in shown and "emulate" not in shown, shown


def test_nvcc_compiles_the_program_of_chapter_0(nvcc, tmp_path):
    """Without a GPU, too."""
    made = tmp_path / "sum.o"
    subprocess.run([nvcc, "-Werror=all-warnings", "-c", "-o", made, _whole.FIRST], check=True)
    assert made.stat().st_size


def test_the_program_of_chapter_0_on_a_gpu(nvcc, cuda, tmp_path):
    """As the chapter says it: the output is the emulator's first line."""
    subprocess.run([nvcc, "-o", tmp_path / "sum", _whole.FIRST], check=True)
    done = subprocess.run([tmp_path / "sum"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "the sum is 4500000: right\n")
