// The library's own test: compares each function of swin.h with plain loops in double, for each instruction set of the
// processor, on one and on three threads.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <string>

#include "plain.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace {

std::mt19937 draw(1);
int checks = 0, failures = 0;
std::string doing;
double worst = 0;  // the largest error, divided by its limit

void expect(bool right, const char* what) {
  checks++;
  if (right) return;
  failures++;
  std::printf("WRONG: %s: %s (%s)\n", doing.c_str(), what, swin_error());
}

void ok(int32_t status, const char* what) { expect(status == SWIN_OK, what); }

// Errors are relative to the largest number of an array, and at least to 1, the size of the inputs.
void expect_close(const Numbers<float>& found, const Numbers<double>& truth, double allowed, const char* what) {
  double most = 1, error = 0;
  for (size_t i = 0; i < truth.size(); i++) {
    most = std::max(most, std::abs(truth[i]));
    const double off = std::abs(found[i] - truth[i]);
    error = off <= error ? error : off;  // keeps a NaN
  }
  worst = std::max(worst, error / most / allowed);
  if (!(error <= allowed * most) || found.size() != truth.size())
    std::printf("%s of %s is off by %g of %g\n", what, doing.c_str(), error, most);
  expect(error <= allowed * most && found.size() == truth.size(), what);
}

Numbers<float> random_numbers(int64_t count, float scale = 1, float mean = 0) {
  std::normal_distribution<float> normal(mean, scale);
  Numbers<float> numbers(count);
  for (float& number : numbers) number = normal(draw);
  return numbers;
}

template <class X>
Numbers<X> as(const Numbers<float>& numbers) {
  return {numbers.begin(), numbers.end()};
}
template <>
Numbers<Var> as(const Numbers<float>& numbers) {
  Numbers<Var> leaves;
  for (const float number : numbers) leaves.push_back(Var::leaf(number));
  return leaves;
}

const float* or_null(const Numbers<float>& numbers) { return numbers.empty() ? nullptr : numbers.data(); }

// The sum of y times grad_y, and the gradients with respect to `leaves`.
Numbers<double> gradient_of(const Numbers<double>& all, const Numbers<Var>& leaves) {
  Numbers<double> found;
  for (const Var leaf : leaves) found.push_back(all[leaf.node]);
  return found;
}
Numbers<double> all_gradients(const Numbers<Var>& y, const Numbers<float>& grad_y) {
  Var loss(0);
  for (size_t i = 0; i < y.size(); i++) loss = loss + y[i] * Var(grad_y[i]);
  return gradients(loss);
}

// Numbers between products in eight bits may be bfloat16, and some round to other whole numbers than those of doubles.
double allowed(int32_t dtype) { return dtype == SWIN_FLOAT32 ? 2e-5 : 4e-2; }

Numbers<char> packed(int32_t dtype, const Numbers<float>& weight, int64_t rows, int64_t columns, int64_t unit,
                     bool transposed, int threads = 1) {
  const int64_t N = transposed ? columns : rows, K = transposed ? rows : columns;
  const int64_t count = swin_packed_size(dtype, N, K);
  const bool pairs = swin_packed_size(dtype, 1, 1) == 2 && swin_packed_size(dtype, 1, 2) == 2;
  if (dtype != SWIN_INT8)
    expect(count == N * (dtype == SWIN_FLOAT32 ? K : pairs ? K + K % 2 : 2 * K), "swin_packed_size");
  Numbers<char> made(count * (dtype == SWIN_INT8 ? 1 : dtype == SWIN_BFLOAT16 ? 2 : 4));
  ok(swin_pack(dtype, weight.data(), rows, columns, unit, transposed, threads, made.data()), "swin_pack");
  return made;
}

// --- Weights ---------------------------------------------------------------------------------------------------------

void test_pack(int32_t dtype) {
  for (const auto& [N, K, unit] : {std::array<int64_t, 3>{1, 1, 1}, {96, 32, 32}, {200, 37, 1}, {120, 300, 24}}) {
    const Numbers<float> weight = random_numbers(N * K);
    Numbers<float> transpose(N * K);
    for (int64_t n = 0; n < N; n++)
      for (int64_t k = 0; k < K; k++) transpose[k * N + n] = weight[n * K + k];
    const Numbers<char> straight = packed(dtype, weight, N, K, unit, false);
    expect(straight == packed(dtype, transpose, K, N, unit, true, 3), "the transpose, transposed, packs to the same");
  }
}

