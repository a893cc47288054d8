// The operators that torch sees, in the namespace `swin_backbone`: a block, and what packs its weights. Their fake
// versions are in ../fake.py.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <iterator>

#include "arguments.h"
#include "attention.h"
#include "backward.h"
#include "checksum.h"

namespace swin {
namespace {

using OptionalTensors = c10::List<std::optional<Tensor>>;

Tensor pack_linear(const Tensor& weight, at::ScalarType dtype, int64_t unit, bool transposed) {
  TORCH_CHECK_VALUE(readable("weight", weight).dim() >= 2 && at::isFloatingType(weight.scalar_type()),
                    "a floating weight (out, in...) was expected, got ", weight.scalar_type(), " of ", weight.sizes());
  within("a weight's numbers", weight.numel(), 1, MAX_COUNT);
  within("unit", unit, 1, MAX_COLUMNS);
  const Tensor wide = weight.to(at::kFloat).flatten(1).contiguous();
  const int64_t N = wide.size(transposed), K = wide.size(!transposed);
  return dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    Tensor panels = at::empty({packed_size<T>(N, K)}, wide.options().dtype(dtype));
    pack(address<float>("weight", wide), N, K, unit, transposed, panels.data_ptr<T>());
    return panels;
  });
}

// A hash of all bytes of the tensors, at the speed of memory. Every change of one number changes it, and others are
// missed with a probability of 2^-64.
int64_t checksum(at::TensorList tensors) {
  Checksum sum;
  for (const Tensor& tensor : tensors) {
    const Tensor dense = readable("a tensor", tensor).contiguous();
    sum.add((const char*)dense.data_ptr(), dense.nbytes());
  }
  return sum.result();
}

const char* const WEIGHTS[LINEARS] = {"packed qkv weight", "packed proj weight", "packed fc1 weight",
                                      "packed fc2 weight"};
const char* const TRANSPOSED[LINEARS] = {"transposed qkv weight", "transposed proj weight", "transposed fc1 weight",
                                         "transposed fc2 weight"};
const char* const VECTORS[] = {"norm1's weight", "norm1's bias", "qkv's bias", "proj's bias",    "norm2's weight",
                               "norm2's bias",   "fc1's bias",   "fc2's bias", "norm3's weight", "norm3's bias"};
constexpr size_t VECTORS_OF_BLOCK = std::size(VECTORS);

// Calls f(weights, windows), made from the arguments of an operator.
template <class F>
void with_block(const Tensor& x, at::TensorList packed, const OptionalTensors& vectors, const Tensor& position_bias,
                const std::optional<Tensor>& cosine_scale, const std::optional<Tensor>& drop_path, int64_t heads,
                at::IntArrayRef window, at::IntArrayRef shift, bool mask_padding, double scale,
                at::ArrayRef<double> eps, const F& f) {
  map_numbers("x", x);
  TORCH_CHECK_VALUE(packed.size() == LINEARS && vectors.size() == VECTORS_OF_BLOCK && window.size() == 2 &&
                        shift.size() == 2 && (eps.size() == 2 || eps.size() == 3),
                    "4 packed weights, 10 vectors, 2 sides of a window and of a shift, and 2 or 3 eps were expected");
  const int64_t C = x.size(3);
  TORCH_CHECK_VALUE(heads > 0 && C % heads == 0 && C / heads % 8 == 0 && C / heads <= 64,
                    "heads must have 8, 16, ... 64 channels, got ", heads, " of ", C, " in all");
  for (int64_t i = 0; i < 2; i++) {
    within("a side of the window", window[i], 1, MAX_WINDOW);
    within("a shift", shift[i], 0, window[i] - 1);
  }
  const int64_t N = window[0] * window[1], D = packed[FC1].numel() / C;
  within("the MLP's hidden channels", D, 8, MAX_SIZE);
  TORCH_CHECK_VALUE(D % 8 == 0, "the MLP's hidden channels must be a multiple of 8, got ", D);
  TORCH_CHECK_VALUE(position_bias.sizes() == at::IntArrayRef({heads, N, N}), "position_bias must be (", heads, ", ", N,
                    ", ", N, "), got ", position_bias.sizes());
  const Windows windows{x.size(0), Axis(x.size(1), window[0], shift[0], mask_padding),
                        Axis(x.size(2), window[1], shift[1], mask_padding)};
  Vectors kept;
  dispatch(packed[0].scalar_type(), [&](auto type) {
    using T = decltype(type);
    const auto vector = [&](int64_t i, int64_t size, float otherwise) {
      return kept.get(VECTORS[i], vectors.get(i), size, otherwise);
    };
    const auto weight = [&](int64_t i, int64_t bias, int64_t out, int64_t in, int64_t unit) {
      return linear<T>(WEIGHTS[i], packed[i], vector(bias, out, 0.f), out, in, unit);
    };
    const auto affine = [&](int64_t i, int64_t which) {
      return Affine{vector(i, C, 1.f), vector(i + 1, C, 0.f), which < (int64_t)eps.size() ? (float)eps[which] : 0.f};
    };
    BlockWeights<T> w{weight(QKV, 2, 3 * C, C, C / heads),
                      weight(PROJ, 3, C, C, 1),
                      weight(FC1, 6, D, C, 1),
                      weight(FC2, 7, C, D, 1),
                      affine(0, 0),
                      affine(4, 1),
                      affine(8, 2),
                      nullptr,
                      cosine_scale ? kept.get("cosine_scale", *cosine_scale, heads) : nullptr,
                      drop_path ? kept.get("drop_path", *drop_path, 2 * x.size(0)) : nullptr,
                      eps.size() == 3,
                      C,
                      D,
                      heads,
                      (float)scale};
    // Last: weights that are there say that heads and channels are no more than memory holds.
    const Tensor padded = at::empty({heads, N, bias_stride(N)}, x.options());
    pad_bias(kept.get("position_bias", position_bias, heads * N * N), heads * N, N, padded.data_ptr<float>());
    w.bias_hNS = padded.data_ptr<float>();
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
  TORCH_CHECK_VALUE(grad.sizes() == x.sizes() && transposed.size() == LINEARS,
                    "a gradient of x's shape and 4 packed weights were expected, got ", grad.sizes(), " for ",
                    x.sizes(), " and ", transposed.size());
  map_numbers("grad", grad);
  std::vector<Tensor> grads;
  const auto run = [&](const auto& w, const Windows& windows) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(w.qkv.panels)>>;
    const auto turned = [&](int64_t i) {
      return linear<T>(TRANSPOSED[i], transposed[i], nullptr, w.linear(i).K, w.linear(i).N,
                       i == PROJ ? w.C / heads : 1);
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
    if (saved && x.numel()) {
      TORCH_CHECK_VALUE(saved->dim() == 2, "saved must be (groups, bytes), got ", saved->sizes());
      groups.groups = within("saved's groups", saved->size(0), 1, windows.count());
      groups.bytes = saved_bytes(w, windows, groups.groups);
      groups.memory = (char*)numbers<uint8_t>("saved", *saved, {groups.groups, groups.bytes}, LINE);
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
  m.def("checksum(Tensor[] tensors) -> int");
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
  m.impl("checksum", swin::checksum);
  m.impl("pack_linear", swin::pack_linear);
  m.impl("block", swin::block);
  m.impl("block_", swin::block_);
  m.impl("block_saving", swin::block_saving);
  m.impl("block_backward", swin::block_backward);
}
