// What one instruction set's compilation offers.
#pragma once

#include "abi.h"
#include "team.h"

namespace tenora {

struct Isa {
  const char* name;
  int64_t (*packed_elements)(int64_t out, int64_t in);
  void (*pack)(DType, const void* weights, void* packed, int64_t out, int64_t in);
  void (*run)(const Op&, const Step&, Member&);  // called on every member of the team
};

extern const Isa kPortable;
#if defined(__x86_64__)
extern const Isa kAvx2, kAvx512, kAvx512Bf16, kAmx;
#endif

}  // namespace tenora
