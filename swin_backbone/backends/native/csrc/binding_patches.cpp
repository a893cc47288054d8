// The operators that torch sees for patch embedding, patch merging and output norms; see binding.cpp.

#include <torch/library.h>

#include "arguments.h"
#include "patches.h"

namespace swin {
namespace {

// The sizes (out, in) of a packed weight whose rows have K numbers.
template <class T>
Linear<T> linear_of_rows(const Tensor& panels, const std::optional<Tensor>& bias, int64_t K, Vectors& kept) {
  const int64_t N = within("the packed weight's rows", panels.numel() / packed_size<T>(1, K), 1, MAX_SIZE);
  return linear<T>("packed weight", panels, kept.get("bias", bias, N, 0.f), N, K, 1);
}

std::optional<Affine> affine_of(const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                                std::optional<double> eps, int64_t size, Vectors& kept) {
  if (!eps) return std::nullopt;
  return Affine{kept.get("the norm's weight", weight, size, 1.f), kept.get("the norm's bias", bias, size, 0.f),
                (float)*eps};
}

Patches patches_of(const Tensor& image, at::IntArrayRef patch) {
  TORCH_CHECK_VALUE(image.dim() == 4 && patch.size() == 2,
                    "images (B, C, H, W) and the 2 sides of a patch were expected, got ", image.sizes(), " and ",
                    patch);
  for (int64_t i = 1; i < 4; i++) within("a side of the image, or its channels,", image.size(i), 1, MAX_SIZE);
  for (int64_t side : patch) within("a side of the patch", side, 1, MAX_SIZE);
  product_within("the numbers of a patch", {image.size(1), patch[0], patch[1]}, MAX_SIZE);
  const Patches patches{address<float>("image", image), image.size(0), image.size(1), image.size(2), image.size(3),
                        {image.stride(0), image.stride(1), image.stride(2), image.stride(3)}, patch[0], patch[1]};
  product_within("the number of patches", {patches.batch, patches.rows(), patches.columns()}, MAX_COUNT);
  return patches;
}

Neighbours neighbours_of(const Tensor& x) {
  return {map_numbers("x", x), x.size(0), x.size(1), x.size(2), x.size(3)};
}

// Calls f(projection), made from the arguments of an operator; `size` is that of a row.
template <class F>
auto with_projection(const Tensor& packed, int64_t size, const std::optional<Tensor>& bias,
                     const std::optional<Tensor>& norm_weight, const std::optional<Tensor>& norm_bias,
                     std::optional<double> eps, bool norm_after, const F& f) {
  Vectors kept;
  return dispatch(packed.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const Linear<T> w = linear_of_rows<T>(packed, bias, size, kept);
    const auto norm = affine_of(norm_weight, norm_bias, eps, norm_after ? w.N : w.K, kept);
    return f(Projection<T>{w, norm_after ? std::nullopt : norm, norm_after ? norm : std::nullopt});
  });
}

template <class T, class Source>
Tensor tokens_of(const Source& source, const Projection<T>& p, const Tensor& x) {
  const Tensor out = at::empty({source.batch, source.rows(), source.columns(), p.linear.N}, x.options(),
                               at::MemoryFormat::Contiguous);
  project(source, p, out.data_ptr<float>());
  return out;
}

// Gradients of x (of no size if `transposed` is not given), the weight (N, K), the bias, the norm's weight and bias.
template <class T, class Source>
std::vector<Tensor> gradients_of(const Source& source, const Projection<T>& p, const std::optional<Tensor>& transposed,
                                 const Tensor& x, const Tensor& grad) {
  const Linear<T>& w = p.linear;
  const float* of_tokens = numbers<float>("grad", grad, {source.batch, source.rows(), source.columns(), w.N});
  TORCH_CHECK_VALUE(w.N % 2 == 0, "a token must have an even number of channels, got ", w.N);
  const Linear<T> turned = transposed ? linear<T>("transposed weight", *transposed, nullptr, w.K, w.N, 1) : w;
  const auto zeros = [&](int64_t size) { return at::zeros({size}, grad.options()); };
  const Tensor of_x = transposed ? at::empty(x.sizes(), x.options(), at::MemoryFormat::Contiguous) : zeros(0);
  const Tensor of_weight = at::empty({w.N, w.padded_K()}, grad.options()), vectors = zeros(p.vectors());
  if (grad.numel())
    project_backward(source, p, transposed ? &turned : nullptr, of_tokens, of_x.data_ptr<float>(),
                     of_weight.data_ptr<float>(), vectors.data_ptr<float>());
  else
    of_weight.zero_();
  const auto part = [&](int64_t begin, int64_t size) { return vectors.narrow(0, begin, size).clone(); };
  return {of_x, of_weight.narrow(1, 0, w.K).contiguous(), part(0, w.N), part(w.N, p.normed()),
          part(w.N + p.normed(), p.normed())};
}

Tensor embed(const Tensor& image, const Tensor& packed, const std::optional<Tensor>& bias,
             const std::optional<Tensor>& norm_weight, const std::optional<Tensor>& norm_bias,
             std::optional<double> eps, at::IntArrayRef patch) {
  const Patches patches = patches_of(image, patch);
  return with_projection(packed, patches.channels * patch[0] * patch[1], bias, norm_weight, norm_bias, eps, true,
                         [&](const auto& p) { return tokens_of(patches, p, image); });
}

std::vector<Tensor> embed_backward(const Tensor& image, const Tensor& grad, const Tensor& packed,
                                   const std::optional<Tensor>& transposed, const std::optional<Tensor>& bias,
                                   const std::optional<Tensor>& norm_weight, const std::optional<Tensor>& norm_bias,
                                   std::optional<double> eps, at::IntArrayRef patch) {
  const Patches patches = patches_of(image, patch);
  return with_projection(packed, patches.channels * patch[0] * patch[1], bias, norm_weight, norm_bias, eps, true,
                         [&](const auto& p) { return gradients_of(patches, p, transposed, image, grad); });
}

Tensor merge(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& norm_weight,
             const std::optional<Tensor>& norm_bias, std::optional<double> eps, bool post_norm) {
  const Neighbours neighbours = neighbours_of(x);
  return with_projection(packed, 4 * x.size(3), std::nullopt, norm_weight, norm_bias, eps, post_norm,
                         [&](const auto& p) { return tokens_of(neighbours, p, x); });
}

std::vector<Tensor> merge_backward(const Tensor& x, const Tensor& grad, const Tensor& packed,
                                   const std::optional<Tensor>& transposed, const std::optional<Tensor>& norm_weight,
                                   const std::optional<Tensor>& norm_bias, std::optional<double> eps, bool post_norm) {
  const Neighbours neighbours = neighbours_of(x);
  return with_projection(packed, 4 * x.size(3), std::nullopt, norm_weight, norm_bias, eps, post_norm,
                         [&](const auto& p) { return gradients_of(neighbours, p, transposed, x, grad); });
}

Tensor output_norm(const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                   double eps) {
  const float* from = map_numbers("x", x);
  const Tensor out = at::empty({x.size(0), x.size(3), x.size(1), x.size(2)}, x.options());
  Vectors kept;
  normalise_output(from, x.size(0), x.size(1) * x.size(2), x.size(3),
                   *affine_of(weight, bias, eps, x.size(3), kept), out.data_ptr<float>());
  return out;
}

// Gradients of x, the weight and the bias.
std::vector<Tensor> output_norm_backward(const Tensor& x, const Tensor& grad, const std::optional<Tensor>& weight,
                                         const std::optional<Tensor>& bias, double eps) {
  const float* from = map_numbers("x", x);
  const int64_t B = x.size(0), C = x.size(3), area = x.size(1) * x.size(2);
  const float* of_out = numbers<float>("grad", grad, {B, C, x.size(1), x.size(2)});
  const Tensor of_x = at::empty_like(x), sums = at::zeros({2 * C}, x.options());
  Vectors kept;
  const Affine norm = *affine_of(weight, bias, eps, C, kept);
  if (x.numel())
    normalise_output_backward(from, of_out, B, area, C, norm, of_x.data_ptr<float>(), sums.data_ptr<float>());
  return {of_x, sums.narrow(0, 0, C).clone(), sums.narrow(0, C, C).clone()};
}

}  // namespace
}  // namespace swin

