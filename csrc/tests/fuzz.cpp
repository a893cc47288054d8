// Random calls of the functions of swin.h. Most calls have a fault: sizes, strides, null pointers, misaligned or
// overlapping memory. Each call returns a result, or an error text before any array is written. Each array has exactly
// the size of swin.h, and AddressSanitizer reports any access beyond.
//
// fuzz SEED COUNT: runs COUNT calls for each instruction set of the processor.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../swin.h"

namespace {

std::mt19937_64 source;
int64_t draw(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(source); }
bool chance(double share) { return std::uniform_real_distribution<double>()(source) < share; }
template <class T>
T one_of(std::initializer_list<T> all) {
  return all.begin()[draw(0, static_cast<int64_t>(all.size()) - 1)];
}
int64_t any_number() {
  return one_of<int64_t>({INT64_MIN,
                          -(int64_t{1} << 31),
                          -7,
                          -1,
                          0,
                          1,
                          2,
                          3,
                          5,
                          7,
                          8,
                          9,
                          15,
                          16,
                          17,
                          24,
                          31,
                          33,
                          64,
                          65,
                          96,
                          97,
                          255,
                          1024,
                          1025,
                          1 << 20,
                          (1 << 20) + 1,
                          INT32_MAX,
                          int64_t{1} << 31,
                          int64_t{1} << 32,
                          (int64_t{1} << 32) + 1,
                          int64_t{1} << 40,
                          int64_t{1} << 46,
                          int64_t{1} << 62,
                          INT64_MAX});
}
float any_float() { return one_of({0.f, -1.f, 1e-45f, 1e-5f, 3e38f, INFINITY, -INFINITY, NAN}); }

[[noreturn]] void stop(const std::string& call, const char* what, int32_t status) {
  std::printf("WRONG: %s: %s; status %d: %s\n", call.c_str(), what, status, swin_error());
  std::exit(1);
}

// The product of any factors: -1 if a factor is negative, and at most 2^62.
int64_t product(std::initializer_list<int64_t> factors) {
  __int128 found = 1;
  for (const int64_t factor : factors) {
    if (factor < 0) return -1;
    found = std::min<__int128>(found * factor, int64_t{1} << 62);
  }
  return static_cast<int64_t>(found);
}
int64_t parts(int64_t length, int64_t part) { return part > 0 && length > 0 ? (length - 1) / part + 1 : -1; }

constexpr int64_t LARGEST = 1 << 20;  // bytes: a larger array becomes null

// One pointer argument.
struct Pointer {
  const char* name;
  void* at = nullptr;
  int64_t bytes = 0;
  bool written = false, required = true;
  std::unique_ptr<char[]> memory;
};

// The arrays of the next call, and its faults.
struct Call {
  std::string name;
  std::vector<std::unique_ptr<Pointer>> pointers;
  bool changed = false;  // the call may have a fault
  bool wrong = false;    // the call has a fault

  void* memory(const char* of, int64_t count, int64_t size, bool written, bool required = true, int64_t alignment = 0) {
    auto made = std::make_unique<Pointer>();
    made->name = of, made->written = written, made->required = required;
    const int64_t bytes = product({count, size});
    if (bytes >= 0 && bytes <= LARGEST && (required || chance(0.7))) {
      // The array ends with the allocation, so the sanitizer reports every byte beyond.
      alignment = alignment ? alignment : size;
      made->memory.reset(new char[bytes + alignment]);
      const auto first = reinterpret_cast<uintptr_t>(made->memory.get());
      made->at = made->memory.get() + (alignment - first % alignment) % alignment;
      if (alignment <= 16) made->at = made->memory.get() + alignment;  // `new` aligns to 16
      made->bytes = bytes;
      fill(*made);
    }
    if (bytes > LARGEST) wrong = wrong || required;
    pointers.push_back(std::move(made));
    return pointers.back()->at;
  }
  float* floats(const char* of, int64_t count, bool written = false, bool required = true) {
    return static_cast<float*>(memory(of, count, sizeof(float), written, required));
  }

