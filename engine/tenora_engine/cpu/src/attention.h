// Attention straight from the pages: no copy of a sequence is made, and nothing beyond it is read.
//
// A piece of work is a few tokens of one span, for one key head, or for all where there are pieces enough: keys and
// values of a token lie side by side, and lines that are read in a row come faster. The queries that share a key head
// are the rows of two small products for every tile of 64 keys, with a running softmax between them (Milakov and
// Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135). Tiles begin at multiples of 64 tokens of the
// sequence, and heads know nothing of each other: a token's result is the same however the work is cut.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "abi.h"
#include "rows.h"
#include "team.h"
#include "tile.h"

namespace TENORA_ISA {

constexpr int64_t kTileKeys = 64;
constexpr int64_t kQueryRows = 96;  // of a piece, unless one token has more
static_assert(kTileKeys % kPanel == 0);

// A head's vector in the units that panels are transposed in, kLanes of them from `unit` on: pairs of bf16, or floats.
inline Words load_units(const float* head, int64_t unit, int64_t units) {
  return bits_of(load_n(head + unit, std::min<int64_t>(units - unit, kLanes)));
}
inline Words load_units(const BFloat16* head, int64_t unit, int64_t units) {
  if (unit + kLanes <= units) return load_as<Words>(head + 2 * unit);
  uint32_t buffer[kLanes] = {};
  std::memcpy(buffer, head + 2 * unit, (units - unit) * sizeof *buffer);
  return load_as<Words>(buffer);
}

// Two rows of a panel from two vectors, of which `columns` are there: as they are, or of bf16 one row of pairs.
inline void pack_two(const float* even, const float* odd, int64_t columns, float* panel) {
  each_vector(columns, [&](int64_t i, int64_t n) {
    store(panel + i, load_n(even + i, n));
    store(panel + kPanel + i, load_n(odd + i, n));
  });
}
template <int... I>
inline void interleave(const BFloat16* even, const BFloat16* odd, BFloat16* pairs, std::integer_sequence<int, I...>) {
  typedef uint16_t Columns __attribute__((vector_size(4 * kLanes)));
  static_assert(kPanel == 2 * kLanes);
  const Columns a = load_as<Columns>(even), b = load_as<Columns>(odd);
  const Columns first = __builtin_shufflevector(a, b, ((I & 1) * kPanel + I / 2)...);
  const Columns second = __builtin_shufflevector(a, b, ((I & 1) * kPanel + kLanes + I / 2)...);
  std::memcpy(pairs, &first, sizeof first);
  std::memcpy(pairs + kPanel, &second, sizeof second);
}
inline void pack_two(const BFloat16* even, const BFloat16* odd, int64_t columns, BFloat16* panel) {
  if (columns == kPanel) return interleave(even, odd, panel, std::make_integer_sequence<int, kPanel>{});
  each_vector(columns, [&](int64_t i, int64_t n) {
    const Words two = bits_of(load_n(even + i, n)) >> 16 | bits_of(load_n(odd + i, n));
    std::memcpy(panel + 2 * i, &two, sizeof two);
  });
}

template <class T>
class Piece {
 public:
  Piece(const tenora::Attention& op, const Step& step, const tenora::Span& span, int64_t first_head, int64_t num_heads,
        int64_t begin, int64_t end, Member& member)
      : op_(op), step_(step), span_(span), first_head_(first_head), num_heads_(num_heads), begin_(begin), end_(end) {
    dim_ = op.head_dim;
    units_ = dim_ * sizeof(T) / sizeof(float);
    wide_dim_ = (dim_ + kPanel - 1) / kPanel * kPanel;
    shared_ = op.num_heads / op.num_kv_heads;
    rows_ = (end - begin) * shared_;
    read_ = rows_read(rows_);
    const int64_t of_head = read_ * (2 * wide_dim_ + 2);
    float* memory = (float*)member.scratch((num_heads * of_head + (read_ + wide_dim_) * kTileKeys) * sizeof(float));
    const auto part = [&](int64_t size) { return std::exchange(memory, memory + size); };
    panels_ = (T*)part(kTileKeys * wide_dim_);
    scores_ = part(read_ * kTileKeys);
    all_queries_ = (Query*)part(num_heads * read_ * wide_dim_);
    all_out_ = part(num_heads * read_ * wide_dim_);
    all_largest_ = part(num_heads * read_);
    all_total_ = part(num_heads * read_);
  }

