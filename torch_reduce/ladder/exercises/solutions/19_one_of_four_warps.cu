// Solution 19, one_of_four_warps. Chapter 4: the modern steps.
//
// why       32 values take 5 shuffles: with offsets 16, 8, 4, 2 and 1. Each of the 4 warps makes 5, and the first
//           warp makes 5 more for the 4 sums, since it does not know that 2 were enough. That is 4 * 5 + 5 = 25 per
//           block, and 25 / 4 = 6.25 per warp. Blocks of 512 make 16 * 5 + 5 = 85, and 85 / 16 = 5.31 per warp: a
//           large block has more warps to share the second round.
// mistake   10: only the first warp makes the second round of 5. The other three warps make 5.
// mistake   5: each warp makes 5, and the first warp makes 5 more, to add the 4 sums of the warps.
// mistake   5.5: 4 sums need 2 shuffles, but the kernel's second round is the same for every block: 5.
