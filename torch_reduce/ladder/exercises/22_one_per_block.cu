// Exercise 22, one_per_block. Chapter 4: the modern steps.
//
// kind      mend
// asks      right sums; atomics at most 0.1; results at most 1
// task      Each thread of this kernel adds its element to one address by an atomic, and all of them queue there.
//           Let the block add its elements in shared memory first, by a tree, so that one atomic per block is
//           left. The result stays one sum in out[0]. Blocks of 512 have 16 warps, so that one atomic per block
//           is 0.0625 per warp.
// hint      You have written the tree in chapter 2. Which thread has the block's sum, and what does it do with
//           it?

__global__ void one_per_block(const float* in, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(out, in[i]);
}
