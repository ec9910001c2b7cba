// Solution 24, idle_threads. Chapter 5: divergence itself.
//
// why       A block of 128 takes 7 steps. Per warp that is 7 + 1 tests of the loop and 7 of the `if`: 15 branches,
//           and 60 in 4 warps. With strides 1 and 2, 64 and 32 threads work: whole warps. With strides 4, 8, 16, 32
//           and 64, 16, 8, 4, 2 and 1 threads of warp 0 work and its others do not: 5 branches diverge. 55 of 60 go
//           one way: 91.7%. In neighbored all 4 warps diverge in the first 5 steps, and there it is 61.7%.
// mistake   66.7: this takes warp 0 alone, where 10 of 15 branches go one way. The 3 other warps make 15 branches
//           each, and none diverges.
// mistake   100: from stride 4 on fewer threads than a warp work, and the rest of warp 0 goes the other way.
// mistake   82.1: this leaves out the tests of the loop, 8 per warp, at which no warp diverges.
