// The library's C interface, and the choice of the instruction set.
#include <chrono>
#include <cstring>

#include "isa.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tenora {
namespace {

const Isa* const kAll[] = {
#if defined(__x86_64__)
    &kAmx, &kAvx512Bf16, &kAvx512, &kAvx2,
#endif
    &kPortable,
};

// Linux gives a process the registers of AMX when it is asked (arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)).
bool may_use_amx() {
#if defined(__x86_64__) && defined(__linux__)
  return __builtin_cpu_supports("amx-bf16") && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
  return false;
#endif
}

bool runs_here(const Isa& isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (&isa == &kAvx2) return avx2;
  if (&isa == &kAvx512) return avx512;
  const bool avx512_bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  if (&isa == &kAvx512Bf16) return avx512_bf16;
  if (&isa == &kAmx) return avx512_bf16 && may_use_amx();
#endif
  return &isa == &kPortable;
}

struct Program {
  const Isa& isa;
  const Op* const* ops;
  int64_t num_ops;
  const Step& step;
  int64_t* nanoseconds;  // of each operation, or null
};

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void run_program(Member& member, const void* argument) {
  const Program& program = *static_cast<const Program*>(argument);
  int64_t* const nanoseconds = member.index() == 0 ? program.nanoseconds : nullptr;
  for (int64_t i = 0; i < program.num_ops; ++i) {
    // Without adapters these are a third of all operations, and members that meet for nothing wait for the last of them.
    if (program.ops[i]->kind == Kind::kLora && program.step.num_segments == 0) continue;
    const int64_t began = nanoseconds ? now() : 0;
    program.isa.run(*program.ops[i], program.step, member);
    member.barrier();
    if (nanoseconds) nanoseconds[i] = now() - began;
  }
}

}  // namespace
}  // namespace tenora

using namespace tenora;

#pragma GCC visibility push(default)
extern "C" {

// The sizes of the structs in abi.h, in its order; a library of another build is told by them.
int64_t tenora_sizes(int64_t* sizes, int64_t capacity) {
  const int64_t all[] = {sizeof(Span),      sizeof(Segment), sizeof(Step), sizeof(Norm), sizeof(Linear),
                         sizeof(PlaceHeads), sizeof(Attention), sizeof(Gated), sizeof(Lora)};
  const int64_t count = sizeof all / sizeof *all;
  std::memcpy(sizes, all, sizeof(int64_t) * (count < capacity ? count : capacity));
  return count;
}

// The best instruction set that runs here, or the one of this name; null: it does not run here, or is not known.
const Isa* tenora_isa(const char* name) {
  for (const Isa* isa : kAll)
    if (runs_here(*isa) && (*name == '\0' || std::strcmp(name, isa->name) == 0)) return isa;
  return nullptr;
}

const char* tenora_isa_name(const Isa* isa) { return isa->name; }

Team* tenora_team(int num_members) { return new Team(num_members); }
void tenora_disband(Team* team) { delete team; }

int64_t tenora_packed_elements(const Isa* isa, int64_t out, int64_t in) { return isa->packed_elements(out, in); }

void tenora_pack(const Isa* isa, DType dtype, const void* weights, void* packed, int64_t out, int64_t in) {
  isa->pack(dtype, weights, packed, out, in);
}

// One operation after the other, each on the whole team. `nanoseconds`: where to write how long each took, or null.
void tenora_run(const Isa* isa, Team* team, const Op* const* ops, int64_t num_ops, const Step* step,
                int64_t* nanoseconds) {
  const Program program{*isa, ops, num_ops, *step, nanoseconds};
  team->run(run_program, &program);
}
}
#pragma GCC visibility pop
