// The tile that all matrix products are made of: a few rows times one panel of columns, in registers.
//
// Each output is one chain of additions over the depth in order, however many rows there are: a row's result depends
// neither on its neighbours nor on the number of threads. Sums are in fp32, whatever the operands are stored in. So are
// products, for which bf16 becomes fp32 by a shift; where the machine multiplies pairs of bf16 itself, two bf16 operands
// stay as they are.
#pragma once

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

// sums[m][v] = x[m][k] w[k][v] added up over k in 0..2 pairs. sums: [M, kPanel].
template <int M, class F, class W>
inline void multiply(const F* x, int64_t x_stride, const W* panel, int64_t pairs, float* out) {
  Floats sums[M][kPanelVectors] = {};
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

}  // namespace TENORA_ISA
