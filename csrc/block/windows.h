// Where the tokens of a map are in windows; `swin_backbone/backends/eager.py` stores this in tables.
//
// Layout: B batch, H W height and width of a map, L windows of all images, N = Wh*Ww places of a window.
//
// This part is compiled once, for every processor: so no function here may be inline.
#pragma once

#include <cstdint>
#include <vector>

namespace swin {

// Windows along one axis.
struct Axis {
  int64_t length, window, count;
  std::vector<int32_t> coordinate;  // (count, window): >= length for padding
  std::vector<int32_t> region;      // (count, window): only places of one region attend to each other
  std::vector<int32_t> cut;         // (count): 0 if the window is one region, else its own number
  std::vector<int32_t> inside;      // (count): how many of its places are no padding

  Axis(int64_t length, int64_t window, int64_t shift, bool mask_padding);
  Axis(Axis&&) noexcept;
  ~Axis();
};

// Some windows, by their numbers.
struct Group {
  const int32_t* windows;
  int64_t count;
};

// All windows in groups of about as many tokens.
class Groups {
 public:
  Groups(int64_t count, int64_t windows);
  ~Groups();
  Group operator[](int64_t group) const;

 private:
  friend struct Windows;
  std::vector<int32_t> windows;  // of one group after another
  std::vector<int64_t> begin;    // (groups + 1)
};

struct Windows {
  int64_t batch;
  Axis rows, columns;

  Windows(int64_t batch, Axis rows, Axis columns);
  ~Windows();
  int64_t count() const;
  int64_t tokens() const;  // of all maps
  int64_t area() const;    // N
  // From the fullest to the emptiest, windows are dealt out to the groups, in turn forwards and backwards.
  Groups deal(int64_t groups) const;
  // The token at each place, -1 for padding: (N,).
  void tokens_of(int64_t window, int32_t* token_at) const;
  // Equal for windows with the same mask; 0 for none.
  int64_t kind(int64_t window) const;
  // 0 where the place of a row attends to that of a column, -inf elsewhere: (N, stride), 0 after column N.
  void mask(int64_t window, int64_t stride, float* to) const;

 private:
  int64_t row_of(int64_t window) const;
  int64_t column_of(int64_t window) const;
};

}  // namespace swin
