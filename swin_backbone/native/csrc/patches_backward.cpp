#include <ATen/Parallel.h>

#include <memory>
#include <vector>

#include "buffers.h"
#include "gradients.h"
#include "patches.h"

namespace swin {
namespace {

constexpr int64_t SHARE = 1 << 20;  // bytes that a thread should keep of a strip of tokens
constexpr int64_t WEIGHT_ROWS = 3 * TILE_ROWS;  // of a weight, whose gradient is computed at a time

// Sums of each worker. Those of the first are the result; the others' are added to it in order.
class WorkerSums {
 public:
  WorkerSums(int64_t workers, int64_t size, float* weight, float* bias) : size(size), of(1, {weight, bias}) {
    for (int64_t i = 1; i < workers; i++) of.push_back({new_zeros(), new_zeros()});
  }
  void add() const {
    for (size_t i = 1; i < of.size(); i++)
      over_columns(size, [&](int64_t c, int64_t lanes) {
        store(of[0].weight + c, load(of[0].weight + c, lanes) + load(of[i].weight + c, lanes), lanes);
        store(of[0].bias + c, load(of[0].bias + c, lanes) + load(of[i].bias + c, lanes), lanes);
      });
  }
  const AffineSums& operator[](int64_t worker) const { return of[worker]; }

 private:
  float* new_zeros() { return memory.emplace_back(new float[size]()).get(); }

  int64_t size;
  std::vector<std::unique_ptr<float[]>> memory;
  std::vector<AffineSums> of;
};

// Some tokens, and what the gradient of the weight needs of them: inputs of the linear layer (tokens, K), for bf16 in
// pairs of tokens, and gradients of its outputs, transposed: (N, stride).
template <class T>
struct Strip {
  int64_t stride = 0;
  T *inputs = nullptr, *turned = nullptr;
};

template <class T, class Source>
class Projected {
 public:
  Projected(const Source& source, const Projection<T>& p, const Linear<T>* transposed, const float* grad,
            float* grad_source, const AffineSums& sums)
      : source(source), p(p), transposed(transposed), grad(grad), grad_source(grad_source), sums(sums) {
    memory.allocate([&](const auto& take) {
      raw = (float*)take(K * sizeof(float));
      rows = (T*)take(PAIRS ? PROJECTED * K * sizeof(T) : 0);
      tokens = (float*)take(p.after ? PROJECTED * N * sizeof(float) : 0);
      of_tokens = (T*)take(PROJECTED * N * sizeof(T));
      of_rows = (float*)take(transposed ? PROJECTED * transposed->N * sizeof(float) : 0);
      room = ProductRoom<T>({&p.linear, transposed ? transposed : &p.linear}, take);
    });
    std::fill_n(raw, K, 0.f);
  }

  // `count` tokens from `first` on; they are those of the strip from `at` on.
  void run(int64_t first, int64_t count, const Strip<T>& strip, int64_t at) {
    const int64_t padded = round_up(count, TILE_TERMS);
    T *inputs = strip.inputs + at * K, *to = PAIRS ? rows : inputs, *turned = strip.turned + at;
    for (int64_t m = 0; m < count; m++) read_row(source, p, first + m, raw, to + m * K);
    std::memset((void*)(to + count * K), 0, (padded - count) * K * sizeof(T));
    pack_values(to, padded, K, inputs);
    if (p.after) multiply(to, K, count, p.linear, tokens);
    for (int64_t m = 0; m < count; m++) enter(first + m, tokens + m * N, of_tokens + m * N);
    transpose(of_tokens, N, count, N, turned, strip.stride);
    for (int64_t n = 0; n < N; n++) std::fill_n(turned + n * strip.stride + count, padded - count, T(0.f));
    if (!transposed) return;
    multiply(of_tokens, N, count, *transposed, of_rows);
    for (int64_t m = 0; m < count; m++) leave(first + m, of_rows + m * transposed->N);
  }

 private:
  static constexpr bool PAIRS = std::is_same_v<T, bf16>;

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
      return layer_norm_backward(value, N, *p.after, from, 1.f, sums,
                                 [&](int64_t n, Vec g, int64_t lanes) { store(to + n, g, lanes); });
    over_columns(N, [&](int64_t n, int64_t lanes) { store(to + n, load(from + n, lanes), lanes); });
  }

  // Puts the gradient of the token's row where the row came from.
  void leave(int64_t token, float* row) const {
    if (p.before) {
      source.read(token, raw);
      layer_norm_backward(raw, p.linear.K, *p.before, row, 1.f, sums,
                          [&](int64_t k, Vec g, int64_t lanes) { store(row + k, g, lanes); });
    }
    source.write(token, row, grad_source);
  }