  void run() {
    for_each_head([&] { load_queries(); });
    std::fill(all_out_, all_out_ + num_heads_ * read_ * wide_dim_, 0.0f);
    std::fill(all_largest_, all_largest_ + num_heads_ * read_, -std::numeric_limits<float>::infinity());
    std::fill(all_total_, all_total_ + num_heads_ * read_, 0.0f);
    const int64_t first = first_seen(begin_), last = position(end_ - 1);
    ask_for(first, last);
    for (int64_t tile = first / kTileKeys; tile <= last / kTileKeys; ++tile) {
      tile_ = tile * kTileKeys;
      from_ = std::max(first - tile_, int64_t(0));
      to_ = std::min(last + 1 - tile_, kTileKeys);
      find_keys();
      ask_for(tile_ + kTileKeys, last);
      for_each_head([&] {
        transpose_keys();
        score();
        weigh();
        pack_values();
        add_values();
      });
    }
    for_each_head([&] { write(); });
  }

 private:
  using Query = Factor<T, T>;

  template <class F>
  void for_each_head(F&& f) {
    for (int64_t head = 0; head < num_heads_; ++head) {
      kv_head_ = first_head_ + head;
      keys_ = (const T*)op_.keys + kv_head_ * dim_;
      values_ = (const T*)op_.values + kv_head_ * dim_;
      queries_ = all_queries_ + head * read_ * wide_dim_;
      out_ = all_out_ + head * read_ * wide_dim_;
      largest_ = all_largest_ + head * read_;
      total_ = all_total_ + head * read_;
      f();
    }
  }

  int64_t position(int64_t row) const { return span_.context - span_.end + row; }
  int64_t first_seen(int64_t row) const {
    return op_.window ? std::max(position(row) - op_.window + 1, int64_t(0)) : 0;
  }

  // Row token * shared + head, as the first product reads them.
  void load_queries() {
    for (int64_t row = 0; row < rows_; ++row) {
      const T* q = (const T*)op_.q + (begin_ + row / shared_) * op_.q_stride +
                   (kv_head_ * shared_ + row % shared_) * dim_;
      each_vector(dim_, [&](int64_t i, int64_t n) { store(queries_ + row * wide_dim_ + i, load_n(q + i, n)); });
    }
  }

  // f(where a token's keys or values begin among all), for tokens first..end.
  template <class F>
  void each_place(int64_t first, int64_t end, F&& f) const {
    const int32_t* blocks = step_.blocks + span_.first_block;
    int64_t block = first / step_.block_size, offset = first % step_.block_size;
    for (int64_t token = first; token < end; ++token) {
      f((blocks[block] * step_.block_size + offset) * op_.num_kv_heads * dim_);
      if (++offset == step_.block_size) ++block, offset = 0;
    }
  }

  // Word to the cache that the keys and values from token `first` to its tile's end are wanted; none is after `last`.
  void ask_for(int64_t first, int64_t last) const {
    const size_t bytes = num_heads_ * dim_ * sizeof(T);
    each_place(first, std::min(last + 1, (first / kTileKeys + 1) * kTileKeys), [&](int64_t place) {
      place += first_head_ * dim_;
      for (size_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch((const char*)((const T*)op_.keys + place) + line);
        __builtin_prefetch((const char*)((const T*)op_.values + place) + line);
      }
    });
  }

