// All kernels, for the instruction set that this compilation is told: -DTENORA_ISA=name, -DTENORA_TABLE=its Isa.
#include "attention.h"
#include "isa.h"
#include "linear.h"
#include "lora.h"
#include "rows.h"

#define TENORA_TEXT_(x) #x
#define TENORA_TEXT(x) TENORA_TEXT_(x)

namespace TENORA_ISA {
namespace {

void run_op(const tenora::Op& op, const Step& step, Member& member) {
  switch (op.kind) {
    case tenora::Kind::kNorm: return run(static_cast<const tenora::Norm&>(op), step, member);
    case tenora::Kind::kLinear: return run(static_cast<const tenora::Linear&>(op), step, member);
    case tenora::Kind::kPlaceHeads: return run(static_cast<const tenora::PlaceHeads&>(op), step, member);
    case tenora::Kind::kAttention: return run(static_cast<const tenora::Attention&>(op), step, member);
    case tenora::Kind::kGated: return run(static_cast<const tenora::Gated&>(op), step, member);
    case tenora::Kind::kLora: return run(static_cast<const tenora::Lora&>(op), step, member);
  }
}

}  // namespace
}  // namespace TENORA_ISA

namespace tenora {
extern const Isa TENORA_TABLE = {TENORA_TEXT(TENORA_ISA), TENORA_ISA::packed_elements, TENORA_ISA::pack,
                                 TENORA_ISA::run_op};
}
