// How a call is classified, once, where it is made (classify() in geometry.h).
#pragma once

#include <cstdint>

namespace gpureduce {

// The addends of a reduction.
// values      the mapped elements of one input
// products    products of the elements of two inputs (weighted.h)
// deviations  differences from each output's first element, and their squares (variance.h)
// exponents   e^(x - m), where m is the output's largest element (exponents.h)
// indices     places in the order of elements, and their indices (indices.h)
enum class Addends : uint8_t { values, products, deviations, exponents, indices };

// Which kernels take a reduction.
// full       kernels of plain sums, compiled in all variants
// reduced    kernels of other operations and of rare dtypes, compiled in the few variants that every operation has
// converted  kernels that convert each element at run time, if no kernel is compiled or the GPU can run none
enum class Engine : uint8_t { full, reduced, converted };

// Who writes the results, and how. The code for all dtypes and roots is large, so only the join kernel holds it.
// raw        the kernel: the accumulator's bits are the result
// native     the kernel finishes and rounds: float32, float16 and bfloat16 from float32, and so on (is_native() in dtypes.h)
// own        the kernel: a bool from a count, or a maximum in the input's own integer type
// joined     the join kernel, from at least one partial result per output
enum class ResultPath : uint8_t { raw, native, own, joined };

}  // namespace gpureduce