void test_checksum() {
  Numbers<float> a = random_numbers(100001), b = random_numbers(3);
  const void* pieces[] = {a.data(), b.data(), nullptr};
  const int64_t bytes[] = {4 * 100001, 4 * 3, 0};
  uint64_t sum = 0, again = 0;
  ok(swin_checksum(pieces, bytes, 3, 1, &sum), "swin_checksum");
  ok(swin_checksum(pieces, bytes, 3, 3, &again), "swin_checksum");
  expect(sum == again, "a checksum is the same on any number of threads");
  for (float* number : {&a[0], &a[54321], &a[100000], &b[2]}) {
    const float kept = *number;
    *number = std::nextafter(kept, 1e9f);
    ok(swin_checksum(pieces, bytes, 3, 1, &again), "swin_checksum");
    expect(sum != again, "a changed number changes the checksum");
    *number = kept;
  }

  const auto sum_of = [&](const void* first, int64_t count) {
    ok(swin_checksum(&first, &count, 1, 1, &again), "swin_checksum");
    return again;
  };
  const int64_t size = 1027;  // four streams of four lines, and three bytes
  auto* const changed = reinterpret_cast<unsigned char*>(a.data());
  sum = sum_of(changed, size);
  for (int64_t bit = 0; bit < 8 * size; bit++) {
    changed[bit / 8] ^= 1 << bit % 8;
    expect(sum_of(changed, size) != sum, "a changed bit changes the checksum");
    changed[bit / 8] ^= 1 << bit % 8;
  }
  for (int64_t i = 0; i + 8 <= size; i += 8)
    for (int64_t j = 0; j < i; j += 8) {
      std::swap_ranges(changed + i, changed + i + 8, changed + j);
      expect(sum_of(changed, size) != sum, "the order of words changes the checksum");
      std::swap_ranges(changed + i, changed + i + 8, changed + j);
    }
  constexpr int64_t CHUNK = 1 << 18;  // bytes of a task
  Numbers<char> swapped(2 * CHUNK);
  std::copy_n(changed, CHUNK, swapped.data() + CHUNK);
  std::copy_n(changed + 4 * 100001 - CHUNK, CHUNK, swapped.data());
  sum = sum_of(swapped.data(), 2 * CHUNK);
  std::swap_ranges(swapped.data(), swapped.data() + CHUNK, swapped.data() + CHUNK);
  expect(sum_of(swapped.data(), 2 * CHUNK) != sum, "the order of tasks changes the checksum");
  const Numbers<char> zeros(size);
  std::set<uint64_t> sums;
  for (int64_t count = 0; count <= size; count++) sums.insert(sum_of(zeros.data(), count));
  expect(static_cast<int64_t>(sums.size()) == size + 1, "the number of bytes changes the checksum");
}

// --- A block ---------------------------------------------------------------------------------------------------------

struct BlockCase {
  const char* name;
  int64_t batch, height, width, channels, hidden, heads, window_height, window_width, shift_height, shift_width;
  int32_t padding;
  bool v2, norm3, vectors, drop_path, backward;
};
const BlockCase BLOCKS[] = {
    {"a block", 2, 5, 6, 16, 24, 2, 3, 4, 0, 0, SWIN_PADDING_ATTENDED, false, false, true, false, true},
    {"a shifted block", 2, 5, 7, 16, 24, 2, 3, 4, 1, 2, SWIN_PADDING_ATTENDED, false, false, true, true, true},
    {"a block that masks padding", 1, 5, 7, 24, 8, 1, 4, 3, 2, 1, SWIN_PADDING_MASKED, false, false, false, false,
     true},
    {"a block that is rolled before it is padded", 2, 5, 7, 16, 24, 2, 3, 4, 1, 2, SWIN_PADDING_AFTER_ROLL, false,
     false, true, true, true},
    {"a block of V2", 2, 7, 5, 32, 40, 2, 4, 3, 1, 1, SWIN_PADDING_ATTENDED, true, false, true, true, true},
    {"a block of V2 with a third norm", 1, 4, 6, 32, 64, 1, 2, 3, 0, 1, SWIN_PADDING_MASKED, true, true, true, false,
     true},
    {"a block of windows of one place", 1, 2, 3, 8, 8, 1, 1, 1, 0, 0, SWIN_PADDING_ATTENDED, false, false, true, false,
     true},
    {"a block of one token", 1, 1, 1, 40, 16, 1, 7, 5, 3, 2, SWIN_PADDING_MASKED, false, false, true, false, true},
    {"a block of panels", 1, 5, 7, 96, 104, 3, 5, 7, 2, 3, SWIN_PADDING_ATTENDED, false, false, true, false, true},
    {"a block of large windows", 1, 17, 20, 64, 128, 1, 16, 16, 8, 8, SWIN_PADDING_ATTENDED, true, true, true, false,
     false},
    {"a block of many tokens", 1, 20, 21, 16, 264, 1, 7, 7, 3, 3, SWIN_PADDING_ATTENDED, false, false, true, false,
     false},
    {"a wide block", 3, 8, 9, 192, 768, 6, 7, 7, 3, 3, SWIN_PADDING_ATTENDED, false, false, true, true, false},
};

swin_block describe(const BlockCase& of, int32_t dtype) {
  swin_block b{};
  b.dtype = dtype;
  b.batch = of.batch, b.height = of.height, b.width = of.width;
  b.channels = of.channels, b.hidden = of.hidden, b.heads = of.heads;
  b.window_height = of.window_height, b.window_width = of.window_width;
  b.shift_height = of.shift_height, b.shift_width = of.shift_width;
  b.padding = of.padding, b.has_norm3 = of.norm3;
  b.scale = of.v2 ? 1.f : 1 / std::sqrt(static_cast<float>(of.channels / of.heads));
  b.eps1 = b.eps2 = b.eps3 = 1e-5f;
  return b;
}

struct BlockNumbers {
  BlockTensors<float> of;
  Numbers<float> drop_path;
  Numbers<char> straight[SWIN_LINEARS], transposed[SWIN_LINEARS];

