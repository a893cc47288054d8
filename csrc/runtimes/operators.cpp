#include "runtimes/operators.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "library/isa_functions.h"

namespace {

using Shape = std::array<int64_t, 4>;

constexpr int64_t MAX_SIZE = 1 << 20;  // products of three are int64_t; the library checks the rest

// A packed weight, on cache lines of its own.
struct Panels {
  struct Free {
    void operator()(char* memory) const { ::operator delete(memory, LINE); }
  };
  static constexpr std::align_val_t LINE{64};
  std::unique_ptr<char, Free> memory;

  explicit Panels(int64_t bytes = 0) : memory(bytes ? static_cast<char*>(::operator new(bytes, LINE)) : nullptr) {}
  char* data() const { return memory.get(); }
};

// The attributes and weights of a node, read in order, each by its name.
class Node {
 public:
  Node(const char* attribute_names, const char* weight_names, bool is_int8, const double* attributes,
       const void* const* weights, const int64_t* counts)
      : is_int8(is_int8),
        attribute_names(attribute_names),
        weight_names(weight_names),
        attributes(attributes),
        weights(weights),
        counts(counts) {}

  int32_t dtype() { return is_int8 ? SWIN_INT8 : static_cast<int32_t>(whole(SWIN_FLOAT32, SWIN_BFLOAT16)); }

  float number() {
    attribute_names >> name;
    return static_cast<float>(*attributes++);
  }
  int64_t whole(int64_t least = 0, int64_t most = MAX_SIZE) {
    attribute_names >> name;
    const double value = *attributes++;
    if (!(value >= static_cast<double>(least) && value <= static_cast<double>(most)))
      throw std::invalid_argument(name + " must be from " + std::to_string(least) + " to " + std::to_string(most) +
                                  ", got " + std::to_string(value));
    return static_cast<int64_t>(value);
  }
  // A copy of the next weight.
  std::vector<float> vector(std::initializer_list<int64_t> shape) {
    const float* first = take<float>(shape);
    return {first, first + counts[-1]};
  }
  // The next weight (N, K), packed.
  Panels packed(int32_t dtype, int64_t N, int64_t K, int64_t unit) {
    const std::vector<float> widened = is_int8 ? widen(N, K) : std::vector<float>();
    const float* weight = is_int8 ? widened.data() : take<float>({N, K});
    Panels panels(swin_packed_size(dtype, N, K) * (dtype == SWIN_FLOAT32 ? 4 : dtype == SWIN_BFLOAT16 ? 2 : 1));
    if (swin_pack(dtype, weight, N, K, unit, 0, 1, panels.data())) throw std::invalid_argument(swin_error());
    return panels;
  }
  // The next weight (N, 3, 3, C) of a convolution, packed.
  Panels packed_convolution(int64_t tile, int64_t N, int64_t C) {
    const float* weight = take<float>({N, 9, C});
    Panels panels(swin_packed_convolution_size(static_cast<int32_t>(tile), N, C) * 4);
    auto* packed = reinterpret_cast<float*>(panels.data());
    if (swin_pack_convolution(weight, static_cast<int32_t>(tile), N, C, 1, packed))
      throw std::invalid_argument(swin_error());
    return panels;
  }

 private:
  // The next two weights: whole numbers (N, K), and the largest magnitude of each output. swin_pack rounds the result
  // to the same whole numbers, with the same factors.
  std::vector<float> widen(int64_t N, int64_t K) {
    const int8_t* whole = take<int8_t>({N, K});
    const float* largest = take<float>({N});
    std::vector<float> weight(N * K);
    for (int64_t i = 0; i < N * K; i++) weight[i] = largest[i / K] * (static_cast<float>(whole[i]) / 127.f);
    return weight;
  }
  template <class T>
  const T* take(std::initializer_list<int64_t> shape) {
    weight_names >> name;
    const int64_t given = *counts++;
    const auto* weight = static_cast<const T*>(*weights++);
    int64_t left = given;  // to divide by each size: a product may overflow
    std::string sizes;
    for (const int64_t size : shape) {
      left = size > 0 && left % size == 0 ? left / size : 0;
      sizes += (sizes.empty() ? "" : " x ") + std::to_string(size);
    }
    if (left != 1 || !weight)
      throw std::invalid_argument(name + " must have " + sizes + " numbers, got " + std::to_string(given));
    return weight;
  }

  bool is_int8;
  std::istringstream attribute_names, weight_names;
  std::string name;
  const double* attributes;
  const void* const* weights;
  const int64_t* counts;
};

}  // namespace

