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

// A panel that comes from far is asked for while the one before is worked on, so that memory is never idle (measured: a
// third faster than the machine's own prefetching, which stops at every page). Where several tiles of rows pass over that
// one, each asks for its share of the lines.
template <class W>
class Ahead {
 public:
  explicit Ahead(const W* panel) : panel_((const char*)panel), to_(panel ? (kRow + 63) / 64 * 64 : 0) {}
  Ahead share(int64_t begin, int64_t end, int64_t rows) const {
    Ahead ahead(*this);
    ahead.from_ = to_ / 64 * begin / rows * 64;
    ahead.to_ = to_ / 64 * end / rows * 64;
    return ahead;
  }
  void ask(int64_t pair) const {
    for (int64_t byte = from_; byte < to_; byte += 64) __builtin_prefetch(panel_ + pair * kRow + byte);
  }

 private:
  static constexpr int64_t kRow = 2 * kPanel * sizeof(W);
  const char* panel_;
  int64_t from_ = 0, to_;
};

// out[m][v] += x[m][k] w[k][v] for k in 0..2 pairs. out: [M, kPanel].
template <int M, class F, class W>
inline void multiply(const F* x, int64_t x_stride, const W* panel, int64_t pairs, float* out, Ahead<W> ahead) {
  Floats sums[M][kPanelVectors];
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < kPanelVectors; ++v) sums[m][v] = load(out + m * kPanel + v * kLanes);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    ahead.ask(pair);
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
inline void with_rows(int64_t rows, F&& f) {
  if (rows == M) return f(Rows<M>{});
  if constexpr (M > 1) with_rows<M - 1>(rows, f);
}

// f(begin, count) for rows 0..rows in parts of nearly equal size, at most `most`.
template <class F>
inline void in_parts(int64_t rows, int64_t most, F&& f) {
  const int64_t parts = (rows + most - 1) / most;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = rows * part / parts, end = rows * (part + 1) / parts;
    f(begin, end - begin);
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
inline int64_t multiply_tiles(const BFloat16* x, int64_t x_stride, const BFloat16* panel, int64_t pairs, float* out,
                              Ahead<BFloat16> ahead) {
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
    for (int64_t asked = pair; asked < pair + kTilePairs; ++asked) ahead.ask(asked);
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
constexpr int64_t kPartRows = 2 * kRowsRead;  // multiplied together
#else
constexpr int kRowsRead = 1;
struct [[maybe_unused]] Tiles {};
constexpr int64_t kPartRows = 4 * kMaxRows;
#endif

inline int64_t rows_read(int64_t rows) { return (rows + kRowsRead - 1) / kRowsRead * kRowsRead; }

// done(row, sums) for each row: x[row][k] w[k][v] added up over k in 0..2 pairs, for the kPanel columns v of one panel.
// Wants `Tiles`, and memory of `rows_read(rows)` rows. `next`: a panel as large that is wanted soon, if any.
template <class F, class W, class Done>
inline void multiply_rows(const F* x, int64_t x_stride, int64_t rows, const W* panel, int64_t pairs, Done&& done,
                          const W* next = nullptr) {
  // Parts begin where rows are read from: what is read of the last is then within rows_read(rows).
  in_parts(rows_read(rows) / kRowsRead, kPartRows / kRowsRead, [&](int64_t begin, int64_t size) {
    const int64_t first = begin * kRowsRead, count = std::min(rows - first, size * kRowsRead);
    alignas(64) float sums[kPartRows * kPanel];
    const Ahead<W> ahead(first == 0 ? next : nullptr);
    const F* part = x + first * x_stride;
    int64_t whole = 0;
#if defined(__AMX_BF16__)
    if constexpr (std::is_same_v<F, BFloat16>) {
      const auto multiply_whole = count > kRowsRead ? multiply_tiles<2> : multiply_tiles<1>;
      whole = multiply_whole(part, x_stride, panel, pairs, sums, ahead);
    }
#endif
    if (whole == 0) std::fill(sums, sums + count * kPanel, 0.0f);
    if (whole < pairs) {
      in_parts(count, kMaxRows, [&](int64_t row, int64_t height) {
        with_rows(height, [&](auto m) {
          multiply<decltype(m)::value>(part + row * x_stride + 2 * whole, x_stride, panel + 2 * whole * kPanel,
                                       pairs - whole, sums + row * kPanel,
                                       whole ? Ahead<W>(nullptr) : ahead.share(row, row + height, count));
        });
      });
    }
    for (int64_t row = 0; row < count; ++row) done(first + row, sums + row * kPanel);
  });
}

}  // namespace TENORA_ISA
