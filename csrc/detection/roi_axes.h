// Where RoIAlign samples its maps: for each region and axis, the pixels that the samples of a bin weight.
//
// The mean of a grid of bilinear samples is separable: its weight of a pixel is the product of one along each axis. In
// a bin neighbouring samples share pixels, whose weights are added up here: a bin of 3x3 samples reads 16 pixels, not
// 36.
//
// This part is compiled once, for every processor, and so is the maximum of samples, which few models take.
#pragma once

#include <cstdint>
#include <memory>

#include "swin.h"

namespace swin {

// Bin b weights pixels[e] by weights[e], for e from starts[b] to starts[b + 1] - 1. All lie among `count` from `first`.
struct RoiAxis {
  int64_t first, count;
  const int32_t *starts, *pixels;
  const float* weights;
};

// The same as a matrix, for products with rows of as many numbers as it has inputs: 16 outputs at once. Tile k of them
// is of entries tiles[k] to tiles[k + 1] - 1: the number of an input, and 16 weights of it.
struct RoiMatrix {
  static constexpr int64_t WIDTH = 16;
  int64_t outputs;
  const int32_t *tiles, *inputs;
  const float* weights;
};
enum class RoiMatrixOf { nothing, bins_by_pixels, pixels_by_bins };  // outputs by inputs; pixels from the first

struct Roi {
  int64_t image;
  RoiAxis y, x;
  RoiMatrix matrix;  // of x
};

// The axes of some regions from `first` on: as many as memory is well used for.
class Rois {
 public:
  Rois(const swin_roi_align& of, int64_t first, RoiMatrixOf matrix);
  ~Rois();
  Rois(const Rois&) = delete;
  Rois& operator=(const Rois&) = delete;
  int64_t count() const;
  const Roi& operator[](int64_t i) const;

 private:
  struct Stored;
  std::unique_ptr<Stored[]> stored;
  int64_t stored_count;
};

// The first region of which the map is not there (IMAGE), or that ends before it begins (ENDS); -1: there is none.
enum class RoiFault { IMAGE, ENDS };
int64_t find_wrong_roi(const swin_roi_align& of, RoiFault& fault);

void roi_align_max_forward(const swin_roi_align& of, const void* maps, void* pooled, float* argmax_y, float* argmax_x);
void roi_align_max_backward(const swin_roi_align& of, const void* grad_pooled, const float* argmax_y,
                            const float* argmax_x, float* grad_maps);

}  // namespace swin
