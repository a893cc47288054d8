#include "detection/roi_axes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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

  Samples(float from, float to, const swin_roi_align& of, int64_t bins, int64_t size) : size(size) {
    const float offset = of.aligned ? 0.5f : 0.f;
    start = from * of.scale - offset;
    float length = to * of.scale - offset - start;
    if (!of.aligned) length = std::max(length, 1.f);
    step = length / static_cast<float>(bins);
    const double wanted = of.samples > 0 ? static_cast<double>(of.samples) : std::ceil(step);
    const bool finite = std::isfinite(start) && std::isfinite(step);
    count = finite && wanted <= std::numeric_limits<int32_t>::max() ? static_cast<int64_t>(std::max(wanted, 0.)) : 0;
  }

  float at(int64_t bin, int64_t number) const {
    return start + static_cast<float>(bin) * step +
           (static_cast<float>(number) + 0.5f) * step / static_cast<float>(count);
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
      const auto number = [&](double at) { return std::clamp(at, 0., static_cast<double>(count)); };
      begin = static_cast<int64_t>(number((-1 - origin) / apart - slack));
      end = static_cast<int64_t>(number((static_cast<double>(size) - origin) / apart + slack));
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
Region region_of(const swin_roi_align& of, int64_t r) {
  const float* box = of.boxes + 5 * r;
  return {static_cast<int64_t>(box[0]), Samples(box[2], box[4], of, of.bins_height, of.height),
          Samples(box[1], box[3], of, of.bins_width, of.width)};
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

// A number of a map in memory.
float value_of(float stored) { return stored; }
float value_of(uint16_t stored) {
  const uint32_t bits = uint32_t{stored} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
void store_value(float value, float& to) { to = value; }
void store_value(float value, uint16_t& to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  to = static_cast<uint16_t>(value != value ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The largest sample so far. mmcv begins with -10000, without a position, and prefers the first of equal samples.
struct Best {
  float value = -10000.f, y = -1.f, x = -1.f;
  int64_t number = -1;

  void offer(float other, float at_y, float at_x, int64_t other_number) {
    if (other > value || (other == value && number > other_number))
      value = other, y = at_y, x = at_x, number = other_number;
  }
};

// The samples of a bin inside the map along one axis, equal for all channels.
struct Lines {
  struct Line {
    float at, weight_low, weight_high;
    int64_t low, high;  // positions of the two pixels
  };
  Samples::Range range{};
  std::vector<Line> lines;

  void take(const Samples& samples, int64_t bin, int64_t stride) {
    range = samples.inside(bin);
    lines.clear();
    for (int64_t i = range.begin; i < range.end; i++) {
      const float at = samples.at(bin, i);
      const Neighbours n = neighbours_of(at, samples.size);
      lines.push_back({at, n.weight_low, n.weight_high, n.low * stride, n.high * stride});
    }
  }
  int64_t first_outside() const { return range.begin == range.end || range.begin > 0 ? 0 : range.end; }
};

// All samples outside are 0: the first represents all.
Best best_outside(const Region& region, const Lines& rows, const Lines& columns, int64_t i, int64_t j) {
  const int64_t across = region.x.count;
  int64_t row = rows.first_outside(), column = 0;
  if (row != 0) {
    const int64_t in_first_row = columns.first_outside();
    if (in_first_row < across) row = 0, column = in_first_row;
  }
  Best best;
  if (row < region.y.count && column < across)
    best.offer(0.f, region.y.at(i, row), region.x.at(j, column), row * across + column);
  return best;
}

template <class T>
Best best_sample(const T* plane, const Lines& rows, const Lines& columns, int64_t across, Best best) {
  int64_t row_number = rows.range.begin * across + columns.range.begin;
  for (const auto& v : rows.lines) {
    int64_t number = row_number;
    for (const auto& u : columns.lines) {
      best.offer(v.weight_low * u.weight_low * value_of(plane[v.low + u.low]) +
                     v.weight_low * u.weight_high * value_of(plane[v.low + u.high]) +
                     v.weight_high * u.weight_low * value_of(plane[v.high + u.low]) +
                     v.weight_high * u.weight_high * value_of(plane[v.high + u.high]),
                 v.at, u.at, number++);
    }
    row_number += across;
  }
  return best;
}

// A thread computes rows of bins: all channels share the positions of samples.
template <class T>
void max_forward(const swin_roi_align& of, const T* maps, T* pooled, float* argmax_y, float* argmax_x) {
  const int64_t bins = of.bins_height * of.bins_width;
  each_part(of.regions * of.bins_height, of.threads, [&](int64_t begin, int64_t end) {
    Lines rows, columns;
    for (int64_t n = begin; n < end; n++) {
      const int64_t r = n / of.bins_height, i = n % of.bins_height;
      const Region region = region_of(of, r);
      const T* map = maps + region.image * of.stride[0];
      rows.take(region.y, i, of.stride[2]);
      for (int64_t j = 0; j < of.bins_width; j++) {
        columns.take(region.x, j, of.stride[3]);
        const Best outside = best_outside(region, rows, columns, i, j);
        for (int64_t c = 0; c < of.channels; c++) {
          const Best best = best_sample(map + c * of.stride[1], rows, columns, region.x.count, outside);
          const int64_t to = (r * of.channels + c) * bins + i * of.bins_width + j;
          store_value(best.value, pooled[to]);
          argmax_y[to] = best.y;
          argmax_x[to] = best.x;
        }
      }
    }
  });
}

// Each thread sums its own channels, in a fixed order.
template <class T>
void max_backward(const swin_roi_align& of, const T* grad_pooled, const float* argmax_y, const float* argmax_x,
                  float* grad_maps) {
  const int64_t bins = of.bins_height * of.bins_width;
  each_part(of.channels, of.threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < of.regions; r++)
      for (int64_t c = begin; c < end; c++) {
        float* plane = grad_maps + static_cast<int64_t>(of.boxes[5 * r]) * of.stride[0] + c * of.stride[1];
        for (int64_t n = (r * of.channels + c) * bins, last = n + bins; n < last; n++) {
          const float y = argmax_y[n], x = argmax_x[n];
          if (y == -1.f || !is_inside(y, of.height) || !is_inside(x, of.width)) continue;
          const Neighbours v = neighbours_of(y, of.height), u = neighbours_of(x, of.width);
          const float gradient = value_of(grad_pooled[n]);
          const auto add = [&](int32_t at_y, int32_t at_x, float weight) {
            plane[at_y * of.stride[2] + at_x * of.stride[3]] += gradient * weight;
          };
          add(v.low, u.low, v.weight_low * u.weight_low);
          add(v.low, u.high, v.weight_low * u.weight_high);
          add(v.high, u.low, v.weight_high * u.weight_low);
          add(v.high, u.high, v.weight_high * u.weight_high);
        }
      }
  });
}

}  // namespace

struct Rois::Stored {
  StoredAxis y, x;
  StoredMatrix matrix_x;
  Roi roi;

  void fill(const swin_roi_align& of, int64_t r, RoiMatrixOf kind) {
    const Region region = region_of(of, r);
    y.fill(region.y, of.bins_height);
    x.fill(region.x, of.bins_width);
    roi = {region.image, y.view(), x.view(), {}};
    roi.matrix = matrix_x.fill(roi.x, of.bins_width, kind);
  }
};

Rois::Rois(const swin_roi_align& of, int64_t first, RoiMatrixOf matrix) {
  constexpr int64_t MOST = 1024, NUMBERS = 1 << 24;
  const int64_t of_one = RoiMatrix::WIDTH * (of.height + of.width + of.bins_height + of.bins_width) +
                         4 * of.samples * (of.bins_height + of.bins_width);
  stored_count = std::min(of.regions - first, std::clamp(NUMBERS / of_one, int64_t{1}, MOST));
  stored = std::make_unique<Stored[]>(stored_count);
  each_part(stored_count, of.threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) stored[i].fill(of, first + i, matrix);
  });
}
Rois::~Rois() = default;
int64_t Rois::count() const { return stored_count; }
const Roi& Rois::operator[](int64_t i) const { return stored[i].roi; }

