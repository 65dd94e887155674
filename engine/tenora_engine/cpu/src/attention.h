// Attention straight from the pages: no copy of a sequence is made, and nothing beyond it is read.
//
// A piece of work is one key head of one span, for a few of its tokens: their queries that share the key head are the
// rows of two small products for every tile of 64 keys, with a running softmax between them (Milakov and Gimelshein
// 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135). Tiles begin at multiples of 64 tokens of the sequence, so
// a token's result is the same whether it comes alone or in a chunk.
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
constexpr int64_t kQueryRows = 48;  // of a piece, unless one token has more
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

template <class T>
class Piece {
 public:
  Piece(const tenora::Attention& op, const Step& step, const tenora::Span& span, int64_t kv_head, int64_t begin,
        int64_t end, Member& member)
      : op_(op), step_(step), span_(span), kv_head_(kv_head), begin_(begin), end_(end) {
    dim_ = op.head_dim;
    units_ = dim_ * sizeof(T) / sizeof(float);
    wide_dim_ = (dim_ + kPanel - 1) / kPanel * kPanel;
    shared_ = op.num_heads / op.num_kv_heads;
    rows_ = (end - begin) * shared_;
    const int64_t read = rows_read(rows_);
    float* memory = (float*)member.scratch((read * (2 * wide_dim_ + kTileKeys + 2) + kTileKeys * wide_dim_) * 4);
    const auto part = [&](int64_t size) { return std::exchange(memory, memory + size); };
    panels_ = (T*)part(kTileKeys * wide_dim_);
    queries_ = (Query*)part(read * wide_dim_);
    out_ = part(rows_ * wide_dim_);
    scores_ = part(read * kTileKeys);
    largest_ = part(rows_);
    total_ = part(rows_);
  }

  void run() {
    load_queries();
    std::fill(out_, out_ + rows_ * wide_dim_, 0.0f);
    std::fill(largest_, largest_ + rows_, -std::numeric_limits<float>::infinity());
    std::fill(total_, total_ + rows_, 0.0f);
    const int64_t first = first_seen(begin_), last = position(end_ - 1);
    ask_for(first, last);
    for (int64_t tile = first / kTileKeys; tile <= last / kTileKeys; ++tile) {
      tile_ = tile * kTileKeys;
      from_ = std::max(first - tile_, int64_t(0));
      to_ = std::min(last + 1 - tile_, kTileKeys);
      find_keys();
      ask_for(tile_ + kTileKeys, last);
      transpose_keys();
      score();
      weigh();
      pack_values();
      add_values();
    }
    write();
  }

 private:
  using Query = Factor<T, T>;

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

  // f(where a token's key or value begins among all), for tokens first..end.
  template <class F>
  void each_place(int64_t first, int64_t end, F&& f) const {
    const int32_t* blocks = step_.blocks + span_.first_block;
    int64_t block = first / step_.block_size, offset = first % step_.block_size;
    for (int64_t token = first; token < end; ++token) {
      f((blocks[block] * step_.block_size + offset) * op_.num_kv_heads * dim_ + kv_head_ * dim_);
      if (++offset == step_.block_size) ++block, offset = 0;
    }
  }

  // Word to the cache that the keys and values from token `first` to its tile's end are wanted; none is after `last`.
  void ask_for(int64_t first, int64_t last) const {
    each_place(first, std::min(last + 1, (first / kTileKeys + 1) * kTileKeys), [&](int64_t place) {
      for (size_t line = 0; line < dim_ * sizeof(T); line += 64) {
        __builtin_prefetch((const char*)((const T*)op_.keys + place) + line);
        __builtin_prefetch((const char*)((const T*)op_.values + place) + line);
      }
    });
  }

  void find_keys() {
    int64_t* offset = offsets_ + from_;
    each_place(tile_ + from_, tile_ + to_, [&](int64_t place) { *offset++ = place; });
  }

  // Panels of [units][kPanel]; what lies outside from_..to_ is zero.
  void transpose_keys() {
    for (int64_t group = 0; group < to_; group += kLanes) {
      uint32_t* panel = (uint32_t*)panels_ + group / kPanel * kPanel * units_ + group % kPanel;
      for (int64_t unit = 0; unit < units_; unit += kLanes) {
        Words block[kLanes];
        for (int64_t i = 0; i < kLanes; ++i) {
          const int64_t key = group + i;
          block[i] = key < from_ || key >= to_ ? Words{}
                                               : load_units((const T*)op_.keys + offsets_[key], unit, units_);
        }
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

  // In the keys' place: panels of [kTileKeys][kPanel]; what lies outside from_..to_ is zero.
  void pack_values() {
    for (int64_t column = 0; column < dim_; column += kLanes) {
      const auto value = [&, lanes = std::min<int64_t>(dim_ - column, kLanes)](int64_t key) {
        return key < from_ || key >= to_ ? Floats{} : load_n((const T*)op_.values + offsets_[key] + column, lanes);
      };
      T* panel = panels_ + column / kPanel * kPanel * kTileKeys;
      for (int64_t key = 0; key < to_; key += 2) {
        if constexpr (std::is_same_v<T, BFloat16>) {
          const Words two = bits_of(value(key)) >> 16 | bits_of(value(key + 1));
          std::memcpy(panel + key * kPanel + 2 * (column % kPanel), &two, sizeof two);
        } else {
          store(panel + key * kPanel + column % kPanel, value(key));
          store(panel + (key + 1) * kPanel + column % kPanel, value(key + 1));
        }
      }
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
  const int64_t kv_head_, begin_, end_;  // rows of the step
  int64_t dim_, wide_dim_, units_, shared_, rows_;
  int64_t tile_, from_, to_;  // first token of the present tile, and the keys of it that are looked at
  int64_t offsets_[kTileKeys];
  float* out_;          // [rows, wide_dim], not yet divided by `total_`
  float* scores_;       // [rows, kTileKeys], then the weights
  T* panels_;           // the tile's keys as panels of [dim, kPanel], then its values as panels of [keys, kPanel]
  Query* queries_;      // [rows, wide_dim]
  float* largest_;      // [rows] score so far
  float* total_;        // [rows] sum of weights so far
};

template <class T>
inline void attention_as(const tenora::Attention& op, const Step& step, Member& member) {
  const int64_t tokens = std::max<int64_t>(1, kQueryRows * op.num_kv_heads / op.num_heads);
  const Tiles tiles;
  int64_t piece = member.take(), index = 0;
  for (int64_t i = 0; i < step.num_spans; ++i) {
    const tenora::Span& span = step.spans[i];
    for (int64_t begin = span.begin; begin < span.end; begin += tokens) {
      for (int64_t kv_head = 0; kv_head < op.num_kv_heads; ++kv_head) {
        if (index++ != piece) continue;
        Piece<T>(op, step, span, kv_head, begin, std::min(begin + tokens, span.end), member).run();
        piece = member.take();
      }
    }
  }
}

inline void run(const tenora::Attention& op, const Step& step, Member& member) {
  op.dtype == tenora::DType::kFloat32 ? attention_as<float>(op, step, member)
                                      : attention_as<BFloat16>(op, step, member);
}

}  // namespace TENORA_ISA
