// The threads of a CUDA block as fibers of one thread: they change places only where they wait for each other, in an
// order that is drawn from a seed. Whatever could not come to an end on a GPU is an error with words.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sanitizer/common_interface_defs.h>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace emulation {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
constexpr size_t kMaxShared = 48 << 10;
constexpr size_t kStack = 256 << 10;
constexpr uint64_t kGarbage = ~uint64_t{0};  // a NaN as a float, -1 as an integer

using Site = std::source_location;

inline std::string words(const Site& site) { return std::string(site.file_name()) + ":" + std::to_string(site.line()); }

// Keeps the registers on the stack, its pointer in `*from`, and goes on at `to`. swapcontext() asks the kernel each time.
extern "C" void seamseg_switch(void** from, void* to);

struct Fiber {
  void* top = nullptr;
  void* stack = nullptr;
  size_t size = 0;
  void* shadow = nullptr;  // the sanitizer's note of this stack
};

// Those who wait at one place: a block at its barrier, or a warp at an exchange.
struct Gathering {
  Site site;
  std::vector<int> waiting;
  uint64_t slots[2][kWarp];
  unsigned present[2];  // whose slots are filled
};

struct Thread {
  uint3 index;
  Fiber* fiber = nullptr;
  bool ended = false;
  int parity = 0;
};

struct FreeMemory {
  void operator()(void* p) const { std::free(p); }
};

class Machine {
 public:
  uint64_t seed = 0;  // 0: in order

  void launch(const char* kernel, dim3 grid, dim3 block, const std::function<void()>& body) {
    name_ = kernel;
    check_limits(grid, block);
    body_ = &body;
    gridDim = grid;
    blockDim = block;
    random_ = seed;
    for (const int64_t index : shuffled(int64_t{1} * grid.x * grid.y * grid.z)) {
      blockIdx = {static_cast<unsigned>(index % grid.x), static_cast<unsigned>(index / grid.x % grid.y),
                  static_cast<unsigned>(index / grid.x / grid.y)};
      run_block(block);
    }
  }

  void wait_block(const Site& site) { wait(block_, site, static_cast<int>(threads_.size())); }

  // Every living thread of the warp gives a value; `read` then sees those of all, and who they are.
  template <class Read>
  auto exchange(uint64_t value, const Site& site, Read&& read) {
    Gathering& warp = warps_[current_ / kWarp];
    Thread& me = threads_[current_];
    // the next exchange has slots of its own: nobody comes to the one after it before all have read these
    const int parity = me.parity ^= 1;
    if (warp.waiting.empty()) warp.present[parity] = 0;
    warp.present[parity] |= 1u << lane();
    warp.slots[parity][lane()] = value;
    wait(warp, site, living(current_ / kWarp));
    return read(warp.slots[parity], warp.present[parity]);
  }

  int lane() const { return current_ % kWarp; }

  // A chance for the others, where the order of atomics could matter.
  void perhaps_let_others() {
    if (seed == 0 || draw(8) != 0) return;
    ready_.push_back(current_);
    leave();
  }

  // One array for each declaration and block, of its very size and full of garbage.
  void* shared(const void* declaration, size_t bytes, const Site& site = Site::current()) {
    auto& place = shared_[declaration];
    if (!place) {
      shared_bytes_ += bytes;
      if (shared_bytes_ > kMaxShared) fault("more than 48 KiB of shared memory", site);
      void* memory = nullptr;
      if (posix_memalign(&memory, 64, bytes) != 0) throw std::bad_alloc();
      place.reset(std::memset(memory, 0xff, bytes));
    }
    return place.get();
  }

  [[noreturn]] void fault(const std::string& what, const Site& site) {
    fault_ = what + (site.line() > 0 ? ", " + words(site) : "");
    if (running_ != nullptr) leave();
    throw_fault();
  }

