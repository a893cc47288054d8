// The operators that torch sees, in the namespace `swin_backbone`: a block, and what packs its weights. Their fake
// versions are in ../fake.py.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <numeric>

#include "arguments.h"
#include "attention.h"
#include "backward.h"

namespace swin {
namespace {

using OptionalTensors = c10::List<std::optional<Tensor>>;

Tensor pack_linear(const Tensor& weight, at::ScalarType dtype, int64_t unit, bool transposed) {
  TORCH_CHECK_VALUE(weight.dim() >= 2, "a weight (out, in...) was expected, got ", weight.sizes());
  const Tensor wide = weight.to(at::kFloat).flatten(1).contiguous();
  const int64_t N = wide.size(transposed), K = wide.size(!transposed);
  return dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    Tensor panels = at::empty({packed_size<T>(N, K)}, wide.options().dtype(dtype));
    pack(wide.data_ptr<float>(), N, K, unit, transposed, panels.data_ptr<T>());
    return panels;
  });
}

// A hash of the bits of some numbers. It is needed because writes through `.data` do not change a tensor's version.
// It changes when a whole row or column of a weight has changed: the step from one number to the next is no longer than
// a row or a column, and has no common factor with the length of a row.
int64_t fingerprint(at::TensorList weights) {
  uint64_t mixed = 0;
  for (const Tensor& weight : weights) {
    const Tensor wide = weight.to(at::kFloat).contiguous();
    const int64_t row = wide.numel() ? wide[0].numel() : 1;
    int64_t step = std::max<int64_t>(std::min(row, wide.size(0)), 1);
    while (std::gcd(step, row) > 1) step--;
    const auto* bits = (const uint32_t*)wide.data_ptr<float>();
    for (int64_t i = 0; i < wide.numel(); i += step) mixed = mixed * 0x9E3779B97F4A7C15u + bits[i] + 1;
  }
  return (int64_t)mixed;
}

// Calls f(weights, windows), made from the arguments of an operator.
template <class F>
void with_block(const Tensor& x, at::TensorList packed, const OptionalTensors& vectors, const Tensor& position_bias,
                const std::optional<Tensor>& cosine_scale, const std::optional<Tensor>& drop_path, int64_t heads,
                at::IntArrayRef window, at::IntArrayRef shift, bool mask_padding, double scale,
                at::ArrayRef<double> eps, const F& f) {
  check_map(x, "x");
  TORCH_CHECK_VALUE(packed.size() == 4 && vectors.size() == 10 && window.size() == 2 && shift.size() == 2 &&
                        (eps.size() == 2 || eps.size() == 3),
                    "4 packed weights, 10 vectors, 2 sides of a window and of a shift, and 2 or 3 eps were expected");
  const int64_t C = x.size(3), N = window[0] * window[1];
  TORCH_CHECK_VALUE(heads > 0 && C % heads == 0 && C / heads % 8 == 0 && C / heads <= 64,
                    "heads must have 8, 16, ... 64 channels, got ", heads, " of ", C, " in all");
  TORCH_CHECK_VALUE(window[0] > 0 && window[1] > 0 && shift[0] >= 0 && shift[1] >= 0 && shift[0] < window[0] &&
                        shift[1] < window[1],
                    "a window and a shift within it were expected, got ", window, " and ", shift);
  TORCH_CHECK_VALUE(position_bias.sizes() == at::IntArrayRef({heads, N, N}), "position_bias must be (", heads, ", ", N,
                    ", ", N, "), got ", position_bias.sizes());
  TORCH_CHECK_VALUE(!drop_path || drop_path->numel() == 2 * x.size(0), "drop_path must be (2, B)");
  const Tensor bias = position_bias.to(at::kFloat).contiguous();
  const Tensor padded = at::empty({heads, N, bias_stride(N)}, bias.options());
  pad_bias(bias.data_ptr<float>(), heads * N, N, padded.data_ptr<float>());
  const Windows windows{x.size(0), Axis(x.size(1), window[0], shift[0], mask_padding),
                        Axis(x.size(2), window[1], shift[1], mask_padding)};
  Vectors kept;
  dispatch(packed[0].scalar_type(), [&](auto type) {
    using T = decltype(type);
    const int64_t D = packed[2].numel() / C;
    const auto vector = [&](int64_t i, int64_t size, float otherwise) {
      return kept.get(vectors.get(i), size, otherwise);
    };
    const auto affine = [&](int64_t i, int64_t which) {
      return Affine{vector(i, C, 1.f), vector(i + 1, C, 0.f), which < (int64_t)eps.size() ? (float)eps[which] : 0.f};
    };
    BlockWeights<T> w{linear<T>(packed[0], vector(2, 3 * C, 0.f), 3 * C, C, C / heads),
                      linear<T>(packed[1], vector(3, C, 0.f), C, C, 1),
                      linear<T>(packed[2], vector(6, D, 0.f), D, C, 1),
                      linear<T>(packed[3], vector(7, C, 0.f), C, D, 1),
                      affine(0, 0),
                      affine(4, 1),
                      affine(8, 2),
                      padded.data_ptr<float>(),
                      cosine_scale ? kept.get(cosine_scale, heads, 1.f) : nullptr,
                      drop_path ? kept.get(drop_path, 2 * x.size(0), 1.f) : nullptr,
                      eps.size() == 3,
                      C,
                      D,
                      heads,
                      (float)scale};
    f(w, windows);
  });
}

