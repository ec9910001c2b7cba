// Exercise 1, steps_of_a_tree. Chapter 0: before the first kernel.
//
// kind      predict
// asks      barriers of neighbored, blocks of 256, float32
// task      A tree adds 256 numbers in steps. neighbored is such a tree: a block of 256 threads adds its 256
//           elements, and after each step all of its threads wait for each other at a barrier. Predict how many
//           barriers each warp comes to. Answer with a number.
// hint      How often can 256 be halved before 1 is left? How many additions there are does not matter.