TORCH_LIBRARY_FRAGMENT(swin_backbone, m) {
  m.def(
      "embed(Tensor image, Tensor packed, Tensor? bias, Tensor? norm_weight, Tensor? norm_bias, float? eps, "
      "int[] patch) -> Tensor");
  m.def(
      "embed_backward(Tensor image, Tensor grad, Tensor packed, Tensor? transposed, Tensor? bias, Tensor? norm_weight, "
      "Tensor? norm_bias, float? eps, int[] patch) -> Tensor[]");
  m.def(
      "merge(Tensor x, Tensor packed, Tensor? norm_weight, Tensor? norm_bias, float? eps, bool post_norm) -> Tensor");
  m.def(
      "merge_backward(Tensor x, Tensor grad, Tensor packed, Tensor? transposed, Tensor? norm_weight, "
      "Tensor? norm_bias, float? eps, bool post_norm) -> Tensor[]");
  m.def("output_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor");
  m.def("output_norm_backward(Tensor x, Tensor grad, Tensor? weight, Tensor? bias, float eps) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(swin_backbone, CPU, m) {
  m.impl("embed", swin::embed);
  m.impl("embed_backward", swin::embed_backward);
  m.impl("merge", swin::merge);
  m.impl("merge_backward", swin::merge_backward);
  m.impl("output_norm", swin::output_norm);
  m.impl("output_norm_backward", swin::output_norm_backward);
}
