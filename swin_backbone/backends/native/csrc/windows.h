// Computes where the tokens of a map are in windows; `swin_backbone/backends/eager.py` stores this in tables.
//
// Layout: B batch, H W height and width of a map, L windows of all images, N = Wh*Ww places of a window.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace swin {

// Windows along one axis.
struct Axis {
  int64_t length, window, count;
  std::vector<int32_t> coordinate;  // (count, window): >= length for padding
  std::vector<int32_t> region;      // (count, window): only places of one region attend to each other
  std::vector<int32_t> cut;         // (count): 0 if the window is one region, else its own number

  Axis(int64_t length, int64_t window, int64_t shift, bool mask_padding)
      : length(length), window(window), count((length + window - 1) / window) {
    const int64_t padded = count * window;
    for (int64_t i = 0; i < padded; i++) {
      const int64_t at = (i + shift) % padded;
      coordinate.push_back(at);
      region.push_back(mask_padding && at >= length ? 2 : i >= padded - shift ? 1 : 0);
    }
    for (int64_t w = 0; w < count; w++) {
      cut.push_back(0);
      for (int64_t i = 1; i < window; i++)
        if (region[w * window + i] != region[w * window]) cut[w] = w + 1;
    }
  }
};

struct Windows {
  int64_t batch;
  Axis rows, columns;

  int64_t count() const { return batch * rows.count * columns.count; }
  int64_t tokens() const { return batch * rows.length * columns.length; }
  int64_t area() const { return rows.window * columns.window; }
  int64_t row_of(int64_t window) const { return window / columns.count % rows.count; }
  int64_t column_of(int64_t window) const { return window % columns.count; }

  // How many of a window's places are no padding.
  int64_t tokens_in(int64_t window) const {
    const auto inside = [](const Axis& axis, int64_t index) {
      const auto first = axis.coordinate.begin() + index * axis.window;
      return std::count_if(first, first + axis.window, [&](int32_t at) { return at < axis.length; });
    };
    return inside(rows, row_of(window)) * inside(columns, column_of(window));
  }

  // All windows in groups of about as many tokens: from the fullest to the emptiest they are dealt out to the groups,
  // in turn forwards and backwards.
  std::vector<std::vector<int32_t>> deal(int64_t groups) const {
    std::vector<int32_t> order(count());
    std::iota(order.begin(), order.end(), 0);
    std::vector<int64_t> tokens(count());
    for (const int32_t window : order) tokens[window] = tokens_in(window);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return tokens[a] > tokens[b]; });
    std::vector<std::vector<int32_t>> dealt(groups);
    for (int64_t i = 0; i < count(); i++) {
      const int64_t at = i % groups;
      dealt[i / groups % 2 ? groups - 1 - at : at].push_back(order[i]);
    }
    return dealt;
  }

  // The token at each place, -1 for padding: (N,).
  void tokens(int64_t window, int32_t* token_at) const {
    const int32_t* y = &rows.coordinate[row_of(window) * rows.window];
    const int32_t* x = &columns.coordinate[column_of(window) * columns.window];
    const int64_t image = window / (rows.count * columns.count) * rows.length;
    for (int64_t i = 0; i < rows.window; i++)
      for (int64_t j = 0; j < columns.window; j++)
        *token_at++ =
            y[i] < rows.length && x[j] < columns.length ? (image + y[i]) * columns.length + x[j] : -1;
  }

  // Equal for windows with the same mask; 0 for none.
  int64_t kind(int64_t window) const {
    return rows.cut[row_of(window)] * (columns.count + 1) + columns.cut[column_of(window)];
  }

  // 0 where the place of a row attends to that of a column, -inf elsewhere: (N, stride), 0 after column N.
  void mask(int64_t window, int64_t stride, float* to) const {
    const int32_t* y = &rows.region[row_of(window) * rows.window];
    const int32_t* x = &columns.region[column_of(window) * columns.window];
    const int64_t width = columns.window;
    for (int64_t q = 0; q < area(); q++, to += stride) {
      float* at = to;
      for (int64_t i = 0; i < rows.window; i++)
        for (int64_t j = 0; j < width; j++)
          *at++ = y[i] == y[q / width] && x[j] == x[q % width] ? 0.f : -std::numeric_limits<float>::infinity();
      std::fill(at, to + stride, 0.f);
    }
  }
};

}  // namespace swin
