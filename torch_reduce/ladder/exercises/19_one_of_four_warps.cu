// Exercise 19, one_of_four_warps. Chapter 4: the modern steps.
//
// kind      predict
// asks      shuffles of warp_shuffle, blocks of 128, float32
// task      In warp_shuffle, the 32 threads of a warp add their values by shuffles. Then the first warp of the block
//           adds one value per warp, by as many shuffles again. Predict the shuffles per warp, for blocks of 128
//           threads: all shuffles of the block's warps, divided by its 4 warps. A shuffle by all threads of a warp
//           counts once. Answer with a number.
// hint      A shuffle halves the number of values that are left: 32, 16, ... How many does it take to get to one?
