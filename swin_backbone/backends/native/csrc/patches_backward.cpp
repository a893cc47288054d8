#include <ATen/Parallel.h>

#include <memory>
#include <vector>

#include "patches.h"
#include "weight_gradients.h"

namespace swin {
namespace {

constexpr int64_t SHARE = 1 << 20;  // bytes of inputs and outputs of the linear layer that a thread takes at a time

// Sums of vectors of each worker. Those of the first are the result; the others' are added to it in order.
class WorkerSums {
 public:
  WorkerSums(int64_t workers, int64_t size, float* result) : size(size), of(workers, result) {
    for (int64_t i = 1; i < workers; i++) of[i] = memory.emplace_back(new float[size]()).get();
  }
  void add() const {
    for (size_t i = 1; i < of.size(); i++)
      over_columns(size, [&](int64_t c, int64_t lanes) {
        store(of[0] + c, load(of[0] + c, lanes) + load(of[i] + c, lanes), lanes);
      });
  }
  float* operator[](int64_t worker) const { return of[worker]; }

 private:
  int64_t size;
  std::vector<std::unique_ptr<float[]>> memory;
  std::vector<float*> of;
};

// The tokens that a thread computes at a time.
template <class T, class Source>
class Projected {
 public:
  // most: how many tokens, a multiple of TILE_TERMS. sums: this thread's.
  Projected(const Source& source, const Projection<T>& p, const Linear<T>* transposed, const float* grad,
            float* grad_source, int64_t most, const ProjectionSums& sums)
      : source(source), p(p), transposed(transposed), grad(grad), grad_source(grad_source), sums(sums) {
    memory.allocate([&](const auto& take) {
      raw = (float*)take(K * sizeof(float));
      rows = (T*)take(most * K * sizeof(T));
      tokens = (float*)take(p.after ? most * N * sizeof(float) : 0);
      of_tokens = (T*)take(most * N * sizeof(T));
      of_rows = (float*)take(transposed ? most * transposed->N * sizeof(float) : 0);
      room = ProductRoom<T>({&p.linear, transposed ? transposed : &p.linear}, take);
      kept = Kept<T>(K, N, most, take);
    });
    std::fill_n(raw, K, 0.f);
  }

  void run(int64_t first, int64_t count) {
    for (int64_t m = 0; m < count; m++) read_row(source, p, first + m, raw, rows + m * K);
    if (p.after) multiply(rows, K, count, p.linear, tokens);
    for (int64_t m = 0; m < count; m++) enter(first + m, tokens + m * N, of_tokens + m * N);
    kept.keep(K, N, rows, of_tokens, count, sums.bias);
    if (!transposed) return;
    multiply(of_tokens, N, count, *transposed, of_rows);
    for (int64_t m = 0; m < count; m++) leave(first + m, of_rows + m * transposed->N);
  }

  Kept<T> kept;  // by `run`

 private:
  // to = a W^T + the bias, if there is one.
  void multiply(const T* a, int64_t lda, int64_t count, const Linear<T>& w, float* to) const {
    product(a, lda, count, w, room, [&](int64_t m, int64_t count, int64_t n, int64_t columns, const float* c) {
      for (int64_t r = 0; r < count; r++)
        over_columns(columns, [&](int64_t i, int64_t lanes) {
          const Vec v = load(c + r * columns + i, lanes);
          store(to + (m + r) * w.N + n + i, w.bias ? v + load(w.bias + n + i, lanes) : v, lanes);
        });
    });
  }

  // The gradient of the linear layer's output, from that of the token.
  void enter(int64_t token, const float* value, T* to) const {
    const float* from = grad + token * N;
    if (p.after)
      return layer_norm_backward(value, N, *p.after, from, 1.f, norm_sums(),
                                 [&](int64_t n, Vec g, int64_t lanes) { store(to + n, g, lanes); });
    over_columns(N, [&](int64_t n, int64_t lanes) { store(to + n, load(from + n, lanes), lanes); });
  }

  // Puts the gradient of the token's row where the row came from.
  void leave(int64_t token, float* row) const {
    if (p.before) {
      source.read(token, raw);
      layer_norm_backward(raw, p.linear.K, *p.before, row, 1.f, norm_sums(),
                          [&](int64_t k, Vec g, int64_t lanes) { store(row + k, g, lanes); });
    }
    source.write(token, row, grad_source);
  }