Tensor block(const Tensor& x, at::TensorList packed, const OptionalTensors& vectors, const Tensor& position_bias,
             const std::optional<Tensor>& cosine_scale, const std::optional<Tensor>& drop_path, int64_t heads,
             at::IntArrayRef window, at::IntArrayRef shift, bool mask_padding, double scale,
             at::ArrayRef<double> eps) {
  const Tensor out = at::empty_like(x);
  with_block(x, packed, vectors, position_bias, cosine_scale, drop_path, heads, window, shift, mask_padding, scale, eps,
             [&](const auto& w, const Windows& windows) {
               if (x.numel()) run_block(w, windows, x.data_ptr<float>(), out.data_ptr<float>());
             });
  return out;
}

// The output, and what `block_backward` need not recompute then: (groups of windows, bytes).
std::tuple<Tensor, Tensor> block_saving(const Tensor& x, at::TensorList packed, const OptionalTensors& vectors,
                                        const Tensor& position_bias, const std::optional<Tensor>& cosine_scale,
                                        const std::optional<Tensor>& drop_path, int64_t heads, at::IntArrayRef window,
                                        at::IntArrayRef shift, bool mask_padding, double scale,
                                        at::ArrayRef<double> eps) {
  const Tensor out = at::empty_like(x);
  Tensor saved = at::empty({0, 0}, x.options().dtype(at::kByte));
  with_block(x, packed, vectors, position_bias, cosine_scale, drop_path, heads, window, shift, mask_padding, scale, eps,
             [&](const auto& w, const Windows& windows) {
               if (!x.numel()) return;
               const int64_t groups = groups_of_backward(w, windows), bytes = saved_bytes(w, windows, groups);
               saved = at::empty({groups, bytes}, saved.options());
               run_block(w, windows, x.data_ptr<float>(), out.data_ptr<float>(),
                         {(char*)saved.data_ptr(), groups, bytes});
             });
  return {out, saved};
}

void block_(const Tensor& x, at::TensorList packed, const OptionalTensors& vectors, const Tensor& position_bias,
            const std::optional<Tensor>& cosine_scale, const std::optional<Tensor>& drop_path, int64_t heads,
            at::IntArrayRef window, at::IntArrayRef shift, bool mask_padding, double scale, at::ArrayRef<double> eps) {
  with_block(x, packed, vectors, position_bias, cosine_scale, drop_path, heads, window, shift, mask_padding, scale, eps,
             [&](const auto& w, const Windows& windows) {
               if (x.numel()) run_block(w, windows, x.data_ptr<float>(), x.data_ptr<float>());
             });
}

