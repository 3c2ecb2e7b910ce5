#include "block.hpp"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <span>

constinit thread_local uint3 threadIdx{}, blockIdx{};
constinit thread_local dim3 blockDim{}, gridDim{};

namespace emulated {

Launches& launches() {
  static Launches all;
  return all;
}

namespace {

constexpr unsigned most_threads = 1024;
constexpr std::size_t stack_bytes = std::size_t{256} << 10;

[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "emulated GPU: block %u %u %u: %s\n", blockIdx.x, blockIdx.y, blockIdx.z,
               why);
  std::abort();
}

}  // namespace

Block& block() {
  static thread_local Block one;
  return one;
}

Block::Block() {
  void* const memory = ::mmap(nullptr, most_threads * stack_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  stacks_ = static_cast<std::byte*>(memory);
  fibers_.resize(most_threads);
}

Block::~Block() { ::munmap(stacks_, most_threads * stack_bytes); }

// The main loop of a fiber, which never returns. Each round runs one thread of a block.
void Block::live() {
  Block& self = block();
  while (true) {
    (*self.thread_)();
    self.wait(State::done);
  }
}

// Starts a fiber on a separate stack. Later switches between fibers use longjmp, which needs no
// system call.
void Block::start(unsigned which) {
  ucontext_t context;
  ::getcontext(&context);
  context.uc_stack.ss_sp = stacks_ + which * stack_bytes;
  context.uc_stack.ss_size = stack_bytes;
  context.uc_link = nullptr;
  ::makecontext(&context, &Block::live, 0);
  fibers_[which].started = true;
  ::setcontext(&context);
}

void Block::run(const Kernel& kernel, uint3 at, const std::function<void()>& thread) {
  size_ = kernel.block.x * kernel.block.y * kernel.block.z;
  if (size_ > most_threads) give_up("the block has too many threads");
  shape_ = kernel.block;
  blockIdx = at;
  blockDim = kernel.block;
  gridDim = kernel.grid;
  thread_ = &thread;
  warps_.resize((size_ + warp_size - 1) / warp_size);
  for (unsigned i = 0; i < size_; ++i) {
    fibers_[i].state = State::ready;
    fibers_[i].exchanges = 0;
  }
  do {
    for (unsigned i = 0; i < size_; ++i) {
      if (fibers_[i].state == State::ready) resume(i);
    }
  } while (release());
}

void Block::resume(unsigned which) {
  running_ = which;
  threadIdx = {which % shape_.x, which / shape_.x % shape_.y, which / (shape_.x * shape_.y)};
  if (_setjmp(scheduler_) != 0) return;
  if (!fibers_[which].started) start(which);
  _longjmp(fibers_[which].place, 1);
}

void Block::wait(State state) {
  Fiber& fiber = fibers_[running_];
  fiber.state = state;
  if (_setjmp(fiber.place) == 0) _longjmp(scheduler_, 1);
}

bool Block::release() {
  bool any = false, all_done = true, all_at_block = true;
  for (unsigned warp = 0; warp < warps_.size(); ++warp) any = release_warp(warp) || any;
  for (const Fiber& fiber : std::span(fibers_).first(size_)) {
    all_done = all_done && fiber.state == State::done;
    all_at_block = all_at_block && (fiber.state == State::at_block || fiber.state == State::done);
  }
  if (all_done) return false;
  if (all_at_block) {
    for (Fiber& fiber : std::span(fibers_).first(size_)) {
      if (fiber.state == State::at_block) fiber.state = State::ready;
    }
    return true;
  }
  if (!any) give_up("threads of the block wait at different barriers");
  return true;
}

bool Block::release_warp(unsigned warp) {
  const unsigned first = warp * warp_size, end = std::min(size_, first + warp_size);
  unsigned waiting = 0, done = 0;
  for (unsigned i = first; i < end; ++i) {
    waiting += fibers_[i].state == State::at_warp ? 1 : 0;
    done += fibers_[i].state == State::done ? 1 : 0;
  }
  if (waiting == 0) return false;
  if (done > 0) give_up("threads of a warp wait for others that have already ended");
  if (waiting < end - first) return false;
  for (unsigned i = first; i < end; ++i) fibers_[i].state = State::ready;
  return true;
}

void Block::wait_for_block() { wait(State::at_block); }

void Block::wait_for_warp() { wait(State::at_warp); }

std::uint64_t Block::exchange(std::uint64_t mine, unsigned from_lane) {
  Fiber& fiber = fibers_[running_];
  auto& values = warps_[running_ / warp_size].values[fiber.exchanges++ % 2];
  values[lane()] = mine;
  wait_for_warp();
  return values[from_lane];
}

std::uint64_t exchange(std::uint64_t mine, unsigned from_lane) {
  return block().exchange(mine, from_lane);
}

unsigned lane() { return block().lane(); }

}  // namespace emulated

void __syncthreads() { emulated::block().wait_for_block(); }

void __syncwarp(unsigned) { emulated::block().wait_for_warp(); }