  BlockNumbers(const BlockCase& c, swin_block& b) {
    const int64_t C = c.channels, D = c.hidden, N = c.window_height * c.window_width;
    const int64_t sizes[SWIN_LINEARS][2] = {{3 * C, C}, {C, C}, {D, C}, {C, D}};
    of.x = random_numbers(c.batch * c.height * c.width * C);
    for (int i = 0; i < SWIN_LINEARS; i++) {
      const auto [outputs, inputs] = sizes[i];
      of.linear[i] = random_numbers(outputs * inputs, 1 / std::sqrt(static_cast<float>(inputs)));
      straight[i] = packed(b.dtype, of.linear[i], outputs, inputs, i == SWIN_QKV ? C / c.heads : 1, false);
      if (b.dtype != SWIN_INT8)
        transposed[i] = packed(b.dtype, of.linear[i], outputs, inputs, i == SWIN_PROJ ? C / c.heads : 1, true);
      b.weight[i] = straight[i].data();
      if (c.vectors || (c.v2 && i == SWIN_QKV)) of.bias[i] = random_numbers(outputs, 0.3f);
      b.bias[i] = or_null(of.bias[i]);
    }
    for (int i = 0; i < 3 && c.vectors; i++) {
      of.norm_weight[i] = random_numbers(C, 0.1f, 1);
      of.norm_bias[i] = random_numbers(C, 0.1f);
    }
    b.norm1_weight = or_null(of.norm_weight[0]), b.norm1_bias = or_null(of.norm_bias[0]);
    b.norm2_weight = or_null(of.norm_weight[1]), b.norm2_bias = or_null(of.norm_bias[1]);
    b.norm3_weight = or_null(of.norm_weight[2]), b.norm3_bias = or_null(of.norm_bias[2]);
    of.position_bias = random_numbers(c.heads * N * N, 0.5f);
    b.position_bias = of.position_bias.data();
    if (c.v2) of.cosine_scale = random_numbers(c.heads, 0.3f, 5);
    b.cosine_scale = or_null(of.cosine_scale);
    if (c.drop_path) drop_path = random_numbers(2 * c.batch, 0.3f, 1);
    b.drop_path = or_null(drop_path);
  }
};

template <class X>
BlockTensors<X> tensors(const BlockTensors<float>& of) {
  BlockTensors<X> made{as<X>(of.x), {}, {}, {}, {}, as<X>(of.position_bias), as<X>(of.cosine_scale)};
  for (int i = 0; i < SWIN_LINEARS; i++) made.linear[i] = as<X>(of.linear[i]), made.bias[i] = as<X>(of.bias[i]);
  for (int i = 0; i < 3; i++)
    made.norm_weight[i] = as<X>(of.norm_weight[i]), made.norm_bias[i] = as<X>(of.norm_bias[i]);
  return made;
}

// Memory in whole cache lines.
struct Lines {
  explicit Lines(int64_t bytes) : memory(bytes + 64) {}
  char* begin() { return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64; }
  Numbers<char> memory;
};

void backward_of(const swin_block& b, const BlockNumbers& numbers, const Numbers<float>& grad_y, const void* saved,
                 int64_t groups, const BlockTensors<Var>& leaves, const Numbers<double>& truth) {
  const int64_t C = b.channels;
  BlockTensors<float> to{Numbers<float>(numbers.of.x.size()),
                         {},
                         {},
                         {},
                         {},
                         Numbers<float>(numbers.of.position_bias.size()),
                         Numbers<float>(b.heads)};
  swin_block_gradients g{};
  const void* transposed[SWIN_LINEARS];
  for (int i = 0; i < SWIN_LINEARS; i++) {
    transposed[i] = numbers.transposed[i].data();
    to.linear[i].resize(numbers.of.linear[i].size());
    to.bias[i].resize(i == SWIN_QKV ? 3 * C : i == SWIN_FC1 ? b.hidden : C);
    g.weight[i] = to.linear[i].data(), g.bias[i] = to.bias[i].data();
  }
  float** const norms[3][2] = {
      {&g.norm1_weight, &g.norm1_bias}, {&g.norm2_weight, &g.norm2_bias}, {&g.norm3_weight, &g.norm3_bias}};
  for (int i = 0; i < 3; i++) {
    to.norm_weight[i].resize(C), to.norm_bias[i].resize(C);
    *norms[i][0] = to.norm_weight[i].data(), *norms[i][1] = to.norm_bias[i].data();
  }
  g.x = to.x.data(), g.position_bias = to.position_bias.data(), g.cosine_scale = to.cosine_scale.data();
  ok(swin_block_backward(&b, transposed, numbers.of.x.data(), grad_y.data(), saved, groups, &g), "swin_block_backward");
  const double most = 3 * allowed(b.dtype);
  const auto compare = [&](const Numbers<float>& found, const Numbers<Var>& of, const char* what) {
    if (!of.empty()) expect_close(found, gradient_of(truth, of), most, what);
  };
  compare(to.x, leaves.x, "x's gradient");
  compare(to.position_bias, leaves.position_bias, "the position bias's gradient");
  compare(to.cosine_scale, leaves.cosine_scale, "the cosine scale's gradient");
  for (int i = 0; i < SWIN_LINEARS; i++) {
    compare(to.linear[i], leaves.linear[i], "a weight's gradient");
    compare(to.bias[i], leaves.bias[i], "a bias's gradient");
  }
  for (int i = 0; i < 2 + b.has_norm3; i++) {
    compare(to.norm_weight[i], leaves.norm_weight[i], "a norm's weight's gradient");
    compare(to.norm_bias[i], leaves.norm_bias[i], "a norm's bias's gradient");
  }
}

