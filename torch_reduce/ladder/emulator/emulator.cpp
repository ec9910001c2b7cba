// Runs a kernel's threads as fibers, and counts what they do.
//
// Kernels are compiled with -fsanitize=thread, which puts a call of __tsan_read4(address) before every load of 4 bytes, and
// so on; but the functions that it calls are those below, not those of the thread sanitizer. So kernels stay as they are.
//
// An example: lanes 0 to 31 of a warp load data[2 * lane], 4 bytes each. One line of the source makes 32 calls; those with
// the same place in the code, the same number of barriers before them and the same turn of a loop are one request of the
// warp. It touches 256 bytes, 8 sectors of 32 bytes, and uses 128: a load efficiency of 50%. In shared memory, lane l meets
// bank 2 * l % 32: lanes 0 and 16 want two words of bank 0, so the request takes two turns where one is enough: one conflict.
#include "emulator.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "cuda_runtime.h"

dim3 threadIdx(0, 0, 0), blockIdx(0, 0, 0), blockDim, gridDim;

namespace {

unsigned self = 0;  // the thread whose turn it is: its number in the block, x first, as warps count them

unsigned count(const dim3& all) { return all.x * all.y * all.z; }
dim3 place_of(unsigned number, const dim3& all) {
  dim3 place;
  place.x = number % all.x;
  place.y = number / all.x % all.y;
  place.z = number / all.x / all.y;
  return place;
}

// 5, or (5, 1) where there are two dimensions.
std::string named(unsigned number, const dim3& all) {
  if (all.y * all.z == 1) return std::to_string(number);
  const dim3 place = place_of(number, all);
  std::string text = "(" + std::to_string(place.x) + ", " + std::to_string(place.y);
  return text + (all.z > 1 ? ", " + std::to_string(place.z) + ")" : ")");
}
std::string thread_name(unsigned thread) { return "thread " + named(thread, blockDim); }
std::string block_name(unsigned block) { return "block " + named(block, gridDim); }

}  // namespace

