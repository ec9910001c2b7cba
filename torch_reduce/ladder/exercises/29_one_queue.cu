// Exercise 29, one_queue. Chapter 6: where it leads.
//
// kind      predict
// asks      atomics of multi_element, blocks of 256, float32
// task      The order in which atomics arrive is the order in which multi_element adds, so each of them is a
//           place where a run can differ from the one before. In multi_element each block adds its sum to the
//           result by one atomic. The counter says how many atomics a warp makes, on average. Predict it for
//           blocks of 256 threads. Answer with a number.
// hint      How many warps does a block of 256 threads have, and how many of them make an atomic?
