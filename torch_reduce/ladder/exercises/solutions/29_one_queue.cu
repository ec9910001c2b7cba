// Solution 29, one_queue. Chapter 6: where it leads.
//
// why       A block of 256 threads has 256 / 32 = 8 warps, and one of its threads makes one atomic: 1 / 8 = 0.125
//           per warp. There are 0 in warp_shuffle_partials and the engine, where no order of arrival can be seen
//           in the sum.
// mistake   1: this is the number per block, and the counter is per warp.
// mistake   8: this is the number of warps of a block; one of them makes the atomic.
// mistake   256: each thread makes an atomic in the rung `atomic`, not here.