  // Where the tile's keys begin. Those that nobody looks at are given the place of one that somebody does: their weight
  // is 0, and what is always there needs no question in the loops below.
  void find_keys() {
    int64_t* offset = offsets_ + from_;
    each_place(tile_ + from_, tile_ + to_, [&](int64_t place) { *offset++ = place; });
    std::fill(offsets_, offsets_ + from_, offsets_[from_]);
    std::fill(offsets_ + to_, offsets_ + kTileKeys, offsets_[to_ - 1]);
  }

  // Panels of [units][kPanel].
  void transpose_keys() {
    for (int64_t group = 0; group < to_; group += kLanes) {
      uint32_t* panel = (uint32_t*)panels_ + group / kPanel * kPanel * units_ + group % kPanel;
      for (int64_t unit = 0; unit < units_; unit += kLanes) {
        Words block[kLanes];
        TENORA_UNROLL for (int i = 0; i < kLanes; ++i) block[i] = load_units(keys_ + offsets_[group + i], unit, units_);
        transpose(block);
        for (int64_t i = 0; i < std::min<int64_t>(units_ - unit, kLanes); ++i)
          std::memcpy(panel + (unit + i) * kPanel, &block[i], sizeof(Words));
      }
    }
  }

  void score() {
    for (int64_t key = 0; key < to_; key += kPanel) {
      const T* panel = (const T*)((uint32_t*)panels_ + key * units_);
      multiply_rows(queries_, wide_dim_, rows_, panel, dim_ / 2, [&](int64_t row, const float* sums) {
        for (int64_t v = 0; v < kPanel; v += kLanes)
          store(scores_ + row * kTileKeys + key + v, load(sums + v) * op_.scale);
      });
    }
  }

  // Scores become weights e^(score - largest so far), 0 where the row does not look, and lie where the scores lay; what
  // was added up is rescaled.
  void weigh() {
    const int64_t width = (to_ + kLanes - 1) / kLanes * kLanes;
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t token = begin_ + row / shared_;
      const int64_t from = std::max(first_seen(token) - tile_, int64_t(0));
      const int64_t to = std::min(position(token) + 1 - tile_, kTileKeys);
      if (from >= to)
        std::memset(scores_ + row * kTileKeys, 0, width * sizeof(float));
      else if (from == 0 && to >= width)
        weigh_row(row, width, [](int64_t, Floats value, Floats) { return value; });
      else
        weigh_row(row, width, [lane = lanes(), from, to](int64_t i, Floats value, Floats hidden) {
          const Ints key = lane + int32_t(i);
          return (key >= int32_t(from)) & (key < int32_t(to)) ? value : hidden;
        });
    }
  }
  // seen(i, value, hidden): of the keys from i on, `value` where the row looks at them and `hidden` elsewhere.
  template <class Seen>
  void weigh_row(int64_t row, int64_t width, Seen&& seen) {
    float* scores = scores_ + row * kTileKeys;
    const Floats lowest = splat(-std::numeric_limits<float>::infinity());
    Floats largest = lowest;
    for (int64_t i = 0; i < width; i += kLanes) largest = max(seen(i, load(scores + i), lowest), largest);
    const float before = largest_[row];
    const float now = std::max(before, max_of(largest));
    Floats total = {};
    for (int64_t i = 0; i < width; i += kLanes) {
      const Floats weight = seen(i, exp(load(scores + i) - now), Floats{});
      store((Factor<T, T>*)scores + i, weight);  // never beyond what has been read
      total += weight;
    }
    if (now != before) {
      const float factor = total_[row] == 0 ? 0.0f : exp(splat(before - now))[0];
      for (int64_t i = 0; i < wide_dim_; i += kLanes)
        store(out_ + row * wide_dim_ + i, load(out_ + row * wide_dim_ + i) * factor);
      total_[row] *= factor;
      largest_[row] = now;
    }
    total_[row] += sum(total);
  }
  static Ints lanes() {
    Ints lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
    return lane;
  }

