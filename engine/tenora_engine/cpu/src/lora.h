// LoRA by segments at the real rank: first x A^T of every segment, then its product with B added to y.
//
// The first is shared out by segment and ranks, the second by groups of segments that share rows, and by columns where
// these are few: no two members write one output, and where adapters add up they do so in the order of the segments.
#pragma once

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "abi.h"
#include "rows.h"
#include "team.h"
#include "tile.h"

namespace TENORA_ISA {

// B lies in panels of so many columns, [panels, ranks, kColumns], each read from front to back.
constexpr int64_t kColumns = 96;
static_assert(kColumns % (6 * kLanes) == 0 && kColumns % (kPanelVectors * kLanes) == 0);

// A and B come from far: these many bytes ahead they are asked for.
constexpr int64_t kAhead = 4096;

// One adapter in one layer: a row of the slots' table.
struct Slot {
  const int64_t* row;
  const void* a() const { return (const void*)row[0]; }
  int64_t rank() const { return row[1]; }
  const float* affine() const { return (const float*)row[2]; }
  const void* b(int64_t slice) const { return (const void*)row[3 + 3 * slice]; }
  int64_t first_rank(int64_t slice) const { return row[4 + 3 * slice]; }
  int64_t num_ranks(int64_t slice) const { return row[5 + 3 * slice]; }
};

// A run of segments, by index.
struct Range {
  int64_t begin, end;
};

// f(segment, its adapter, where its [rows, rank] floats begin), for segments of a range that have anything to do. How
// many floats there are in all.
template <class F>
inline int64_t each_segment(const tenora::Lora& op, const Step& step, Range range, F&& f) {
  int64_t offset = 0;
  for (int64_t i = 0; i < range.end; ++i) {
    const tenora::Segment& segment = step.segments[i];
    const Slot slot{op.slots + segment.slot * (3 + 3 * op.num_slices)};
    if (slot.rank() == 0 && slot.affine() == nullptr) continue;
    if (i >= range.begin) f(segment, slot, offset);
    offset += (segment.end - segment.begin) * slot.rank();
  }
  return offset;
}

// N inner products of x with rows of A, [N, size].
template <int N, class T>
inline Floats dots(const T* x, const T* a, int64_t size) {
  Floats sums[N] = {};
  int64_t k = 0;
  if constexpr (std::is_same_v<T, BFloat16>) {
    for (; k + 2 * kLanes <= size; k += 2 * kLanes) {
      const Words value = load_as<Words>(x + k);
      TENORA_UNROLL for (int n = 0; n < N; ++n) {
        const T* weights = a + n * size + k;
        __builtin_prefetch((const char*)weights + kAhead);
        const Words weight = load_as<Words>(weights);
#if defined(__AVX512BF16__)
        sums[n] = add_pairs(sums[n], value, weight);
#else
        sums[n] += floats_of(value << 16) * floats_of(weight << 16);
        sums[n] += floats_of(value & 0xffff0000u) * floats_of(weight & 0xffff0000u);
#endif
      }
    }
  }
  for (; k < size; k += kLanes) {
    const int64_t lanes = std::min<int64_t>(size - k, kLanes);
    const Floats value = load_n(x + k, lanes);
    TENORA_UNROLL for (int n = 0; n < N; ++n) sums[n] += value * load_n(a + n * size + k, lanes);
  }
  return sum_each(sums);
}

template <int N, class T>
inline void shrink(const tenora::Lora& op, const tenora::Segment& segment, const Slot& slot, int64_t rank, float* out) {
  for (int64_t row = segment.begin; row < segment.end; ++row) {
    const T* a = (const T*)slot.a();
    const Floats sums = op.is_embedding ? load_n(a + ((const int64_t*)op.x)[row] * slot.rank() + rank, N)
                                        : dots<N>((const T*)op.x + row * op.x_stride, a + rank * op.in, op.in);
    store_n(out + (row - segment.begin) * slot.rank() + rank, sums * segment.scale, N);
  }
}

template <int N, class T>
inline void shrink_ranks(const tenora::Lora& op, const tenora::Segment& segment, const Slot& slot, int64_t rank,
                         int64_t end, float* out) {
  for (; rank + N <= end; rank += N) shrink<N, T>(op, segment, slot, rank, out);
  if constexpr (N > 1) shrink_ranks<N / 2, T>(op, segment, slot, rank, end, out);
}

// f(range) for each group of segments that share no row with those of another.
template <class F>
inline int64_t each_group(const Step& step, F&& f) {
  int64_t begin = 0, last_row = 0, groups = 0;
  for (int64_t i = 0; i < step.num_segments; ++i) {
    last_row = std::max(last_row, step.segments[i].end);
    if (i + 1 < step.num_segments && step.segments[i + 1].begin < last_row) continue;
    f(Range{begin, i + 1});
    begin = i + 1;
    ++groups;
  }
  return groups;
}

// y[m] += low[m][r] * b[r], r in 0..ranks, over one panel, of which `columns` are outputs.
template <int M, int V, class T>
inline void expand(const float* low, int64_t low_stride, const T* b, int64_t ranks, T* y, int64_t y_stride,
                   int64_t columns) {
  for (int64_t first = 0; first < columns; first += V * kLanes) {
    Floats sums[M][V] = {};
    for (int64_t r = 0; r < ranks; ++r) {
      const T* row = b + r * kColumns + first;
      for (size_t line = 0; line < V * kLanes * sizeof(T); line += 64)
        __builtin_prefetch((const char*)row + kAhead + line);
      Floats values[V];
      TENORA_UNROLL for (int v = 0; v < V; ++v) values[v] = load(row + v * kLanes);
      TENORA_UNROLL for (int m = 0; m < M; ++m) {
        const Floats value = splat(low[m * low_stride + r]);
        TENORA_UNROLL for (int v = 0; v < V; ++v) sums[m][v] += value * values[v];
      }
    }
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < V && first + v * kLanes < columns; ++v) {
        T* out = y + m * y_stride + first + v * kLanes;
        const int64_t n = std::min<int64_t>(columns - first - v * kLanes, kLanes);
        store_n(out, load_n(out, n) + sums[m][v], n);
      }
    }
  }
}

