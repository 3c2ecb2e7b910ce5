// The threads of one block, as fibers of the thread of the host that runs it.
#pragma once

#include <setjmp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "emulated.hpp"

namespace emulated {

class Block {
 public:
  Block();
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Runs `thread` as every thread of a block of `size`, at place `at` of the grid.
  void run(const Kernel& kernel, uint3 at, const std::function<void()>& thread);

  // Of the fiber that runs.
  void wait_for_block();
  void wait_for_warp();
  std::uint64_t exchange(std::uint64_t mine, unsigned from_lane);
  unsigned lane() const { return running_ % warp_size; }

 private:
  enum class State {
    ready,
    at_block,  // waits for all threads of the block
    at_warp,
    done
  };
  struct Fiber {
    jmp_buf place;  // where it waits
    State state;
    unsigned exchanges;  // so far
    bool started;        // once; it runs a thread of every block that comes
  };
  struct Warp {
    // Of the last two exchanges: a lane may be in the next one while another reads.
    std::array<std::array<std::uint64_t, warp_size>, 2> values;
  };

  static void live();
  void start(unsigned which);
  void resume(unsigned which);
  void wait(State state);
  // Lets those go on whose barrier is complete; false if there are none.
  bool release();
  bool release_warp(unsigned warp);

  std::byte* stacks_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  jmp_buf scheduler_;
  unsigned size_ = 0;
  unsigned running_ = 0;
  dim3 shape_;
  const std::function<void()>* thread_ = nullptr;
};

// The one of this thread of the host.
Block& block();

}  // namespace emulated