void test_block(const BlockCase& c, int32_t dtype) {
  doing = std::string(c.name) + doing;
  swin_block b = describe(c, dtype);
  const BlockNumbers numbers(c, b);
  const Numbers<double> truth = plain_block(b, tensors<double>(numbers.of));
  Numbers<double> all;
  BlockTensors<Var> leaves;
  const Numbers<float> grad_y = random_numbers(truth.size());
  tape.clear();
  const bool backward = c.backward && dtype != SWIN_INT8;
  if (backward) {
    leaves = tensors<Var>(numbers.of);
    all = all_gradients(plain_block(b, leaves), grad_y);
  }
  for (const int threads : {1, 3}) {
    b.threads = threads;
    Numbers<float> y(truth.size()), again(truth.size()), in_place = numbers.of.x;
    ok(swin_block_forward(&b, numbers.of.x.data(), y.data(), nullptr, 0), "swin_block_forward");
    expect_close(y, truth, allowed(dtype), "y");
    ok(swin_block_forward(&b, in_place.data(), in_place.data(), nullptr, 0), "swin_block_forward in place");
    expect(in_place == y, "y in the place of x is the same");
    int64_t groups = 0, bytes = 0;
    if (dtype == SWIN_INT8) {
      expect(swin_block_saved_size(&b, &groups, &bytes) == SWIN_INVALID, "nothing is saved of eight bits");
      continue;
    }
    ok(swin_block_saved_size(&b, &groups, &bytes), "swin_block_saved_size");
    expect(groups > 0 && bytes > 0, "a block saves something");
    Lines saved(groups * bytes);
    ok(swin_block_forward(&b, numbers.of.x.data(), again.data(), saved.begin(), groups), "swin_block_forward, saving");
    expect_close(again, truth, allowed(dtype), "y, saving");
    if (!backward) continue;
    backward_of(b, numbers, grad_y, nullptr, 0, leaves, all);
    backward_of(b, numbers, grad_y, saved.begin(), groups, leaves, all);
  }
  if (c.v2) return;
  b.has_norm3 = 1;
  Numbers<float> y(truth.size());
  expect(swin_block_forward(&b, numbers.of.x.data(), y.data(), nullptr, 0) == SWIN_INVALID, "V1 has no third norm");
}

// --- Patches ---------------------------------------------------------------------------------------------------------

struct ProjectionNumbers {
  ProjectionTensors<float> of;
  Numbers<char> straight, transposed;
  swin_projection p{};

  ProjectionNumbers(int32_t dtype, int64_t N, int64_t K, int64_t numbers, bool norm, bool norm_after, bool bias) {
    of.x = random_numbers(numbers);
    of.linear = random_numbers(N * K, 1 / std::sqrt(static_cast<float>(K)));
    if (bias) of.bias = random_numbers(N);
    if (norm) of.norm_weight = random_numbers(norm_after ? N : K, 0.1f, 1);
    if (norm) of.norm_bias = random_numbers(norm_after ? N : K, 0.1f);
    straight = packed(dtype, of.linear, N, K, 1, false);
    if (dtype != SWIN_INT8) transposed = packed(dtype, of.linear, N, K, 1, true);
    p.dtype = dtype, p.outputs = N, p.weight = straight.data(), p.bias = or_null(of.bias);
    p.has_norm = norm, p.norm_after = norm_after, p.eps = 1e-5f, p.norm_weight = or_null(of.norm_weight),
    p.norm_bias = or_null(of.norm_bias);
  }
  template <class X>
  ProjectionTensors<X> tensors() const {
    return {as<X>(of.x), as<X>(of.linear), as<X>(of.bias), as<X>(of.norm_weight), as<X>(of.norm_bias)};
  }
};

// forward(p, y), backward(p, transposed, grad_y, gradients); plain(tensors) is y.
template <class Forward, class Backward, class Plain>
void test_projection(ProjectionNumbers& numbers, bool with_backward, const Forward& forward, const Backward& backward,
                     const Plain& plain) {
  swin_projection& p = numbers.p;
  with_backward &= p.dtype != SWIN_INT8;
  const Numbers<double> truth = plain(numbers.tensors<double>());
  const Numbers<float> grad_y = random_numbers(truth.size());
  ProjectionTensors<Var> leaves;
  Numbers<double> all;
  tape.clear();
  if (with_backward) {
    leaves = numbers.tensors<Var>();
    all = all_gradients(plain(leaves), grad_y);
  }
  for (const int threads : {1, 3}) {
    p.threads = threads;
    Numbers<float> y(truth.size());
    ok(forward(p, y.data()), "forward");
    expect_close(y, truth, allowed(p.dtype), "y");
    if (!with_backward) continue;
    ProjectionTensors<float> to{Numbers<float>(leaves.x.size()), Numbers<float>(leaves.linear.size()),
                                Numbers<float>(p.outputs), Numbers<float>(leaves.norm_weight.size()),
                                Numbers<float>(leaves.norm_bias.size())};
    const swin_projection_gradients g{to.x.data(), to.linear.data(), to.bias.data(), to.norm_weight.data(),
                                      to.norm_bias.data()};
    ok(backward(p, numbers.transposed.data(), grad_y.data(), &g), "backward");
    const double most = 3 * allowed(p.dtype);
    expect_close(to.x, gradient_of(all, leaves.x), most, "x's gradient");
    expect_close(to.linear, gradient_of(all, leaves.linear), most, "the weight's gradient");
    if (p.bias) expect_close(to.bias, gradient_of(all, leaves.bias), most, "the bias's gradient");
    if (p.has_norm) {
      expect_close(to.norm_weight, gradient_of(all, leaves.norm_weight), most, "the norm's weight's gradient");
      expect_close(to.norm_bias, gradient_of(all, leaves.norm_bias), most, "the norm's bias's gradient");
    }
  }
}

