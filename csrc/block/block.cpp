#include "block/block.h"

#include <atomic>

#include "block/block_group.h"
#include "machine/memory.h"

namespace swin::SWIN_ISA {
namespace {

// Bytes of a group of windows: the size of L2, within the measured range of 512 KiB to 1 MiB.
int64_t bytes_of_group() { return std::clamp<int64_t>(l2_bytes(), 512 << 10, 1 << 20); }

template <class T>
int64_t bytes_of_row(const Block<T>& block) {
  return sizeof(T) * (2 * block.C + std::max(3 * block.C, block.D)) + (block.is_v2 ? sizeof(float) * block.C : 0);
}

}  // namespace

template <class T>
int64_t saved_bytes(const BlockSizes& sizes, const Windows& windows, int64_t num_groups) {
  const Capacity capacity(windows.deal(num_groups), windows.area());
  return bytes_of([&](Arena& arena) { SavedActivations<T>(sizes, capacity, arena); });
}

template <class T>
void run_block(Block<T>& block, const Windows& windows, int64_t threads, const float* x, float* out,
               const SavedGroups& saved) {
  Bf16Pieces pieces;
  if (block.worth_packing_pieces(windows.tokens())) pieces.pack(block.linears, threads);
  const int64_t num_groups =
      saved.memory ? saved.num_groups
                   : count_groups(windows, threads, std::max(bytes_of_group(), block.bytes()), bytes_of_row(block));
  const Groups groups = windows.deal(num_groups);
  std::atomic<int64_t> next{0};  // any thread computes the same result for a window
  each_task(std::min(threads, num_groups), threads, [&](int64_t) {
    [[maybe_unused]] const TilesInUse tiles;
    BlockGroup<T> group(block, windows, groups, x, out);
    for (int64_t g; (g = next++) < num_groups;) group.run(groups[g], saved.of(g));
  });
}
#define INSTANTIATE(T)                                                         \
  template int64_t saved_bytes<T>(const BlockSizes&, const Windows&, int64_t); \
  template void run_block<T>(Block<T>&, const Windows&, int64_t, const float*, float*, const SavedGroups&);
SWIN_FOR_EACH_DTYPE(INSTANTIATE)
#undef INSTANTIATE

}  // namespace swin::SWIN_ISA
