// Solution 1, steps_of_a_tree. Chapter 0: before the first kernel.
//
// why       Each step halves how many sums are left: 128, 64, 32, 16, 8, 4, 2, 1. These are log2(256) = 8 steps
//           with a barrier each: 8 barriers. The 255 additions of the block happen within these 8 steps.
// mistake   255: there are 255 additions, but the additions of a step happen at the same time.
// mistake   256: each element is added in one of the steps, and a step adds many of them.
// mistake   9: this would be 512 elements, or one barrier more than there are steps.
