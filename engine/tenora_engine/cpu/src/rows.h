// What is done row by row between the products: norms, activations, and the placing of heads.
#pragma once

#include <cmath>

#include "abi.h"
#include "team.h"
#include "vec.h"

namespace TENORA_ISA {

using tenora::Member;
using tenora::Step;

// f(index, n) for each whole vector (n == kLanes) of `size` elements and for the rest.
template <class F>
inline void each_vector(int64_t size, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) f(i, int64_t(kLanes));
  if (i < size) f(i, size - i);
}
template <class T>
inline Floats load_n(const T* p, int64_t n) {
  return n == kLanes ? load(p) : load_first(p, n);
}
template <class T>
inline void store_n(T* p, Floats v, int64_t n) {
  n == kLanes ? store(p, v) : store_first(p, v, n);
}

// The member's share of `count` pieces that cost alike.
template <class F>
inline void each_of_share(int64_t count, const Member& member, F&& f) {
  const int64_t n = member.num_members();
  for (int64_t i = count * member.index() / n; i < count * (member.index() + 1) / n; ++i) f(i);
}

// out = x / sqrt(mean(x^2) + eps) * weight, for one vector; x and out may be the same.
template <class T>
inline void normalise(const T* x, const float* weight, float eps, int64_t size, T* out) {
  Floats squares = {};
  each_vector(size, [&](int64_t i, int64_t n) {
    Floats v = load_n(x + i, n);
    squares += v * v;
  });
  const float scale = 1.0f / std::sqrt(sum(squares) / float(size) + eps);
  each_vector(size, [&](int64_t i, int64_t n) {
    store_n(out + i, load_n(x + i, n) * scale * load_n(weight + i, n), n);
  });
}

template <class T>
inline void norm_as(const tenora::Norm& op, const Step& step, Member& member) {
  each_of_share(step.num_rows, member, [&](int64_t row) {
    const T* x = (const T*)op.x + row * op.x_stride;
    if (op.residual) {
      T* residual = (T*)op.residual + row * op.residual_stride;
      each_vector(op.size, [&](int64_t i, int64_t n) {
        store_n(residual + i, load_n(residual + i, n) + load_n(x + i, n), n);
      });
      x = residual;
    }
    normalise(x, op.weight, op.eps, op.size, (T*)op.out + row * op.size);
  });
}

// (a, b) -> (a cos - b sin, b cos + a sin), a and b the halves of the first `dim` elements of a head.
template <class T>
inline void rotate(T* head, const float* cos_sin, int64_t dim) {
  const int64_t half = dim / 2;
  each_vector(half, [&](int64_t i, int64_t n) {
    const Floats a = load_n(head + i, n), b = load_n(head + half + i, n);
    const Floats cos = load_n(cos_sin + i, n), sin = load_n(cos_sin + half + i, n);
    store_n(head + i, a * cos - b * sin, n);
    store_n(head + half + i, b * cos + a * sin, n);
  });
}

template <class T>
inline void place_heads_as(const tenora::PlaceHeads& op, const Step& step, Member& member) {
  const int64_t dim = op.head_dim, num_all = op.num_heads + 2 * op.num_kv_heads;
  each_of_share(step.num_rows * num_all, member, [&](int64_t piece) {
    const int64_t row = piece / num_all, index = piece % num_all;
    T* head = (T*)op.heads + row * op.heads_stride + index * dim;
    const int64_t key = index - op.num_heads, value = key - op.num_kv_heads;
    if (value < 0) {
      const float* norm = key < 0 ? op.q_norm : op.k_norm;
      if (norm) normalise(head, norm, op.eps, dim, head);
      if (op.cos_sin) rotate(head, op.cos_sin + row * op.rotary_dim, op.rotary_dim);
    }
    if (key >= 0) {
      T* pages = value < 0 ? (T*)op.keys + key * dim : (T*)op.values + value * dim;
      std::memcpy(pages + op.places[row] * op.num_kv_heads * dim, head, dim * sizeof(T));
    }
  });
}

inline Floats silu(Floats x) { return x / (1.0f + exp(-x)); }

// 0.5 x (1 + tanh(y)), y = sqrt(2 / pi) (x + 0.044715 x^3), by 0.5 (1 + tanh(y)) = 1 / (1 + e^(-2 y)): nothing cancels where
// tanh is near -1.
inline Floats gelu_tanh(Floats x) {
  const Floats y = 0.7978845608f * (x + 0.044715f * (x * x * x));
  return x / (1.0f + exp(-(y + y)));
}

template <class T>
inline void gated_as(const tenora::Gated& op, const Step& step, Member& member) {
  constexpr int64_t kPiece = 512;  // columns
  const int64_t pieces = (op.size + kPiece - 1) / kPiece;
  const bool is_silu = op.activation == tenora::Activation::kSilu;
  each_of_share(step.num_rows * pieces, member, [&](int64_t piece) {
    const int64_t row = piece / pieces, begin = piece % pieces * kPiece;
    const T* gate = (const T*)op.gate_up + row * op.gate_up_stride + begin;
    T* out = (T*)op.out + row * op.size + begin;
    const int64_t size = op.size - begin < kPiece ? op.size - begin : kPiece;
    each_vector(size, [&](int64_t i, int64_t n) {
      const Floats x = load_n(gate + i, n);
      store_n(out + i, (is_silu ? silu(x) : gelu_tanh(x)) * load_n(gate + op.size + i, n), n);
    });
  });
}

inline void run(const tenora::Norm& op, const Step& step, Member& member) {
  op.dtype == tenora::DType::kFloat32 ? norm_as<float>(op, step, member) : norm_as<BFloat16>(op, step, member);
}
inline void run(const tenora::PlaceHeads& op, const Step& step, Member& member) {
  op.dtype == tenora::DType::kFloat32 ? place_heads_as<float>(op, step, member)
                                      : place_heads_as<BFloat16>(op, step, member);
}
inline void run(const tenora::Gated& op, const Step& step, Member& member) {
  op.dtype == tenora::DType::kFloat32 ? gated_as<float>(op, step, member) : gated_as<BFloat16>(op, step, member);
}

}  // namespace TENORA_ISA
