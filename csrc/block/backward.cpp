#include "block/backward.h"

#include <memory>

#include "block/backward_group.h"
#include "machine/memory.h"

namespace swin::SWIN_ISA {
namespace {

constexpr int64_t MAX_OWN_SUMS = 2 << 20;  // bytes: up to this size of weight gradients, each thread has its own sums

// Bytes of a group of windows: twice the bytes of a forward pass.
int64_t bytes_of_group() { return std::clamp<int64_t>(2 * l2_bytes(), 1 << 20, 2 << 20); }

template <class T>
int64_t size_of(const Linear<T>& w) {
  return w.N * w.K;
}

// The gradient sums of each worker: of vectors and, with `own_weights`, of weights. The first worker sums into the
// result. `add` adds the sums of the other workers in a fixed order, so results are reproducible.
template <class T>
class WorkerSums {
 public:
  WorkerSums(const BlockWeights<T>& w, const SumOffsets<T>& offsets, int64_t workers, bool own_weights,
             float* const (&weight_sums)[LINEARS], float* vector_sums)
      : w(w), size(offsets.size), workers(workers), own_weights(own_weights) {
    memory.allocate([&](Arena& arena) {
      vectors = arena.take<float*>(workers);
      weights = arena.take<Weights>(workers);
      other_vectors = arena.take<float>((workers - 1) * size);
      other_weights = arena.take<float>(own_weights ? (workers - 1) * weights_of_worker() : 0);
    });
    std::fill_n(other_vectors, (workers - 1) * size, 0.f);
    for (int64_t worker = 0; worker < workers; worker++) {
      vectors[worker] = worker ? other_vectors + (worker - 1) * size : vector_sums;
      float* next = other_weights + (worker - 1) * weights_of_worker();
      for (int64_t i = 0; i < LINEARS; i++) {
        weights[worker].linear[i] = worker ? next : weight_sums[i];
        next += size_of(w.linear(i));
      }
    }
  }

  float* vectors_of(int64_t worker) const { return vectors[worker]; }
  float* const* weights_of(int64_t worker) const { return own_weights ? weights[worker].linear : nullptr; }

  void add() const {
    for (int64_t worker = 1; worker < workers; worker++) {
      add_row(vectors[worker], size, vectors[0]);
      for (int64_t i = 0; i < LINEARS && own_weights; i++)
        add_row(weights[worker].linear[i], size_of(w.linear(i)), weights[0].linear[i]);
    }
  }

 private:
  struct Weights {
    float* linear[LINEARS];
  };
  int64_t weights_of_worker() const {
    int64_t count = 0;
    for (const Linear<T>& linear : w.linears) count += size_of(linear);
    return count;
  }

  const BlockWeights<T>& w;
  const int64_t size, workers;
  const bool own_weights;
  float **vectors, *other_vectors, *other_weights;
  Weights* weights;
  Memory memory;
};

// The position bias with keys first, for the AMX loops. `add_gradient` transposes the gradient back.
template <class T>
class TransposedBias {
 public:
  TransposedBias(const BlockWeights<T>& w, const SumOffsets<T>& offsets, int64_t N)
      : offsets(offsets), N(N), S(bias_stride(N)), heads(offsets.transposed_bias_size / (N * S)) {
    memory.allocate([&](Arena& arena) { bias = arena.take<float>(offsets.transposed_bias_size); });
    std::fill_n(bias, offsets.transposed_bias_size, -std::numeric_limits<float>::infinity());
    for (int64_t at = 0; at < heads * N * S; at += N * S) transpose(w.bias_hNS + at, S, N, N, bias + at, S);
  }
  const float* get() const { return bias; }

  void add_gradient(float* vector_sums) const {
    float *sums = vector_sums + offsets.bias_hNS, *transposed = vector_sums + offsets.transposed_bias;
    for (int64_t head = 0; head < heads; head++, sums += N * S, transposed += N * S)
      for (int64_t key = 0; key < N; key++)
        for (int64_t q = 0; q < N; q++) sums[q * S + key] += transposed[key * S + q];
  }