 private:
  void check_limits(dim3 grid, dim3 block) {
    const int64_t threads = int64_t{1} * block.x * block.y * block.z;
    if (threads < 1 || threads > kMaxThreads || block.z > 64) fault("a block of " + std::to_string(threads), Site());
    if (grid.x < 1 || grid.y < 1 || grid.z < 1) fault("a grid of no blocks", Site());
    if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) fault("a grid with too many blocks", Site());
  }

  void run_block(dim3 block) {
    const int count = static_cast<int>(block.x * block.y * block.z);
    threads_.assign(count, Thread());
    warps_.assign((count + kWarp - 1) / kWarp, Gathering());
    block_ = Gathering();
    shared_.clear();
    shared_bytes_ = 0;
    for (int i = 0; i < count; ++i) {
      threads_[i].index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    }
    order_ = shuffled(count);
    ready_.clear();
    next_ = ended_ = 0;
    while (ended_ < count) {
      const bool fresh = next_ < count;
      if (!fresh && ready_.empty()) deadlock();
      if (ready_.empty() || (fresh && (seed == 0 || draw(2) == 0))) {
        if (idle_.empty()) idle_.push_back(make_fiber());
        running_ = idle_.back();
        idle_.pop_back();
      } else {
        const size_t chosen = seed == 0 ? 0 : draw(ready_.size());
        enter(ready_[chosen]);
        ready_.erase(ready_.begin() + static_cast<int64_t>(chosen));
        running_ = threads_[current_].fiber;
      }
      jump(main_, *running_);
      running_ = nullptr;
      if (!fault_.empty()) throw_fault();
    }
  }

  void enter(int index) {
    current_ = index;
    threadIdx = threads_[index].index;
  }

  static void work() { machine().work_forever(); }

  // A fiber runs threads to their end one after the other; a thread that waits keeps its fiber, and others get another.
  void work_forever() {
    arrive(nullptr);
    for (;;) {
      while (next_ < static_cast<int>(threads_.size())) {
        enter(static_cast<int>(order_[next_++]));
        threads_[current_].fiber = running_;
        (*body_)();
        end_thread();
        if (!ready_.empty()) break;
      }
      idle_.push_back(running_);
      leave();
    }
  }

  void end_thread() {
    threads_[current_].ended = true;
    ++ended_;
    if (!block_.waiting.empty()) {
      fault(std::to_string(block_.waiting.size()) + " threads wait at __syncthreads() and another has ended",
            block_.site);
    }
    const int warp = current_ / kWarp;
    release_if_all(warps_[warp], living(warp));
  }

  int living(int warp) const {
    int count = 0;
    const int end = std::min<int>((warp + 1) * kWarp, static_cast<int>(threads_.size()));
    for (int i = warp * kWarp; i < end; ++i) count += !threads_[i].ended;
    return count;
  }

  void wait(Gathering& all, const Site& site, int expected) {
    if (&all == &block_ && ended_ > 0) fault("__syncthreads() after a thread has ended", site);
    if (!all.waiting.empty() && (all.site.line() != site.line() || all.site.file_name() != site.file_name())) {
      fault("threads meet at different places: " + words(all.site), site);
    }
    all.site = site;
    all.waiting.push_back(current_);
    release_if_all(all, expected);
    leave();
  }

  void release_if_all(Gathering& all, int expected) {
    if (all.waiting.empty() || static_cast<int>(all.waiting.size()) < expected) return;
    ready_.insert(ready_.end(), all.waiting.begin(), all.waiting.end());
    all.waiting.clear();
  }

  [[noreturn]] void deadlock() {
    std::string places;
    if (!block_.waiting.empty()) places += " " + words(block_.site);
    for (const Gathering& warp : warps_) {
      if (!warp.waiting.empty()) places += " " + words(warp.site);
    }
    fault("threads wait for each other at different places:" + places, Site());
  }

  [[noreturn]] void throw_fault() {
    idle_.clear();  // fibers that hang in the middle of a thread are left behind
    running_ = nullptr;
    throw std::runtime_error("CUDA emulation: " + name_ + ": " + std::exchange(fault_, ""));
  }

  Fiber* make_fiber() {
    auto* fiber = new Fiber();
    void* memory = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    fiber->stack = memory;
    fiber->size = kStack;
    auto** top = reinterpret_cast<void**>(static_cast<char*>(memory) + kStack) - 8;
    top[6] = reinterpret_cast<void*>(&Machine::work);  // above it six registers, below it nobody to return to
    fiber->top = top;
    return fiber;
  }

  void leave() { jump(*running_, main_); }

  void jump(Fiber& from, Fiber& to) {
    __sanitizer_start_switch_fiber(&from.shadow, to.stack, to.size);
    seamseg_switch(&from.top, to.top);
    arrive(&from);
  }

  void arrive(Fiber* here) {
    const void* bottom = nullptr;
    size_t size = 0;
    __sanitizer_finish_switch_fiber(here == nullptr ? nullptr : here->shadow, &bottom, &size);
    if (here != &main_) {  // came from the main stack: now its place is known
      main_.stack = const_cast<void*>(bottom);
      main_.size = size;
    }
  }

  uint64_t draw(uint64_t below) {
    random_ += 0x9e3779b97f4a7c15u;
    uint64_t z = random_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
  }

  std::vector<int64_t> shuffled(int64_t count) {
    std::vector<int64_t> order(count);
    for (int64_t i = 0; i < count; ++i) order[i] = i;
    for (int64_t i = count - 1; seed != 0 && i > 0; --i) std::swap(order[i], order[draw(i + 1)]);
    return order;
  }

  static Machine& machine();

  std::string name_, fault_;
  const std::function<void()>* body_ = nullptr;
  uint64_t random_ = 0;
  std::vector<Thread> threads_;
  std::vector<Gathering> warps_;
  Gathering block_;
  std::map<const void*, std::unique_ptr<void, FreeMemory>> shared_;
  size_t shared_bytes_ = 0;
  std::vector<int64_t> order_;
  std::vector<int> ready_;
  std::vector<Fiber*> idle_;
  Fiber main_;
  Fiber* running_ = nullptr;
  int current_ = 0, next_ = 0, ended_ = 0;
};

inline Machine the_machine;
inline Machine& Machine::machine() { return the_machine; }

}  // namespace emulation
