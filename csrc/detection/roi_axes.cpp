#include "detection/roi_axes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "machine/threads.h"

namespace swin {
namespace {

// A sample between two pixels of one axis.
struct Neighbours {
  int32_t low, high;
  float weight_low, weight_high;
};
Neighbours neighbours_of(float at, int64_t size) {
  at = std::max(at, 0.f);
  const auto low = static_cast<int32_t>(at);
  if (low >= size - 1) return {static_cast<int32_t>(size - 1), static_cast<int32_t>(size - 1), 1.f, 0.f};
  const float share = at - static_cast<float>(low);
  return {low, low + 1, 1.f - share, share};
}

// A sample more than a pixel outside has no value. Nearer samples have the value of the border.
bool is_inside(float at, int64_t size) { return at >= -1.f && at <= static_cast<float>(size); }

// The samples of a region along one axis. The order of operations is mmcv's: at the border, the last bit decides if a
// sample is inside.
struct Samples {
  float start, step;
  int64_t count;  // of each bin
  int64_t size;   // of the map

  Samples(float from, float to, const swin_roi_align& roi_align, int64_t bins, int64_t size) : size(size) {
    const float offset = roi_align.aligned ? 0.5f : 0.f;
    start = from * roi_align.scale - offset;
    float length = to * roi_align.scale - offset - start;
    if (!roi_align.aligned) length = std::max(length, 1.f);
    step = length / static_cast<float>(bins);
    const double wanted = roi_align.samples > 0 ? static_cast<double>(roi_align.samples) : std::ceil(step);
    const bool finite = std::isfinite(start) && std::isfinite(step);
    count = finite && wanted <= std::numeric_limits<int32_t>::max() ? static_cast<int64_t>(std::max(wanted, 0.)) : 0;
  }

  float at(int64_t bin, int64_t sample) const {
    return start + static_cast<float>(bin) * step +
           (static_cast<float>(sample) + 0.5f) * step / static_cast<float>(count);
  }

  // The samples of a bin inside the map: begin ... end - 1. A region may be far longer than the map, so distant
  // samples are skipped.
  struct Range {
    int64_t begin, end;
  };
  Range inside(int64_t bin) const {
    int64_t begin = 0, end = count;
    const double apart = static_cast<double>(step) / static_cast<double>(count);
    if (count > 8 && apart > 0) {
      const double origin = static_cast<double>(start) + static_cast<double>(bin) * step;
      const double slack = 4 + std::min((std::abs(origin) + std::abs(start) + step) * 0x1p-20 / apart, 4096.);
      const auto clamped = [&](double at) { return std::clamp(at, 0., static_cast<double>(count)); };
      begin = static_cast<int64_t>(clamped((-1 - origin) / apart - slack));
      end = static_cast<int64_t>(clamped((static_cast<double>(size) - origin) / apart + slack));
    }
    while (begin < end && !is_inside(at(bin, begin), size)) begin++;
    while (begin < end && !is_inside(at(bin, end - 1), size)) end--;
    return {begin, end};
  }
};

struct Region {
  int64_t image;
  Samples y, x;
};
Region region_of(const swin_roi_align& roi_align, int64_t r) {
  const float* box = roi_align.boxes + 5 * r;
  return {static_cast<int64_t>(box[0]), Samples(box[2], box[4], roi_align, roi_align.bins_height, roi_align.height),
          Samples(box[1], box[3], roi_align, roi_align.bins_width, roi_align.width)};
}

struct StoredAxis {
  std::vector<int32_t> starts, pixels;
  std::vector<float> weights;

  void fill(const Samples& samples, int64_t bins) {
    starts.push_back(0);
    for (int64_t bin = 0; bin < bins; bin++) {
      const auto [begin, end] = samples.inside(bin);
      const float share = 1.f / static_cast<float>(samples.count);
      for (int64_t i = begin; i < end; i++) {
        const Neighbours n = neighbours_of(samples.at(bin, i), samples.size);
        add(n.low, n.weight_low * share);
        add(n.high, n.weight_high * share);
      }
      starts.push_back(static_cast<int32_t>(pixels.size()));
    }
  }
  // Samples are in order, so a pixel is new or one of the last two.
  void add(int32_t pixel, float weight) {
    const auto begin = static_cast<size_t>(starts.back());
    for (size_t back = 1; back <= 2 && begin + back <= pixels.size(); back++)
      if (pixels[pixels.size() - back] == pixel) {
        weights[pixels.size() - back] += weight;
        return;
      }
    pixels.push_back(pixel);
    weights.push_back(weight);
  }
  RoiAxis view() const {
    if (pixels.empty()) return {0, 0, starts.data(), pixels.data(), weights.data()};
    const auto [low, high] = std::minmax_element(pixels.begin(), pixels.end());
    return {*low, *high - *low + 1, starts.data(), pixels.data(), weights.data()};
  }
};

struct StoredMatrix {
  std::vector<int32_t> tiles, inputs;
  std::vector<float> weights;

