// The windows of maps, and the tokens in them.
//
// Layout: B batch, H W height and width of a map, L windows of all images, N = Wh*Ww places of a window.
//
// This part is compiled once, for every processor, and has no inline functions: those would be compiled for one
// instruction set.
#pragma once

#include <cstdint>
#include <vector>

namespace swin {

// Windows along one axis.
struct Axis {
  int64_t length, window, count;
  std::vector<int32_t> coordinate;  // (count, window): >= length for padding
  std::vector<int32_t> region;      // (count, window): places of different regions do not attend to each other
  std::vector<int32_t> mask_id;     // (count): 0 for a window of one region, otherwise the index of the window + 1
  std::vector<int32_t> inside;      // (count): places without padding

  Axis(int64_t length, int64_t window, int64_t shift, int32_t padding);  // of enum swin_padding
  Axis(Axis&&) noexcept;
  ~Axis();
};

// The indices of some windows.
struct Group {
  const int32_t* windows;
  int64_t count;
};

// All windows, in groups of about equally many tokens.
class Groups {
 public:
  Groups(int64_t count, int64_t windows);
  ~Groups();
  Group operator[](int64_t group) const;

  int64_t max_windows = 0, max_tokens = 0;  // of a group

 private:
  friend struct Windows;
  std::vector<int32_t> windows;  // group after group
  std::vector<int64_t> begin;    // (groups + 1)
};

// Memory for the activations that a forward pass saves for each group. Null: nothing is saved.
struct SavedGroups {
  char* memory;
  int64_t num_groups, bytes;  // bytes: of each group

  char* of(int64_t group) const;
};

struct Windows {
  int64_t batch;
  Axis rows, columns;

  Windows(int64_t batch, Axis rows, Axis columns);
  ~Windows();
  int64_t count() const;
  int64_t tokens() const;  // of all maps
  int64_t area() const;    // N
  // Deal the windows out to the groups, the fullest first, in turn forwards and backwards.
  Groups deal(int64_t num_groups) const;
  // The token at each place, -1 for padding: (N,).
  void tokens_of(int64_t window, int32_t* token_at) const;
  // Equal masks have equal ids. 0: no mask.
  int64_t mask_id(int64_t window) const;
  // Write the mask (N, stride): 0 where the query of a row may attend to the key of a column, otherwise -inf. Columns
  // from N on are 0.
  void mask(int64_t window, int64_t stride, float* to) const;

 private:
  int64_t row_of(int64_t window) const;
  int64_t column_of(int64_t window) const;
};

}  // namespace swin
