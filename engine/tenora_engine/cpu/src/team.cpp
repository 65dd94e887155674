#include "team.h"

#include <cstdlib>
#include <new>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace tenora {
namespace {

// Members wait this many turns awake (some tens of microseconds: longer than the gaps within a step) and then sleep in
// the kernel, so that a machine with more threads than cores does not spin its time slices away.
constexpr int kSpins = 2000;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void wait_while(std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

void* Team::Scratch::at_least(int64_t wanted) {
  if (bytes < wanted) {
    std::free(memory);
    bytes = (wanted + 4095) / 4096 * 4096;
    memory = std::aligned_alloc(64, bytes);
    if (memory == nullptr) std::abort();
  }
  return memory;
}

Team::Scratch::~Scratch() { std::free(memory); }

Team::Team(int num_members) : num_members_(num_members), scratch_(num_members + 1) {
  for (int index = 1; index < num_members; ++index) threads_.emplace_back([this, index] { work(index); });
}

Team::~Team() {
  ending_ = true;
  started_.fetch_add(1, std::memory_order_release);
  started_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(Job job, const void* argument) {
  std::lock_guard<std::mutex> lock(running_);
  job_ = job;
  argument_ = argument;
  taken_[0] = taken_[1] = 0;
  started_.fetch_add(1, std::memory_order_release);
  started_.notify_all();
  Member member(*this, 0);
  job(member, argument);
  arrive();
}

void Team::work(int index) {
  for (uint32_t seen = 0;; ++seen) {
    wait_while(started_, seen);
    if (ending_) return;
    Member member(*this, index);
    job_(member, argument_);
    arrive();
  }
}

void Team::arrive() {
  const uint32_t barrier = passed_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(num_members_)) {
    arrived_.store(0, std::memory_order_relaxed);
    passed_.fetch_add(1, std::memory_order_release);
    passed_.notify_all();
  } else {
    wait_while(passed_, barrier);
  }
}

void Member::barrier() {
  // Everybody has left the numbering before this one; whoever clears it first, nobody takes from it before the barrier.
  team_.taken_[(phase_ + 1) & 1].store(0, std::memory_order_relaxed);
  ++phase_;
  team_.arrive();
}

void* Member::scratch(int64_t bytes) { return team_.scratch_[index_].at_least(bytes); }

void* Member::shared_scratch(int64_t bytes) {
  std::lock_guard<std::mutex> lock(team_.sharing_);
  return team_.scratch_.back().at_least(bytes);
}

}  // namespace tenora
