// Solution 14, turns_of_a_bank. Chapter 3: seven steps in shared memory.
//
// why       Words per bank, and so conflicts per request: s = 1: two warps, 2 words, 1 conflict; s = 2: one warp, 4
//           words, 3 conflicts; s = 4: 16 threads in 4 banks, 3 conflicts; s = 8: 8 threads in 2 banks, 3 conflicts;
//           s = 16: 4 threads in one bank, 3 conflicts; s = 32: 2 threads in one bank, 1 conflict; s = 64: none. That
//           is 2 * 1 + 3 + 3 + 3 + 3 + 1 = 15 per kind of request. Two loads and a store make 45 per block, and a
//           block has 4 warps: 11.25.
// mistake   45: these are the conflicts of the whole block. The counter is per warp, and a block has 4 warps.
// mistake   3.75: this counts one request per step. A step makes three: two loads and a store.
// mistake   0: that is sequential_addressing, whose threads touch neighbouring words.
