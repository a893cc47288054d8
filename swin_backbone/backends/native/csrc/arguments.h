// Arguments of the operators that torch sees, checked.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "gemm.h"

namespace swin {

using at::Tensor;

// Calls f with a zero of the dtype that is computed in.
template <class F>
auto dispatch(at::ScalarType dtype, const F& f) {
#ifdef __AVX512BF16__
  if (dtype == at::kBFloat16) return f(bf16());
#endif
  TORCH_CHECK_VALUE(dtype == at::kFloat, "this processor's compiled operators do not compute in ", dtype);
  return f(float());
}

inline void check_map(const Tensor& x, const char* name) {
  TORCH_CHECK_VALUE(x.dim() == 4 && x.scalar_type() == at::kFloat && x.is_contiguous(), name,
                    " must be a contiguous float32 map (B, H, W, C), got ", x.scalar_type(), " of ", x.sizes());
}

// float32 vectors, kept alive as long as something points into them.
class Vectors {
 public:
  const float* get(const std::optional<Tensor>& vector, int64_t size, float otherwise) {
    kept.push_back(vector ? vector->to(at::kFloat).contiguous() : at::full({size}, otherwise, at::kFloat));
    TORCH_CHECK_VALUE(kept.back().numel() == size, "a vector of ", size, " numbers was expected, got ",
                      kept.back().sizes());
    return kept.back().data_ptr<float>();
  }

 private:
  std::vector<Tensor> kept;
};

// A packed weight (N, K).
template <class T>
Linear<T> linear(const Tensor& panels, const float* bias, int64_t N, int64_t K, int64_t unit) {
  TORCH_CHECK_VALUE(panels.scalar_type() == c10::CppTypeToScalarType<T>::value && panels.is_contiguous() &&
                        panels.numel() == packed_size<T>(N, K),
                    "a packed weight of (", N, ", ", K, ") was expected, got ", panels.scalar_type(), " of ",
                    panels.sizes());
  return {panels.data_ptr<T>(), bias, N, K, panel_width(N, unit)};
}

}  // namespace swin