int64_t find_wrong_roi(const swin_roi_align& of, RoiFault& fault) {
  for (int64_t r = 0; r < of.regions; r++) {
    const float image = of.boxes[5 * r];
    if (!(image > -1.f && image < static_cast<float>(of.batch))) return fault = RoiFault::IMAGE, r;
    const Region region = region_of(of, r);
    if (region.y.step < 0 || region.x.step < 0) return fault = RoiFault::ENDS, r;
  }
  return -1;
}

void roi_align_max_forward(const swin_roi_align& of, const void* maps, void* pooled, float* argmax_y, float* argmax_x) {
  if (of.dtype == SWIN_FLOAT32)
    max_forward(of, static_cast<const float*>(maps), static_cast<float*>(pooled), argmax_y, argmax_x);
  else
    max_forward(of, static_cast<const uint16_t*>(maps), static_cast<uint16_t*>(pooled), argmax_y, argmax_x);
}
void roi_align_max_backward(const swin_roi_align& of, const void* grad_pooled, const float* argmax_y,
                            const float* argmax_x, float* grad_maps) {
  if (of.dtype == SWIN_FLOAT32)
    max_backward(of, static_cast<const float*>(grad_pooled), argmax_y, argmax_x, grad_maps);
  else
    max_backward(of, static_cast<const uint16_t*>(grad_pooled), argmax_y, argmax_x, grad_maps);
}

}  // namespace swin
