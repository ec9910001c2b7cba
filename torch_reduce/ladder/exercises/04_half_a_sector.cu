// Exercise 4, half_a_sector. Chapter 1: in place, in global memory.
//
// kind      predict
// asks      global load efficiency of neighbored, blocks of 64, float64
// task      Memory hands a warp sectors of 32 bytes. Load efficiency is the bytes that the threads use, as a
//           percentage of the bytes in the sectors that they touch. In neighbored, thread t loads element t and
//           element t + stride if t is a multiple of 2 * stride. Predict the load efficiency for blocks of 64 threads
//           and elements of 8 bytes. Answer with a percentage.
// hint      Take the steps one by one. With stride 1, 16 threads of a warp load 8 bytes each: how many of the warp's
//           8 sectors do they touch? Thread 0 loads one element more at the end, to write the sum.
