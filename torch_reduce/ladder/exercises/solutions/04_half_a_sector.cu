// Solution 4, half_a_sector. Chapter 1: in place, in global memory.
//
// why       A step makes two requests per warp, and both look the same: the first operands, then the second. Used and
//           touched bytes per request: stride 1: 16 threads, 128 of 256; stride 2: 8 threads, 64 of 256; stride 4: 4
//           threads, 32 of 128; stride 8: 2 threads, 16 of 64; stride 16: 1 thread, 8 of 32. That is 248 of 736
//           bytes, in each of two warps. Stride 32 leaves thread 0 alone: 8 of 32. So two operands make 2 * (2 * 248
//           + 8) = 1008 of 2 * (2 * 736 + 32) = 3008 bytes. With the last load of 8 of 32 it is 1016 of 3040 bytes:
//           33.4%. With float32 a sector holds 8 elements instead of 4, and the same sum gives 25.2%.
// mistake   50: that is the first step alone. Each later step uses half as many bytes, and from stride 4 on each
//           element has a sector of its own: 25%.
// mistake   25: that is about right for float32, with 8 elements in a sector. A sector holds 4 elements of 8 bytes.
// mistake   100: a thread uses what it loads, but memory sends whole sectors, and the elements between are not used.