void test_embed(int32_t dtype, int64_t channels, int64_t height, int64_t width, int64_t side, int64_t N, bool norm,
                bool channels_last) {
  doing = "patches of " + std::to_string(side) + " to " + std::to_string(N) + doing;
  const int64_t B = 2, K = channels * side * side, count = B * channels * height * width;
  ProjectionNumbers numbers(dtype, N, K, count, norm, true, true);
  swin_images images{numbers.of.x.data(),
                     B,
                     channels,
                     height,
                     width,
                     {channels * height * width, height * width, width, 1},
                     side,
                     side};
  Numbers<float> last(count);
  if (channels_last) {
    for (int64_t i = 0; i < count; i++) {
      const int64_t at = i % (height * width), c = i / (height * width) % channels,
                    image = i / (channels * height * width);
      last[(image * height * width + at) * channels + c] = numbers.of.x[i];
    }
    images.pixels = last.data();
    const int64_t stride[] = {channels * height * width, 1, width * channels, channels};
    std::copy_n(stride, 4, images.stride);
  }
  test_projection(
      numbers, N * K < 6000, [&](const auto& p, float* y) { return swin_embed_forward(&images, &p, y); },
      [&](const auto& p, const void* transposed, const float* grad_y, const auto* g) {
        return swin_embed_backward(&images, &p, transposed, grad_y, g);
      },
      [&](const auto& t) { return plain_embed(images, numbers.p, t); });
}

void test_merge(int32_t dtype, int64_t height, int64_t width, int64_t C, int64_t N, bool norm, bool norm_after) {
  doing = "neighbours of " + std::to_string(C) + " to " + std::to_string(N) + doing;
  ProjectionNumbers numbers(dtype, N, 4 * C, 2 * height * width * C, norm, norm_after, false);
  const swin_maps maps{numbers.of.x.data(), 2, height, width, C};
  test_projection(
      numbers, N * C < 6000, [&](const auto& p, float* y) { return swin_merge_forward(&maps, &p, y); },
      [&](const auto& p, const void* transposed, const float* grad_y, const auto* g) {
        return swin_merge_backward(&maps, &p, transposed, grad_y, g);
      },
      [&](const auto& t) { return plain_merge(maps, numbers.p, t); });
}

void test_output_norm(int64_t batch, int64_t area, int64_t C) {
  doing = "an output norm" + doing;
  const int64_t count = batch * area * C;
  ProjectionTensors<float> t{random_numbers(count), {}, {}, random_numbers(C, 0.1f, 1), random_numbers(C)};
  const auto as_numbers = [&](auto zero) {
    using X = decltype(zero);
    return ProjectionTensors<X>{as<X>(t.x), {}, {}, as<X>(t.norm_weight), as<X>(t.norm_bias)};
  };
  const Numbers<double> truth = plain_output_norm(batch, area, C, 1e-5f, as_numbers(double()));
  const Numbers<float> grad_y = random_numbers(count);
  tape.clear();
  const ProjectionTensors<Var> leaves = as_numbers(Var());
  const Numbers<double> all = all_gradients(plain_output_norm(batch, area, C, 1e-5f, leaves), grad_y);
  const float *weight = t.norm_weight.data(), *bias = t.norm_bias.data();
  for (const int threads : {1, 3}) {
    Numbers<float> y(count), grad_x(count), of_weight(C), of_bias(C);
    ok(swin_output_norm_forward(t.x.data(), batch, area, C, weight, bias, 1e-5f, threads, y.data()), "forward");
    expect_close(y, truth, allowed(SWIN_FLOAT32), "y");
    ok(swin_output_norm_backward(t.x.data(), grad_y.data(), batch, area, C, weight, 1e-5f, threads, grad_x.data(),
                                 of_weight.data(), of_bias.data()),
       "backward");
    expect_close(grad_x, gradient_of(all, leaves.x), 3 * allowed(SWIN_FLOAT32), "x's gradient");
    expect_close(of_weight, gradient_of(all, leaves.norm_weight), 3 * allowed(SWIN_FLOAT32), "the weight's gradient");
    expect_close(of_bias, gradient_of(all, leaves.norm_bias), 3 * allowed(SWIN_FLOAT32), "the bias's gradient");
  }
}

// --- Detectors -------------------------------------------------------------------------------------------------------

// Numbers of `dtype` in memory with the given strides. The gaps are NaN.
struct Stored {
  Numbers<char> bytes;

  Stored(int32_t dtype, const Numbers<float>& numbers, const int64_t (&sizes)[4], const int64_t (&stride)[4])
      : bytes(extent(sizes, stride) * (dtype == SWIN_BFLOAT16 ? 2 : 4), '\xff') {
    over(sizes, stride, [&](int64_t i, int64_t at) {
      const int64_t size = dtype == SWIN_BFLOAT16 ? 2 : 4;  // bfloat16 is the upper half of a float
      std::memcpy(&bytes[at * size], reinterpret_cast<const char*>(&numbers[i]) + 4 - size, size);
    });
  }
  template <class F>
  static void over(const int64_t (&sizes)[4], const int64_t (&stride)[4], const F& f) {
    const int64_t count = sizes[0] * sizes[1] * sizes[2] * sizes[3];
    for (int64_t i = 0; i < count; i++) {
      const int64_t row = i / sizes[3], plane = row / sizes[2];
      f(i, plane / sizes[1] * stride[0] + plane % sizes[1] * stride[1] + row % sizes[2] * stride[2] +
               i % sizes[3] * stride[3]);
    }
  }
  static int64_t extent(const int64_t (&sizes)[4], const int64_t (&stride)[4]) {
    int64_t most = 0;
    over(sizes, stride, [&](int64_t, int64_t at) { most = std::max(most, at + 1); });
    return most;
  }
};

