#include "norm/output_norm.h"

#include <algorithm>

#include "machine/profile.h"
#include "machine/threads.h"
#include "machine/worker_vectors.h"

namespace swin::SWIN_ISA {
namespace {

constexpr int64_t STRIP_TOKENS = 64;  // tokens at a time: whole cache lines of the transpose

}  // namespace

void normalise_output(const float* x, int64_t batch, int64_t area, int64_t channels, const Affine& norm,
                      int64_t threads, float* out) {
  const int64_t strips = ceil_div(area, STRIP_TOKENS);
  each_part(batch * strips, threads, [&](int64_t begin, int64_t end) {
    float* normed = nullptr;
    Memory memory;
    memory.allocate([&](Arena& arena) { normed = arena.take<float>(STRIP_TOKENS * channels); });
    for (int64_t strip = begin; strip < end; strip++) {
      const int64_t image = strip / strips, first = strip % strips * STRIP_TOKENS;
      const int64_t count = std::min(STRIP_TOKENS, area - first);
      const Timed timed(Work::NORMS, count * channels);
      for (int64_t m = 0; m < count; m++)
        layer_norm(x + (image * area + first + m) * channels, channels, norm, normed + m * channels);
      for (int64_t c = 0; c < channels; c += LANES)
        transpose(normed + c, channels, count, std::min(LANES, channels - c),
                  out + (image * channels + c) * area + first, area);
    }
  });
}

void normalise_output_backward(const float* x, const float* grad, int64_t batch, int64_t area, int64_t channels,
                               const Affine& norm, int64_t threads, float* grad_x, float* grad_weight,
                               float* grad_bias) {
  const int64_t strips = ceil_div(area, STRIP_TOKENS);
  const int64_t workers = std::min(threads, batch * strips), each = ceil_div(batch * strips, workers);
  const WorkerVectors sums(workers, 2 * channels);
  each_task(workers, threads, [&](int64_t worker) {
    float* grad_tokens = nullptr;
    Memory memory;
    memory.allocate([&](Arena& arena) { grad_tokens = arena.take<float>(STRIP_TOKENS * channels); });
    for (int64_t strip = worker * each; strip < std::min(batch * strips, (worker + 1) * each); strip++) {
      const int64_t image = strip / strips, first = strip % strips * STRIP_TOKENS;
      const int64_t count = std::min(STRIP_TOKENS, area - first);
      transpose(grad + image * channels * area + first, area, channels, count, grad_tokens, channels);
      for (int64_t m = 0; m < count; m++) {
        const int64_t at = (image * area + first + m) * channels;
        layer_norm_backward(x + at, channels, norm, grad_tokens + m * channels, 1.f,
                            {sums[worker], sums[worker] + channels},
                            [&](int64_t c, Vec g, int64_t lanes) { store(grad_x + at + c, g, lanes); });
      }
    }
  });
  const float* norm_sums = sums.add();
  std::copy_n(norm_sums, channels, grad_weight);
  std::copy_n(norm_sums + channels, channels, grad_bias);
}

}  // namespace swin::SWIN_ISA
