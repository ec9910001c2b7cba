// Solution 25, no_branch_at_all. Chapter 5: divergence itself.
//
// why       The two sides of the `if` set registers and touch no memory. Such an `if` becomes a selection: each
//           thread picks 100 or 200, and no thread jumps. The first `if`, `tid >= n`, leaves the kernel: its threads
//           exit without a branch, too. So the kernel makes 0 branches, and there is no efficiency: none. That is why
//           math_kernel2, which is cut along warps, is no faster. See long_by_thread and long_by_warp for bodies that
//           are too long for a selection.
// mistake   50: so it would be if the `if` were a jump and nothing else counted. The compiler makes a selection of
//           it.
// mistake   0: 0% would mean that there are branches and all of them diverge.