namespace emulate {

bool descending = false, traced = false, in_step = false, whole = false, last_block_first = false;
int64_t sampled = 16;

namespace {

// --- what is told ----------------------------------------------------------------------------------------------------------

int told = STDOUT_FILENO;

// Before all of a learner's file: what a kernel prints goes to the standard error, and is never taken for a result.
__attribute__((constructor(101))) void keep_output() {
  told = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  dup2(STDERR_FILENO, STDOUT_FILENO);
}

// --- memory ----------------------------------------------------------------------------------------------------------------

constexpr size_t kGap = 1 << 20, kGlobal = size_t{1} << 32, kShared = size_t{1} << 20, kSharedLimit = 48 * 1024,
                 kStack = 1 << 16, kGuard = 1 << 12;
constexpr unsigned kMostThreads = 1024;
constexpr int64_t kMostTurns = 4'000'000, kMostBarriers = 10'000;  // per thread: more are taken for a loop that never ends
constexpr size_t kMostEvents = 1 << 20;                            // kept at a time, some 40 MB

struct Array {
  std::string name;
  size_t begin, bytes, element;        // begin: an offset in the memory
  bool taken = false;                  // by cudaMalloc: to be freed
  mutable bool filled = false;         // then: something has been put there
  mutable std::vector<uint8_t> holds;  // into which bytes
};

char* memory = nullptr;  // shared memory, then global memory
size_t used = kShared + kGap;
std::vector<Array> global_arrays, shared_arrays;
std::map<int, size_t> declared;  // shared arrays of this block, by the number of their declaration
size_t shared_used = 0, dynamic_bytes = 0;

// What was done last with 4 bytes, to find accesses that no barrier puts in order.
struct Touch {
  int64_t block = -1;
  uint32_t thread = 0, barriers = 0, warp_barriers = 0;
  uintptr_t place = 0;
  bool atomic = false;
};
struct Cell {
  Touch write, read, other_read;  // two readers, of different threads
};
std::map<size_t, std::vector<Cell>> pages;  // 1024 cells each
std::vector<uint8_t> written;               // of shared memory: has this block written the byte?

Cell& cell_of(size_t offset) {
  static size_t known = SIZE_MAX;
  static std::vector<Cell>* page = nullptr;
  if (known != offset / 4096) {
    page = &pages[known = offset / 4096];
    page->resize(1024);
  }
  return (*page)[offset % 4096 / 4];
}

void make_memory() {
  if (memory) return;
  memory = static_cast<char*>(
      mmap(nullptr, kShared + kGlobal, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (memory == MAP_FAILED) fault("no address space for the emulated memory");
}

const Array* find(const std::vector<Array>& arrays, size_t offset) {
  for (const Array& array : arrays)
    if (offset >= array.begin && offset < array.begin + array.bytes) return &array;
  return nullptr;
}

std::string name_of(size_t offset) {
  const Array* array = find(offset < kShared ? shared_arrays : global_arrays, offset);
  if (!array) return "memory outside of every array";
  return array->name + "[" + std::to_string((offset - array->begin) / array->element) + "]";
}

// --- what is counted -------------------------------------------------------------------------------------------------------

bool crowded();

enum Kind { kLoad, kStore, kSharedLoad, kSharedStore, kAtomic, kTest, kShuffle };

struct Event {
  uintptr_t place;  // in the code; of a test, its number
  size_t offset;    // in the memory; of a test, its outcome
  uint32_t thread, syncs;
  uint8_t kind, size;
};
std::vector<Event> events;  // of this block

struct Requests { int64_t requests = 0, bytes = 0, sectors = 0, conflicts = 0; };
std::map<std::pair<uintptr_t, int>, Requests> requests;  // by place and kind

struct Test {
  bool loop = false, leaves = false, barrier = false, inner = false;
  int64_t warps = 0, divergent = 0, thinned = 0;  // thinned: each sixteenth turn of a loop, as if it were unrolled
  int global = 0;                                 // most accesses of one thread to it between begin and end
};
std::map<int, Test> tests;

struct Step {
  uint32_t thread, syncs;
  uint8_t kind;
  std::string array;
  uintptr_t place;
};
std::vector<Step> steps;

struct Race {
  int64_t count = 0;
  int line = 0;         // where the place in the code is not known
  bool atomic = false;  // of a race: a plain read meets an atomic change
  std::string text;
  int64_t away = 0, farthest = 0;  // of an access outside of an array: elements behind its end, the first and the farthest
  std::string farther;             // what the farthest one touches
};
std::map<std::tuple<uintptr_t, uintptr_t, bool>, Race> races;
std::map<std::tuple<uintptr_t, std::string>, Race> wrong_accesses;

struct Launched {
  unsigned block = 0;
  int64_t barriers = 0, warp_barriers = 0, shuffles = 0, warps = 0, shared_bytes = 0;
  bool wide_atomics = false;  // of 8 bytes, in shared memory
} first_launch;

// --- fibers ----------------------------------------------------------------------------------------------------------------

enum Wait { kReady, kAtBlock, kAtWarp, kAtAccess, kDone };

struct Open { int site, global; };
struct LocalArray {
  const char *begin, *name;
  size_t bytes, element;
};
constexpr int kScribble = 0xfe;  // the bytes of a local variable that nothing has been written to
struct Fiber {
  jmp_buf state;
  ucontext_t start;
  bool begun = false;
  Wait wait = kDone;
  unsigned mask = 0;
  int line = 0, value = 0;
  uint32_t syncs = 0, barriers = 0, warp_barriers = 0;
  int64_t turns = 0;
  std::vector<Open> open;
  std::vector<LocalArray> locals;
};

std::vector<Fiber> fibers;
alignas(16) char slots[kMostThreads][16];
jmp_buf scheduler;
Fiber* current = nullptr;
const char *stacks = nullptr, *host_frame = nullptr;  // of all fibers; and where the host's stack ends in a launch
const std::function<void()>* body = nullptr;
int64_t launches = 0, block_number = 0;
bool counted = false, fenced = false;
int voted = 0;

void yield() {
  if (!_setjmp(current->state)) _longjmp(scheduler, 1);
}

void live() {
  for (;;) {
    (*body)();
    for (const Open& open : current->open) tests[open.site].leaves = true;
    current->wait = kDone;
    yield();
  }
}

void resume(unsigned thread) {
  Fiber& fiber = fibers[thread];
  current = &fiber;
  self = thread;
  threadIdx = place_of(thread, blockDim);
  if (_setjmp(scheduler)) return;
  if (fiber.begun) _longjmp(fiber.state, 1);
  fiber.begun = true;
  setcontext(&fiber.start);
}

void make_fibers() {
  if (!fibers.empty()) return;
  fibers.resize(kMostThreads);
  char* const mapped = static_cast<char*>(
      mmap(nullptr, kMostThreads * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (mapped == MAP_FAILED) fault("no memory for the threads' stacks");
  stacks = mapped;
  for (unsigned t = 0; t < kMostThreads; ++t) {
    getcontext(&fibers[t].start);
    fibers[t].start.uc_stack.ss_sp = mapped + t * kStack;
    fibers[t].start.uc_stack.ss_size = kStack;
    fibers[t].start.uc_link = nullptr;
    makecontext(&fibers[t].start, live, 0);
    mprotect(mapped + t * kStack, kGuard, PROT_NONE);
  }
}

Race& wrong_access(uintptr_t place, const std::string& what, const std::string& text, int line = 0);

// Lets those threads of a warp go on that wait for each other and have all come.
bool join_warp(unsigned first, unsigned last) {
  bool any = false;
  for (unsigned t = first; t < last; ++t) {
    if (fibers[t].wait != kAtWarp) continue;
    const unsigned mask = fibers[t].mask;
    bool all = true;
    for (unsigned other = first; other < last; ++other)
      if (mask >> (other - first) & 1) all &= fibers[other].wait == kAtWarp || fibers[other].wait == kDone;
    if (!all) continue;
    for (unsigned other = first; other < last; ++other)
      if (mask >> (other - first) & 1 && fibers[other].wait == kDone)
        wrong_access(0, "mask",
                     "the mask names " + thread_name(other) + ", which has left the kernel or skips this line: undefined",
                     fibers[t].line);
    for (unsigned other = first; other < last; ++other) {
      if (!(mask >> (other - first) & 1) || fibers[other].wait != kAtWarp) continue;
      fibers[other].wait = kReady;
      any = true;
    }
  }
  return any;
}

// Threads that run in step have all come to their next access, or wait for something else: all go on.
bool next_access(unsigned first, unsigned last) {
  bool any = false;
  for (unsigned t = first; t < last; ++t) {
    if (fibers[t].wait != kAtAccess) continue;
    fibers[t].wait = kReady;
    any = true;
  }
  return any;
}

void run_warp(unsigned first, unsigned last) {
  bool again = true;
  while (again) {
    for (unsigned i = first; i < last; ++i) {
      const unsigned t = descending ? first + last - 1 - i : i;
      if (fibers[t].wait == kReady) resume(t);
    }
    again = next_access(first, last) || join_warp(first, last);
  }
}

void flush();

void run_block() {
  const unsigned threads = count(blockDim), warps = (threads + 31) / 32;
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = fibers[t];
    fiber.wait = kReady;
    fiber.syncs = fiber.barriers = fiber.warp_barriers = 0;
    fiber.turns = 0;
    fiber.open.clear();
    fiber.locals.clear();
  }
  declared.clear();
  shared_arrays.clear();
  shared_used = 0;
  if (dynamic_bytes) {
    shared_arrays.push_back({"dynamic", 0, dynamic_bytes, 4});
    shared_used = dynamic_bytes;
  }
  // Shared memory begins with whatever the block before left there.
  std::memset(memory, 0x7f, 2 * kSharedLimit);
  std::fill(written.begin(), written.end(), 0);
  for (;;) {
    for (unsigned i = 0; i < warps; ++i) {
      const unsigned warp = descending ? warps - 1 - i : i;
      run_warp(warp * 32, std::min(threads, warp * 32 + 32));
    }
    unsigned waiting = 0, done = 0;
    int line = 0;
    for (unsigned t = 0; t < threads; ++t) {
      const Fiber& fiber = fibers[t];
      done += fiber.wait == kDone;
      if (fiber.wait == kAtWarp)
        fault(thread_name(t) + " waits at a barrier or shuffle of its warp for threads that its mask names and that never come",
              0, fiber.line);
      if (fiber.wait != kAtBlock) continue;
      if (line && line != fiber.line)
        fault("some threads wait at this __syncthreads(), others at the one of line " + std::to_string(line) +
                  ": a GPU may hang or mix them up",
              0, fiber.line);
      line = fiber.line;
      ++waiting;
    }
    if (done == threads) break;
    if (done)
      wrong_access(0, "barrier",
                   std::to_string(waiting) + " threads wait at this __syncthreads(), and the other " + std::to_string(done) +
                       " have left the kernel or skip it: undefined, all threads of a block must come",
                   line);
    for (unsigned t = 0; t < threads; ++t)
      if (fibers[t].wait == kAtBlock) fibers[t].wait = kReady;
    voted = 0;
    for (unsigned t = 0; t < threads; ++t) voted += fibers[t].wait == kReady ? fibers[t].value : 0;
    if (counted && waiting) first_launch.barriers += warps;
    if (events.size() > kMostEvents) flush();  // no request has events from both sides of a barrier
  }
  if (counted) {
    first_launch.warps += warps;
    first_launch.shared_bytes = static_cast<int64_t>(shared_used);
    flush();
  }
}

// --- an access -------------------------------------------------------------------------------------------------------------

bool ordered(const Touch& before, const Touch& now, bool shared) {
  if (before.block < 0 || (before.block == now.block && before.thread == now.thread)) return true;
  if (before.atomic && now.atomic) return true;
  // Each block has shared memory of its own, and a launch comes after the one before.
  if (before.block != now.block) return shared || fenced || before.block >> 32 != now.block >> 32;
  if (before.barriers < now.barriers) return true;
  return before.thread / 32 == now.thread / 32 && before.warp_barriers < now.warp_barriers;
}

void race(const Touch& before, const Touch& now, bool wrote_before, bool writes, size_t offset) {
  const bool warp = before.block == now.block && before.thread / 32 == now.thread / 32;
  Race& found = races[{before.place, now.place, warp}];
  if (found.count++) return;
  const auto who = [&](const Touch& touch) {
    std::string text = thread_name(touch.thread);
    return before.block == now.block ? text : text + " of " + block_name(static_cast<unsigned>(touch.block));
  };
  found.atomic = (before.atomic && !writes) || (now.atomic && !wrote_before);
  found.text = who(now) + (writes ? " writes " : " reads ") + name_of(offset) + ", which " + who(before) +
               (wrote_before ? " wrote" : " reads") +
               (before.block != now.block ? ", and no order of blocks is known"
                : warp                    ? ", with no __syncwarp() between them"
                                          : ", with no __syncthreads() between them");
}

Race& wrong_access(uintptr_t place, const std::string& what, const std::string& text, int line) {
  Race& found = wrong_accesses[{place ? place : static_cast<uintptr_t>(line), what}];
  if (found.count++ == 0) {
    found.text = text;
    found.line = line;
  }
  return found;
}

// Where an address lies that is in no array, from the array that is nearest: "x[1003], 4 elements behind its end (x has 1000)".
// Far from all: "what would be x[1000000] or out[736832]".
struct Outside {
  std::string what;
  int64_t away = 0;  // elements
};
Outside outside(int64_t at, bool shared) {
  Outside found;
  int64_t nearest = INT64_MAX;
  std::string others;
  for (const Array& near : shared ? shared_arrays : global_arrays) {
    const int64_t begin = static_cast<int64_t>(near.begin), end = begin + static_cast<int64_t>(near.bytes);
    const int64_t element = static_cast<int64_t>(near.element), bytes = at < begin ? begin - at : at - end;
    const int64_t index = (at - begin - (at < begin ? element - 1 : 0)) / element;
    others += (others.empty() ? "" : " or ") + near.name + "[" + std::to_string(index) + "]";
    if (bytes >= nearest) continue;
    nearest = bytes;
    const int64_t has = static_cast<int64_t>(near.bytes) / element;
    found.away = index < 0 ? -index : index - has + 1;
    found.what = near.name + "[" + std::to_string(index) + "], " + std::to_string(found.away) +
                 (found.away == 1 ? " element " : " elements ") + (index < 0 ? "before its beginning" : "behind its end") +
                 " (" + near.name + " has " + std::to_string(has) + ")";
  }
  // Behind the gap between two arrays, the nearest need not be the one that was meant.
  if (nearest >= static_cast<int64_t>(kGap) && !others.empty()) found.what = "what would be " + others;
  return found;
}

std::string whose_turn() { return thread_name(self) + " of " + block_name(static_cast<unsigned>(block_number)); }

void check_order(size_t offset, const Touch& now, bool writes) {
  Cell& cell = cell_of(offset);
  const bool shared = offset < kShared;
  if (!ordered(cell.write, now, shared)) race(cell.write, now, true, writes, offset);
  if (writes) {
    if (!ordered(cell.read, now, shared)) race(cell.read, now, false, true, offset);
    if (!ordered(cell.other_read, now, shared)) race(cell.other_read, now, false, true, offset);
    cell.write = now;
  } else {
    if (cell.read.thread != now.thread || cell.read.block != now.block) cell.other_read = cell.read;
    cell.read = now;
  }
}

#ifdef __linux__
extern "C" char __executable_start, _end;
#endif

// Of a whole program: ends it where the host touches the GPU's memory, or a kernel the host's. A kernel may read its arguments,
// which lie on the host's stack, constants, and its own stack.
void check_side(const void* where, size_t offset, bool writes, uintptr_t place) {
  const bool global = offset < kShared + kGlobal;
  const std::string does = writes ? " writes " : " reads ";
  if (!current) {
    if (global)
      fault("the host" + does + name_of(offset) + ", which is in the GPU's memory: only kernels and cudaMemcpy reach it",
            place);
    return;
  }
  const char* const at = static_cast<const char*>(where);
  const bool own = at >= stacks && at < stacks + kMostThreads * kStack, argument = at >= host_frame && !writes;
#ifdef __linux__
  const bool constant = at >= &__executable_start && at < &_end;
#else
  const bool constant = true;
#endif
  if (global || own || argument || constant) return;
  fault(whose_turn() + does + "the host's memory: a kernel reaches only what cudaMalloc gave", place);
}

// A read of a local variable: are its bytes still what it was filled with?
void check_local(const char* where, size_t size, uintptr_t place) {
  for (const LocalArray& local : current->locals) {
    if (where < local.begin || where + size > local.begin + local.bytes || size < 4) continue;
    if (!std::all_of(where, where + size, [](char byte) { return static_cast<unsigned char>(byte) == kScribble; })) continue;
    const bool array = local.bytes > local.element;
    const size_t index = static_cast<size_t>(where - local.begin) / local.element;
    wrong_access(place, array ? "nothing there" : "unset",
                 whose_turn() + " reads " + local.name + (array ? "[" + std::to_string(index) + "]" : "") +
                     ", a local variable that it has not written: on a GPU it holds anything");
  }
}

// Of an array of cudaMalloc's: bytes from `offset` on hold something from now on; the first of them that does not, or the end.
void put(const Array& array, size_t offset, size_t bytes) {
  array.filled = true;
  std::fill_n(array.holds.begin() + static_cast<int64_t>(offset - array.begin), bytes, 1);
}
size_t first_empty(const Array& array, size_t offset, size_t bytes) {
  const auto begin = array.holds.begin() + static_cast<int64_t>(offset - array.begin);
  return offset + static_cast<size_t>(std::find(begin, begin + static_cast<int64_t>(bytes), 0) - begin);
}

void note(const void* where, size_t size, bool writes, bool atomic, uintptr_t place) {
  if (!memory || (!current && !whole)) return;
  const size_t offset = static_cast<size_t>(static_cast<const char*>(where) - memory);
  if (whole) check_side(where, offset, writes, place);
  if (!current) return;
  if (offset >= kShared + kGlobal) {  // a local variable, or the host's memory
    if (!writes && !current->locals.empty()) check_local(static_cast<const char*>(where), size, place);
    return;
  }
  if (in_step) {
    current->wait = kAtAccess;
    yield();
  }
  const bool shared = offset < kShared;
  const Array* array = find(shared ? shared_arrays : global_arrays, offset);
  if (!array || offset + size > array->begin + array->bytes) {
    const Outside where = outside(static_cast<int64_t>(offset), shared);
    const std::string did = writes ? " writes " : " reads ";
    Race& found = wrong_access(place, writes ? "write outside" : "read outside",
                               whose_turn() + did + (where.what.empty() ? "outside of every array" : where.what));
    if (found.count == 1) found.away = found.farthest = where.away;
    if (where.away > found.farthest) {
      found.farthest = where.away;
      found.farther = whose_turn() + ", " + where.what.substr(0, where.what.find(" ("));
    }
    if (writes && wrong_accesses.size() > 20) fault("too many writes outside of arrays", place);
  } else {
    if (array->taken && writes) put(*array, offset, size);
    if (array->taken && !writes && first_empty(*array, offset, size) < offset + size)
      wrong_access(place, "not filled",
                   whose_turn() + " reads " + name_of(offset) + ", and nothing has been copied or written " +
                       (array->filled ? "there" : "to " + array->name));
    if (shared && !writes) {
      bool known = true;
      for (size_t i = 0; i < size; ++i) known &= written[offset + i];
      if (!known)
        wrong_access(place, "nothing there", whose_turn() + " reads " + name_of(offset) + ", where nothing has been written");
    }
    if (shared && writes) std::fill_n(written.begin() + static_cast<int64_t>(offset), size, 1);
    if (size >= 4) {
      const Touch now{block_number, self, current->barriers, current->warp_barriers, place, atomic};
      for (size_t i = 0; i < size; i += 4) check_order(offset + i, now, writes);
    }
  }
  if (!counted || crowded()) return;
  first_launch.wide_atomics |= atomic && shared && size == 8;
  const Kind kind = atomic ? kAtomic : shared ? (writes ? kSharedStore : kSharedLoad) : (writes ? kStore : kLoad);
  events.push_back({place, offset, self, current->syncs, static_cast<uint8_t>(kind), static_cast<uint8_t>(size)});
  for (Open& open : current->open) open.global += !shared;
  if (traced && block_number % (int64_t{1} << 32) == 0)
    steps.push_back({self, current->syncs, static_cast<uint8_t>(kind), name_of(offset), place});
}

// Whether a block does so much between two barriers that no more of it is kept: about 200 MB.
bool crowded() { return events.size() > 4 * kMostEvents; }

// --- requests of warps -----------------------------------------------------------------------------------------------------

int64_t conflicts_of(const Event* first, const Event* last) {
  // A request of 4 bytes per lane takes one turn, of 8 bytes two, of 16 four, if no two words want the same bank in a turn.
  const unsigned lanes = first->size <= 4 ? 32 : 128 / first->size;
  int64_t turns = 0, least = 0;
  for (unsigned part = 0; part < 32; part += lanes) {
    std::map<size_t, std::set<size_t>> banks;
    for (const Event* event = first; event != last; ++event) {
      if (event->thread % 32 / lanes != part / lanes) continue;
      for (size_t word = event->offset / 4; word * 4 < event->offset + event->size; ++word) banks[word % 32].insert(word);
    }
    size_t most = 0;
    for (const auto& [bank, words] : banks) most = std::max(most, words.size());
    turns += static_cast<int64_t>(most);
    least += most > 0;
  }
  return turns - least;
}

void count_request(const Event* first, const Event* last, size_t turn) {
  if (first->kind == kTest) {
    Test& test = tests[static_cast<int>(first->place)];
    const bool some = std::any_of(first, last, [](const Event& event) { return event.offset != 0; });
    const bool all = std::all_of(first, last, [](const Event& event) { return event.offset != 0; });
    ++test.warps;
    test.divergent += some && !all;
    test.thinned += turn % 16 == 0 || (some && !all);
    return;
  }
  Requests& found = requests[{first->place, first->kind}];
  ++found.requests;
  if (first->kind == kSharedLoad || first->kind == kSharedStore) {
    found.conflicts += conflicts_of(first, last);
    return;
  }
  std::set<size_t> sectors;
  for (const Event* event = first; event != last; ++event) {
    found.bytes += event->size;
    for (size_t sector = event->offset / 32; sector * 32 < event->offset + event->size; ++sector) sectors.insert(sector);
  }
  found.sectors += static_cast<int64_t>(sectors.size());
}

// Puts this block's events together to requests: of one warp, one place, one stretch between barriers, one turn of a loop.
void flush() {
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tuple(a.thread / 32, a.kind, a.place, a.syncs, a.thread) <
           std::tuple(b.thread / 32, b.kind, b.place, b.syncs, b.thread);
  });
  std::vector<Event> request;
  for (size_t first = 0, last = 0; first < events.size(); first = last) {
    const auto key = [](const Event& event) { return std::tuple(event.thread / 32, event.kind, event.place, event.syncs); };
    while (last < events.size() && key(events[last]) == key(events[first])) ++last;
    std::vector<size_t> begins;  // for each thread, where its events of this kind and place begin
    for (size_t i = first; i < last; ++i)
      if (i == first || events[i].thread != events[i - 1].thread) begins.push_back(i);
    for (size_t turn = 0;; ++turn) {
      request.clear();
      for (size_t k = 0; k < begins.size(); ++k) {
        const size_t i = begins[k] + turn, end = k + 1 < begins.size() ? begins[k + 1] : last;
        if (i < end) request.push_back(events[i]);
      }
      if (request.empty()) break;
      count_request(request.data(), request.data() + request.size(), turn);
    }
  }
  events.clear();
}

void sync(Wait wait, int line) {
  if (!current) return;
  ++current->syncs;
  current->wait = wait;
  current->line = line;
  for (Open& open : current->open) tests[open.site].barrier = true;
  yield();
}

}  // namespace

// --- what kernels call -----------------------------------------------------------------------------------------------------

unsigned thread() { return self; }
unsigned threads() { return count(blockDim); }
unsigned lane() { return self % 32; }
void* slot(unsigned thread) { return slots[thread]; }

void launch_threads(const char* kernel, const Launch& how, const std::function<void()>& run) {
  host_frame = static_cast<const char*>(__builtin_frame_address(0));
  make_memory();
  make_fibers();
  written.resize(kShared);
  if (count(how.block) == 0 || count(how.grid) == 0) fault(std::string(kernel) + ": an empty grid or block");
  if (count(how.block) > kMostThreads)
    fault(std::string(kernel) + ": " + std::to_string(count(how.block)) + " threads per block; 1024 are the most");
  if (how.shared > kSharedLimit)
    fault(std::string(kernel) + ": " + std::to_string(how.shared) + " bytes of shared memory; 49152 are the most");
  gridDim = how.grid;
  blockDim = how.block;
  dynamic_bytes = how.shared;
  body = &run;
  fenced = false;
  const bool is_first = launches++ == 0;
  const unsigned blocks = count(how.grid);
  if (is_first) first_launch.block = count(how.block);
  for (unsigned i = 0; i < blocks; ++i) {
    const unsigned b = last_block_first ? blocks - 1 - i : i;
    blockIdx = place_of(b, how.grid);
    block_number = launches << 32 | b;
    // The first and the last block are always among those that are counted.
    const int64_t every = std::max<int64_t>(1, (blocks + sampled - 1) / sampled);
    counted = is_first && (b % every == 0 || b + 1 == blocks);
    run_block();
  }
  current = nullptr;
}

void* shared(int id, size_t size, size_t align, const char* name) {
  const auto found = declared.find(id);
  if (found != declared.end()) return memory + found->second;
  const size_t element = std::max<size_t>(align, 1), step = std::max<size_t>(align, 16);
  const size_t begin = (shared_used + step - 1) / step * step;
  if (begin + size > kSharedLimit)
    fault(std::string("the block's shared arrays take ") + std::to_string(begin + size) + " bytes; 49152 are the most");
  declared[id] = begin;
  shared_used = begin + size;
  shared_arrays.push_back({name, begin, size, element});
  return memory + begin;
}

void Local::begin(void* where, size_t bytes, size_t element, const char* name) {
  if (!current) return;
  begun = true;
  std::memset(where, kScribble, bytes);
  current->locals.push_back({static_cast<const char*>(where), name, bytes, element});
}
void Local::end() { current->locals.pop_back(); }

void* dynamic_shared(size_t element, const char* name) {
  if (dynamic_bytes) {
    shared_arrays[0].name = name;
    if (element > 1) shared_arrays[0].element = element;  // bytes are cast to what they hold, of 4 bytes mostly
  }
  if (!dynamic_bytes) fault("extern __shared__: the launch gives no shared memory (the third number in <<<...>>>)");
  return memory;
}

void block_barrier(int line) {
  if (!current) return;
  ++current->barriers;
  ++current->warp_barriers;
  sync(kAtBlock, line);
}

void warp_barrier(unsigned mask, int line) {
  if (!current) return;
  ++current->warp_barriers;
  current->mask = mask;
  if (counted && lane() == 0) ++first_launch.warp_barriers;
  sync(kAtWarp, line);
}

void fence() { fenced = true; }

int vote(int line, int value) {
  current->value = value;
  block_barrier(line);
  const int found = voted;
  block_barrier(line);
  return found;
}

bool turn(int site) {
  if (current && (++current->turns > kMostTurns || current->barriers > kMostBarriers || current->syncs > 4 * kMostBarriers))
    fault(thread_name(self) + " goes round this loop again and again: does it end?", 0, -site);
  return true;
}

bool test(int site, bool loop, bool outcome) {
  if (!current) return outcome;
  if (loop) turn(site);
  if (!counted || crowded()) return outcome;
  tests[site].loop = loop;
  for (const Open& open : current->open)
    if (open.site != site) tests[open.site].inner = true;
  if (loop)  // the next turn of a loop ends the one before
    while (!current->open.empty() &&
           std::any_of(current->open.begin(), current->open.end(), [&](const Open& open) { return open.site == site; }))
      end(current->open.back().site);
  events.push_back({static_cast<uintptr_t>(site), outcome, self, current->syncs, kTest, 0});
  return outcome;
}

void begin(int site) {
  if (!current || !counted) return;
  current->open.push_back({site, 0});
}

void end(int site) {
  if (!current || !counted) return;
  while (!current->open.empty()) {
    const Open open = current->open.back();
    current->open.pop_back();
    Test& test = tests[open.site];
    test.global = std::max(test.global, open.global);
    if (open.site == site) return;
  }
}

void note_atomic(const void* where, size_t size, const void* place) {
  note(where, size, true, true, reinterpret_cast<uintptr_t>(place));
}

void note_shuffle(unsigned from, bool nothing) {
  if (!counted) return;
  if (lane() == 0) ++first_launch.shuffles;
  if (traced && block_number % (int64_t{1} << 32) == 0)
    steps.push_back({self, current->syncs, kShuffle, nothing ? "" : "t" + std::to_string(from), 0});
}

// --- the program's side ----------------------------------------------------------------------------------------------------

void* device(size_t size, size_t element, const char* name) { return allocate(size, element, name); }

void* allocate(size_t bytes, size_t element, const char* name) {
  make_memory();
  used = (used + 255) / 256 * 256;
  global_arrays.push_back({name, used, bytes, element});
  void* where = memory + used;
  used += bytes + kGap;
  if (used > kShared + kGlobal) fault("more than 4 GiB of emulated memory");
  return where;
}

size_t room(const void* where) {
  const size_t offset = static_cast<size_t>(static_cast<const char*>(where) - memory);
  const Array* array = memory && offset >= kShared && offset < kShared + kGlobal ? find(global_arrays, offset) : nullptr;
  return array ? array->begin + array->bytes - offset : 0;
}

void* take(size_t bytes, size_t element, const char* name) {
  void* where = allocate(bytes, element, name);
  global_arrays.back().taken = true;
  global_arrays.back().holds.assign(bytes, 0);
  std::memset(where, 0xff, bytes);  // as floats: not a number
  return where;
}

void fill(const void* where, size_t bytes) {
  const size_t offset = static_cast<size_t>(static_cast<const char*>(where) - memory);
  if (const Array* array = find(global_arrays, offset); array && array->taken) put(*array, offset, bytes);
}

std::string empty_elements(const void* where, size_t bytes) {
  const size_t offset = static_cast<size_t>(static_cast<const char*>(where) - memory);
  const Array* array = find(global_arrays, offset);
  if (!array || !array->taken) return "";
  size_t count = 0, first = 0;
  for (size_t at = first_empty(*array, offset, bytes); at < offset + bytes; ++count) {
    if (!count) first = at;
    const size_t behind = at + array->element - (at - array->begin) % array->element;  // the next element
    at = behind < offset + bytes ? first_empty(*array, behind, offset + bytes - behind) : behind;
  }
  if (!count) return "";
  return name_of(first) + (count > 1 ? " and " + std::to_string(count - 1) + " more of its elements" : "");
}

bool release(void* where) {
  const auto found = std::find_if(global_arrays.begin(), global_arrays.end(),
                                  [&](const Array& array) { return array.taken && memory + array.begin == where; });
  if (found == global_arrays.end()) return false;
  global_arrays.erase(found);
  return true;
}

std::vector<std::string> arrays() {
  std::vector<std::string> names;
  for (const Array& array : global_arrays)
    if (array.taken) names.push_back(array.name);
  return names;
}

void complain(const std::string& text, int line) { wrong_access(0, text, text, line); }

namespace {

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

}  // namespace

std::string report() {
  std::ostringstream out;
  out << "\"block\": " << first_launch.block << ", \"warps\": " << first_launch.warps
      << ", \"barriers\": " << first_launch.barriers << ", \"warp_barriers\": " << first_launch.warp_barriers
      << ", \"shuffles\": " << first_launch.shuffles << ", \"shared_bytes\": " << first_launch.shared_bytes
      << ", \"wide_atomics\": " << first_launch.wide_atomics;
  const char* comma = "";
  out << ", \"requests\": [";
  for (const auto& [key, found] : requests) {
    out << comma << "{\"place\": " << key.first << ", \"kind\": " << key.second << ", \"requests\": " << found.requests
        << ", \"bytes\": " << found.bytes << ", \"sectors\": " << found.sectors << ", \"conflicts\": " << found.conflicts
        << "}";
    comma = ",\n ";
  }
  out << "], \"tests\": [";
  comma = "";
  for (const auto& [site, test] : tests) {
    out << comma << "{\"site\": " << site << ", \"loop\": " << test.loop << ", \"leaves\": " << test.leaves
        << ", \"barrier\": " << test.barrier << ", \"inner\": " << test.inner << ", \"warps\": " << test.warps
        << ", \"divergent\": " << test.divergent << ", \"thinned\": " << test.thinned << ", \"global\": " << test.global << "}";
    comma = ",\n ";
  }
  out << "], \"races\": [";
  comma = "";
  for (const auto& [key, found] : races) {
    out << comma << "{\"before\": " << std::get<0>(key) << ", \"now\": " << std::get<1>(key)
        << ", \"warp\": " << std::get<2>(key) << ", \"atomic\": " << found.atomic << ", \"count\": " << found.count
        << ", \"text\": " << quoted(found.text) << "}";
    comma = ",\n ";
  }
  out << "], \"wrong\": [";
  comma = "";
  for (const auto& [key, found] : wrong_accesses) {
    out << comma << "{\"place\": " << std::get<0>(key) << ", \"what\": " << quoted(std::get<1>(key))
        << ", \"count\": " << found.count << ", \"line\": " << found.line
        << ", \"text\": " << quoted(found.text + (found.farther.empty() ? "" : "; the farthest is " + found.farther)) << "}";
    comma = ",\n ";
  }
  out << "], \"steps\": [";
  comma = "";
  for (const Step& step : steps) {
    out << comma << "[" << step.thread << ", " << step.syncs << ", " << int{step.kind} << ", " << quoted(step.array) << ", "
        << step.place << "]";
    comma = ",\n ";
  }
  out << "]";
  return out.str();
}

void tell(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(told, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) _exit(4);
    done += static_cast<size_t>(wrote);
  }
}

std::string called(unsigned thread, unsigned block) { return thread_name(thread) + " of " + block_name(block); }

void fault(const std::string& what, uintptr_t place, int line) {
  // A line below 0 is the number of a test.
  tell("{\"fault\": " + quoted(what) + ", \"place\": " + std::to_string(place) + ", \"line\": " + std::to_string(line) + ", " +
       report() + "}\n");
  _exit(3);
}

namespace {

void on_crash(int signal, siginfo_t* info, void* context) {
#if defined(__x86_64__)
  const uintptr_t place = static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]) + 1;
#elif defined(__aarch64__)
  const uintptr_t place = static_cast<ucontext_t*>(context)->uc_mcontext.pc + 1;
#else
  const uintptr_t place = 0;
  (void)context;
#endif
  const std::string who = current ? whose_turn() : "the host";
  if (signal == SIGFPE) fault(who + " divides an integer by 0", place);
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  std::string did = " touches memory that is not there";
  if (stacks && at - (reinterpret_cast<uintptr_t>(stacks) - kGap) < kGap + kMostThreads * kStack && current) {
    did = " needs more than 64 KiB of stack";
  } else if (at > 0xffff && memory) {  // less is a pointer to nothing, or an address that the processor does not name
    const Outside where = outside(static_cast<int64_t>(at - reinterpret_cast<uintptr_t>(memory)), false);
    if (!where.what.empty()) did += ": " + where.what;
  }
  fault(who + did, place);
}