// Round numbers to bfloat16, if `dtype` is bfloat16.
Numbers<float> held_by(int32_t dtype, Numbers<float> numbers) {
  for (float& number : numbers) {
    uint32_t bits;
    std::memcpy(&bits, &number, 4);
    if (dtype == SWIN_BFLOAT16) bits &= 0xffff0000u;
    std::memcpy(&number, &bits, 4);
  }
  return numbers;
}
Numbers<float> read_back(int32_t dtype, const Numbers<char>& bytes) {
  const size_t size = dtype == SWIN_BFLOAT16 ? 2 : 4;
  Numbers<float> numbers(bytes.size() / size);
  for (size_t i = 0; i < numbers.size(); i++)  // bfloat16 is the upper half of a float
    std::memcpy(reinterpret_cast<char*>(&numbers[i]) + 4 - size, &bytes[i * size], size);
  return numbers;
}

struct RoiCase {
  const char* name;
  int64_t batch, channels, height, width, regions, bins_height, bins_width, samples;
  float scale;
  bool aligned, channels_last, gaps;
};
const RoiCase ROIS[] = {
    {"a box head's regions", 2, 5, 13, 17, 10, 7, 7, 0, 0.25f, true, false, false},
    {"regions of 2 samples", 2, 3, 9, 8, 10, 3, 4, 2, 0.5f, true, false, true},
    {"regions that are not aligned", 1, 2, 6, 7, 10, 2, 3, 0, 1.f, false, false, false},
    {"regions of more bins than a tile", 1, 3, 30, 5, 6, 2, 37, 1, 1.f, true, false, false},
    {"regions of maps of one pixel", 3, 1, 1, 1, 8, 2, 2, 0, 1.f, false, false, false},
    {"regions in channels_last maps", 2, 70, 7, 9, 6, 3, 2, 0, 0.25f, true, true, false},
    {"regions in channels_last maps with gaps", 1, 9, 8, 6, 8, 4, 5, 3, 1.f, false, true, true},
    {"no regions", 1, 4, 5, 6, 0, 7, 7, 0, 1.f, true, false, false},
    {"regions of no channels", 1, 0, 5, 6, 3, 7, 7, 0, 1.f, true, false, false},
};

// Random regions: some reach out of the map, one has a NaN, one is infinite, one is a point.
Numbers<float> random_regions(const RoiCase& c) {
  Numbers<float> boxes;
  for (int64_t r = 0; r < c.regions; r++) {
    const auto side = [&](int64_t size) {
      std::uniform_real_distribution<float> place(-0.4f * size / c.scale, 1.4f * size / c.scale);
      const float one = place(draw), other = place(draw);
      return std::array<float, 2>{std::min(one, other), std::max(one, other)};
    };
    auto x = side(c.width), y = side(c.height);
    if (r == 3) x[0] = NAN;
    if (r == 4) y[1] = INFINITY;
    if (r == 5) x[1] = x[0], y[1] = y[0];
    boxes.insert(boxes.end(), {static_cast<float>(r % c.batch), x[0], y[0], x[1], y[1]});
  }
  return boxes;
}

void test_roi_align(const RoiCase& c, int32_t dtype) {
  doing = c.name + doing + (dtype == SWIN_BFLOAT16 ? ", stored as bfloat16" : "");
  const int64_t sizes[] = {c.batch, c.channels, c.height, c.width}, gap = c.gaps ? 3 : 0;
  const int64_t row = c.channels_last ? c.width * (c.channels + gap) : c.width + gap;
  const int64_t plane = c.height * row + gap;
  const int64_t rows_first[] = {c.channels * plane, plane, row, 1}, last[] = {plane, 1, row, c.channels + gap};
  const Numbers<float> boxes = random_regions(c);
  swin_roi_align of{};
  of.dtype = dtype;
  of.batch = c.batch, of.channels = c.channels, of.height = c.height, of.width = c.width;
  std::copy_n(c.channels_last ? last : rows_first, 4, of.stride);
  of.regions = c.regions, of.boxes = boxes.data();
  of.bins_height = c.bins_height, of.bins_width = c.bins_width, of.samples = c.samples;
  of.scale = c.scale, of.aligned = c.aligned;

  const Numbers<float> numbers = held_by(dtype, random_numbers(c.batch * c.channels * c.height * c.width));
  const Stored maps(dtype, numbers, sizes, of.stride);
  const Numbers<double> plain = as<double>(numbers);
  const Numbers<double> truth = plain_roi_align(of, plain);
  const int64_t count = c.regions * c.channels * c.bins_height * c.bins_width;
  const Numbers<float> grad = held_by(dtype, random_numbers(count));
  const int64_t in_a_row[] = {1, 1, 1, count}, ones[] = {1, 1, 1, 1};
  const Stored grad_pooled(dtype, grad, in_a_row, ones);
  tape.clear();
  const Numbers<Var> leaves = as<Var>(numbers);
  const Numbers<double> all = all_gradients(plain_roi_align(of, leaves), grad);
  Numbers<double> of_maps = gradient_of(all, leaves);
  for (double& number : of_maps) number += 1;  // the call adds to the gradient
  for (const int threads : {1, 3}) {
    of.threads = threads;
    Numbers<char> pooled(grad_pooled.bytes.size());
    ok(swin_roi_align_forward(&of, maps.bytes.data(), pooled.data()), "swin_roi_align_forward");
    expect_close(read_back(dtype, pooled), truth, dtype == SWIN_BFLOAT16 ? 1e-2 : 2e-5, "what is pooled");
    Numbers<float> grad_maps(Stored::extent(sizes, of.stride), 1);
    ok(swin_roi_align_backward(&of, grad_pooled.bytes.data(), grad_maps.data()), "swin_roi_align_backward");
    Numbers<float> found(numbers.size());
    Stored::over(sizes, of.stride, [&](int64_t i, int64_t at) { found[i] = grad_maps[at], grad_maps[at] = 1; });
    expect_close(found, of_maps, 6e-5, "the maps' gradient");
    expect(std::all_of(grad_maps.begin(), grad_maps.end(), [](float between) { return between == 1; }),
           "what lies between the numbers of maps is not written");
  }
}