// Gradients of x, the 4 weights (out, in), the 10 vectors, the position bias and the cosine scale.
// `transposed`: W^T of the 4 weights, packed. `saved`: by `block_saving`.
std::vector<Tensor> block_backward(const Tensor& x, const Tensor& grad, at::TensorList packed,
                                   at::TensorList transposed, const OptionalTensors& vectors,
                                   const Tensor& position_bias, const std::optional<Tensor>& cosine_scale,
                                   const std::optional<Tensor>& drop_path, int64_t heads, at::IntArrayRef window,
                                   at::IntArrayRef shift, bool mask_padding, double scale, at::ArrayRef<double> eps,
                                   const std::optional<Tensor>& saved) {
  check_map(grad, "grad");
  TORCH_CHECK_VALUE(grad.sizes() == x.sizes() && transposed.size() == LINEARS,
                    "a gradient of x's shape and 4 packed weights were expected, got ", grad.sizes(), " for ",
                    x.sizes(), " and ", transposed.size());
  std::vector<Tensor> grads;
  const auto run = [&](const auto& w, const Windows& windows) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(w.qkv.panels)>>;
    const auto turned = [&](int64_t i) {
      return linear<T>(transposed[i], nullptr, w.linear(i).K, w.linear(i).N, i == PROJ ? w.C / heads : 1);
    };
    const Linear<T> of_gradients[] = {turned(QKV), turned(PROJ), turned(FC1), turned(FC2)};
    const int64_t N = windows.area(), S = bias_stride(N), C = w.C;
    const VectorSums<T> of(w, N, S);
    const Tensor sums = at::zeros({of.size}, x.options());
    const auto part = [&](int64_t begin, int64_t size) { return sums.narrow(0, begin, size); };
    grads = {at::empty_like(x)};
    float* weights[LINEARS];
    for (int64_t i = 0; i < LINEARS; i++) {
      const int64_t shape[] = {w.linear(i).N, w.linear(i).K};
      grads.push_back(x.numel() ? at::empty(shape, x.options()) : at::zeros(shape, x.options()));
      weights[i] = grads.back().data_ptr<float>();
    }
    SavedGroups groups;
    if (saved) {
      groups = {(char*)saved->data_ptr(), saved->size(0), saved->size(1)};
      TORCH_CHECK_VALUE(!x.numel() || (groups.groups > 0 && groups.bytes == saved_bytes(w, windows, groups.groups)),
                        "what block_saving saved was expected, got ", saved->sizes());
    }
    if (x.numel())
      run_block_backward<T>(w, of_gradients, windows, x.data_ptr<float>(), grad.data_ptr<float>(),
                            grads[0].data_ptr<float>(), weights, sums.data_ptr<float>(), groups);
    const auto norm = [&](int64_t i) {
      grads.push_back(part(of.norm_weight[i], C));
      grads.push_back(part(of.norm_bias[i], C));
    };
    const auto bias = [&](int64_t i) { grads.push_back(part(of.bias[i], w.linear(i).N)); };
    norm(0), bias(QKV), bias(PROJ), norm(1), bias(FC1), bias(FC2), norm(2);
    grads.push_back(part(of.bias_hNS, heads * N * S).view({heads, N, S}).narrow(2, 0, N).contiguous());
    grads.push_back(part(of.cosine_scale, heads));
  };
  with_block(x, packed, vectors, position_bias, cosine_scale, drop_path, heads, window, shift, mask_padding, scale, eps,
             run);
  return grads;
}

}  // namespace
}  // namespace swin

TORCH_LIBRARY_FRAGMENT(swin_backbone, m) {
  m.def("fingerprint(Tensor[] weights) -> int");
  m.def("pack_linear(Tensor weight, ScalarType dtype, int unit, bool transposed=False) -> Tensor");
  m.def(
      "block(Tensor x, Tensor[] packed, Tensor?[] vectors, Tensor position_bias, Tensor? cosine_scale, "
      "Tensor? drop_path, int heads, int[] window, int[] shift, bool mask_padding, float scale, float[] eps) "
      "-> Tensor");
  m.def(
      "block_(Tensor(a!) x, Tensor[] packed, Tensor?[] vectors, Tensor position_bias, Tensor? cosine_scale, "
      "Tensor? drop_path, int heads, int[] window, int[] shift, bool mask_padding, float scale, float[] eps) -> ()");
  m.def(
      "block_backward(Tensor x, Tensor grad, Tensor[] packed, Tensor[] transposed, Tensor?[] vectors, "
      "Tensor position_bias, Tensor? cosine_scale, Tensor? drop_path, int heads, int[] window, int[] shift, "
      "bool mask_padding, float scale, float[] eps, Tensor? saved=None) -> Tensor[]");
  m.def(
      "block_saving(Tensor x, Tensor[] packed, Tensor?[] vectors, Tensor position_bias, Tensor? cosine_scale, "
      "Tensor? drop_path, int heads, int[] window, int[] shift, bool mask_padding, float scale, float[] eps) "
      "-> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(swin_backbone, CPU, m) {
  m.impl("fingerprint", swin::fingerprint);
  m.impl("pack_linear", swin::pack_linear);
  m.impl("block", swin::block);
  m.impl("block_", swin::block_);
  m.impl("block_saving", swin::block_saving);
  m.impl("block_backward", swin::block_backward);
}
