// The functions of swin.h as plain loops, over doubles or over the recorded numbers of tape.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "../swin.h"
#include "tape.h"

template <class X>
using Numbers = std::vector<X>;

// LayerNorm of `n` numbers. An empty weight means 1, an empty bias 0.
template <class X>
Numbers<X> layer_norm(const Numbers<X>& row, const Numbers<X>& weight, const Numbers<X>& bias, double eps) {
  using std::sqrt;
  const size_t n = row.size();
  X mean(0), variance(0);
  for (const X& v : row) mean = mean + v;
  mean = mean / X(static_cast<double>(n));
  for (const X& v : row) variance = variance + (v - mean) * (v - mean);
  const X deviation = sqrt(variance / X(static_cast<double>(n)) + X(eps));
  Numbers<X> out(n);
  for (size_t i = 0; i < n; i++) {
    out[i] = (row[i] - mean) / deviation;
    if (!weight.empty()) out[i] = out[i] * weight[i];
    if (!bias.empty()) out[i] = out[i] + bias[i];
  }
  return out;
}

inline bool in_eight_bits = false;  // of `linear` with doubles

// W x + b of whole numbers, for W (N, K): those of swin.h, of which 254 steps span x and zero.
inline Numbers<double> linear_in_eight_bits(const Numbers<double>& x, const Numbers<double>& weight,
                                            const Numbers<double>& bias) {
  const size_t K = x.size(), N = weight.size() / K;
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const double step = (std::max(*high, 0.) - std::min(*low, 0.)) / 254,
               zero = std::nearbyint(-std::min(*low, 0.) / step);
  Numbers<double> out(N);
  for (size_t n = 0; n < N; n++) {
    double sum = 0, most = 0;
    for (size_t k = 0; k < K; k++) most = std::max(most, std::abs(weight[n * K + k]));
    for (size_t k = 0; k < K && most > 0 && step > 0; k++)
      sum += (std::nearbyint(x[k] / step + zero) - zero) * std::nearbyint(weight[n * K + k] * 127 / most);
    out[n] = sum * step * most / 127 + (bias.empty() ? 0 : bias[n]);
  }
  return out;
}

// W x + b, for W (N, K).
template <class X>
Numbers<X> linear(const Numbers<X>& x, const Numbers<X>& weight, const Numbers<X>& bias) {
  if constexpr (std::is_same_v<X, double>)
    if (in_eight_bits) return linear_in_eight_bits(x, weight, bias);
  const size_t K = x.size(), N = weight.size() / K;
  Numbers<X> out(N);
  for (size_t n = 0; n < N; n++) {
    X sum = bias.empty() ? X(0) : bias[n];
    for (size_t k = 0; k < K; k++) sum = sum + weight[n * K + k] * x[k];
    out[n] = sum;
  }
  return out;
}

template <class X>
X gelu(X x) {
  using std::erf;
  return X(0.5) * x * (X(1) + erf(x * X(std::sqrt(0.5))));
}

// The tensors of a block. An empty tensor stands for a null pointer.
template <class X>
struct BlockTensors {
  Numbers<X> x, linear[SWIN_LINEARS], bias[SWIN_LINEARS], norm_weight[3], norm_bias[3], position_bias, cosine_scale;
};

// Return the token at a place of an axis; places behind the rolled map are padding.
inline int64_t rolled(int64_t place, int64_t shift, int64_t length) {
  return place < length ? (place + shift) % length : place;
}

// Return the region of a place of an axis. Tokens attend to each other inside a region.
inline int region(int64_t rolled, int64_t at, int64_t padded, int64_t length, int64_t shift, int32_t padding) {
  return padding == SWIN_PADDING_MASKED && at >= length ? 2 : rolled >= padded - shift ? 1 : 0;
}

template <class X>
void attend(const swin_block& b, const BlockTensors<X>& t, const Numbers<Numbers<X>>& qkv, const Numbers<int>& regions,
            Numbers<Numbers<X>>& out) {
  using std::exp;
  using std::sqrt;
  const int64_t N = b.window_height * b.window_width, C = b.channels, d = C / b.heads;
  for (int64_t h = 0; h < b.heads; h++) {
    const auto part = [&](int64_t place, int64_t which) {
      const auto first = qkv[place].begin() + which * C + h * d;
      Numbers<X> row(first, first + d);
      if (b.cosine_scale && which < 2) {
        X squares(0);
        for (const X& v : row) squares = squares + v * v;
        for (X& v : row) v = v / sqrt(squares) * (which ? X(1) : t.cosine_scale[h]);
      }
      return row;
    };
    Numbers<Numbers<X>> k, v;
    for (int64_t j = 0; j < N; j++) k.push_back(part(j, 1)), v.push_back(part(j, 2));
    for (int64_t i = 0; i < N; i++) {
      const Numbers<X> q = part(i, 0);
      Numbers<X> logits(N);
      double top = -INFINITY;
      for (int64_t j = 0; j < N; j++) {
        if (regions[i] != regions[j]) continue;
        X dot(0);
        for (int64_t c = 0; c < d; c++) dot = dot + q[c] * k[j][c];
        logits[j] = X(b.scale) * dot + t.position_bias[(h * N + i) * N + j];
        top = std::max(top, value_of(logits[j]));
      }
      X sum(0);
      for (int64_t j = 0; j < N; j++)
        if (regions[i] == regions[j]) sum = sum + (logits[j] = exp(logits[j] - X(top)));
      for (int64_t c = 0; c < d; c++) {
        X total(0);
        for (int64_t j = 0; j < N; j++)
          if (regions[i] == regions[j]) total = total + logits[j] / sum * v[j][c];
        out[i][h * d + c] = total;
      }
    }
  }
}