void test_convolution(const std::array<int64_t, 5>& sizes, bool has_bias, int32_t dtype) {
  const auto [B, H, W, C, N] = sizes;
  doing = "a convolution of " + std::to_string(C) + " to " + std::to_string(N) + " channels" + doing;
  const Numbers<float> x = held_by(dtype, random_numbers(B * H * W * C)), weight = random_numbers(9 * N * C);
  const Numbers<float> bias = has_bias ? random_numbers(N) : Numbers<float>();
  const Numbers<double> truth = plain_convolution(x, weight, bias, sizes);
  const int64_t in_a_row[] = {1, 1, 1, static_cast<int64_t>(x.size())}, ones[] = {1, 1, 1, 1};
  const Stored maps(dtype, x, in_a_row, ones);
  for (const int32_t tile : {4, 6}) {
    Numbers<float> packed(swin_packed_convolution_size(tile, N, C));
    expect(static_cast<int64_t>(packed.size()) == (tile + 2) * (tile + 2) * N * C, "swin_packed_convolution_size");
    for (const int threads : {1, 3}) {
      Numbers<char> y(B * H * W * N * (dtype == SWIN_BFLOAT16 ? 2 : 4), '\xff');  // NaN
      ok(swin_pack_convolution(weight.data(), tile, N, C, threads, packed.data()), "swin_pack_convolution");
      const swin_convolution of{dtype, threads, tile, B, H, W, C, N, packed.data(), or_null(bias)};
      ok(swin_convolution_forward(&of, maps.bytes.data(), y.data()), "swin_convolution_forward");
      // In bfloat16 the outputs alone are rounded, by at most 2^-8. Larger tiles have larger points.
      const double of_float32 = (tile == 4 ? 1 : 3) * allowed(SWIN_FLOAT32);
      expect_close(read_back(dtype, y), truth, dtype == SWIN_BFLOAT16 ? 4e-3 : of_float32, "y");
    }
  }
}

void test_deformable(int64_t B, int64_t Q, int64_t h, int64_t d, int64_t P) {
  doing = "deformable attention of " + std::to_string(d) + " channels" + doing;
  const int64_t shapes[] = {5, 7, 1, 3, 2, 2}, L = 3, S = 42, samples = B * Q * h * L * P;
  const Numbers<float> values = random_numbers(B * S * h * d), weights = random_numbers(samples);
  const Numbers<float> grad = random_numbers(B * Q * h * d);
  Numbers<float> sampling_locations(2 * samples);
  std::uniform_real_distribution<float> place(-.3f, 1.3f);
  for (float& number : sampling_locations) number = place(draw);
  swin_deformable of{1, B, Q, S, h, d, L, P, shapes};
  const Numbers<double> truth =
      plain_deformable(of, as<double>(values), as<double>(sampling_locations), as<double>(weights));
  tape.clear();
  const Numbers<Var> leaves[] = {as<Var>(values), as<Var>(sampling_locations), as<Var>(weights)};
  const Numbers<double> all = all_gradients(plain_deformable(of, leaves[0], leaves[1], leaves[2]), grad);
  Numbers<double> of_values = gradient_of(all, leaves[0]);
  for (double& number : of_values) number += 1;  // the call adds to the gradient
  for (const int threads : {1, 3}) {
    of.threads = threads;
    Numbers<float> y(truth.size(), NAN), grad_values(values.size(), 1), grad_sampling_locations(2 * samples, NAN);
    Numbers<float> grad_weights(samples, NAN);
    ok(swin_deformable_forward(&of, values.data(), sampling_locations.data(), weights.data(), y.data()),
       "swin_deformable_forward");
    expect_close(y, truth, 2e-5, "y");
    ok(swin_deformable_backward(&of, values.data(), sampling_locations.data(), weights.data(), grad.data(),
                                grad_values.data(), grad_sampling_locations.data(), grad_weights.data()),
       "swin_deformable_backward");
    expect_close(grad_values, of_values, 6e-5, "the values' gradient");
    expect_close(grad_sampling_locations, gradient_of(all, leaves[1]), 6e-5, "the sampling locations' gradient");
    expect_close(grad_weights, gradient_of(all, leaves[2]), 6e-5, "the weights' gradient");
  }
  of.tokens = S + 1;
  expect(swin_deformable_forward(&of, values.data(), sampling_locations.data(), weights.data(),
                                 Numbers<float>(grad.size()).data()) == SWIN_INVALID,
         "shapes of other maps");
}

