// The kernels in the instruction set that the compiler was told to use.
#include "kernels.h"

#define GPUREDUCE_ISA generic
#define GPUREDUCE_VECTOR_BYTES 16
#include "kernels.inl"
