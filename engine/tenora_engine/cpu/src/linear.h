// y = x W^T + bias, over weights packed once into panels of columns that are read from front to back.
#pragma once

#include "abi.h"
#include "rows.h"
#include "team.h"
#include "tile.h"

namespace TENORA_ISA {

using tenora::DType;

inline int64_t num_panels(int64_t out) { return (out + kPanel - 1) / kPanel; }
inline int64_t even(int64_t size) { return (size + 1) / 2 * 2; }
inline int64_t packed_elements(int64_t out, int64_t in) { return num_panels(out) * kPanel * even(in); }

// weights [out, in] -> [num_panels, even(in) / 2, kPanel, 2] if `paired`, else [num_panels, even(in), kPanel].
template <class T>
inline void pack_as(const T* weights, T* packed, int64_t out, int64_t in, bool paired) {
  std::memset(packed, 0, packed_elements(out, in) * sizeof(T));
  for (int64_t n = 0; n < out; ++n) {
    T* panel = packed + n / kPanel * kPanel * even(in);
    for (int64_t k = 0; k < in; ++k) {
      const int64_t place = paired ? 2 * (k / 2 * kPanel + n % kPanel) + k % 2 : k * kPanel + n % kPanel;
      panel[place] = weights[n * in + k];
    }
  }
}

inline void pack(DType dtype, const void* weights, void* packed, int64_t out, int64_t in) {
  switch (dtype) {
    case DType::kFloat32: return pack_as((const float*)weights, (float*)packed, out, in, false);
    case DType::kBFloat16: return pack_as((const uint16_t*)weights, (uint16_t*)packed, out, in, true);
    case DType::kInt8: return pack_as((const int8_t*)weights, (int8_t*)packed, out, in, false);
  }
}

// One row of one panel: scaled, biased and rounded, without the columns beyond op.out.
template <class Y>
inline void finish(const tenora::Linear& op, Y* y, int64_t column, const float* sums) {
  each_vector(op.out - column < kPanel ? op.out - column : int64_t(kPanel), [&](int64_t i, int64_t n) {
    Floats value = load(sums + i);
    if (op.scales) value *= load_n(op.scales + column + i, n);
    if (op.bias) value += load_n(op.bias + column + i, n);
    store_n(y + column + i, value, n);
  });
}

template <class F, class W>
inline void multiply_panel(const tenora::Linear& op, const F* x, int64_t x_stride, int64_t rows, int64_t panel,
                           int64_t next) {
  const auto weights = [&](int64_t panel) { return (const W*)op.weights + panel * kPanel * even(op.in); };
  const auto round = [&](int64_t row, const float* sums) {
    if (op.y_dtype == DType::kFloat32)
      finish(op, (float*)op.y + row * op.out, panel * kPanel, sums);
    else
      finish(op, (BFloat16*)op.y + row * op.out, panel * kPanel, sums);
  };
  multiply_rows(x, x_stride, rows, weights(panel), even(op.in) / 2, round,
                next < num_panels(op.out) ? weights(next) : nullptr);
}

// Rows begin..end of x as factors, at a stride that keeps the rows of a tile out of each other's cache sets; a column of
// zeros to an odd number.
template <class X, class F>
inline void lay_out(const X* x, int64_t x_stride, int64_t begin, int64_t end, int64_t size, F* rows, int64_t stride) {
  for (int64_t row = begin; row < end; ++row) {
    F* out = rows + row * stride;
    if constexpr (std::is_same_v<X, F>)
      std::memcpy(out, x + row * x_stride, size * sizeof(F));
    else
      each_vector(size, [&](int64_t i, int64_t n) { store_n(out + i, load_n(x + row * x_stride + i, n), n); });
    out[size] = F{};
  }
}

// So many elements of x each member lays out for itself: it costs a microsecond or two, as meeting the others would.
constexpr int64_t kAlone = 1 << 14;

template <class X, class W>
inline void linear_as(const tenora::Linear& op, const Step& step, Member& member) {
  using F = Factor<X, W>;
  const int64_t rows = step.num_rows, stride = even(op.in) + 64 / sizeof(F);
  const int64_t bytes = rows_read(rows) * stride * sizeof(F);
  const bool alone = rows * op.in <= kAlone;
  F* x = (F*)(alone ? member.scratch(bytes) : member.shared_scratch(bytes));
  const int64_t shares = alone ? 1 : member.num_members(), share = alone ? 0 : member.index();
  lay_out((const X*)op.x, op.x_stride, rows * share / shares, rows * (share + 1) / shares, op.in, x, stride);
  if (!alone) member.barrier();
  const Tiles tiles;
  for (int64_t panel = member.take(), next; panel < num_panels(op.out); panel = next) {
    next = member.take();
    multiply_panel<F, W>(op, x, stride, rows, panel, next);
  }
}

template <class X>
inline void linear_of(const tenora::Linear& op, const Step& step, Member& member) {
  switch (op.weights_dtype) {
    case DType::kFloat32: return linear_as<X, float>(op, step, member);
    case DType::kBFloat16: return linear_as<X, BFloat16>(op, step, member);
    case DType::kInt8: return linear_as<X, int8_t>(op, step, member);
  }
}

inline void run(const tenora::Linear& op, const Step& step, Member& member) {
  op.dtype == DType::kFloat32 ? linear_of<float>(op, step, member) : linear_of<BFloat16>(op, step, member);
}

}  // namespace TENORA_ISA