  static void fill(Pointer& of) {
    auto* bytes = static_cast<char*>(of.at);
    if (of.written) return (void)std::memset(bytes, 0x5a, of.bytes);
    for (int64_t i = 0; i + 4 <= of.bytes; i += 4) {
      const float number = static_cast<float>(draw(-8, 8)) / 8;
      std::memcpy(bytes + i, &number, 4);
    }
  }

  // all: addresses of the pointers of the call, in the order of the arrays.
  void corrupt(const std::vector<void*>& all) {
    if (!chance(0.4) || all.empty()) return;
    const int64_t i = draw(0, static_cast<int64_t>(all.size()) - 1), j = draw(0, static_cast<int64_t>(all.size()) - 1);
    const Pointer &one = *pointers[i], &other = *pointers[j];
    if (!one.bytes) return;
    const auto set = [&](const void* to) { std::memcpy(all[i], &to, sizeof to); };  // for a pointer of any type
    if (chance(0.3)) {
      set(nullptr), wrong = wrong || one.required, changed = true;
    } else if (chance(0.5)) {
      set(static_cast<char*>(one.at) - 1), wrong = changed = true;
    } else if (i != j && other.bytes && (one.written || other.written)) {
      set(other.at), changed = true;  // swin_block_forward allows y = x
      wrong = wrong || !(std::string(one.name) + other.name == "xy" || std::string(one.name) + other.name == "yx");
    }
  }

  bool untouched() const {
    for (const auto& pointer : pointers)
      for (int64_t i = 0; pointer->written && i < pointer->bytes; i++)
        if (static_cast<char*>(pointer->at)[i] != 0x5a) return false;
    return true;
  }
};

int calls = 0, results = 0, errors = 0;

void judge(const Call& call, int32_t status) {
  calls++;
  if (status == SWIN_OK) {
    results++;
    if (call.wrong) stop(call.name, "it has computed something from what is wrong", status);
    return;
  }
  errors++;
  if (!call.changed && !call.wrong) stop(call.name, "nothing was wrong", status);
  const std::string said = swin_error();
  if (status != SWIN_INVALID && status != SWIN_UNSUPPORTED && status != SWIN_NO_MEMORY)
    stop(call.name, "it failed", status);
  if (std::count(said.begin(), said.end(), ' ') < 4) stop(call.name, "the error is no sentence", status);
  if (!call.untouched()) stop(call.name, "it has written, and then found an error", status);
}

// Replace one or two numbers of `all` by random numbers.
template <class... Number>
void change(Call& call, Number*... numbers) {
  if (!chance(0.6)) return;
  call.changed = true;
  const int64_t count = sizeof...(numbers);
  for (int64_t times = draw(1, 2); times > 0; times--) {
    const int64_t chosen = draw(0, count - 1);
    int64_t i = 0;
    const auto put = [&](auto* number) {
      if (i++ == chosen) *number = static_cast<std::remove_pointer_t<decltype(number)>>(any_number());
    };
    (put(numbers), ...);
  }
}

int64_t bytes_of(int32_t dtype) { return dtype == SWIN_BFLOAT16 ? 2 : 4; }
int64_t bytes_of_packed(int32_t dtype, int64_t N, int64_t K) {
  if (product({N, K}) < 0 || product({N, K}) > INT32_MAX) return product({N, K, 4});
  const bool pairs = swin_packed_size(SWIN_BFLOAT16, 1, 2) == 2;
  if (dtype == SWIN_BFLOAT16) return pairs ? N * (K + K % 2) * 2 : N * K * 4;
  if (dtype != SWIN_INT8) return N * K * 4;
  const int64_t one = swin_packed_size(SWIN_INT8, 1, 1) - 8, step = one == 64 ? 64 : 4;
  return N * ((K + step - 1) / step * one + 8);
}
int32_t any_dtype() { return static_cast<int32_t>(draw(0, 2)); }

void fuzz_weights() {
  Call call{"swin_pack", {}};
  int32_t dtype = any_dtype(), threads = static_cast<int32_t>(draw(1, 3));
  int64_t rows = draw(1, 150), columns = draw(1, 90), unit = draw(1, 96);
  const bool transposed = chance(0.5);
  change(call, &dtype, &threads, &rows, &columns, &unit);
  const int64_t N = transposed ? columns : rows, K = transposed ? rows : columns;
  void* weight = call.floats("weight", product({rows, columns}));
  void* packed = call.memory("packed", bytes_of_packed(dtype, N, K), 1, true, true, 4);
  call.wrong = call.wrong || (transposed && dtype == SWIN_INT8);
  call.corrupt({&weight, &packed});
  const int64_t size = swin_packed_size(dtype, N, K);
  if (size < 0 || size / 10 > INT32_MAX) stop("swin_packed_size", "no weight is so large", 0);
  judge(call, swin_pack(dtype, static_cast<float*>(weight), rows, columns, unit, transposed, threads, packed));
}

void fuzz_checksum() {
  Call call{"swin_checksum", {}};
  int32_t threads = static_cast<int32_t>(draw(1, 3));
  int64_t bytes[] = {draw(0, 700000), draw(0, 300)}, count = draw(0, 2);
  change(call, &threads, &bytes[0], &bytes[1], &count);
  if (count > 2) count = one_of({int64_t{INT32_MAX} + 1, INT64_MAX});
  void* pieces[] = {call.memory("a piece", bytes[0], 1, false), call.memory("a piece", bytes[1], 1, false)};
  uint64_t sum = 0;
  call.wrong = false;  // pieces after the last are ignored
  call.changed = true;
  judge(call, swin_checksum(pieces, bytes, count, threads, chance(0.9) ? &sum : nullptr));
}

struct BlockCall : Call {
  swin_block b{};
  std::vector<void*> all;

