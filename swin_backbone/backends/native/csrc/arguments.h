// Arguments of the operators that torch sees, checked. A caller's number is used only after `within` or
// `product_within`, and the address of a caller's tensor is given by `address` alone: so a call that is wrong is an
// error, whatever is wrong with it, and reads no memory but its tensors'.
#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

#include <initializer_list>
#include <limits>
#include <optional>
#include <vector>

#include "gemm.h"

namespace swin {

using at::Tensor;

constexpr int64_t MAX_SIZE = 1 << 20;                               // a side of a map; numbers of a token or a patch
constexpr int64_t MAX_COUNT = std::numeric_limits<int32_t>::max();  // tokens of all maps; numbers of a weight
constexpr int64_t MAX_WINDOW = 16;                                  // a side of a window

// Calls f with a zero of the dtype that is computed in.
template <class F>
auto dispatch(at::ScalarType dtype, const F& f) {
#ifdef __AVX512BF16__
  if (dtype == at::kBFloat16) return f(bf16());
#endif
  TORCH_CHECK_VALUE(dtype == at::kFloat, "this processor's compiled operators do not compute in ", dtype);
  return f(float());
}

inline int64_t within(const char* name, int64_t value, int64_t least, int64_t most) {
  TORCH_CHECK_VALUE(value >= least && value <= most, name, " must be from ", least, " to ", most, ", got ", value);
  return value;
}

// The product of numbers that are not negative.
inline int64_t product_within(const char* name, std::initializer_list<int64_t> factors, int64_t most) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    TORCH_CHECK_VALUE(factor >= 0 && (factor == 0 || product <= most / factor), name, " must be at most ", most,
                      ", got the product of ", at::IntArrayRef(factors.begin(), factors.end()));
    product *= factor;
  }
  return product;
}

// A tensor in this process's memory. All of it: a storage may have been made shorter than its tensors.
inline const Tensor& readable(const char* name, const Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), name, " must be a tensor, got None");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && tensor.is_cpu(), name,
                    " must be a dense tensor on a CPU, got a ", tensor.layout(), " one on ", tensor.device());
  TORCH_CHECK_VALUE(
      !tensor.numel() || at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                                          tensor.storage_offset()) <= tensor.storage().nbytes(),
      name, " must be a tensor with all of its memory, got one of ", tensor.sizes(), " with ",
      tensor.storage().nbytes(), " bytes");
  return tensor;
}

template <class T>
T* address(const char* name, const Tensor& tensor, int64_t alignment = alignof(T)) {
  constexpr auto dtype = c10::CppTypeToScalarType<T>::value;
  TORCH_CHECK_VALUE(readable(name, tensor).scalar_type() == dtype, name, " must be ", dtype, ", got ",
                    tensor.scalar_type());
  T* first = tensor.data_ptr<T>();
  TORCH_CHECK_VALUE((uintptr_t)first % alignment == 0, name, " must begin at a multiple of ", alignment,
                    " bytes in memory");
  return first;
}

// The address of a contiguous tensor of these sizes.
template <class T>
T* numbers(const char* name, const Tensor& tensor, at::IntArrayRef sizes, int64_t alignment = alignof(T)) {
  TORCH_CHECK_VALUE(readable(name, tensor).sizes() == sizes && tensor.is_contiguous(), name,
                    " must be contiguous and of ", sizes, ", got ", tensor.sizes(), " with strides ", tensor.strides());
  return address<T>(name, tensor, alignment);
}

// The address of maps (B, H, W, C). There may be no map, but none is empty.
inline float* map_numbers(const char* name, const Tensor& x) {
  TORCH_CHECK_VALUE(readable(name, x).dim() == 4, name, " must be maps (B, H, W, C), got ", x.sizes());
  for (int64_t i = 1; i < 4; i++) within(name, x.size(i), 1, MAX_SIZE);
  product_within(name, {x.size(0), x.size(1), x.size(2)}, MAX_COUNT);
  return numbers<float>(name, x, x.sizes());
}

// float32 vectors, kept alive as long as something points into them.
class Vectors {
 public:
  // The numbers of a tensor of any floating dtype and of `size` numbers.
  const float* get(const char* name, const Tensor& vector, int64_t size) {
    TORCH_CHECK_VALUE(at::isFloatingType(readable(name, vector).scalar_type()) && vector.numel() == size, name,
                      " must be ", size, " floating numbers, got ", vector.scalar_type(), " of ", vector.sizes());
    kept.push_back(vector.to(at::kFloat).contiguous());
    return address<float>(name, kept.back());
  }
  const float* get(const char* name, const std::optional<Tensor>& vector, int64_t size, float otherwise) {
    return get(name, vector ? *vector : at::full({size}, otherwise, at::kFloat), size);
  }

 private:
  std::vector<Tensor> kept;
};

// A packed weight (N, K).
template <class T>
Linear<T> linear(const char* name, const Tensor& panels, const float* bias, int64_t N, int64_t K, int64_t unit) {
  return {numbers<T>(name, panels, {packed_size<T>(N, K)}), bias, N, K, panel_width(N, unit)};
}

}  // namespace swin