const int handlers = [] {
  struct sigaction action{};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  static char stack[1 << 16];
  stack_t alternative{};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, nullptr);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(signal, &action, nullptr);
  return 0;
}();

}  // namespace

}  // namespace emulate

// --- what the compiler calls -----------------------------------------------------------------------------------------------

#define PLACE reinterpret_cast<uintptr_t>(__builtin_return_address(0))
#define ACCESS(size)                                                                                 \
  void __tsan_read##size(void* where) { emulate::note(where, size, false, false, PLACE); }           \
  void __tsan_write##size(void* where) { emulate::note(where, size, true, false, PLACE); }           \
  void __tsan_volatile_read##size(void* where) { emulate::note(where, size, false, false, PLACE); }  \
  void __tsan_volatile_write##size(void* where) { emulate::note(where, size, true, false, PLACE); }  \
  void __tsan_unaligned_read##size(void* where) { emulate::note(where, size, false, false, PLACE); } \
  void __tsan_unaligned_write##size(void* where) { emulate::note(where, size, true, false, PLACE); } \
  void __tsan_read_write##size(void* where) {                                                        \
    emulate::note(where, size, false, false, PLACE);                                                 \
    emulate::note(where, size, true, false, PLACE);                                                  \
  }
extern "C" {
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void* where, size_t size) { emulate::note(where, std::min<size_t>(size, 16), false, false, PLACE); }
void __tsan_write_range(void* where, size_t size) { emulate::note(where, std::min<size_t>(size, 16), true, false, PLACE); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
