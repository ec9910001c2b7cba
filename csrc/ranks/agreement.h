// The notices that ranks exchange before they add tensors, and their comparison: one source for CPU and GPU.
#pragma once

#include <cstdint>

#include "../core/order.h"

namespace gpureduce {

// A **notice** describes what one rank is about to do. torch_reduce/distributed/_messages.py writes it as these 64-bit words:
//   0, 1   a digest: ranks with equal digests agree
//   2      a number that may differ from rank to rank
//   3      the length of the text in bytes; negative if the rank's host does not wait for the other notices
//   4...   the text, cut to the room that is left
constexpr int kDigestWords = 2, kLengthWord = 3, kTextWord = 4, kNoticeWords = 32;
constexpr int kTextRoom = (kNoticeWords - kTextWord) * 8;
constexpr int kDifferenceRoom = 2 * kTextRoom + 120;  // the text of describe_difference

GPUREDUCE_HOST_DEVICE bool agree(const int64_t* a, const int64_t* b) {
  bool same = true;
  for (int k = 0; k < kDigestWords; ++k) same &= a[k] == b[k];
  return same;
}

// Appends characters.
struct Line {
  char* to;

  GPUREDUCE_HOST_DEVICE void add(const char* text, int64_t most) {
    for (; most > 0 && *text; --most) *to++ = *text++;
  }
  GPUREDUCE_HOST_DEVICE void add(int64_t number) {
    char digits[20];
    int count = 0;
    do digits[count++] = static_cast<char>('0' + number % 10);
    while ((number /= 10) > 0);
    while (count > 0) *to++ = digits[--count];
  }
};

// Writes the texts of this rank and of the first rank that disagrees with it, in the order of the ranks.
GPUREDUCE_OUT_OF_LINE inline void describe_difference(const int64_t* notices, int64_t ranks, const int64_t* mine, char* to) {
  int64_t own = 0, other = 0;
  while (own < ranks - 1 && !agree(notices + own * kNoticeWords, mine)) ++own;
  while (other < ranks - 1 && agree(notices + other * kNoticeWords, mine)) ++other;
  Line line{to};
  line.add("torch_reduce.distributed: the ranks disagree: ", 100);
  for (int k = 0; k < 2; ++k) {
    const int64_t rank = (k == 0) == (own < other) ? own : other;
    if (k == 1) line.add("; ", 2);
    line.add(reinterpret_cast<const char*>(notices + rank * kNoticeWords + kTextWord), kTextRoom);
    line.add(" on rank ", 9);
    line.add(rank);
  }
  *line.to = '\0';
}

}  // namespace gpureduce
