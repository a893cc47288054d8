#include "block.h"

#include <ATen/Parallel.h>

#include <atomic>

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
void run_block(const BlockWeights<T>& w, const Windows& windows, const float* x, float* out) {
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t per_group = windows_of_group(windows, threads, std::max(CACHE, w.bytes()), bytes_of_row(w));
  const int64_t groups = (windows.count() + per_group - 1) / per_group;
  const auto dealt = windows.deal(groups);
  std::atomic<int64_t> next{0};  // a window's result does not depend on who computes it
  at::parallel_for(0, std::min(threads, groups), 1, [&](int64_t, int64_t) {
    Group<T> group(w, windows, per_group, x, out);
    for (int64_t g; (g = next++) < groups;) group.run(dealt[g]);
    release_brgemm<T>();
  });
}
#define INSTANTIATE(T) template void run_block<T>(const BlockWeights<T>&, const Windows&, const float*, float*);
SWIN_FOR_EACH_DTYPE(INSTANTIATE)

}  // namespace swin