template <class X>
Numbers<X> plain_block(const swin_block& b, const BlockTensors<X>& t) {
  const int64_t C = b.channels, H = b.height, W = b.width, Wh = b.window_height, Ww = b.window_width, N = Wh * Ww;
  const int64_t tall = (H + Wh - 1) / Wh * Wh, wide = (W + Ww - 1) / Ww * Ww;
  const bool v2 = b.cosine_scale;
  const auto factor = [&](int branch, int64_t image) {
    return X(b.drop_path ? b.drop_path[branch * b.batch + image] : 1.0);
  };
  Numbers<X> y(t.x.size());
  for (int64_t image = 0; image < b.batch; image++)
    for (int64_t top = 0; top < tall; top += Wh)
      for (int64_t left = 0; left < wide; left += Ww) {
        Numbers<Numbers<X>> tokens(N), qkv(N), attended(N, Numbers<X>(C));
        Numbers<int> regions(N);
        Numbers<int64_t> at(N, -1);
        for (int64_t i = 0; i < N; i++) {
          const bool rolls_first = b.padding == SWIN_PADDING_AFTER_ROLL;
          const int64_t r = rolled(top + i / Ww, b.shift_height, rolls_first ? H : tall),
                        c = rolled(left + i % Ww, b.shift_width, rolls_first ? W : wide);
          regions[i] = 3 * region(top + i / Ww, r, tall, H, b.shift_height, b.padding) +
                       region(left + i % Ww, c, wide, W, b.shift_width, b.padding);
          Numbers<X> entering(C, X(0));
          if (r < H && c < W) {
            at[i] = ((image * H + r) * W + c) * C;
            tokens[i].assign(t.x.begin() + at[i], t.x.begin() + at[i] + C);
            entering = v2 ? tokens[i] : layer_norm(tokens[i], t.norm_weight[0], t.norm_bias[0], b.eps1);
          }
          qkv[i] = linear(entering, t.linear[SWIN_QKV], t.bias[SWIN_QKV]);
        }
        attend(b, t, qkv, regions, attended);
        for (int64_t i = 0; i < N; i++) {
          if (at[i] < 0) continue;
          Numbers<X> row = tokens[i], branch = linear(attended[i], t.linear[SWIN_PROJ], t.bias[SWIN_PROJ]);
          if (v2) branch = layer_norm(branch, t.norm_weight[0], t.norm_bias[0], b.eps1);
          for (int64_t c = 0; c < C; c++) row[c] = row[c] + factor(0, image) * branch[c];
          branch = v2 ? row : layer_norm(row, t.norm_weight[1], t.norm_bias[1], b.eps2);
          branch = linear(branch, t.linear[SWIN_FC1], t.bias[SWIN_FC1]);
          for (X& v : branch) v = gelu(v);
          branch = linear(branch, t.linear[SWIN_FC2], t.bias[SWIN_FC2]);
          if (v2) branch = layer_norm(branch, t.norm_weight[1], t.norm_bias[1], b.eps2);
          for (int64_t c = 0; c < C; c++) row[c] = row[c] + factor(1, image) * branch[c];
          if (b.has_norm3) row = layer_norm(row, t.norm_weight[2], t.norm_bias[2], b.eps3);
          std::copy(row.begin(), row.end(), y.begin() + at[i]);
        }
      }
  return y;
}

// The tensors of a projection.
template <class X>
struct ProjectionTensors {
  Numbers<X> x, linear, bias, norm_weight, norm_bias;
};

template <class X>
Numbers<X> plain_projection(const swin_projection& p, const ProjectionTensors<X>& t, Numbers<X> row) {
  if (p.has_norm && !p.norm_after) row = layer_norm(row, t.norm_weight, t.norm_bias, p.eps);
  row = linear(row, t.linear, t.bias);
  if (p.has_norm && p.norm_after) row = layer_norm(row, t.norm_weight, t.norm_bias, p.eps);
  return row;
}