struct swin_operator {
  swin_operator() = default;
  swin_operator(const swin_operator&) = delete;
  swin_operator& operator=(const swin_operator&) = delete;
  virtual ~swin_operator() = default;
  virtual int64_t channels(const Shape& shape) const { return shape[3]; }
  virtual Shape output_shape(const Shape& shape) const { return shape; }
  virtual int32_t run(const Shape& shape, const float* x, int32_t threads, float* y) const = 0;
  int64_t expected_channels = 0;
  const swin::IsaFunctions* isa = nullptr;  // of the packed weights
};

namespace {

struct Block : swin_operator {
  static constexpr const char* KIND = "Block";
  static constexpr const char* ATTRIBUTES =
      "bfloat16 version channels hidden heads window_height window_width shift_height shift_width mask_padding "
      "scale eps1 eps2 eps3";
  static constexpr const char* WEIGHTS =
      "qkv_weight proj_weight fc1_weight fc2_weight qkv_bias proj_bias fc1_bias fc2_bias norm1_weight norm1_bias "
      "norm2_weight norm2_bias norm3_weight norm3_bias position_bias cosine_scale";
  static constexpr const char* WEIGHTS_INT8 =
      "qkv_int8 qkv_largest proj_int8 proj_largest fc1_int8 fc1_largest fc2_int8 fc2_largest "
      "qkv_bias proj_bias fc1_bias fc2_bias norm1_weight norm1_bias norm2_weight norm2_bias norm3_weight norm3_bias "
      "position_bias cosine_scale";

  explicit Block(Node& node) {
    block.dtype = node.dtype();
    const int64_t version = node.whole(1, 2);
    const int64_t C = expected_channels = block.channels = node.whole();
    const int64_t D = block.hidden = node.whole();
    const int64_t h = block.heads = node.whole(1);  // the divisor of C
    block.window_height = node.whole();
    block.window_width = node.whole();
    block.shift_height = node.whole();
    block.shift_width = node.whole();
    block.padding = static_cast<int32_t>(node.whole(0, SWIN_PADDING_MASKED));
    block.scale = node.number();
    block.eps1 = node.number();
    block.eps2 = node.number();
    block.eps3 = node.number();
    block.has_norm3 = block.eps3 >= 0;
    const int64_t outputs[] = {3 * C, C, D, C}, inputs[] = {C, C, C, D}, N = block.window_height * block.window_width;
    for (int i = 0; i < SWIN_LINEARS; i++) weight[i] = node.packed(block.dtype, outputs[i], inputs[i], i ? 1 : C / h);
    for (int i = 0; i < SWIN_LINEARS; i++) bias[i] = node.vector({outputs[i]});
    for (auto& norm : norms) norm = node.vector({C});
    position_bias = node.vector({h, N, N});
    cosine_scale = node.vector({h});
    for (int i = 0; i < SWIN_LINEARS; i++) block.weight[i] = weight[i].data(), block.bias[i] = bias[i].data();
    const float** const norm_fields[] = {&block.norm1_weight, &block.norm1_bias,   &block.norm2_weight,
                                         &block.norm2_bias,   &block.norm3_weight, &block.norm3_bias};
    for (int i = 0; i < 6; i++) *norm_fields[i] = norms[i].data();
    block.position_bias = position_bias.data();
    block.cosine_scale = version == 2 ? cosine_scale.data() : nullptr;
  }
  int32_t run(const Shape& shape, const float* x, int32_t threads, float* y) const override {
    swin_block of_call = block;
    of_call.threads = threads;
    of_call.batch = shape[0], of_call.height = shape[1], of_call.width = shape[2];
    return swin_block_forward(&of_call, x, y, nullptr, 0);
  }

  swin_block block{};
  std::array<Panels, SWIN_LINEARS> weight;
  std::array<std::vector<float>, SWIN_LINEARS> bias;
  std::array<std::vector<float>, 6> norms;
  std::vector<float> position_bias, cosine_scale;
};

// A linear layer and a norm, of Embed and Merge.
struct Projected : swin_operator {
  void read(Node& node, int64_t K, bool has_bias) {
    const int64_t N = projection.outputs;
    weight = node.packed(projection.dtype, N, K, 1);
    if (has_bias) bias = node.vector({N});
    norm_weight = node.vector({projection.norm_after ? N : K});
    norm_bias = node.vector({projection.norm_after ? N : K});
    projection.weight = weight.data();
    projection.bias = bias.data();
    projection.has_norm = projection.eps >= 0;
    projection.norm_weight = norm_weight.data();
    projection.norm_bias = norm_bias.data();
  }
  swin_projection with(int32_t threads) const {
    swin_projection of_call = projection;
    of_call.threads = threads;
    return of_call;
  }

