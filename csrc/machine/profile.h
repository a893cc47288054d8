// Time by kind of work, in a library compiled with SWIN_PROFILE for `benchmarks.backbones --profile`. Without
// SWIN_PROFILE the clocks are compiled out.
#pragma once

#include <cstdint>

namespace swin {

// `amount` counts floating-point operations of products, and numbers of all other work.
enum class Work { OTHER, PRODUCTS, SOFTMAX, GELU, NORMS, HEADS, RESIDUALS, PACKING, WEIGHTS, QUANTISING };

#ifdef SWIN_PROFILE
// Count the time until the destructor, without the time of inner objects.
class Timed {
 public:
  Timed(Work work, int64_t amount);
  ~Timed();
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  Work before;
};
#else
struct Timed {
  Timed(Work, int64_t) {}
};
#endif

}  // namespace swin