// t.x: images without gaps, for any strides of `of`.
template <class X>
Numbers<X> plain_embed(const swin_images& of, const swin_projection& p, const ProjectionTensors<X>& t) {
  Numbers<X> y;
  for (int64_t image = 0; image < of.batch; image++)
    for (int64_t top = 0; top < of.height; top += of.patch_height)
      for (int64_t left = 0; left < of.width; left += of.patch_width) {
        Numbers<X> patch;
        for (int64_t c = 0; c < of.channels; c++)
          for (int64_t r = top; r < top + of.patch_height; r++)
            for (int64_t s = left; s < left + of.patch_width; s++)
              patch.push_back(r < of.height && s < of.width
                                  ? t.x[((image * of.channels + c) * of.height + r) * of.width + s]
                                  : X(0));
        const Numbers<X> token = plain_projection(p, t, patch);
        y.insert(y.end(), token.begin(), token.end());
      }
  return y;
}

template <class X>
Numbers<X> plain_merge(const swin_maps& of, const swin_projection& p, const ProjectionTensors<X>& t) {
  Numbers<X> y;
  for (int64_t image = 0; image < of.batch; image++)
    for (int64_t top = 0; top < of.height; top += 2)
      for (int64_t left = 0; left < of.width; left += 2) {
        Numbers<X> row;
        for (int64_t r = top; r < top + 2; r++)
          for (int64_t s = left; s < left + 2; s++)
            for (int64_t c = 0; c < of.channels; c++)
              row.push_back(r < of.height && s < of.width
                                ? t.x[((image * of.height + r) * of.width + s) * of.channels + c]
                                : X(0));
        const Numbers<X> token = plain_projection(p, t, row);
        y.insert(y.end(), token.begin(), token.end());
      }
  return y;
}

// t.x: (B, area, C).
template <class X>
Numbers<X> plain_output_norm(int64_t batch, int64_t area, int64_t C, double eps, const ProjectionTensors<X>& t) {
  Numbers<X> y(t.x.size());
  for (int64_t m = 0; m < batch * area; m++) {
    const Numbers<X> row =
        layer_norm(Numbers<X>(t.x.begin() + m * C, t.x.begin() + (m + 1) * C), t.norm_weight, t.norm_bias, eps);
    for (int64_t c = 0; c < C; c++) y[(m / area * C + c) * area + m % area] = row[c];
  }
  return y;
}

// --- Detectors -------------------------------------------------------------------------------------------------------

// A sample between two pixels of one axis, or outside the map by more than a pixel.
struct Between {
  bool inside;
  int64_t low, high;
  double share;  // of the higher pixel
};
inline Between between(double at, int64_t size) {
  const double clamped = std::min(std::max(at, 0.0), static_cast<double>(size - 1));
  const auto low = static_cast<int64_t>(clamped);
  return {at >= -1 && at <= static_cast<double>(size), low, std::min(low + 1, size - 1), clamped - low};
}

// The samples of each bin along one axis of a region.
inline Numbers<Numbers<double>> sample_coordinates(double from, double to, const swin_roi_align& of, int64_t bins) {
  const double offset = of.aligned ? 0.5 : 0, start = from * of.scale - offset;
  double length = to * of.scale - offset - start;
  if (!of.aligned) length = std::max(length, 1.0);
  const double step = length / static_cast<double>(bins);
  Numbers<Numbers<double>> samples(bins);
  if (!std::isfinite(start) || !std::isfinite(step)) return samples;
  const int64_t count = of.samples ? of.samples : static_cast<int64_t>(std::ceil(step));
  for (int64_t bin = 0; bin < bins; bin++)
    for (int64_t i = 0; i < count; i++)
      samples[bin].push_back(start + step * (static_cast<double>(bin) + (static_cast<double>(i) + 0.5) / count));
  return samples;
}

// maps: (B, C, H, W) without gaps, for any strides of `of`.
template <class X>
Numbers<X> plain_roi_align(const swin_roi_align& of, const Numbers<X>& maps) {
  Numbers<X> pooled;
  for (int64_t r = 0; r < of.regions; r++) {
    const float* box = of.boxes + 5 * r;
    const auto down = sample_coordinates(box[2], box[4], of, of.bins_height);
    const auto across = sample_coordinates(box[1], box[3], of, of.bins_width);
    for (int64_t c = 0; c < of.channels; c++) {
      const X* plane = maps.data() + (static_cast<int64_t>(box[0]) * of.channels + c) * of.height * of.width;
      for (const auto& rows : down)
        for (const auto& columns : across) {
          X sum(0);
          for (const double y : rows)
            for (const double x : columns) {
              const Between v = between(y, of.height), u = between(x, of.width);
              const auto pixel = [&](int64_t i, int64_t j) { return plane[i * of.width + j]; };
              const auto row = [&](int64_t i) {
                return X(1 - u.share) * pixel(i, u.low) + X(u.share) * pixel(i, u.high);
              };
              const X sample = v.inside && u.inside ? X(1 - v.share) * row(v.low) + X(v.share) * row(v.high) : X(0);
              sum = sum + sample;
            }
          const auto count = static_cast<double>(rows.size() * columns.size());
          pooled.push_back(count ? sum / X(count) : X(0));
        }
    }
  }
  return pooled;
}

