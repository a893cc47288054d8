#include "machine/profile.h"

#ifdef SWIN_PROFILE
#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>

#include "swin.h"

namespace swin {
namespace {

constexpr int KINDS = static_cast<int>(Work::QUANTISING) + 1;
std::atomic<int64_t> nanoseconds[KINDS], amounts[KINDS];

// CPU time of the thread: other programs do not count.
int64_t now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1000000000 * int64_t{time.tv_sec} + time.tv_nsec;
}

struct Current {
  Work work = Work::OTHER;
  int64_t since = 0;
};
thread_local Current current;

constexpr int ROUNDS = 20000;
#ifdef __x86_64__
#define SWIN_WIDE __attribute__((target_clones("avx512f", "arch=haswell", "default"), noinline))
#else
#define SWIN_WIDE __attribute__((noinline))
#endif

// Add products to 12 independent sums of 16 numbers each. Return the number of operations.
SWIN_WIDE double multiply_and_add() {
  typedef float Numbers __attribute__((vector_size(64)));
  static volatile float one = 1.f;
  Numbers sums[12], factor = Numbers{} + one, term = Numbers{} + one;
  for (Numbers& sum : sums) sum = term;
  for (int i = 0; i < ROUNDS; i++)
    for (Numbers& sum : sums) sum = sum * factor + term;
  for (const Numbers& sum : sums) one = one + 0.f * sum[0];
  return 2. * 12 * 16 * ROUNDS;
}

double copy_in_cache() {
  constexpr int COUNT = 1 << 15;
  static float from[COUNT], to[COUNT];
  for (int i = 0; i < 50; i++) {
    std::memcpy(to, from, sizeof to);
    from[i] += to[COUNT - 1 - i];
  }
  return 50. * COUNT;
}

template <class F>
double best_rate(const F& f) {
  double best = 0;
  for (int i = 0; i < 20; i++) {
    const int64_t start = now();
    const double amount = f();
    best = std::max(best, 1e9 * amount / static_cast<double>(now() - start));
  }
  return best;
}

// Add the time until now to the current work, and begin the next. Return the work before.
Work begin(Work work) {
  const Work before = current.work;
  const int64_t at = now();
  if (before != Work::OTHER) nanoseconds[static_cast<int>(before)] += at - current.since;
  current = {work, at};
  return before;
}

}  // namespace

Timed::Timed(Work work, int64_t amount) : before(begin(work)) { amounts[static_cast<int>(work)] += amount; }
Timed::~Timed() { begin(before); }

}  // namespace swin

extern "C" {

// The limits of a core: operations of fused multiply-adds in a second, and numbers copied within L2 in a second.
SWIN_API void swin_profile_peaks(double* operations, double* numbers) {
  *operations = swin::best_rate([] { return swin::multiply_and_add(); });
  *numbers = swin::best_rate([] { return swin::copy_in_cache(); });
}

// Seconds and amount of one kind of work, in the order of `Work`, since the last call. Returns 0 after the last kind.
SWIN_API int32_t swin_profile(int32_t kind, double* seconds, double* amount) {
  if (kind < 0 || kind >= swin::KINDS) return 0;
  *seconds = 1e-9 * static_cast<double>(swin::nanoseconds[kind].exchange(0));
  *amount = static_cast<double>(swin::amounts[kind].exchange(0));
  return 1;
}

}  // extern "C"
#endif