  AffineSums norm_sums() const { return {sums.norm_weight, sums.norm_bias}; }

  const Source& source;
  const Projection<T>& p;
  const Linear<T>* transposed;
  const float* grad;
  float* grad_source;
  const ProjectionSums sums;
  const int64_t K = p.linear.padded_K(), N = p.linear.N;
  float *raw, *tokens, *of_rows;  // one row before its norm; tokens before their norm; gradients of rows
  T *rows, *of_tokens;            // of_tokens: gradients of the linear layer's outputs
  ProductRoom<T> room;
  Buffers memory;
};

}  // namespace

template <class T, class Source>
void project_backward(const Source& source, const Projection<T>& p, const Linear<T>* transposed, const float* grad,
                      float* grad_source, float* weight_sum, float* vector_sums) {
  const int64_t tokens = source.tokens(), K = p.linear.padded_K(), N = p.linear.N;
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t share = std::max<int64_t>(PROJECTED, SHARE / ((N + K) * sizeof(T)));
  const int64_t rounds = (tokens + threads * share - 1) / (threads * share);
  const int64_t most = round_up((tokens + rounds * threads - 1) / (rounds * threads), TILE_TERMS);
  const int64_t workers = std::min(threads, (tokens + most - 1) / most);
  const WorkerSums sums(workers, p.vectors(), vector_sums);
  std::vector<std::unique_ptr<Projected<T, Source>>> made(workers);
  for (int64_t first = 0; first < tokens; first += workers * most) {
    const int64_t active = std::min(workers, (tokens - first + most - 1) / most);
    at::parallel_for(0, active, 1, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; worker++) {
        auto& part = made[worker];
        if (!part)
          part = std::make_unique<Projected<T, Source>>(source, p, transposed, grad, grad_source, most,
                                                        p.sums(sums[worker]));
        part->run(first + worker * most, std::min(most, tokens - first - worker * most));
      }
      release_brgemm<T>();
    });
    std::vector<const Kept<T>*> kept;
    for (int64_t worker = 0; worker < active; worker++) kept.push_back(&made[worker]->kept);
    at::parallel_for(0, (N + MAX_COLUMNS - 1) / MAX_COLUMNS, 1, [&](int64_t begin, int64_t end) {
      const int64_t n = begin * MAX_COLUMNS, stop = std::min(N, end * MAX_COLUMNS);
      weight_gradient(kept, n, stop - n, weight_sum, first > 0);
      release_brgemm<T>();
    });
  }
  sums.add();
}

void normalise_output_backward(const float* x, const float* grad, int64_t batch, int64_t area, int64_t channels,
                               const Affine& norm, float* grad_x, float* norm_sums) {
  constexpr int64_t STRIP = 64;  // tokens
  const int64_t strips = (area + STRIP - 1) / STRIP;
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t workers = std::min(threads, batch * strips), each = (batch * strips + workers - 1) / workers;
  const WorkerSums sums(workers, 2 * channels, norm_sums);
  at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> of_tokens(new float[STRIP * channels]);
    for (int64_t worker = begin; worker < end; worker++)
      for (int64_t strip = worker * each; strip < std::min(batch * strips, (worker + 1) * each); strip++) {
        const int64_t image = strip / strips, first = strip % strips * STRIP, count = std::min(STRIP, area - first);
        transpose(grad + image * channels * area + first, area, channels, count, of_tokens.get(), channels);
        for (int64_t m = 0; m < count; m++) {
          const int64_t at = (image * area + first + m) * channels;
          layer_norm_backward(x + at, channels, norm, of_tokens.get() + m * channels, 1.f,
                              {sums[worker], sums[worker] + channels},
                              [&](int64_t c, Vec g, int64_t lanes) { store(grad_x + at + c, g, lanes); });
        }
      }
  });
  sums.add();
}

#define INSTANTIATE_FOR(T, Source)                                                                       \
  template void project_backward<T, Source>(const Source&, const Projection<T>&, const Linear<T>*,      \
                                            const float*, float*, float*, float*);
#define INSTANTIATE(T) SWIN_FOR_EACH_PROJECTION(INSTANTIATE_FOR, T)
SWIN_FOR_EACH_DTYPE(INSTANTIATE)

}  // namespace swin
