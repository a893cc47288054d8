#include <memory>
#include <optional>

#include "machine/worker_vectors.h"
#include "patches/patches.h"
#include "products/weight_gradients.h"

namespace swin::SWIN_ISA {
namespace {

constexpr int64_t GROUP_BYTES = 1 << 20;  // bytes of inputs and outputs of a group

// A group of tokens, computed by a thread.
template <class T, class Source>
class ProjectionGroup {
 public:
  // max_tokens: the largest number of tokens, a multiple of TILE_TERMS. sums: of this thread.
  ProjectionGroup(const Source& source, const Projection<T>& p, const Linear<T>* backward_linear, const float* grad,
                  float* grad_source, int64_t max_tokens, const ProjectionSums& sums)
      : source(source), p(p), backward_linear(backward_linear), grad(grad), grad_source(grad_source), sums(sums) {
    memory.allocate([&](Arena& arena) {
      raw = arena.take<float>(K);
      rows = arena.take<T>(max_tokens * K);
      outputs = arena.take<float>(p.norm_after ? max_tokens * N : 0);
      grad_outputs = arena.take<T>(max_tokens * N);
      grad_rows = arena.take<float>(backward_linear ? max_tokens * backward_linear->N : 0);
      workspace = {{&p.linear, backward_linear ? backward_linear : &p.linear}, arena};
      operands = {K, N, max_tokens, arena};
    });
    std::fill_n(raw, K, 0.f);
  }

  void run(int64_t first, int64_t count) {
    for (int64_t m = 0; m < count; m++) read_row(source, p, first + m, raw, rows + m * K);
    if (p.norm_after) linear_to(rows, K, count, p.linear, workspace, outputs, N);
    for (int64_t m = 0; m < count; m++) write_output_grad(first + m, outputs + m * N, grad_outputs + m * N);
    operands.pack(K, N, rows, grad_outputs, count, sums.bias);
    if (!backward_linear) return;
    linear_to(grad_outputs, N, count, *backward_linear, workspace, grad_rows, backward_linear->N);
    for (int64_t m = 0; m < count; m++) write_input_grad(first + m, grad_rows + m * backward_linear->N);
  }

  WeightGradOperands<T> operands;  // written by `run`

 private:
  // The gradient of the linear layer's output, from the gradient of the token.
  void write_output_grad(int64_t token, const float* norm_input, T* to) const {
    const float* from = grad + token * N;
    if (p.norm_after)
      return layer_norm_backward(norm_input, N, *p.norm_after, from, 1.f, norm_sums(),
                                 [&](int64_t n, Vec g, int64_t lanes) { store(to + n, g, lanes); });
    convert_row(from, N, to);
  }

  // Write the gradient of an input row to its place in the source.
  void write_input_grad(int64_t token, float* row) const {
    if (p.norm_before) {
      source.read(token, raw);
      layer_norm_backward(raw, p.linear.K, *p.norm_before, row, 1.f, norm_sums(),
                          [&](int64_t k, Vec g, int64_t lanes) { store(row + k, g, lanes); });
    }
    source.write(token, row, grad_source);
  }

  AffineSums norm_sums() const { return {sums.norm_weight, sums.norm_bias}; }

  const Source& source;
  const Projection<T>& p;
  const Linear<T>* backward_linear;
  const float* grad;
  float* grad_source;
  const ProjectionSums sums;
  const int64_t K = p.linear.padded_K(), N = p.linear.N;
  float *raw, *outputs, *grad_rows;  // a row and outputs before the norm; gradients of rows
  T *rows, *grad_outputs;            // of the linear layer
  ProductWorkspace<T> workspace;
  Memory memory;
};

}  // namespace

template <class T, class Source>
void project_backward(const Source& source, const Projection<T>& p, const void* transposed_weight, int64_t threads,
                      const float* grad, const swin_projection_gradients& gradients) {
  using Group = ProjectionGroup<T, Source>;
  const int64_t tokens = source.tokens(), N = p.linear.N, K = p.linear.K, padded_K = p.linear.padded_K();
  const Linear<T> backward_linear{static_cast<const T*>(transposed_weight), nullptr, K, N, panel_width(K, 1)};
  float* weight_sum = gradients.weight;
  Memory memory;
  if (padded_K != K) memory.allocate([&](Arena& arena) { weight_sum = arena.take<float>(N * padded_K); });
  const int64_t fitting = std::max<int64_t>(GROUP_TOKENS, GROUP_BYTES / ((N + padded_K) * sizeof(T)));
  const int64_t rounds = ceil_div(tokens, threads * fitting);
  const int64_t max_tokens = round_up(ceil_div(tokens, rounds * threads), TILE_TERMS);
  const int64_t workers = std::min(threads, ceil_div(tokens, max_tokens));
  const WorkerVectors sums(workers, p.vectors_size());
  const std::unique_ptr<std::optional<Group>[]> groups(new std::optional<Group>[workers]);
  const std::unique_ptr<const WeightGradOperands<T>*[]> operands(new const WeightGradOperands<T>*[workers]);
  for (int64_t first = 0; first < tokens; first += workers * max_tokens) {
    const int64_t active = std::min(workers, ceil_div(tokens - first, max_tokens));
    each_task(active, threads, [&](int64_t worker) {
      [[maybe_unused]] const TilesInUse tiles;
      auto& group = groups[worker];
      if (!group)
        group.emplace(source, p, transposed_weight ? &backward_linear : nullptr, grad, gradients.x, max_tokens,
                      p.sums(sums[worker]));
      group->run(first + worker * max_tokens, std::min(max_tokens, tokens - first - worker * max_tokens));
      operands[worker] = &group->operands;
    });
    each_part(ceil_div(N, MAX_COLUMNS), threads, [&](int64_t begin, int64_t end) {
      const int64_t n = begin * MAX_COLUMNS, stop = std::min(N, end * MAX_COLUMNS);
      compute_weight_gradient(operands.get(), active, n, stop - n, weight_sum, first > 0);
    });
  }
  if (padded_K != K)
    for (int64_t n = 0; n < N; n++) std::copy_n(weight_sum + n * padded_K, K, gradients.weight + n * K);
  const auto [bias, norm_weight, norm_bias] = p.sums(sums.add());
  std::copy_n(bias, N, gradients.bias);
  std::copy_n(norm_weight, p.norm_size(), gradients.norm_weight);
  std::copy_n(norm_bias, p.norm_size(), gradients.norm_bias);
}

#define INSTANTIATE_FOR(T, Source)                                                                                   \
  template void project_backward<T, Source>(const Source&, const Projection<T>&, const void*, int64_t, const float*, \
                                            const swin_projection_gradients&);
#define INSTANTIATE(T) SWIN_FOR_EACH_PROJECTION(INSTANTIATE_FOR, T)
SWIN_FOR_EACH_DTYPE(INSTANTIATE)
#undef INSTANTIATE_FOR
#undef INSTANTIATE

}  // namespace swin::SWIN_ISA