  swin_projection projection{};
  Panels weight;
  std::vector<float> bias, norm_weight, norm_bias;
};

struct Embed : Projected {
  static constexpr const char* KIND = "Embed";
  static constexpr const char* ATTRIBUTES = "bfloat16 channels outputs patch_height patch_width eps";
  static constexpr const char* WEIGHTS = "weight bias norm_weight norm_bias";
  static constexpr const char* WEIGHTS_INT8 = "weight_int8 weight_largest bias norm_weight norm_bias";

  explicit Embed(Node& node) {
    projection.dtype = node.dtype();
    expected_channels = node.whole();
    projection.outputs = node.whole();
    height = node.whole(1);
    width = node.whole(1);
    projection.eps = node.number();
    projection.norm_after = 1;
    read(node, expected_channels * height * width, true);
  }
  int64_t channels(const Shape& shape) const override { return shape[1]; }
  Shape output_shape(const Shape& shape) const override {
    return {shape[0], (shape[2] + height - 1) / height, (shape[3] + width - 1) / width, projection.outputs};
  }
  int32_t run(const Shape& shape, const float* x, int32_t threads, float* y) const override {
    const auto [B, C, H, W] = shape;
    const swin_images images{x, B, C, H, W, {C * H * W, H * W, W, 1}, height, width};
    const swin_projection of_call = with(threads);
    return swin_embed_forward(&images, &of_call, y);
  }

  int64_t height, width;
};

struct Merge : Projected {
  static constexpr const char* KIND = "Merge";
  static constexpr const char* ATTRIBUTES = "bfloat16 channels outputs norm_after eps";
  static constexpr const char* WEIGHTS = "weight norm_weight norm_bias";
  static constexpr const char* WEIGHTS_INT8 = "weight_int8 weight_largest norm_weight norm_bias";

  explicit Merge(Node& node) {
    projection.dtype = node.dtype();
    expected_channels = node.whole();
    projection.outputs = node.whole();
    projection.norm_after = static_cast<int32_t>(node.whole(0, 1));
    projection.eps = node.number();
    read(node, 4 * expected_channels, false);
  }
  Shape output_shape(const Shape& shape) const override {
    return {shape[0], (shape[1] + 1) / 2, (shape[2] + 1) / 2, projection.outputs};
  }
  int32_t run(const Shape& shape, const float* x, int32_t threads, float* y) const override {
    const swin_maps maps{x, shape[0], shape[1], shape[2], shape[3]};
    const swin_projection of_call = with(threads);
    return swin_merge_forward(&maps, &of_call, y);
  }
};

struct OutputNorm : swin_operator {
  static constexpr const char* KIND = "OutputNorm";
  static constexpr const char* ATTRIBUTES = "channels eps";
  static constexpr const char* WEIGHTS = "weight bias";

  explicit OutputNorm(Node& node) {
    expected_channels = node.whole();
    eps = node.number();
    weight = node.vector({expected_channels});
    bias = node.vector({expected_channels});
  }
  Shape output_shape(const Shape& shape) const override { return {shape[0], shape[3], shape[1], shape[2]}; }
  int32_t run(const Shape& shape, const float* x, int32_t threads, float* y) const override {
    const int64_t area = shape[1] * shape[2];
    return swin_output_norm_forward(x, shape[0], area, shape[3], weight.data(), bias.data(), eps, threads, y);
  }

  float eps;
  std::vector<float> weight, bias;
};

// 3x3, with stride 1 and padding 1.
struct Convolution : swin_operator {
  static constexpr const char* KIND = "Convolution";
  static constexpr const char* ATTRIBUTES = "channels outputs";
  static constexpr const char* WEIGHTS = "weight bias";

  explicit Convolution(Node& node) {
    expected_channels = convolution.channels = node.whole();
    convolution.outputs = node.whole();
    convolution.dtype = SWIN_FLOAT32;
    convolution.tile = 4;
    weight = node.packed_convolution(convolution.tile, convolution.outputs, expected_channels);
    bias = node.vector({convolution.outputs});
    convolution.weight = reinterpret_cast<const float*>(weight.data());
    convolution.bias = bias.data();
  }
  Shape output_shape(const Shape& shape) const override { return {shape[0], shape[1], shape[2], convolution.outputs}; }
  int32_t run(const Shape& shape, const float* x, int32_t threads, float* y) const override {
    swin_convolution of_call = convolution;
    of_call.threads = threads;
    of_call.batch = shape[0], of_call.height = shape[1], of_call.width = shape[2];
    return swin_convolution_forward(&of_call, x, y);
  }

