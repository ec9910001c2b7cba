// The kernels for the compiler's default instruction set.
#include "kernels.h"

#define GPUREDUCE_ISA generic
#define GPUREDUCE_VECTOR_BYTES 16
#include "kernels.inl"
