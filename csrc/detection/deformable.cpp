// Deformable attention (Zhu et al. 2021, arXiv 2010.04159, equation 2).
//
// Layout: B batch, Q queries, S tokens of all levels, h heads, d channels of a head, L levels, P points of a level.
#include "detection/deformable.h"

#include <algorithm>
#include <cmath>

#include "machine/row_functions.h"
#include "machine/threads.h"

namespace swin::SWIN_ISA {
namespace {

// One level of an image: the first row of values of a head, and the distance of tokens.
struct Level {
  const float* values;
  int64_t height, width, stride;
};

// The four neighbours of a sampling location: top left, top right, bottom left, bottom right. Neighbours outside are
// null.
struct Corners {
  int64_t token[4];  // -1 outside
  float weight[4];
  float along_x, along_y;  // parts of a pixel behind the top left neighbour

  Corners(const Level& level, const float* location) {
    const float x = location[0] * static_cast<float>(level.width) - .5f;
    const float y = location[1] * static_cast<float>(level.height) - .5f;
    std::fill_n(token, 4, -1);
    const bool is_near =
        x > -1 && y > -1 && x < static_cast<float>(level.width) && y < static_cast<float>(level.height);
    if (!is_near) return;  // also for NaN
    const float left = std::floor(x), top = std::floor(y);
    along_x = x - left, along_y = y - top;
    for (int i = 0; i < 4; i++) {
      const int64_t column = static_cast<int64_t>(left) + i % 2, row = static_cast<int64_t>(top) + i / 2;
      weight[i] = (i % 2 ? along_x : 1 - along_x) * (i / 2 ? along_y : 1 - along_y);
      const bool is_inside = column >= 0 && row >= 0 && column < level.width && row < level.height;
      if (is_inside) token[i] = row * level.width + column;
    }
  }
};

// f(sample, level, corners) for the samples of a query and head. `sample` counts the samples of all queries.
template <class F>
void each_sample(const swin_deformable& deformable, const float* values, const float* sampling_locations, int64_t query,
                 int64_t head, const F& f) {
  const int64_t stride = deformable.heads * deformable.channels, image = query / deformable.queries;
  const float* level_values = values + image * deformable.tokens * stride + head * deformable.channels;
  int64_t sample = (query * deformable.heads + head) * deformable.levels * deformable.points;
  for (int64_t l = 0; l < deformable.levels; l++) {
    const Level level{level_values, deformable.shapes[2 * l], deformable.shapes[2 * l + 1], stride};
    for (int64_t p = 0; p < deformable.points; p++, sample++)
      f(sample, level, Corners(level, sampling_locations + 2 * sample));
    level_values += level.height * level.width * stride;
  }
}

float dot(const float* a, const float* b, int64_t count) {
  Vec sum(0.f);
  over_columns(count, [&](int64_t i, int64_t lanes) { sum = fmadd(load(a + i, lanes), load(b + i, lanes), sum); });
  return sum_of(sum);
}

void add_scaled(const float* from, float factor, int64_t count, float* to) {
  const Vec times(factor);
  over_columns(count, [&](int64_t i, int64_t lanes) {
    store(to + i, fmadd(load(from + i, lanes), times, load(to + i, lanes)), lanes);
  });
}

}  // namespace

void deformable_forward(const swin_deformable& deformable, const float* values, const float* sampling_locations,
                        const float* weights, float* y) {
  each_part(deformable.batch * deformable.queries, deformable.threads, [&](int64_t begin, int64_t end) {
    for (int64_t query = begin; query < end; query++)
      for (int64_t head = 0; head < deformable.heads; head++) {
        float* to = y + (query * deformable.heads + head) * deformable.channels;
        std::fill_n(to, deformable.channels, 0.f);
        each_sample(deformable, values, sampling_locations, query, head,
                    [&](int64_t sample, const Level& level, const Corners& corners) {
                      for (int i = 0; i < 4; i++)
                        if (corners.token[i] >= 0)
                          add_scaled(level.values + corners.token[i] * level.stride,
                                     weights[sample] * corners.weight[i], deformable.channels, to);
                    });
      }
  });
}

void deformable_backward(const swin_deformable& deformable, const float* values, const float* sampling_locations,
                         const float* weights, const float* grad_y, float* grad_values, float* grad_sampling_locations,
                         float* grad_weights) {
  // One task for each image and head: no two tasks add to one gradient.
  each_task(deformable.batch * deformable.heads, deformable.threads, [&](int64_t task) {
    const int64_t image = task / deformable.heads, head = task % deformable.heads;
    for (int64_t query = image * deformable.queries; query < (image + 1) * deformable.queries; query++) {
      const float* grad = grad_y + (query * deformable.heads + head) * deformable.channels;
      each_sample(deformable, values, sampling_locations, query, head,
                  [&](int64_t sample, const Level& level, const Corners& corners) {
                    float by_corner[4] = {};
                    for (int i = 0; i < 4; i++) {
                      if (corners.token[i] < 0) continue;
                      const float* value = level.values + corners.token[i] * level.stride;
                      by_corner[i] = dot(grad, value, deformable.channels);
                      add_scaled(grad, weights[sample] * corners.weight[i], deformable.channels,
                                 grad_values + (value - values));
                    }
                    float sum = 0, slope_x = 0, slope_y = 0;
                    for (int i = 0; i < 4; i++) {
                      if (corners.token[i] < 0) continue;
                      sum += corners.weight[i] * by_corner[i];
                      slope_x += (i % 2 ? 1.f : -1.f) * (i / 2 ? corners.along_y : 1 - corners.along_y) * by_corner[i];
                      slope_y += (i / 2 ? 1.f : -1.f) * (i % 2 ? corners.along_x : 1 - corners.along_x) * by_corner[i];
                    }
                    grad_weights[sample] = sum;
                    grad_sampling_locations[2 * sample] = slope_x * weights[sample] * static_cast<float>(level.width);
                    grad_sampling_locations[2 * sample + 1] =
                        slope_y * weights[sample] * static_cast<float>(level.height);
                  });
    }
  });
}

}  // namespace swin::SWIN_ISA
