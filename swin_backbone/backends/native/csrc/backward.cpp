#include "backward.h"

#include <ATen/Parallel.h>

#include <optional>

#include "backward_group.h"

namespace swin {
namespace {

constexpr int64_t CACHE = 2 << 20;    // bytes of a group that should fit in L2 together
constexpr int64_t PRIVATE = 2 << 20;  // bytes of gradients of weights up to which each thread sums its own

}  // namespace

template <class T>
int64_t groups_of_backward(const BlockWeights<T>& w, const Windows& windows) {
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t per_group =
      windows_of_group(windows, threads, std::max(CACHE, 2 * w.bytes()), BackwardGroup<T>::bytes_of_row(w));
  return (windows.count() + per_group - 1) / per_group;
}

template <class T>
void run_block_backward(const BlockWeights<T>& of_block, const Linear<T> (&packed)[LINEARS], const Windows& windows,
                        const float* x, const float* grad_y, float* grad_x, float* const (&weight_sums)[LINEARS],
                        float* vector_sums, const SavedGroups& saved) {
  BlockWeights<T> w = of_block;
  Linear<T> transposed[] = {packed[QKV], packed[PROJ], packed[FC1], packed[FC2]};
  std::optional<Split> split, split_transposed;
  if (w.worth_splitting(windows.tokens())) {
    if (!saved.memory) split.emplace(std::vector{&w.qkv, &w.proj, &w.fc1, &w.fc2});
    split_transposed.emplace(std::vector{transposed, transposed + 1, transposed + 2, transposed + 3});
  }
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t groups = saved.memory ? saved.groups : groups_of_backward(w, windows);
  const int64_t per_group = (windows.count() + groups - 1) / groups;
  const int64_t workers = std::min(threads, groups);
  const VectorSums<T> of(w, windows.area(), bias_stride(windows.area()));

  const auto size_of = [&](int64_t i) { return w.linear(i).N * w.linear(i).K; };
  int64_t numbers = 0, panels[LINEARS + 1] = {0};  // of all weights; tasks of the layers before
  for (int64_t i = 0; i < LINEARS; i++) {
    numbers += size_of(i);
    panels[i + 1] = panels[i] + (w.linear(i).N + MAX_COLUMNS - 1) / MAX_COLUMNS;
  }
  const bool own = numbers * (int64_t)sizeof(float) <= PRIVATE;  // then no thread waits for another
  // The sums of the first worker are the result; those of the others are added to it in order.
  std::vector<Buffers> memory(workers);
  std::vector<float*> vectors(workers, vector_sums);
  std::vector<std::array<float*, LINEARS>> weights(workers);
  std::copy_n(weight_sums, LINEARS, weights[0].begin());
  for (int64_t worker = 1; worker < workers; worker++) {
    memory[worker].allocate([&](const auto& take) {
      vectors[worker] = (float*)take(of.size * sizeof(float));
      for (int64_t i = 0; i < LINEARS; i++) weights[worker][i] = (float*)take(own ? size_of(i) * sizeof(float) : 0);
    });
    std::memset(vectors[worker], 0, of.size * sizeof(float));
  }

  const int64_t N = windows.area(), S = bias_stride(N);
  const int64_t to_turn = of.turned_numbers;  // of the position bias
  std::vector<float> turned_bias(to_turn, -std::numeric_limits<float>::infinity());
  for (int64_t at = 0; at < to_turn; at += N * S) transpose(w.bias_hNS + at, S, N, N, turned_bias.data() + at, S);
  const auto dealt = windows.deal(groups);
  const auto make = [&](int64_t worker) {
    return std::make_unique<BackwardGroup<T>>(w, transposed, windows, per_group, x, grad_y, grad_x, vectors[worker],
                                              own ? weights[worker].data() : nullptr, turned_bias.data());
  };
  const auto each_worker = [&](const auto& f) {
    at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; worker++) f(worker);
      release_brgemm<T>();
    });
  };
  if (own) {
    each_worker([&](int64_t worker) {
      const auto group = make(worker);
      for (int64_t g = worker; g < groups; g += workers) group->run(dealt[g], saved.of(g));
    });
  } else {
    std::vector<std::unique_ptr<BackwardGroup<T>>> made(workers);
    for (int64_t first = 0; first < groups; first += workers) {
      const int64_t last = std::min(workers, groups - first);
      each_worker([&](int64_t worker) {
        if (worker >= last) return;
        if (!made[worker]) made[worker] = make(worker);
        made[worker]->run(dealt[first + worker], saved.of(first + worker));
      });
      at::parallel_for(0, panels[LINEARS], 1, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++) {
          const int64_t i = std::upper_bound(panels, panels + LINEARS, task) - panels - 1;
          const int64_t n = (task - panels[i]) * MAX_COLUMNS;
          std::vector<const Kept<T>*> kept;
          for (int64_t worker = 0; worker < last; worker++) kept.push_back(&made[worker]->kept[i]);
          weight_gradient(kept, n, std::min(MAX_COLUMNS, w.linear(i).N - n), weight_sums[i], first > 0);
        }
        release_brgemm<T>();
      });
    }
  }
  for (int64_t worker = 1; worker < workers; worker++) {
    const auto add = [&](float* to, const float* from, int64_t count) {
      over_columns(count, [&](int64_t c, int64_t lanes) {
        store(to + c, load(to + c, lanes) + load(from + c, lanes), lanes);
      });
    };
    add(vector_sums, vectors[worker], of.size);
    for (int64_t i = 0; i < LINEARS && own; i++) add(weight_sums[i], weights[worker][i], size_of(i));
  }
  float *bias_sums = vector_sums + of.bias_hNS, *turned_sums = vector_sums + of.turned_bias;
  for (int64_t at = 0; at < to_turn; at += S)  // the row of a key
    for (int64_t q = 0; q < N; q++) bias_sums[at / (N * S) * N * S + q * S + at / S % N] += turned_sums[at + q];
}
#define INSTANTIATE(T)                                                                                            \
  template int64_t groups_of_backward<T>(const BlockWeights<T>&, const Windows&);                                 \
  template void run_block_backward<T>(const BlockWeights<T>&, const Linear<T>(&)[LINEARS], const Windows&,        \
                                      const float*, const float*, float*, float* const (&)[LINEARS], float*,       \
                                      const SavedGroups&);
SWIN_FOR_EACH_DTYPE(INSTANTIATE)

}  // namespace swin