 private:
  const SumOffsets<T>& offsets;
  const int64_t N, S, heads;
  float* bias;
  Memory memory;
};

// Compute the weights' gradients from the operands of all workers, in tasks of MAX_COLUMNS outputs of a layer. The last
// layer has the longest tasks, and comes first. The order of tasks does not change results.
template <class T>
void add_weight_gradients(const BlockWeights<T>& w, const std::unique_ptr<BackwardGroup<T>>* workers, int64_t count,
                          int64_t threads, float* const (&weight_sums)[LINEARS], bool accumulate) {
  const WeightGradOperands<T>** operands = nullptr;  // (LINEARS, count)
  Memory memory;
  memory.allocate([&](Arena& arena) { operands = arena.take<const WeightGradOperands<T>*>(LINEARS * count); });
  int64_t tasks[LINEARS + 1] = {0};  // before each layer, the last layer first
  for (int64_t i = 0; i < LINEARS; i++) {
    for (int64_t worker = 0; worker < count; worker++) operands[i * count + worker] = &workers[worker]->operands[i];
    tasks[i + 1] = tasks[i] + (w.linear(LINEARS - 1 - i).N + MAX_COLUMNS - 1) / MAX_COLUMNS;
  }
  each_task(tasks[LINEARS], threads, [&](int64_t task) {
    int64_t rank = 0;
    while (task >= tasks[rank + 1]) rank++;
    const int64_t i = LINEARS - 1 - rank, n = (task - tasks[rank]) * MAX_COLUMNS;
    compute_weight_gradient(operands + i * count, count, n, std::min(MAX_COLUMNS, w.linear(i).N - n), weight_sums[i],
                            accumulate);
  });
}

template <class T>
int64_t bytes_of_gradients(const BlockWeights<T>& w) {
  int64_t bytes = 0;
  for (const Linear<T>& linear : w.linears) bytes += size_of(linear) * sizeof(float);
  return bytes;
}

// Compute groups g = worker, worker + workers, ... in each worker, with sums of its own. make(worker) constructs
// the worker's group.
template <class T, class Make>
void sum_apart(const Groups& groups, int64_t num_groups, int64_t workers, int64_t threads, const SavedGroups& saved,
               const Make& make) {
  each_task(workers, threads, [&](int64_t worker) {
    [[maybe_unused]] const TilesInUse tiles;
    const std::unique_ptr<BackwardGroup<T>> group = make(worker);
    for (int64_t g = worker; g < num_groups; g += workers) group->run(groups[g], saved.of(g));
  });
}

// Compute one group in each worker, then the weight gradients of these groups together.
template <class T, class Make>
void sum_together(const BlockWeights<T>& w, const Groups& groups, int64_t num_groups, int64_t workers, int64_t threads,
                  const SavedGroups& saved, const Make& make, float* const (&weight_sums)[LINEARS]) {
  const std::unique_ptr<std::unique_ptr<BackwardGroup<T>>[]> worker_groups(
      new std::unique_ptr<BackwardGroup<T>>[workers]);
  for (int64_t first = 0; first < num_groups; first += workers) {
    const int64_t count = std::min(workers, num_groups - first);
    each_task(count, threads, [&](int64_t worker) {
      [[maybe_unused]] const TilesInUse tiles;
      if (!worker_groups[worker]) worker_groups[worker] = make(worker);
      worker_groups[worker]->run(groups[first + worker], saved.of(first + worker));
    });
    add_weight_gradients(w, worker_groups.get(), count, threads, weight_sums, first > 0);
  }
}

}  // namespace

template <class T>
int64_t groups_of_backward(const BlockSizes& sizes, const Windows& windows, int64_t threads) {
  const int64_t bytes_of_weights = sizeof(T) * sizes.num_weights();
  const int64_t per_group = windows_of_group(windows, threads, std::max(bytes_of_group(), 2 * bytes_of_weights),
                                             BackwardGroup<T>::bytes_of_row(sizes));
  return (windows.count() + per_group - 1) / per_group;
}

template <class T>
void run_block_backward(const BlockWeights<T>& weights, const Linear<T> (&packed)[LINEARS], const Windows& windows,
                        int64_t threads, const float* x, const float* grad_y, float* grad_x,
                        float* const (&weight_sums)[LINEARS], float* vector_sums, const SavedGroups& saved) {
  BlockWeights<T> w = weights;
  Linear<T> transposed[] = {packed[QKV], packed[PROJ], packed[FC1], packed[FC2]};
  Bf16Pieces pieces, transposed_pieces;
  if (w.worth_packing_pieces(windows.tokens())) {
    if (!saved.memory) pieces.pack(w.linears, threads);
    transposed_pieces.pack(transposed, threads);
  }
  const int64_t num_groups = saved.memory ? saved.num_groups : groups_of_backward<T>(w, windows, threads);
  const int64_t workers = std::min(threads, num_groups);
  const Groups groups = windows.deal(num_groups);
  const bool own_weights = bytes_of_gradients(w) <= MAX_OWN_SUMS;  // no thread waits
  const SumOffsets<T> offsets(w, windows.area(), bias_stride(windows.area()));
  const WorkerSums<T> sums(w, offsets, workers, own_weights, weight_sums, vector_sums);
  const TransposedBias<T> bias(w, offsets, windows.area());
  const auto make = [&](int64_t worker) {
    return std::make_unique<BackwardGroup<T>>(w, transposed, windows, groups, x, grad_y, grad_x,
                                              sums.vectors_of(worker), sums.weights_of(worker), bias.get());
  };
  if (own_weights)
    sum_apart<T>(groups, num_groups, workers, threads, saved, make);
  else
    sum_together(w, groups, num_groups, workers, threads, saved, make, weight_sums);
  sums.add();
  bias.add_gradient(vector_sums);
}
#define INSTANTIATE(T)                                                                                              \
  template int64_t groups_of_backward<T>(const BlockSizes&, const Windows&, int64_t);                               \
  template void run_block_backward<T>(const BlockWeights<T>&, const Linear<T>(&)[LINEARS], const Windows&, int64_t, \
                                      const float*, const float*, float*, float* const(&)[LINEARS], float*,         \
                                      const SavedGroups&);
SWIN_FOR_EACH_DTYPE(INSTANTIATE)
#undef INSTANTIATE

}  // namespace swin::SWIN_ISA