  const Source& source;
  const Projection<T>& p;
  const Linear<T>* transposed;
  const float* grad;
  float* grad_source;
  const AffineSums sums;
  const int64_t K = p.linear.padded_K(), N = p.linear.N;
  float *raw, *tokens, *of_rows;  // one row before its norm; tokens before their norm; gradients of rows
  T *rows, *of_tokens;            // gradients of the linear layer's outputs
  ProductRoom<T> room;
  Buffers memory;
};

}  // namespace

template <class T, class Source>
void project_backward(const Source& source, const Projection<T>& p, const Linear<T>* transposed, const float* grad,
                      float* grad_source, const ProjectionSums& sums) {
  const Linear<T>& w = p.linear;
  const int64_t tokens = source.tokens(), K = w.padded_K(), N = w.N;
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t share = std::max<int64_t>(PROJECTED, SHARE / ((N + K) * sizeof(T)));
  const int64_t strips = (tokens + threads * share - 1) / (threads * share);
  Strip<T> strip{round_up((tokens + strips - 1) / strips, TILE_TERMS)};
  const int64_t step = std::min(PROJECTED, round_up((strip.stride + threads - 1) / threads, TILE_TERMS));
  const int64_t workers = std::min(threads, (strip.stride + step - 1) / step);
  Buffers memory;
  memory.allocate([&](const auto& take) {
    strip.inputs = (T*)take(strip.stride * K * sizeof(T));
    strip.turned = (T*)take(strip.stride * N * sizeof(T));
  });
  const bool has_norm = p.before || p.after;
  const WorkerSums norm_sums(workers, has_norm ? p.before ? w.K : N : 0, sums.norm_weight, sums.norm_bias);
  std::vector<std::unique_ptr<Projected<T, Source>>> made(workers);
  for (int64_t first = 0; first < tokens; first += strip.stride) {
    const int64_t count = std::min(strip.stride, tokens - first);
    at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; worker++) {
        auto& part = made[worker];
        if (!part)
          part = std::make_unique<Projected<T, Source>>(source, p, transposed, grad, grad_source, norm_sums[worker]);
        for (int64_t at = worker * step; at < count; at += workers * step)
          part->run(first + at, std::min(step, count - at), strip, at);
      }
      release_brgemm<T>();
    });
    at::parallel_for(0, (N + WEIGHT_ROWS - 1) / WEIGHT_ROWS, 1, [&](int64_t begin, int64_t end) {
      const int64_t terms = round_up(count, TILE_TERMS);
      for (int64_t n = begin * WEIGHT_ROWS; n < std::min(N, end * WEIGHT_ROWS); n += WEIGHT_ROWS) {
        const int64_t rows = std::min(WEIGHT_ROWS, N - n);
        const T* turned = strip.turned + n * strip.stride;
        for (int64_t k = 0; k < w.K; k += MAX_COLUMNS)
          brgemm(rows, std::min(MAX_COLUMNS, w.K - k), terms, strip.stride, K, w.K, turned,
                 strip.inputs + k * (std::is_same_v<T, bf16> ? 2 : 1), sums.weight + n * w.K + k, first > 0);
        for (int64_t r = 0; r < rows; r++) sums.bias[n + r] += sum_of(turned + r * strip.stride, terms);
      }
      release_brgemm<T>();
    });
  }
  norm_sums.add();
}

void normalise_output_backward(const float* x, const float* grad, int64_t batch, int64_t area, int64_t channels,
                               const Affine& norm, float* grad_x, float* norm_weight, float* norm_bias) {
  constexpr int64_t STRIP = 64;  // tokens
  const int64_t strips = (area + STRIP - 1) / STRIP;
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t workers = std::min(threads, batch * strips), each = (batch * strips + workers - 1) / workers;
  const WorkerSums sums(workers, channels, norm_weight, norm_bias);
  at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> of_tokens(new float[STRIP * channels]);
    for (int64_t worker = begin; worker < end; worker++)
      for (int64_t strip = worker * each; strip < std::min(batch * strips, (worker + 1) * each); strip++) {
        const int64_t image = strip / strips, first = strip % strips * STRIP, count = std::min(STRIP, area - first);
        transpose(grad + image * channels * area + first, area, channels, count, of_tokens.get(), channels);
        for (int64_t m = 0; m < count; m++) {
          const int64_t at = (image * area + first + m) * channels;
          layer_norm_backward(x + at, channels, norm, of_tokens.get() + m * channels, 1.f, sums[worker],
                              [&](int64_t c, Vec g, int64_t lanes) { store(grad_x + at + c, g, lanes); });
        }
      }
  });
  sums.add();
}

#define INSTANTIATE_FOR(T, Source)                                                                       \
  template void project_backward<T, Source>(const Source&, const Projection<T>&, const Linear<T>*,      \
                                            const float*, float*, const ProjectionSums&);
#define INSTANTIATE(T) SWIN_FOR_EACH_PROJECTION(INSTANTIATE_FOR, T)
SWIN_FOR_EACH_DTYPE(INSTANTIATE)

}  // namespace swin
