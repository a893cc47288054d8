#include "block.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <optional>

#include "group.h"

namespace swin {
namespace {

constexpr int64_t CACHE = 1 << 20;  // bytes of a group that should fit in L2 together with the weights

template <class T>
int64_t bytes_of_row(const BlockWeights<T>& w) {
  return sizeof(T) * (2 * w.C + std::max(3 * w.C, w.D)) + (w.cosine_scale ? sizeof(float) * w.C : 0);
}

}  // namespace

template <class T>
int64_t saved_bytes(const BlockWeights<T>& w, const Windows& windows, int64_t groups) {
  const int64_t rows = rows_of_group(windows, (windows.count() + groups - 1) / groups);
  return bytes_of([&](const auto& take) { return Saved<T>(w, rows, take); });
}

template <class T>
void run_block(const BlockWeights<T>& weights, const Windows& windows, const float* x, float* out,
               const SavedGroups& saved) {
  BlockWeights<T> w = weights;
  std::optional<Split> split;
  if (w.worth_splitting(windows.tokens())) split.emplace(std::vector{&w.qkv, &w.proj, &w.fc1, &w.fc2});
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t fitting = windows_of_group(windows, threads, std::max(CACHE, w.bytes()), bytes_of_row(w));
  const int64_t groups = saved.memory ? saved.groups : (windows.count() + fitting - 1) / fitting;
  const int64_t per_group = (windows.count() + groups - 1) / groups;
  const auto dealt = windows.deal(groups);
  std::atomic<int64_t> next{0};  // a window's result does not depend on who computes it
  at::parallel_for(0, std::min(threads, groups), 1, [&](int64_t, int64_t) {
    Group<T> group(w, windows, per_group, x, out);
    for (int64_t g; (g = next++) < groups;) group.run(dealt[g], saved.of(g));
    release_brgemm<T>();
  });
}
#define INSTANTIATE(T)                                                                                              \
  template int64_t saved_bytes<T>(const BlockWeights<T>&, const Windows&, int64_t);                                \
  template void run_block<T>(const BlockWeights<T>&, const Windows&, const float*, float*, const SavedGroups&);
SWIN_FOR_EACH_DTYPE(INSTANTIATE)

}  // namespace swin
