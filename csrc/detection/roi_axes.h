// The samples of RoIAlign along each axis: pixels and weights of each bin.
//
// The mean of a grid of bilinear samples is separable: the weight of a pixel is a product of one weight per axis.
// Neighbouring samples share pixels, and their weights are added up here: a bin of 3x3 samples reads 16 pixels, not 36.
//
// This part is compiled once, for every processor.
#pragma once

#include <cstdint>
#include <memory>

#include "swin.h"

namespace swin {

// Bin b is the sum of weights[e] * pixels[e] for e = starts[b] ... starts[b + 1] - 1. All pixels lie in first ... first
// + count - 1.
struct RoiAxis {
  int64_t first, count;
  const int32_t *starts, *pixels;
  const float* weights;
};

// The axis as a matrix of outputs by inputs, in tiles of 16 outputs. Tile k has entries tiles[k] ... tiles[k + 1] - 1:
// the index of an input, and its 16 weights.
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

// The axes of regions from `first` on: as many as fit in a fixed amount of memory.
class Rois {
 public:
  Rois(const swin_roi_align& roi_align, int64_t first, RoiMatrixOf matrix);
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

// The first region with a map index out of range (IMAGE), or with an end before its beginning (ENDS); -1: none.
enum class RoiFault { IMAGE, ENDS };
int64_t find_wrong_roi(const swin_roi_align& roi_align, RoiFault& fault);

}  // namespace swin