template <class T>
inline void expand_panel(const tenora::Lora& op, const tenora::Segment& segment, const Slot& slot, int64_t slice,
                         int64_t panel, T* y, const float* low) {
  const int64_t stride = slot.rank(), ranks = slot.num_ranks(slice);
  if (ranks == 0) return;
  const T* b = (const T*)slot.b(slice) + panel * ranks * kColumns;
  const int64_t columns = std::min(op.slices[slice] - panel * kColumns, kColumns);
  low += slot.first_rank(slice);
  in_parts(segment.end - segment.begin, kMaxRows, [&](int64_t row, int64_t height) {
    with_rows(height, [&](auto m) {
      constexpr int M = decltype(m)::value;
      expand<M, M == 1 ? 6 : kPanelVectors>(low + row * stride, stride, b, ranks,
                                            y + (segment.begin + row) * op.y_stride, op.y_stride, columns);
    });
  });
}

// scale * (gain * y + offset) for the segments of a range that have it, from the base's y; `columns` from `first` on,
// of `all`. The floats lie segment by segment, [rows, columns].
template <class T>
inline void keep_base(const tenora::Lora& op, const Step& step, Range range, int64_t first, int64_t columns,
                      int64_t all, float* kept) {
  each_segment(op, step, range, [&](const tenora::Segment& segment, const Slot& slot, int64_t) {
    const float* gain = slot.affine();
    for (int64_t row = segment.begin; gain && row < segment.end; ++row, kept += columns) {
      const T* y = (const T*)op.y + row * op.y_stride + first;
      for (int64_t i = 0; i < columns; ++i)
        kept[i] = segment.scale * (gain[first + i] * to_float(y[i]) + gain[all + first + i]);
    }
  });
}
template <class T>
inline void add_base(const tenora::Lora& op, const Step& step, Range range, int64_t first, int64_t columns,
                     const float* kept) {
  each_segment(op, step, range, [&](const tenora::Segment& segment, const Slot& slot, int64_t) {
    for (int64_t row = segment.begin; slot.affine() && row < segment.end; ++row, kept += columns) {
      T* y = (T*)op.y + row * op.y_stride + first;
      each_vector(columns, [&](int64_t i, int64_t n) { store_n(y + i, load_n(y + i, n) + load_n(kept + i, n), n); });
    }
  });
}

template <class T>
inline void lora_as(const tenora::Lora& op, const Step& step, Member& member) {
  int64_t num_affine = 0;  // rows
  const Range everything{0, step.num_segments};
  const int64_t size = each_segment(op, step, everything, [&](const auto& segment, const Slot& slot, int64_t) {
    if (slot.affine()) num_affine += segment.end - segment.begin;
  });
  if (size == 0 && num_affine == 0) return;
  float* low = (float*)member.shared_scratch(size * sizeof(float));

  int64_t piece = member.take(), index = 0;
  each_segment(op, step, everything, [&](const tenora::Segment& segment, const Slot& slot, int64_t offset) {
    for (int64_t rank = 0; rank < slot.rank(); rank += kLanes) {
      if (index++ != piece) continue;
      shrink_ranks<kLanes, T>(op, segment, slot, rank, std::min(rank + kLanes, slot.rank()), low + offset);
      piece = member.take();
    }
  });
  member.barrier();

  float* kept = (float*)member.scratch(num_affine * kColumns * sizeof(float));
  const bool many = each_group(step, [](Range) {}) >= 4 * member.num_members();
  const int64_t all = std::accumulate(op.slices, op.slices + op.num_slices, int64_t(0));
  piece = member.take(), index = 0;
  each_group(step, [&](Range range) {
    int64_t first = 0;  // column of the slice
    for (int64_t slice = 0; slice < op.num_slices; first += op.slices[slice++]) {
      for (int64_t panel = 0; panel * kColumns < op.slices[slice]; ++panel) {
        const bool starts = !many || panel == 0;  // a piece: a panel, or all of the slice's
        if (starts) ++index;
        if (index - 1 != piece) continue;
        const int64_t column = first + panel * kColumns;
        const int64_t columns = std::min(op.slices[slice] - panel * kColumns, kColumns);
        if (num_affine) keep_base<T>(op, step, range, column, columns, all, kept);
        each_segment(op, step, range, [&](const tenora::Segment& segment, const Slot& slot, int64_t offset) {
          expand_panel(op, segment, slot, slice, panel, (T*)op.y + column, low + offset);
        });
        if (num_affine) add_base<T>(op, step, range, column, columns, kept);
        const bool ends = !many || (panel + 1) * kColumns >= op.slices[slice];
        if (ends) piece = member.take();
      }
    }
  });
}

inline void run(const tenora::Lora& op, const Step& step, Member& member) {
  op.dtype == tenora::DType::kFloat32 ? lora_as<float>(op, step, member) : lora_as<BFloat16>(op, step, member);
}

}  // namespace TENORA_ISA
