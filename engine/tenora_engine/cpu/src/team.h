// A team of threads that run one function together. Its members meet at barriers and take pieces of work by number.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace tenora {

class Team;

// One member's view of the team, for the time of one `Team::run`.
class Member {
 public:
  Member(Team& team, int index) : team_(team), index_(index) {}
  int index() const { return index_; }
  int num_members() const;
  // Wait for all; what they wrote before is seen after. Restarts the numbering of `take`.
  void barrier();
  // The first of `count` pieces of work that nobody has taken since the last barrier.
  int64_t take(int64_t count = 1);
  // Memory of this member's own: at least `bytes`, 64-byte aligned, its content undefined.
  void* scratch(int64_t bytes);
  // Memory that all members share; each must ask for the same, and meet at a barrier before the next asks for more.
  void* shared_scratch(int64_t bytes);

 private:
  Team& team_;
  int index_;
  int phase_ = 0;
};

class Team {
 public:
  using Job = void (*)(Member&, const void* argument);

  explicit Team(int num_members);
  ~Team();
  int size() const { return num_members_; }
  // `job` on every member, the caller being the first; returns when all are done. One at a time.
  void run(Job job, const void* argument);

 private:
  friend class Member;
  struct Scratch {
    void* memory = nullptr;
    int64_t bytes = 0;
    void* at_least(int64_t wanted);
    ~Scratch();
  };

  void work(int index);
  void arrive();

  const int num_members_;
  std::mutex running_;
  Job job_ = nullptr;
  const void* argument_ = nullptr;
  alignas(64) std::atomic<uint32_t> started_{0};   // jobs; grows when one begins
  alignas(64) std::atomic<uint32_t> arrived_{0};   // members at the present barrier
  alignas(64) std::atomic<uint32_t> passed_{0};    // barriers
  alignas(64) std::atomic<int64_t> taken_[2] = {};  // by parity of the barrier; the one not in use is zero
  std::atomic<bool> ending_{false};
  std::vector<Scratch> scratch_;  // by member; the last is shared
  std::mutex sharing_;
  std::vector<std::thread> threads_;
};

inline int Member::num_members() const { return team_.num_members_; }
inline int64_t Member::take(int64_t count) {
  return team_.taken_[phase_ & 1].fetch_add(count, std::memory_order_relaxed);
}

}  // namespace tenora
