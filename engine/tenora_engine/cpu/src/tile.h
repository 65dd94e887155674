// The tile that all matrix products are made of: a few rows times one panel of columns, in registers.
//
// Each output is one chain of additions over the depth in order, however many rows there are: a row's result depends
// neither on its neighbours nor on the number of threads. Sums are in fp32, whatever the operands are stored in. So are
// products, for which bf16 becomes fp32 by a shift; where the machine multiplies pairs of bf16 itself, two bf16 operands
// stay as they are. With AMX they are multiplied in its tiles, which add up 32 steps of depth before they add to the sum.
#pragma once

#include <algorithm>
#include <type_traits>

#include "vec.h"

namespace TENORA_ISA {

constexpr int kPanelVectors = 2;
constexpr int kPanel = kPanelVectors * kLanes;  // columns
// Two vectors a row accumulate, four hold the columns of two steps, one or two a row's value.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kMaxRows = 12;
#else
constexpr int kMaxRows = 5;
#endif

// A panel has its depth in twos: [depth / 2][kPanel] pairs of bf16, the even step in the low half, or [depth][kPanel]
// of other types. Two steps of one vector of columns:
struct Two {
  Floats even, odd;
};
template <class W>
inline Two load_two(const W* panel, int64_t pair, int vector) {
  const W* even = panel + 2 * pair * kPanel + vector * kLanes;
  return {load(even), load(even + kPanel)};
}
inline Two load_two(const BFloat16* panel, int64_t pair, int vector) {
  const Words words = load_as<Words>(panel + 2 * (pair * kPanel + vector * kLanes));
  return {floats_of(words << 16), floats_of(words & 0xffff0000u)};
}

// What the rows of a product are held as, which were X and meet weights W.
#if defined(__AVX512BF16__)
template <class X, class W>
using Factor = std::conditional_t<std::is_same_v<X, BFloat16> && std::is_same_v<W, BFloat16>, BFloat16, float>;

// Each lane plus the products of its pair.
inline Floats add_pairs(Floats sum, Words a, Words b) {
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#else
template <class X, class W>
using Factor = float;
#endif

// Weights come from far: these many bytes ahead they are asked for (measured: a third faster than the machine's own
// prefetching, which stops at every page).
constexpr int64_t kAhead = 4096;

// out[m][v] (+)= x[m][k] w[k][v] added up over k in 0..2 pairs. out: [M, kPanel].
template <int M, bool kAdds, class F, class W>
inline void multiply(const F* x, int64_t x_stride, const W* panel, int64_t pairs, float* out) {
  Floats sums[M][kPanelVectors] = {};
  if constexpr (kAdds) {
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < kPanelVectors; ++v) sums[m][v] = load(out + m * kPanel + v * kLanes);
  }
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const char* ahead = (const char*)(panel + 2 * pair * kPanel) + kAhead;
    for (size_t line = 0; line < 2 * kPanel * sizeof(W); line += 64) __builtin_prefetch(ahead + line);
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<F, BFloat16>) {
      Words columns[kPanelVectors];
      TENORA_UNROLL for (int v = 0; v < kPanelVectors; ++v)
        columns[v] = load_as<Words>(panel + 2 * (pair * kPanel + v * kLanes));
      TENORA_UNROLL for (int m = 0; m < M; ++m) {
        const Words values = load_as<uint32_t>(x + m * x_stride + 2 * pair) + Words{};
        TENORA_UNROLL for (int v = 0; v < kPanelVectors; ++v) sums[m][v] = add_pairs(sums[m][v], values, columns[v]);
      }
      continue;
    }
#endif
    if constexpr (std::is_same_v<F, float>) {
      Two columns[kPanelVectors];
      TENORA_UNROLL for (int v = 0; v < kPanelVectors; ++v) columns[v] = load_two(panel, pair, v);
      TENORA_UNROLL for (int m = 0; m < M; ++m) {
        const float* values = x + m * x_stride + 2 * pair;
        TENORA_UNROLL for (int v = 0; v < kPanelVectors; ++v) sums[m][v] += values[0] * columns[v].even;
        TENORA_UNROLL for (int v = 0; v < kPanelVectors; ++v) sums[m][v] += values[1] * columns[v].odd;
      }
    }
  }
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < kPanelVectors; ++v) store(out + m * kPanel + v * kLanes, sums[m][v]);
}