  swin_convolution convolution{};
  Panels weight;
  std::vector<float> bias;
};

struct Kind {
  const char *name, *attributes, *weights;
  bool is_int8;
  std::unique_ptr<swin_operator> (*make)(Node&);
};

template <class T>
std::unique_ptr<swin_operator> make(Node& node) {
  return std::make_unique<T>(node);
}
template <class T>
constexpr Kind kind() {
  return {T::KIND, T::ATTRIBUTES, T::WEIGHTS, false, make<T>};
}
template <class T>
constexpr Kind kind_int8(const char* name) {
  return {name, T::ATTRIBUTES + sizeof "bfloat16", T::WEIGHTS_INT8, true, make<T>};  // all but the first attribute
}

constexpr Kind KINDS[] = {
    kind<Block>(), kind_int8<Block>("BlockInt8"), kind<Convolution>(), kind<Embed>(), kind_int8<Embed>("EmbedInt8"),
    kind<Merge>(), kind_int8<Merge>("MergeInt8"), kind<OutputNorm>()};

const Kind* find_kind(const char* name) {
  for (const Kind& one : KINDS)
    if (name && !std::strcmp(one.name, name)) return &one;
  return nullptr;
}

// The environment's instruction set, or the one in use.
const swin::IsaFunctions* choose_isa() {
  const char* name = std::getenv("SWIN_BACKBONE_ISA");
  if (!name || !*name) return swin::isa_in_use();
  if (const swin::IsaFunctions* isa = swin::find_isa(name)) return isa;
  throw std::invalid_argument(std::string("this processor, or this library, has no instruction set named \"") + name +
                              "\"");
}

template <class F>
const char* catch_errors(const F& f) {
  thread_local char message[512];
  try {
    f();
    return nullptr;
  } catch (const std::exception& error) {
    std::snprintf(message, sizeof message, "%s", error.what());
  } catch (...) {
    std::snprintf(message, sizeof message, "an unknown error");
  }
  return message;
}

Shape checked(const swin_operator& made, const int64_t shape[4]) {
  const Shape input{shape[0], shape[1], shape[2], shape[3]};
  if (made.channels(input) != made.expected_channels)
    throw std::invalid_argument("the input must have " + std::to_string(made.expected_channels) + " channels, got " +
                                std::to_string(made.channels(input)));
  return input;
}

}  // namespace

extern "C" {

const char* swin_operator_kinds(void) {
  static const std::string names = [] {
    std::string all;
    for (const Kind& one : KINDS) (all += all.empty() ? "" : " ") += one.name;
    return all;
  }();
  return names.c_str();
}

const char* swin_operator_attributes(const char* kind) {
  const Kind* found = find_kind(kind);
  return found ? found->attributes : nullptr;
}

const char* swin_operator_weights(const char* kind) {
  const Kind* found = find_kind(kind);
  return found ? found->weights : nullptr;
}

const char* swin_operator_create(const char* kind, const double* attributes, const void* const* weights,
                                 const int64_t* counts, swin_operator** made) {
  return catch_errors([&] {
    const Kind* found = find_kind(kind);
    if (!found) throw std::invalid_argument(std::string("the kind must be one of ") + swin_operator_kinds());
    const swin::IsaFunctions* isa = choose_isa();
    const swin::IsaOfThread of_thread(isa);
    Node node(found->attributes, found->weights, found->is_int8, attributes, weights, counts);
    std::unique_ptr<swin_operator> created = found->make(node);
    created->isa = isa;
    *made = created.release();
  });
}

void swin_operator_free(swin_operator* made) { delete made; }

const char* swin_operator_shape(const swin_operator* made, const int64_t shape[4], int64_t output_shape[4]) {
  return catch_errors([&] {
    const Shape output = made->output_shape(checked(*made, shape));
    std::copy(output.begin(), output.end(), output_shape);
  });
}

const char* swin_operator_run(const swin_operator* made, const int64_t shape[4], const float* x, int32_t threads,
                              float* y) {
  return catch_errors([&] {
    const swin::IsaOfThread of_thread(made->isa);
    if (made->run(checked(*made, shape), x, threads, y)) throw std::runtime_error(swin_error());
  });
}

}  // extern "C"
