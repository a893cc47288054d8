#include "block/backward.h"

#include <memory>

#include "block/backward_group.h"
#include "machine/memory.h"
#include "machine/worker_vectors.h"

namespace swin::SWIN_ISA {
namespace {

constexpr int64_t MAX_OWN_WEIGHTS = 1 << 19;  // up to this number of weights, each thread has its own gradient sums

// Bytes of a group of windows: twice the bytes of a forward pass.
int64_t bytes_of_group() { return std::clamp<int64_t>(2 * l2_bytes(), 1 << 20, 2 << 20); }

// The gradient sums of each worker: of vectors, at first zeros, and with `own_weights` of weights. `add` adds those of
// all workers in a fixed order, so results are reproducible.
template <class T>
class WorkerSums {
 public:
  // weight_sums: of the first worker, and the result.
  WorkerSums(const Block<T>& block, const SumOffsets<T>& offsets, int64_t workers, bool own_weights,
             float* const (&weight_sums)[LINEARS])
      : block(block), workers(workers), vectors(workers, offsets.size) {
    if (!own_weights) return;
    float* next = nullptr;
    memory.allocate([&](Arena& arena) {
      weights = arena.take<Weights>(workers);
      next = arena.take<float>((workers - 1) * block.num_weights());
    });
    for (int64_t worker = 0; worker < workers; worker++)
      for (int64_t i = 0; i < LINEARS; i++) {
        weights[worker].of[i] = worker ? next : weight_sums[i];
        if (worker) next += block.linear(i).N * block.linear(i).K;
      }
  }

  float* vectors_of(int64_t worker) const { return vectors[worker]; }
  float* const* weights_of(int64_t worker) const { return weights ? weights[worker].of : nullptr; }

  // Returns the sums of the vectors.
  float* add() const {
    if (weights)
      for (int64_t worker = 1; worker < workers; worker++)
        for (int64_t i = 0; i < LINEARS; i++)
          add_row(weights[worker].of[i], block.linear(i).N * block.linear(i).K, weights[0].of[i]);
    return vectors.add();
  }

 private:
  struct Weights {
    float* of[LINEARS];
  };

  const Block<T>& block;
  const int64_t workers;
  const WorkerVectors vectors;
  Weights* weights = nullptr;  // null without own weights
  Memory memory;
};

// The position bias with keys first, for the AMX loops. `add_gradient` transposes the gradient back.
template <class T>
class KeysFirstBias {
 public:
  KeysFirstBias(const Block<T>& block, const SumOffsets<T>& offsets, int64_t N)
      : offsets(offsets),
        N(N),
        S(padded_keys(N)),
        heads(offsets.keys_first_size / (N * S)) {  // 0 without tiles: nothing is transposed
    memory.allocate([&](Arena& arena) { bias = arena.take<float>(offsets.keys_first_size); });
    std::fill_n(bias, offsets.keys_first_size, -std::numeric_limits<float>::infinity());
    for (int64_t at = 0; at < heads * N * S; at += N * S) transpose(block.bias_hNS + at, S, N, N, bias + at, S);
  }
  const float* get() const { return bias; }