void test_nms(int64_t count, float threshold, float offset) {
  doing = "NMS of " + std::to_string(count) + doing;
  Numbers<float> boxes;
  std::uniform_real_distribution<float> place(0, 100), length(-1, 60);
  for (int64_t i = 0; i < count; i++) {
    const float x = place(draw), y = place(draw);
    boxes.insert(boxes.end(), {x, y, x + length(draw), y + length(draw)});
    if (i % 11 == 5) std::copy_n(boxes.end() - 8, 4, boxes.end() - 4);  // equal boxes
    if (i % 17 == 9) boxes[4 * i + i % 4] = i % 2 ? NAN : INFINITY;
  }
  Numbers<int64_t> order(count);
  for (int64_t i = 0; i < count; i++) order[i] = i;
  std::shuffle(order.begin(), order.end(), draw);
  const Numbers<int64_t> truth = plain_nms(boxes, order, threshold, offset);
  for (const int threads : {1, 3}) {
    Numbers<int64_t> kept(count, -1);
    int64_t num_kept = -1;
    ok(swin_nms(boxes.data(), order.data(), count, threshold, offset, threads, kept.data(), &num_kept), "swin_nms");
    expect(num_kept == static_cast<int64_t>(truth.size()), "as many boxes are kept");
    kept.resize(std::max<int64_t>(num_kept, 0));
    expect(kept == truth, "the same boxes are kept, in the same order");
  }
}

void test_all(const std::string& isa, int32_t dtype) {
  const std::string how = ", " + isa + ", " +
                          (dtype == SWIN_INT8       ? "int8"
                           : dtype == SWIN_BFLOAT16 ? "bfloat16"
                                                    : "float32");
  const int before = checks;
  worst = 0;
  const auto run = [&](const auto& test, const auto&... arguments) {
    doing = how;
    test(arguments...);
  };
  in_eight_bits = dtype == SWIN_INT8;
  if (!in_eight_bits) run(test_pack, dtype), run(test_checksum);
  for (const BlockCase& c : BLOCKS) run(test_block, c, dtype);
  run(test_embed, dtype, 3, 9, 10, 4, 50, true, false);
  run(test_embed, dtype, 2, 5, 7, 3, 2, false, true);
  run(test_embed, dtype, 300, 11, 13, 1, 200, true, true);  // longer than a partial sum, and wider than a panel
  run(test_merge, dtype, 5, 6, 9, 20, true, false);
  run(test_merge, dtype, 4, 5, 16, 34, true, true);
  run(test_merge, dtype, 1, 1, 1, 2, false, false);
  run(test_merge, dtype, 14, 15, 96, 192, true, false);
  if (!in_eight_bits) {
    run(test_output_norm, 2, 70, 21);
    run(test_output_norm, 1, 1, 1);
    run(test_convolution, std::array<int64_t, 5>{1, 9, 14, 40, 100}, true, dtype);
    run(test_convolution, std::array<int64_t, 5>{3, 4, 4, 3, 1}, false, dtype);
    run(test_convolution, std::array<int64_t, 5>{2, 1, 2, 1, 7}, true, dtype);
    // More channels than a partial sum has, and several blocks.
    run(test_convolution, std::array<int64_t, 5>{1, 37, 33, 300, 16}, false, dtype);
    run(test_convolution, std::array<int64_t, 5>{0, 5, 6, 8, 8}, true, dtype);
  }
  if (dtype == SWIN_FLOAT32) {  // RoIAlign supports both dtypes on any processor
    for (const RoiCase& c : ROIS)
      for (const int32_t stored : {SWIN_FLOAT32, SWIN_BFLOAT16}) run(test_roi_align, c, stored);
    for (const int64_t count : {0, 1, 2, 130, 1500})
      for (const float offset : {0.f, 1.f}) run(test_nms, count, count % 4 ? 0.3f : 0.7f, offset);
    run(test_deformable, 2, 5, 3, 8, 4);
    run(test_deformable, 1, 3, 2, 37, 1);
    run(test_deformable, 0, 3, 2, 4, 1);
  }
  std::printf("%s: %d checks, the largest error is %.2f of what is allowed\n", how.c_str() + 2, checks - before, worst);
}

}  // namespace

int main() {
  expect(swin_version() == SWIN_VERSION, "the library is that of the header");
  std::string names = swin_isas();
  expect(swin_use_isa("") == SWIN_UNSUPPORTED && std::strlen(swin_error()) > 20, "an unknown instruction set");
  for (size_t at = 0; at < names.size();) {
    const std::string isa = names.substr(at, names.find(' ', at) - at);
    at += isa.size() + 1;
    if (swin_use_isa(isa.c_str()) != SWIN_OK) {
      std::printf("%s: not here\n", isa.c_str());
      continue;
    }
    expect(swin_isa() == isa, "the instruction set in use is the one that was asked for");
    for (const int32_t dtype : {SWIN_FLOAT32, SWIN_BFLOAT16, SWIN_INT8})
      if (!swin_why_not(dtype)) test_all(isa, dtype);
  }
  ok(swin_use_isa(nullptr), "the best instruction set");
  expect(names.compare(0, names.find(' '), swin_isa()) == 0 || swin_isa()[0], "one is the best");
#ifdef __x86_64__
  unsigned a = 0, vendor = 0, c = 0, d = 0;
  __get_cpuid(0, &a, &vendor, &c, &d);
  const bool intel = !std::memcmp(&vendor, "Genu", sizeof vendor);
  expect(!intel || std::strcmp(swin_isa(), "avx512_bf16"), "Intel without AMX takes AVX-512 without bf16");
#endif
  std::printf("%d checks, %d wrong\n", checks, failures);
  return failures || !checks;
}
