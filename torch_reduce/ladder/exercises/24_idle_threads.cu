// Exercise 24, idle_threads. Chapter 5: divergence itself.
//
// kind      predict
// asks      branch efficiency of neighbored_less, blocks of 128, float32
// task      Branch efficiency is the share of branches at which the threads of a warp all go the same way, in
//           percent. In neighbored_less, threads 0, 1, 2, ... work as long as 2 * stride * t is less than the block:
//           64 threads with stride 1, then 32, 16, ... 1. Each warp makes a branch for the loop's test, in each step
//           and once more at the end, and one for the `if`, in each step. Predict the branch efficiency for blocks of
//           128 threads. Answer with a percentage.
// hint      A warp goes two ways if some of its threads work and others do not. In which steps does that happen, and
//           in how many of the 4 warps? The last `if`, for the output, is no branch: its threads exit.