  // In the keys' place: panels of [kTileKeys][kPanel].
  void pack_values() {
    for (int64_t column = 0; column < dim_; column += kPanel) {
      T* panel = panels_ + column * kTileKeys;
      const int64_t columns = std::min<int64_t>(dim_ - column, kPanel);
      for (int64_t key = 0; key < to_; key += 2)
        pack_two(values_ + offsets_[key] + column, values_ + offsets_[key + 1] + column, columns, panel + key * kPanel);
    }
  }

  void add_values() {
    using Weight = Factor<T, T>;
    constexpr int64_t stride = kTileKeys * sizeof(float) / sizeof(Weight);
    for (int64_t column = 0; column < dim_; column += kPanel) {
      const T* panel = panels_ + column * kTileKeys;
      multiply_rows((const Weight*)scores_, stride, rows_, panel, (to_ + 1) / 2, [&](int64_t row, const float* sums) {
        float* out = out_ + row * wide_dim_ + column;
        for (int64_t v = 0; v < kPanel; v += kLanes) store(out + v, load(out + v) + load(sums + v));
      });
    }
  }

  void write() {
    for (int64_t row = 0; row < rows_; ++row) {
      T* out = (T*)op_.out + ((begin_ + row / shared_) * op_.num_heads + kv_head_ * shared_ + row % shared_) * dim_;
      const float* sums = out_ + row * wide_dim_;
      each_vector(dim_, [&](int64_t i, int64_t n) { store_n(out + i, load(sums + i) / total_[row], n); });
    }
  }

  const tenora::Attention& op_;
  const Step& step_;
  const tenora::Span& span_;
  const int64_t first_head_, num_heads_;  // key heads
  const int64_t begin_, end_;             // rows of the step
  int64_t dim_, wide_dim_, units_, shared_, rows_, read_;
  int64_t tile_, from_, to_;  // first token of the present tile, and the keys of it that are looked at
  int64_t offsets_[kTileKeys];
  float* scores_;       // [rows, kTileKeys], then the weights
  T* panels_;           // the tile's keys as panels of [dim, kPanel], then its values as panels of [keys, kPanel]
  Query* all_queries_;  // [heads, read, wide_dim]
  float* all_out_;      // [heads, read, wide_dim], not yet divided by the total
  float* all_largest_;  // [heads, read], score so far
  float* all_total_;    // [heads, read], sum of weights so far
  // Of the present head:
  int64_t kv_head_;
  const T *keys_, *values_;
  Query* queries_;
  float *out_, *largest_, *total_;
};

// f(span, begin, end) for each few tokens of a span. How many there are.
template <class F>
inline int64_t each_chunk(const Step& step, int64_t tokens, F&& f) {
  int64_t chunks = 0;
  for (int64_t i = 0; i < step.num_spans; ++i) {
    const tenora::Span& span = step.spans[i];
    for (int64_t begin = span.begin; begin < span.end; begin += tokens, ++chunks)
      f(span, begin, std::min(begin + tokens, span.end));
  }
  return chunks;
}

template <class T>
inline void attention_as(const tenora::Attention& op, const Step& step, Member& member) {
  const int64_t tokens = std::max<int64_t>(1, kQueryRows * op.num_kv_heads / op.num_heads);
  const bool many = each_chunk(step, tokens, [](auto&&...) {}) >= 4 * member.num_members();
  const int64_t num_heads = many ? op.num_kv_heads : 1;
  const Tiles tiles;
  int64_t piece = member.take(), index = 0;
  each_chunk(step, tokens, [&](const tenora::Span& span, int64_t begin, int64_t end) {
    for (int64_t head = 0; head < op.num_kv_heads; head += num_heads) {
      if (index++ != piece) continue;
      Piece<T>(op, step, span, head, num_heads, begin, end, member).run();
      piece = member.take();
    }
  });
}

inline void run(const tenora::Attention& op, const Step& step, Member& member) {
  op.dtype == tenora::DType::kFloat32 ? attention_as<float>(op, step, member)
                                      : attention_as<BFloat16>(op, step, member);
}

}  // namespace TENORA_ISA
