// Exercise 25, no_branch_at_all. Chapter 5: divergence itself.
//
// kind      predict
// asks      branch efficiency of math_kernel1, blocks of 512, float32
// task      math_kernel1 is the classic example of divergence: even threads set a variable to 100, odd threads
//           another one to 200. The lesson says that half of the branches diverge. Read the kernel with `show
//           math_kernel1`, and think of what a compiler makes of the `if`. Predict the branch efficiency. Answer with
//           a percentage, or with the word none if the kernel makes no branch.
// hint      A warp can compute both values and let each thread select one.
