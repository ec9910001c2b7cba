#include "threads.h"

namespace gpureduce::cpu {

namespace {

Threads given;

}  // namespace

void use(const Threads& threads) { given = threads; }

int thread_count() { return given.count(); }

std::string capability() { return given.capability(); }

void parallel_for(int64_t begin, int64_t end, int64_t grain, Part part, const void* context) {
  given.parallel_for(begin, end, grain, part, context);
}

}  // namespace gpureduce::cpu