  void add_gradient(float* vector_sums) const {
    float *sums = vector_sums + offsets.bias_hNS, *keys_first = vector_sums + offsets.keys_first_bias;
    for (int64_t head = 0; head < heads; head++, sums += N * S, keys_first += N * S)
      for (int64_t key = 0; key < N; key++)
        for (int64_t q = 0; q < N; q++) sums[q * S + key] += keys_first[key * S + q];
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
void add_weight_gradients(const Block<T>& block, const std::unique_ptr<BackwardGroup<T>>* workers, int64_t count,
                          int64_t threads, float* const (&weight_sums)[LINEARS], bool accumulate) {
  const WeightGradOperands<T>** operands = nullptr;  // (LINEARS, count)
  Memory memory;
  memory.allocate([&](Arena& arena) { operands = arena.take<const WeightGradOperands<T>*>(LINEARS * count); });
  int64_t tasks[LINEARS + 1] = {0};  // before each layer, the last layer first
  for (int64_t i = 0; i < LINEARS; i++) {
    for (int64_t worker = 0; worker < count; worker++) operands[i * count + worker] = &workers[worker]->operands[i];
    tasks[i + 1] = tasks[i] + ceil_div(block.linear(LINEARS - 1 - i).N, MAX_COLUMNS);
  }
  each_task(tasks[LINEARS], threads, [&](int64_t task) {
    int64_t rank = 0;
    while (task >= tasks[rank + 1]) rank++;
    const int64_t i = LINEARS - 1 - rank, n = (task - tasks[rank]) * MAX_COLUMNS;
    compute_weight_gradient(operands + i * count, count, n, std::min(MAX_COLUMNS, block.linear(i).N - n),
                            weight_sums[i], accumulate);
  });
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
void sum_together(const Block<T>& block, const Groups& groups, int64_t num_groups, int64_t workers, int64_t threads,
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
    add_weight_gradients(block, worker_groups.get(), count, threads, weight_sums, first > 0);
  }
}

// Write the gradients of all vectors, from their sums.
template <class T>
void write_gradients(const Block<T>& block, const SumOffsets<T>& offsets, int64_t N, int64_t S, const float* sums,
                     const swin_block_gradients& to) {
  const auto put = [&](int64_t begin, int64_t size, float* gradient) { std::copy_n(sums + begin, size, gradient); };
  float* const norms[3][2] = {
      {to.norm1_weight, to.norm1_bias}, {to.norm2_weight, to.norm2_bias}, {to.norm3_weight, to.norm3_bias}};
  for (int64_t i = 0; i < 3; i++) {
    put(offsets.norm_weight[i], block.C, norms[i][0]);
    put(offsets.norm_bias[i], block.C, norms[i][1]);
  }
  for (int64_t i = 0; i < LINEARS; i++) put(offsets.bias[i], block.linear(i).N, to.bias[i]);
  for (int64_t r = 0; r < block.heads * N; r++) put(offsets.bias_hNS + r * S, N, to.position_bias + r * N);
  put(offsets.cosine_scale, block.heads, to.cosine_scale);
}

}  // namespace

template <class T>
int64_t groups_of_backward(const BlockSizes& sizes, const Windows& windows, int64_t threads) {
  const int64_t bytes_of_weights = sizeof(T) * sizes.num_weights();
  return count_groups(windows, threads, std::max(bytes_of_group(), 2 * bytes_of_weights),
                      BackwardGroup<T>::bytes_of_row(sizes));
}

template <class T>
void run_block_backward(Block<T>& block, Linear<T> (&backward_linears)[LINEARS], const Windows& windows,
                        int64_t threads, const float* x, const float* grad_y, const SavedGroups& saved,
                        const swin_block_gradients& gradients) {
  Bf16Pieces pieces, backward_pieces;
  if (block.worth_packing_pieces(windows.tokens())) {
    if (!saved.memory) pieces.pack(block.linears, threads);
    backward_pieces.pack(backward_linears, threads);
  }
  const int64_t num_groups = saved.memory ? saved.num_groups : groups_of_backward<T>(block, windows, threads);
  const int64_t workers = std::min(threads, num_groups);
  const Groups groups = windows.deal(num_groups);
  // With weights of its own, no thread waits for the others between groups.
  const bool own_weights = block.num_weights() <= MAX_OWN_WEIGHTS;
  const int64_t N = windows.area(), S = padded_keys(N);
  const SumOffsets<T> offsets(block, N, S);
  const WorkerSums<T> sums(block, offsets, workers, own_weights, gradients.weight);
  const KeysFirstBias<T> bias(block, offsets, N);
  const auto make = [&](int64_t worker) {
    return std::make_unique<BackwardGroup<T>>(block, backward_linears, windows, groups, x, grad_y, gradients.x,
                                              sums.vectors_of(worker), sums.weights_of(worker), bias.get());
  };
  if (own_weights)
    sum_apart<T>(groups, num_groups, workers, threads, saved, make);
  else
    sum_together(block, groups, num_groups, workers, threads, saved, make, gradients.weight);
  float* vector_sums = sums.add();
  bias.add_gradient(vector_sums);
  write_gradients(block, offsets, N, S, vector_sums, gradients);
}
#define INSTANTIATE(T)                                                                                         \
  template int64_t groups_of_backward<T>(const BlockSizes&, const Windows&, int64_t);                          \
  template void run_block_backward<T>(Block<T>&, Linear<T>(&)[LINEARS], const Windows&, int64_t, const float*, \
                                      const float*, const SavedGroups&, const swin_block_gradients&);
SWIN_FOR_EACH_DTYPE(INSTANTIATE)
#undef INSTANTIATE

}  // namespace swin::SWIN_ISA
