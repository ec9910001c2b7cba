// Exercise 14, turns_of_a_bank. Chapter 3: seven steps in shared memory.
//
// kind      predict
// asks      bank conflicts of interleaved_strided, blocks of 128, float32
// task      Word w of shared memory lies in bank w % 32, and a bank hands out one word per turn. A request of a warp
//           that needs k turns counts as k - 1 conflicts. In interleaved_strided, thread t adds word 2 * s * t + s to
//           word 2 * s * t, for s = 1, 2, 4, ... 64: two loads and a store. Predict the conflicts per warp, for
//           blocks of 128 threads: all conflicts of the block, divided by its 4 warps. Answer with a number.
// hint      With s = 1, two warps work. Their threads touch every second word of 64: how many words share a bank? The
//           three requests of a warp have the same number of conflicts.
