// Vectors of this compilation's instruction set. The file is compiled once per set, each in a namespace of its own
// (TENORA_ISA), so that the linker can never merge code of different sets.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define TENORA_UNROLL _Pragma("GCC unroll 16")

namespace TENORA_ISA {

struct BFloat16 {
  uint16_t bits;
};

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;  // SSE2, NEON
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));

inline Floats splat(float value) { return value - Floats{}; }
inline Words bits_of(Floats v) { return reinterpret_cast<Words>(v); }
inline Floats floats_of(Words v) { return reinterpret_cast<Floats>(v); }

template <class V, class T>
inline V load_as(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// GCC 12 takes __builtin_convertvector apart into halves of a vector; these instructions do it in one.
#if defined(__AVX512F__)
inline Words widen(Halves v) { return (Words)_mm512_cvtepu16_epi32((__m256i)v); }
inline Ints widen(Bytes v) { return (Ints)_mm512_cvtepi8_epi32((__m128i)v); }
inline Halves narrow(Words v) { return (Halves)_mm512_cvtepi32_epi16((__m512i)v); }
#elif defined(__AVX2__)
inline Words widen(Halves v) { return (Words)_mm256_cvtepu16_epi32((__m128i)v); }
inline Ints widen(Bytes v) { return (Ints)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)v)); }
inline Halves narrow(Words v) { return __builtin_convertvector(v, Halves); }
#else
inline Words widen(Halves v) { return __builtin_convertvector(v, Words); }
inline Ints widen(Bytes v) { return __builtin_convertvector(v, Ints); }
inline Halves narrow(Words v) { return __builtin_convertvector(v, Halves); }
#endif

inline Floats load(const float* p) { return load_as<Floats>(p); }
inline Floats load(const BFloat16* p) { return floats_of(widen(load_as<Halves>(p)) << 16); }
inline Floats load(const int8_t* p) { return __builtin_convertvector(widen(load_as<Bytes>(p)), Floats); }

inline void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }
// Rounds to the nearest, ties to even; a NaN stays one.
inline void store(BFloat16* p, Floats v) {
#if defined(__AVX512BF16__)
  Halves h = (Halves)_mm512_cvtneps_pbh((__m512)v);  // what is smaller than a normal number becomes 0
#else
  Words w = bits_of(v);
  Words rounded = (w + 0x7fff + ((w >> 16) & 1)) >> 16;
  Words nan = (w >> 16) | 0x40;
  Halves h = narrow(v == v ? rounded : nan);
#endif
  std::memcpy(p, &h, sizeof h);
}

// The first n <= kLanes elements; the other lanes are zero, and their memory is not touched.
template <class T>
inline Floats load_first(const T* p, int64_t n) {
  T buffer[kLanes] = {};
  std::memcpy(buffer, p, n * sizeof(T));
  return load(buffer);
}
template <class T>
inline void store_first(T* p, Floats v, int64_t n) {
  T buffer[kLanes];
  store(buffer, v);
  std::memcpy(p, buffer, n * sizeof(T));
}

inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

// The second where either is NaN.
#if defined(__AVX512F__)
inline Floats max(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
inline Floats min(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(__AVX2__)
inline Floats max(Floats a, Floats b) { return (Floats)_mm256_max_ps((__m256)a, (__m256)b); }
inline Floats min(Floats a, Floats b) { return (Floats)_mm256_min_ps((__m256)a, (__m256)b); }
#else
inline Floats max(Floats a, Floats b) { return a > b ? a : b; }
inline Floats min(Floats a, Floats b) { return a < b ? a : b; }
#endif

// All lanes joined by f in a fixed order, by halves.
template <int Distance, int... I>
inline Floats halves_exchanged(Floats v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I ^ Distance)...);
}
template <int Distance = kLanes / 2, class F>
inline float join(Floats v, F&& f) {
  v = f(v, halves_exchanged<Distance>(v, std::make_integer_sequence<int, kLanes>{}));
  if constexpr (Distance > 1)
    return join<Distance / 2>(v, f);
  else
    return v[0];
}
inline float sum(Floats v) {
  return join(v, [](Floats a, Floats b) { return a + b; });
}
inline float max_of(Floats v) {
  return join(v, [](Floats a, Floats b) { return max(a, b); });
}

// e^x to about one unit in the last place: x = n ln 2 + r, e^r by a polynomial (Cephes' expf). NaN stays NaN.
inline Floats exp(Floats x) {
  x = min(splat(88.37f), max(splat(-87.33f), x));
  Floats shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  Floats n = shifted - 12582912.0f;
  Floats r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Floats p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return floats_of(bits_of(p) + (bits_of(shifted) << 23));
}

template <int Distance, int... I>
inline void exchange(Words& a, Words& b, std::integer_sequence<int, I...>) {
  const Words first = __builtin_shufflevector(a, b, ((I & Distance) ? kLanes + I - Distance : I)...);
  b = __builtin_shufflevector(a, b, ((I & Distance) ? kLanes + I : I + Distance)...);
  a = first;
}
template <int Distance = kLanes / 2>
inline void transpose(Words (&rows)[kLanes]) {
  TENORA_UNROLL for (int i = 0; i < kLanes; ++i) {
    if (!(i & Distance)) exchange<Distance>(rows[i], rows[i + Distance], std::make_integer_sequence<int, kLanes>{});
  }
  if constexpr (Distance > 1) transpose<Distance / 2>(rows);
}

// Lane i: the lanes of sums[i] added in order. Lanes beyond N are zero.
template <int N>
inline Floats sum_each(const Floats (&sums)[N]) {
  static_assert(N <= kLanes);
  Words rows[kLanes] = {};
  for (int i = 0; i < N; ++i) rows[i] = bits_of(sums[i]);
  transpose(rows);
  Floats total = floats_of(rows[0]);
  TENORA_UNROLL for (int i = 1; i < kLanes; ++i) total += floats_of(rows[i]);
  return total;
}

}  // namespace TENORA_ISA