  // A pointer of the call. `finish` copies the pointer to a field of a structure.
  template <class P>
  void field(P*& to, const char* of, int64_t count, int64_t size = 4, bool written = false, bool required = true,
             int64_t alignment = 0) {
    to = static_cast<P*>(memory(of, count, size, written, required, alignment));
    all.push_back(&to);
  }

  explicit BlockCall(const char* of) : Call{of, {}} {
    const int64_t d = 8 * draw(1, 4);
    b.dtype = any_dtype(), b.threads = static_cast<int32_t>(draw(1, 3));
    b.batch = draw(0, 2), b.height = draw(1, 11), b.width = draw(1, 11), b.heads = draw(1, 2);
    b.channels = d * b.heads, b.hidden = 8 * draw(1, 10);
    b.window_height = draw(1, chance(0.1) ? 16 : 6), b.window_width = draw(1, chance(0.1) ? 16 : 6);
    b.shift_height = draw(0, b.window_height - 1), b.shift_width = draw(0, b.window_width - 1);
    b.padding = static_cast<int32_t>(draw(0, SWIN_PADDINGS - 1)), b.has_norm3 = chance(0.3);
    b.scale = 0.3f, b.eps1 = b.eps2 = b.eps3 = 1e-5f;
    if (chance(0.1)) (chance(0.5) ? b.scale : b.eps1) = any_float();
    change(*this, &b.dtype, &b.threads, &b.batch, &b.height, &b.width, &b.heads, &b.channels, &b.hidden,
           &b.window_height, &b.window_width, &b.shift_height, &b.shift_width);
    const int64_t C = b.channels, D = b.hidden, outputs[] = {product({3, C}), C, D, C}, inputs[] = {C, C, C, D};
    const char* const names[] = {"qkv", "proj", "fc1", "fc2"};
    for (int i = 0; i < SWIN_LINEARS; i++)
      field(b.weight[i], names[i], bytes_of_packed(b.dtype, outputs[i], inputs[i]), 1, false, true, 4);
    for (int i = 0; i < SWIN_LINEARS; i++) field(b.bias[i], "a bias", outputs[i], 4, false, false);
    for (const float** norm :
         {&b.norm1_weight, &b.norm1_bias, &b.norm2_weight, &b.norm2_bias, &b.norm3_weight, &b.norm3_bias})
      field(*norm, "a norm", C, 4, false, false);
    field(b.position_bias, "position_bias", places());
    field(b.cosine_scale, "cosine_scale", b.heads, 4, false, false);
    wrong = wrong || (b.has_norm3 && !b.cosine_scale);
    field(b.drop_path, "drop_path", product({2, b.batch}), 4, false, false);
  }
  int64_t places() const {
    return product({b.heads, b.window_height, b.window_width, b.window_height, b.window_width});
  }
  int64_t numbers() const { return product({b.batch, b.height, b.width, b.channels}); }
};

void fuzz_block(bool backward) {
  BlockCall call(backward ? "swin_block_backward" : "swin_block_forward");
  const swin_block& b = call.b;
  int64_t groups = chance(0.7) ? 0 : chance(0.7) ? draw(1, 4) : any_number(), bytes = 0;
  Call sizes{"swin_block_saved_size", {}};
  sizes.changed = true;
  const int32_t status = swin_block_saved_size(&b, &groups, &bytes);
  judge(sizes, status);
  if (status) bytes = 0;
  const float *x = nullptr, *grad_y = nullptr;
  float* y = nullptr;
  void* saved = nullptr;
  call.field(x, "x", call.numbers());
  if (!backward) call.field(y, "y", call.numbers(), 4, true);
  if (status == SWIN_OK) call.field(saved, "saved", product({groups, bytes}), 1, !backward, false, 64);
  if (!backward) {
    call.corrupt(call.all);
    return judge(call, swin_block_forward(&b, x, y, saved, groups));
  }
  // A backward pass reads the values of a forward pass.
  if (saved && status == SWIN_OK && call.numbers() && x && b.weight[0]) {
    std::vector<float> out(call.numbers());
    if (swin_block_forward(&b, x, out.data(), saved, groups)) saved = nullptr;
  }
  call.field(grad_y, "grad_y", call.numbers());
  swin_block_gradients g{};
  const void* transposed[SWIN_LINEARS];
  const int64_t C = b.channels, D = b.hidden;
  const int64_t outputs[] = {product({3, C}), C, D, C}, inputs[] = {C, C, C, D};
  for (int i = 0; i < SWIN_LINEARS; i++) {
    call.field(transposed[i], "a transposed weight", bytes_of_packed(b.dtype, inputs[i], outputs[i]), 1, false, true,
               4);
    call.field(g.weight[i], "a weight's gradient", product({outputs[i], inputs[i]}), 4, true);
    call.field(g.bias[i], "a bias's gradient", outputs[i], 4, true);
  }
  for (float** norm : {&g.norm1_weight, &g.norm1_bias, &g.norm2_weight, &g.norm2_bias, &g.norm3_weight, &g.norm3_bias})
    call.field(*norm, "a norm's gradient", C, 4, true);
  call.field(g.x, "x's gradient", call.numbers(), 4, true);
  call.field(g.position_bias, "position_bias's gradient", call.places(), 4, true);
  call.field(g.cosine_scale, "cosine_scale's gradient", b.heads, 4, true);
  call.wrong = call.wrong || b.dtype == SWIN_INT8;
  call.corrupt(call.all);
  judge(call, swin_block_backward(&b, transposed, x, grad_y, saved, groups, &g));
}

// Images or maps: K numbers become a token. `inputs` counts numbers, `tokens` tokens.
template <class Forward, class Backward>
void fuzz_projection(BlockCall& call, int64_t K, int64_t inputs, int64_t tokens, bool norm_after, bool backward,
                     const Forward& forward, const Backward& compute_backward) {
  swin_projection p{};
  p.dtype = any_dtype(), p.threads = static_cast<int32_t>(draw(1, 3)), p.outputs = 2 * draw(1, 60);
  p.has_norm = chance(0.5), p.norm_after = norm_after, p.eps = chance(0.9) ? 1e-5f : any_float();
  if (chance(0.3)) change(call, &p.dtype, &p.threads, &p.outputs);
  const int64_t N = p.outputs, normed = norm_after ? N : K;
  call.field(p.weight, "the weight", bytes_of_packed(p.dtype, N, K), 1, false, true, 4);
  call.field(p.bias, "bias", N, 4, false, false);
  if (p.has_norm) {
    call.field(p.norm_weight, "the norm's weight", normed, 4, false, false);
    call.field(p.norm_bias, "the norm's bias", normed, 4, false, false);
  }
  if (!backward) {
    float* y = nullptr;
    call.field(y, "the tokens", product({tokens, N}), 4, true);
    call.corrupt(call.all);
    return judge(call, forward(p, y));
  }
  const float* grad_y = nullptr;
  const void* transposed = nullptr;
  swin_projection_gradients g{};
  call.field(grad_y, "grad_y", product({tokens, N}));
  if (chance(0.7)) {
    call.field(transposed, "the transposed weight", bytes_of_packed(p.dtype, K, N), 1, false, true, 4);
    call.field(g.x, "x's gradient", inputs, 4, true);
  }
  call.field(g.weight, "the weight's gradient", product({N, K}), 4, true);
  call.field(g.bias, "the bias's gradient", N, 4, true);
  if (p.has_norm) {
    call.field(g.norm_weight, "the norm's weight's gradient", normed, 4, true);
    call.field(g.norm_bias, "the norm's bias's gradient", normed, 4, true);
  }
  call.changed = call.changed || p.outputs % 2;
  const bool had = transposed;
  call.corrupt(call.all);
  if (had && !transposed) call.wrong = false, call.changed = true;  // no gradient of x
  call.wrong = call.wrong || p.dtype == SWIN_INT8;
  judge(call, compute_backward(p, transposed, grad_y, &g));
}

// A call about a projection, without the arrays of a block.
struct ProjectionCall : BlockCall {
  explicit ProjectionCall(const char* of) : BlockCall(of) {
    pointers.clear(), all.clear();
    changed = wrong = false;
  }
};

void fuzz_embed(bool backward) {
  ProjectionCall call(backward ? "swin_embed_backward" : "swin_embed_forward");
  swin_images of{};
  of.batch = draw(0, 2), of.channels = draw(1, 4), of.height = draw(1, 20), of.width = draw(1, 20);
  of.patch_height = draw(1, 6), of.patch_width = draw(1, 6);
  const int64_t strides[] = {of.channels * of.height * of.width, of.height * of.width, of.width, 1};
  std::memcpy(of.stride, strides, sizeof strides);
  if (chance(0.2)) of.stride[draw(0, 3)] = 0;
  if (chance(0.2)) std::swap(of.stride[draw(0, 3)], of.stride[draw(0, 3)]);
  change(call, &of.batch, &of.channels, &of.height, &of.width, &of.patch_height, &of.patch_width, &of.stride[0],
         &of.stride[1], &of.stride[2], &of.stride[3]);
  const int64_t sizes[] = {of.batch, of.channels, of.height, of.width};
  int64_t extent = 1, pixels = product({of.batch, of.channels, of.height, of.width});
  for (int i = 0; i < 4; i++)
    extent += std::clamp<int64_t>(product({of.stride[i], sizes[i] > 0 ? sizes[i] - 1 : 0}), 0, int64_t{1} << 60);
  const int64_t tokens = product({of.batch, parts(of.height, of.patch_height), parts(of.width, of.patch_width)});
  call.field(of.pixels, "pixels", pixels ? extent : 0);
  fuzz_projection(
      call, product({of.channels, of.patch_height, of.patch_width}), pixels, tokens, true, backward,
      [&](const auto& p, float* y) { return swin_embed_forward(&of, &p, y); },
      [&](const auto& p, const void* t, const float* g, const auto* to) {
        return swin_embed_backward(&of, &p, t, g, to);
      });
}

void fuzz_merge(bool backward) {
  ProjectionCall call(backward ? "swin_merge_backward" : "swin_merge_forward");
  swin_maps of{};
  of.batch = draw(0, 2), of.height = draw(1, 15), of.width = draw(1, 15), of.channels = draw(1, 40);
  change(call, &of.batch, &of.height, &of.width, &of.channels);
  const int64_t numbers = product({of.batch, of.height, of.width, of.channels});
  call.field(of.x, "the map", numbers);
  fuzz_projection(
      call, product({4, of.channels}), numbers, product({of.batch, parts(of.height, 2), parts(of.width, 2)}),
      chance(0.5), backward, [&](const auto& p, float* y) { return swin_merge_forward(&of, &p, y); },
      [&](const auto& p, const void* t, const float* g, const auto* to) {
        return swin_merge_backward(&of, &p, t, g, to);
      });
}

void fuzz_output_norm(bool backward) {
  ProjectionCall call(backward ? "swin_output_norm_backward" : "swin_output_norm_forward");
  int64_t batch = draw(0, 2), area = draw(1, 150), channels = draw(1, 70);
  int32_t threads = static_cast<int32_t>(draw(1, 3));
  change(call, &batch, &area, &channels, &threads);
  const int64_t numbers = product({batch, area, channels});
  const float eps = chance(0.9) ? 1e-5f : any_float();
  const float *x = nullptr, *weight = nullptr, *bias = nullptr, *grad_y = nullptr;
  float *y = nullptr, *grad_x = nullptr, *grad_weight = nullptr, *grad_bias = nullptr;
  call.field(x, "x", numbers);
  call.field(weight, "weight", channels, 4, false, false);
  if (!backward) {
    call.field(bias, "bias", channels, 4, false, false);
    call.field(y, "the norm", numbers, 4, true);
    call.corrupt(call.all);
    return judge(call, swin_output_norm_forward(x, batch, area, channels, weight, bias, eps, threads, y));
  }
  call.field(grad_y, "grad_y", numbers);
  call.field(grad_x, "grad_x", numbers, 4, true);
  call.field(grad_weight, "grad_weight", channels, 4, true);
  call.field(grad_bias, "grad_bias", channels, 4, true);
  call.corrupt(call.all);
  judge(call, swin_output_norm_backward(x, grad_y, batch, area, channels, weight, eps, threads, grad_x, grad_weight,
                                        grad_bias));
}

// Regions of maps (batch, ...), or boxes if batch is 0. Most are valid, anywhere on the plane.
void fill_boxes(Call& call, float* boxes, int64_t count, int64_t batch) {
  const int64_t numbers = batch ? 5 : 4;
  const auto one = [] { return chance(0.02) ? one_of({NAN, 0.f, 1e9f, -1e9f, 1e-30f}) : draw(-80, 300) / 8.f; };
  for (int64_t i = 0; boxes && i < count; i++) {
    float* box = boxes + numbers * i;
    if (batch) *box++ = static_cast<float>(draw(0, batch - 1));
    for (int axis = 0; axis < 2; axis++) {
      const float a = one(), b = one();
      box[axis] = b < a ? b : a, box[axis + 2] = b < a ? a : b;
    }
  }
  if (boxes && count > 0 && chance(0.2)) boxes[draw(0, numbers * count - 1)] = any_float(), call.changed = true;
}

void fuzz_roi_align(bool backward) {
  ProjectionCall call(backward ? "swin_roi_align_backward" : "swin_roi_align_forward");
  swin_roi_align of{};
  of.dtype = static_cast<int32_t>(draw(0, 1)), of.threads = static_cast<int32_t>(draw(1, 3));
  of.batch = draw(1, 3), of.channels = chance(0.2) ? draw(60, 70) : draw(0, 9);
  of.height = draw(1, 20), of.width = draw(1, 20), of.regions = draw(0, 9);
  of.bins_height = draw(1, 9), of.bins_width = draw(1, chance(0.2) ? 40 : 9), of.samples = draw(0, 3);
  of.scale = one_of({1.f, 0.25f, 0.03125f}), of.aligned = chance(0.5);
  if (chance(0.05)) of.scale = any_float(), call.changed = true;
  const int64_t rows[] = {of.channels * of.height * of.width, of.height * of.width, of.width, 1};
  const int64_t pixels[] = {of.channels * of.height * of.width, 1, of.width * of.channels, of.channels};
  std::memcpy(of.stride, chance(0.5) ? rows : pixels, sizeof rows);
  if (chance(0.1)) std::swap(of.stride[draw(0, 3)], of.stride[draw(0, 3)]), call.changed = true;
  if (chance(0.1)) of.stride[draw(0, 3)] = draw(0, 9), call.changed = true;
  change(call, &of.dtype, &of.threads, &of.batch, &of.channels, &of.height, &of.width, &of.regions, &of.bins_height,
         &of.bins_width, &of.samples, &of.stride[0], &of.stride[1], &of.stride[2], &of.stride[3]);
  const int64_t sizes[] = {of.batch, of.channels, of.height, of.width};
  int64_t extent = 1;
  for (int i = 0; i < 4; i++)
    extent += std::clamp<int64_t>(product({of.stride[i], sizes[i] > 1 ? sizes[i] - 1 : 0}), 0, int64_t{1} << 60);
  if (!of.batch || !of.channels) extent = 0;
  const int64_t pooled = product({of.regions, of.channels, of.bins_height, of.bins_width}), size = bytes_of(of.dtype);
  float* boxes = nullptr;
  call.field(boxes, "boxes", product({of.regions, 5}));
  fill_boxes(call, boxes, of.regions, std::max<int64_t>(of.batch, 1));
  if (!of.batch) call.changed = true;
  if (!backward) {
    const void* maps = nullptr;
    void* to = nullptr;
    call.field(maps, "maps", extent, size);
    call.field(to, "pooled", pooled, size, true);
    call.corrupt(call.all);
    of.boxes = boxes;
    return judge(call, swin_roi_align_forward(&of, maps, to));
  }
  const void* grad = nullptr;
  float* grad_maps = nullptr;
  call.field(grad, "grad_pooled", pooled, size);
  call.field(grad_maps, "grad_maps", extent, 4, true);
  call.corrupt(call.all);
  of.boxes = boxes;
  judge(call, swin_roi_align_backward(&of, grad, grad_maps));
}

int32_t any_tile() { return draw(0, 1) ? 4 : 6; }

void fuzz_convolution() {
  ProjectionCall call("swin_convolution_forward");
  swin_convolution of{};
  of.dtype = static_cast<int32_t>(draw(0, 1)), of.threads = static_cast<int32_t>(draw(1, 3)), of.tile = any_tile();
  of.batch = draw(0, 2), of.height = draw(1, 20), of.width = draw(1, 20);
  of.channels = draw(1, 70), of.outputs = draw(1, 120);
  change(call, &of.dtype, &of.threads, &of.tile, &of.batch, &of.height, &of.width, &of.channels, &of.outputs);
  const int64_t size = swin_packed_convolution_size(of.tile, of.outputs, of.channels);
  if (size < 0 || size > INT32_MAX) stop("swin_packed_convolution_size", "no weight is so large", 0);
  const void* x = nullptr;
  void* y = nullptr;
  call.field(x, "x", product({of.batch, of.height, of.width, of.channels}), bytes_of(of.dtype));
  call.field(of.weight, "weight", product({of.tile == 4 ? 36 : 64, of.outputs, of.channels}));
  call.field(of.bias, "bias", of.outputs, 4, false, false);
  call.field(y, "y", product({of.batch, of.height, of.width, of.outputs}), bytes_of(of.dtype), true);
  call.corrupt(call.all);
  judge(call, swin_convolution_forward(&of, x, y));
}

void fuzz_convolution_weights() {
  ProjectionCall call("swin_pack_convolution");
  int32_t threads = static_cast<int32_t>(draw(1, 3)), tile = any_tile();
  int64_t outputs = draw(1, 120), channels = draw(1, 70);
  change(call, &threads, &tile, &outputs, &channels);
  const float* weight = nullptr;
  float* packed = nullptr;
  call.field(weight, "weight", product({9, outputs, channels}));
  call.field(packed, "packed", product({tile == 4 ? 36 : 64, outputs, channels}), 4, true);
  call.corrupt(call.all);
  judge(call, swin_pack_convolution(weight, tile, outputs, channels, threads, packed));
}

void fuzz_nms() {
  ProjectionCall call("swin_nms");
  int32_t threads = static_cast<int32_t>(draw(1, 3));
  int64_t count = chance(0.2) ? draw(0, 900) : draw(0, 20);
  if (chance(0.3)) change(call, &threads, &count);
  const float threshold = chance(0.9) ? 0.1f * draw(0, 10) : any_float(),
              offset = chance(0.9) ? draw(0, 1) : any_float();
  float* boxes = nullptr;
  int64_t *order = nullptr, *kept = nullptr, *num_kept = nullptr;
  call.field(boxes, "boxes", product({count, 4}));
  call.field(order, "order", count, 8);
  call.field(kept, "kept", count, 8, true);
  call.field(num_kept, "num_kept", 1, 8, true);
  fill_boxes(call, boxes, count, 0);
  for (int64_t i = 0; order && i < count; i++) order[i] = i;
  if (order) std::shuffle(order, order + std::max<int64_t>(count, 0), source);
  if (order && count > 0 && chance(0.2)) order[draw(0, count - 1)] = any_number(), call.changed = true;
  const bool was_right = !call.changed && !call.wrong;
  call.corrupt(call.all);
  judge(call, swin_nms(boxes, order, count, threshold, offset, threads, kept, num_kept));
  if (was_right && !call.changed && (*num_kept < 0 || *num_kept > count || (count > 0 && kept[0] != order[0])))
    stop(call.name, "the best box is kept, and no more than there are", SWIN_OK);
}

void fuzz_deformable(bool backward) {
  ProjectionCall call(backward ? "swin_deformable_backward" : "swin_deformable_forward");
  swin_deformable of{};
  of.threads = static_cast<int32_t>(draw(1, 3));
  of.batch = draw(0, 2), of.queries = draw(0, 9), of.heads = draw(1, 3), of.channels = draw(1, 40);
  of.levels = draw(1, 3), of.points = draw(1, 4);
  int64_t shapes[6];
  for (int64_t& side : shapes) side = draw(0, 6);
  for (int64_t l = 0; l < of.levels; l++) of.tokens += shapes[2 * l] * shapes[2 * l + 1];
  of.shapes = shapes;
  if (chance(0.3)) change(call, &of.threads, &of.batch, &of.queries, &of.tokens, &of.heads, &of.channels, &of.levels);
  if (of.levels > 3) of.levels = chance(0.5) ? 0 : 5000;  // `shapes` has six numbers
  const int64_t samples = product({of.batch, of.queries, of.heads, of.levels, of.points});
  const int64_t values = product({of.batch, of.tokens, of.heads, of.channels});
  const int64_t outputs = product({of.batch, of.queries, of.heads, of.channels});
  float* arrays[7] = {};
  call.field(arrays[0], "values", values);
  call.field(arrays[1], "sampling_locations", product({2, samples}));
  call.field(arrays[2], "weights", samples);
  call.field(arrays[3], backward ? "grad_y" : "y", outputs, 4, !backward);
  if (backward) {
    call.field(arrays[4], "grad_values", values, 4, true);
    call.field(arrays[5], "grad_sampling_locations", product({2, samples}), 4, true);
    call.field(arrays[6], "grad_weights", samples, 4, true);
  }
  call.corrupt(call.all);
  judge(call, backward ? swin_deformable_backward(&of, arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], arrays[5],
                                                  arrays[6])
                       : swin_deformable_forward(&of, arrays[0], arrays[1], arrays[2], arrays[3]));
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t seed = count > 1 ? std::atoll(arguments[1]) : 1, times = count > 2 ? std::atoll(arguments[2]) : 2000;
  const std::string names = swin_isas();
  for (size_t at = 0; at < names.size();) {
    const std::string isa = names.substr(at, names.find(' ', at) - at);
    at += isa.size() + 1;
    if (swin_use_isa(isa.c_str())) continue;
    source.seed(seed);
    calls = results = errors = 0;
    for (int64_t i = 0; i < times; i++) {
      const bool backward = chance(0.5);
      const int64_t which = draw(0, 17);
      if (which < 4)
        fuzz_block(backward);
      else if (which < 6)
        fuzz_embed(backward);
      else if (which < 8)
        fuzz_merge(backward);
      else if (which == 8)
        fuzz_output_norm(backward);
      else if (which == 9)
        backward ? fuzz_weights() : fuzz_checksum();
      else if (which < 13)
        fuzz_roi_align(backward);
      else if (which < 15)
        backward ? fuzz_convolution_weights() : fuzz_convolution();
      else if (which < 16)
        fuzz_nms();
      else
        fuzz_deformable(backward);
    }
    std::printf("%s: %d calls, %d results, %d errors\n", isa.c_str(), calls, results, errors);
    if (results < calls / 5 || errors < calls / 5) return 1;
  }
  for (const void* block : {static_cast<const void*>(nullptr)})
    if (swin_block_forward(static_cast<const swin_block*>(block), nullptr, nullptr, nullptr, 0) != SWIN_INVALID)
      return 1;
  return 0;
}