// Calls f with M = rows (1..kMaxRows) as a constant.
template <int M>
struct Rows {
  static constexpr int value = M;
};
template <int M = kMaxRows, class F>
inline void with_rows(int rows, F&& f) {
  if (rows == M) return f(Rows<M>{});
  if constexpr (M > 1) with_rows<M - 1>(rows, f);
}

// Rows 0..count in tiles of nearly equal height, at most kMaxRows.
template <class F>
inline void in_tiles(int64_t count, F&& f) {
  const int64_t tiles = (count + kMaxRows - 1) / kMaxRows;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t begin = count * tile / tiles, end = count * (tile + 1) / tiles;
    f(begin, int(end - begin));
  }
}

#if defined(__AMX_BF16__)
// AMX's tiles: 16 rows of 64 bytes, which are pairs of bf16 or floats. A panel's rows, kTilePairs of them, are two such.
constexpr int kRowsRead = 16;  // rows of a product are read in such numbers; those too many may hold anything
constexpr int64_t kTilePairs = 16;
static_assert(kPanel == 32);

struct TileLayout {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileLayout) == 64);

// A thread has its tiles as long as this lives.
class Tiles {
 public:
  Tiles() {
    const TileLayout layout;
    _tile_loadconfig(&layout);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
};

// out = x w over the pairs that fill whole tiles. out: [H * kRowsRead, kPanel]. How many pairs that were.
template <int H>
inline int64_t multiply_tiles(const BFloat16* x, int64_t x_stride, const BFloat16* panel, int64_t pairs, float* out) {
  constexpr int kRow = kPanel * sizeof(float);
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (H == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  int64_t pair = 0;
  for (; pair + kTilePairs <= pairs; pair += kTilePairs) {
    const BFloat16* weights = panel + 2 * pair * kPanel;
    for (int64_t line = 0; line < kTilePairs * kRow; line += 64) __builtin_prefetch((const char*)weights + kAhead + line);
    _tile_loadd(4, x + 2 * pair, x_stride * sizeof *x);
    _tile_loadd(6, weights, kRow);
    _tile_loadd(7, weights + 2 * kLanes, kRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (H == 2) {
      _tile_loadd(5, x + kRowsRead * x_stride + 2 * pair, x_stride * sizeof *x);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out, kRow);
  _tile_stored(1, out + kLanes, kRow);
  if constexpr (H == 2) {
    _tile_stored(2, out + kRowsRead * kPanel, kRow);
    _tile_stored(3, out + kRowsRead * kPanel + kLanes, kRow);
  }
  return pair;
}
#else
constexpr int kRowsRead = 1;
struct [[maybe_unused]] Tiles {};
#endif

inline int64_t rows_read(int64_t rows) { return (rows + kRowsRead - 1) / kRowsRead * kRowsRead; }

// done(row, sums) for each row: x[row][k] w[k][v] added up over k in 0..2 pairs, for the kPanel columns v of one panel.
// Wants `Tiles`, and memory of `rows_read(rows)` rows.
template <class F, class W, class Done>
inline void multiply_rows(const F* x, int64_t x_stride, int64_t rows, const W* panel, int64_t pairs, Done&& done) {
#if defined(__AMX_BF16__)
  if constexpr (std::is_same_v<F, BFloat16>) {
    for (int64_t begin = 0; begin < rows; begin += 2 * kRowsRead) {
      const int64_t count = std::min<int64_t>(rows - begin, 2 * kRowsRead);
      alignas(64) float sums[2 * kRowsRead * kPanel];
      const auto multiply_whole = count > kRowsRead ? multiply_tiles<2> : multiply_tiles<1>;
      const int64_t whole = multiply_whole(x + begin * x_stride, x_stride, panel, pairs, sums);
      if (whole < pairs) {
        in_tiles(count, [&](int64_t row, int height) {
          with_rows(height, [&](auto m) {
            multiply<decltype(m)::value, true>(x + (begin + row) * x_stride + 2 * whole, x_stride,
                                               panel + 2 * whole * kPanel, pairs - whole, sums + row * kPanel);
          });
        });
      }
      for (int64_t row = 0; row < count; ++row) done(begin + row, sums + row * kPanel);
    }
    return;
  }
#endif
  in_tiles(rows, [&](int64_t begin, int height) {
    float sums[kMaxRows * kPanel];
    with_rows(height, [&](auto m) {
      multiply<decltype(m)::value, false>(x + begin * x_stride, x_stride, panel, pairs, sums);
    });
    for (int64_t row = 0; row < height; ++row) done(begin + row, sums + row * kPanel);
  });
}

}  // namespace TENORA_ISA
