// What Python hands over: operations, and the step that they are applied to. `tenora_engine/cpu/library.py` has the
// same structs; sizes are compared when the library is loaded.
//
// T rows (tokens) of the step. Strides are in elements, between rows; within a row elements are contiguous.
#pragma once

#include <cstdint>

namespace tenora {

enum class DType : int32_t { kFloat32 = 0, kBFloat16 = 1, kInt8 = 2 };

enum class Kind : int32_t { kNorm, kLinear, kPlaceHeads, kAttention, kGated, kLora };

enum class Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

// Rows begin..end of the step are tokens context - (end - begin) .. context of one sequence.
struct Span {
  int64_t begin, end, context;
  int64_t first_block;  // where the sequence's block table begins in Step::blocks
};

// Rows begin..end use the adapter in `slot` at `scale`. Where segments overlap, adapters add up in their order.
struct Segment {
  int64_t begin, end, slot;
  float scale;
};

struct Step {
  int64_t num_rows;
  const Span* spans;
  int64_t num_spans;
  const int32_t* blocks;
  int64_t block_size;
  const Segment* segments;
  int64_t num_segments;
};

struct Op {
  Kind kind;
  DType dtype;  // of the activations that it reads and writes, unless a field says otherwise
};

// residual += x; out = residual / sqrt(mean(residual^2) + eps) * weight
struct Norm : Op {
  const void* x;  // [T, size]
  int64_t x_stride;
  void* residual;  // [T, size]; null: the residual is x
  int64_t residual_stride;
  const float* weight;
  void* out;  // [T, size], contiguous
  int64_t size;
  float eps;
};

// y = x W^T + bias
struct Linear : Op {
  const void* x;  // [T, in]
  int64_t x_stride;
  void* y;  // [T, out], contiguous
  const void* weights;  // as packed by `tenora_pack`
  const float* scales;  // [out], of int8 weights; else null
  const float* bias;    // [out], or null
  int64_t in, out;
  DType weights_dtype;
  DType y_dtype;
};

// QK-norm and rotation of queries and keys in place, then the write of keys and values to the cache.
struct PlaceHeads : Op {
  void* heads;  // [T, num_heads + 2 num_kv_heads, head_dim]: queries, keys, values
  int64_t heads_stride;
  int64_t num_heads, num_kv_heads, head_dim;
  const float* cos_sin;  // [T, rotary_dim] contiguous, cosines then sines; null: no rotation
  int64_t rotary_dim;
  const float* q_norm;  // [head_dim]; null: no norm
  const float* k_norm;
  float eps;
  void* keys;  // [blocks, block_size, num_kv_heads, head_dim]
  void* values;
  const int64_t* places;  // [T]: block * block_size + offset
};

// softmax(scale q k^T) v, over the pages of each span's sequence.
struct Attention : Op {
  const void* q;  // [T, num_heads, head_dim]
  int64_t q_stride;
  void* out;  // [T, num_heads, head_dim], contiguous
  const void* keys;
  const void* values;
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t window;  // tokens that a token sees, itself included; 0: all
  float scale;
};

// out = activation(gate) * up
struct Gated : Op {
  const void* gate_up;  // [T, 2 size]: gates, then ups
  int64_t gate_up_stride;
  void* out;  // [T, size], contiguous
  int64_t size;
  Activation activation;
};

// y[segment] += scale * (gain * y[segment] + offset + (x[segment] A^T) B), the y on the right before anything is added.
struct Lora : Op {
  const void* x;  // [T, in], or of an embedding int64 [T]: token ids
  int64_t x_stride;
  void* y;  // [T, sum of slices]
  int64_t y_stride;
  // A row per slot, as `tenora_engine.kernels.lora_slots.TableSlots` keeps them: address of A [rank, in] (of an
  // embedding [in, rank]), rank, address of gain and offset [2, sum of slices] or 0, and per slice address of B
  // [its ranks, size], first rank, ranks.
  const int64_t* slots;
  int64_t num_slices;
  const int64_t* slices;  // out_features of each
  int64_t in;
  int32_t is_embedding;
};

}  // namespace tenora