  RoiMatrix fill(const RoiAxis& axis, int64_t bins, RoiMatrixOf kind) {
    if (kind == RoiMatrixOf::nothing) return {};
    constexpr int64_t WIDTH = RoiMatrix::WIDTH;
    const bool to_bins = kind == RoiMatrixOf::bins_by_pixels;
    const int64_t num_outputs = to_bins ? bins : axis.count, num_inputs = to_bins ? axis.count : bins;
    const int64_t num_tiles = (num_outputs + WIDTH - 1) / WIDTH;
    // f(output, input, weight)
    const auto over_entries = [&](const auto& f) {
      for (int64_t bin = 0; bin < bins; bin++)
        for (int32_t e = axis.starts[bin]; e < axis.starts[bin + 1]; e++) {
          const int64_t pixel = axis.pixels[e] - axis.first;
          f(to_bins ? bin : pixel, to_bins ? pixel : bin, axis.weights[e]);
        }
    };
    std::vector<int32_t> entry(num_tiles * num_inputs, -1);  // of each tile and input
    over_entries([&](int64_t output, int64_t input, float) { entry[output / WIDTH * num_inputs + input] = 0; });
    tiles.push_back(0);
    for (int64_t tile = 0; tile < num_tiles; tile++) {
      for (int64_t input = 0; input < num_inputs; input++)
        if (entry[tile * num_inputs + input] == 0) {
          entry[tile * num_inputs + input] = static_cast<int32_t>(inputs.size());
          inputs.push_back(static_cast<int32_t>(input));
        }
      tiles.push_back(static_cast<int32_t>(inputs.size()));
    }
    weights.resize(inputs.size() * WIDTH);
    over_entries([&](int64_t output, int64_t input, float weight) {
      weights[entry[output / WIDTH * num_inputs + input] * WIDTH + output % WIDTH] = weight;
    });
    return {num_outputs, tiles.data(), inputs.data(), weights.data()};
  }
};

}  // namespace

struct Rois::Stored {
  StoredAxis y, x;
  StoredMatrix matrix_x;
  Roi roi;

  void fill(const swin_roi_align& roi_align, int64_t r, RoiMatrixOf kind) {
    const Region region = region_of(roi_align, r);
    y.fill(region.y, roi_align.bins_height);
    x.fill(region.x, roi_align.bins_width);
    roi = {region.image, y.view(), x.view(), {}};
    roi.matrix = matrix_x.fill(roi.x, roi_align.bins_width, kind);
  }
};

Rois::Rois(const swin_roi_align& roi_align, int64_t first, RoiMatrixOf matrix) {
  constexpr int64_t MAX_ROIS = 1024, MAX_NUMBERS = 1 << 24;
  const int64_t numbers_of_roi =
      RoiMatrix::WIDTH * (roi_align.height + roi_align.width + roi_align.bins_height + roi_align.bins_width) +
      4 * roi_align.samples * (roi_align.bins_height + roi_align.bins_width);
  stored_count = std::min(roi_align.regions - first, std::clamp(MAX_NUMBERS / numbers_of_roi, int64_t{1}, MAX_ROIS));
  stored = std::make_unique<Stored[]>(stored_count);
  each_part(stored_count, roi_align.threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) stored[i].fill(roi_align, first + i, matrix);
  });
}
Rois::~Rois() = default;
int64_t Rois::count() const { return stored_count; }
const Roi& Rois::operator[](int64_t i) const { return stored[i].roi; }

int64_t find_wrong_roi(const swin_roi_align& roi_align, RoiFault& fault) {
  for (int64_t r = 0; r < roi_align.regions; r++) {
    const float image = roi_align.boxes[5 * r];
    if (!(image > -1.f && image < static_cast<float>(roi_align.batch))) return fault = RoiFault::IMAGE, r;
    const Region region = region_of(roi_align, r);
    if (region.y.step < 0 || region.x.step < 0) return fault = RoiFault::ENDS, r;
  }
  return -1;
}

}  // namespace swin
