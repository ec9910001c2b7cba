// The host's side of a whole program: cudaMalloc, cudaMemcpy and so on, with the errors that CUDA gives. The program's own
// main() runs; when it ends, what its kernels did is told as for a rung.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "cuda_runtime.h"
#include "emulator.h"

namespace emulate {

namespace {

cudaError_t last = cudaSuccess;

cudaError_t refuse(const std::string& why, int line) {
  complain(why, line);
  return last = cudaErrorInvalidValue;
}

void end() {
  for (const std::string& name : arrays()) complain(name + " is never freed: cudaFree gives its memory back", 0);
  std::ostringstream out;
  out << "{\"name\": \"program\", " << report() << "}\n";
  tell(out.str());
}

const bool started = [] {
  whole = true;
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);  // a fault ends the program at once: what it printed before is not lost
  std::atexit(end);
  return true;
}();

}  // namespace

cudaError_t take(void** where, size_t bytes, size_t element, const char* name, int line) {
  std::string short_name(name);  // of "(void**)&x" or "&x": x
  short_name = short_name.substr(short_name.find_last_of("&) ") + 1);
  if (!where || !bytes) return refuse("cudaMalloc of " + std::to_string(bytes) + " bytes for " + short_name, line);
  *where = take(bytes, element, short_name.c_str());
  return cudaSuccess;
}

cudaError_t give_back(void* where, int line) {
  if (!where || release(where)) return cudaSuccess;
  return refuse("cudaFree: nothing that cudaMalloc gave begins at this pointer, or it is freed already", line);
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, int line) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const struct {
    const void* pointer;
    bool device;
    const char* name;
  } ends[] = {{to, to_device, "the first pointer, where it copies to,"},
              {from, from_device, "the second pointer, where it copies from,"}};
  for (const auto& each : ends) {
    const size_t here = room(each.pointer);
    const std::string text = std::string("cudaMemcpy: ") + each.name;
    if (each.device != (here > 0))
      return refuse(text + (each.device ? " is no pointer of cudaMalloc's" : " is in the GPU's memory") +
                        ", but the kind of copy says the other side",
                    line);
    if (each.device && bytes > here)
      return refuse(text + " has " + std::to_string(here) + " bytes left, and " + std::to_string(bytes) + " are asked for",
                    line);
  }
  if (const std::string empty = from_device ? empty_elements(from, bytes) : ""; !empty.empty())
    complain("cudaMemcpy copies " + empty + ", and nothing has been copied or written there", line);
  std::memcpy(to, from, bytes);
  if (to_device) fill(to, bytes);
  return cudaSuccess;
}

cudaError_t set(void* where, int value, size_t bytes, int line) {
  if (room(where) < bytes) return refuse("cudaMemset: the pointer has " + std::to_string(room(where)) + " bytes", line);
  std::memset(where, value, bytes);
  fill(where, bytes);
  return cudaSuccess;
}

cudaError_t last_error() { return std::exchange(last, cudaSuccess); }

}  // namespace emulate