// Deformable attention: values (B, S, h, d), sampling_locations (B, Q, h, L, P, 2), weights (B, Q, h, L, P) to (B, Q,
// h, d).
template <class X>
Numbers<X> plain_deformable(const swin_deformable& of, const Numbers<X>& values, const Numbers<X>& sampling_locations,
                            const Numbers<X>& weights) {
  Numbers<X> y;
  for (int64_t query = 0; query < of.batch * of.queries * of.heads; query++)
    for (int64_t c = 0; c < of.channels; c++) {
      const int64_t image = query / of.heads / of.queries, head = query % of.heads;
      X sum(0);
      int64_t first = image * of.tokens;
      for (int64_t l = 0; l < of.levels; first += of.shapes[2 * l] * of.shapes[2 * l + 1], l++)
        for (int64_t p = 0; p < of.points; p++) {
          const int64_t sample = (query * of.levels + l) * of.points + p, H = of.shapes[2 * l],
                        W = of.shapes[2 * l + 1];
          const X x = sampling_locations[2 * sample] * X(static_cast<double>(W)) - X(.5);
          const X y = sampling_locations[2 * sample + 1] * X(static_cast<double>(H)) - X(.5);
          const double left = std::floor(value_of(x)), top = std::floor(value_of(y));
          for (const double i : {top, top + 1})
            for (const double j : {left, left + 1}) {
              if (i < 0 || j < 0 || i >= static_cast<double>(H) || j >= static_cast<double>(W)) continue;
              const X across = j == left ? X(left + 1) - x : x - X(left), down = i == top ? X(top + 1) - y : y - X(top);
              const int64_t token = first + static_cast<int64_t>(i) * W + static_cast<int64_t>(j);
              sum = sum + weights[sample] * across * down * values[(token * of.heads + head) * of.channels + c];
            }
        }
      y.push_back(sum);
    }
  return y;
}

// Greedy suppression of boxes x1, y1, x2, y2. A box with a number that is not finite overlaps nothing.
inline double plain_overlap(const float* a, const float* b, double offset) {
  const auto area = [&](double x1, double y1, double x2, double y2) { return (x2 - x1 + offset) * (y2 - y1 + offset); };
  const double wide = std::min<double>(a[2], b[2]) - std::max<double>(a[0], b[0]) + offset;
  const double tall = std::min<double>(a[3], b[3]) - std::max<double>(a[1], b[1]) + offset;
  const double shared = std::max(wide, 0.0) * std::max(tall, 0.0);
  for (int i = 0; i < 4; i++)
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return 0;
  return shared / (area(a[0], a[1], a[2], a[3]) + area(b[0], b[1], b[2], b[3]) - shared);
}
// x (B, H, W, C), weight (N, 3, 3, C), padded by 1: (B, H, W, N).
inline Numbers<double> plain_convolution(const Numbers<float>& x, const Numbers<float>& weight,
                                         const Numbers<float>& bias, const std::array<int64_t, 5>& sizes) {
  const auto [B, H, W, C, N] = sizes;
  Numbers<double> y;
  for (int64_t place = 0; place < B * H * W; place++)
    for (int64_t n = 0; n < N; n++) {
      double sum = bias.empty() ? 0 : bias[n];
      for (int64_t tap = 0; tap < 9; tap++) {
        const int64_t row = place / W % H + tap / 3 - 1, column = place % W + tap % 3 - 1;
        if (row < 0 || row >= H || column < 0 || column >= W) continue;
        const int64_t from = ((place / (H * W) * H + row) * W + column) * C;
        for (int64_t c = 0; c < C; c++) sum += static_cast<double>(x[from + c]) * weight[(n * 9 + tap) * C + c];
      }
      y.push_back(sum);
    }
  return y;
}

inline Numbers<int64_t> plain_nms(const Numbers<float>& boxes, const Numbers<int64_t>& order, float threshold,
                                  float offset) {
  Numbers<int64_t> kept;
  for (const int64_t candidate : order)
    if (std::none_of(kept.begin(), kept.end(), [&](int64_t better) {
          return plain_overlap(&boxes[4 * better], &boxes[4 * candidate], offset) > threshold;
        }))
      kept.push_back(candidate);
  return kept;
}
