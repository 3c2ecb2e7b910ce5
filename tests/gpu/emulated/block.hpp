// Runs the threads of one block of a kernel as fibers of one host thread.
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

  // Calls `thread` once for every thread of the block at position `at` of the grid.
  void run(const Kernel& kernel, uint3 at, const std::function<void()>& thread);

  // The running fiber calls these functions for barriers and exchanges of its thread.
  void wait_for_block();
  void wait_for_warp();
  std::uint64_t exchange(std::uint64_t mine, unsigned from_lane);
  unsigned lane() const { return running_ % warp_size; }

 private:
  enum class State {
    ready,
    at_block,  // the fiber waits until all threads of the block have reached the barrier
    at_warp,   // the fiber waits until all threads of the warp have reached the barrier
    done
  };
  struct Fiber {
    jmp_buf place;  // saved context in which the fiber continues
    State state;
    unsigned exchanges;  // number of exchanges in which this fiber took part in the current block
    bool started;        // true once the fiber exists; later blocks reuse it
  };
  struct Warp {
    // Values of the last two exchanges, because one lane may enter an exchange while another lane
    // still reads the values of the previous exchange.
    std::array<std::array<std::uint64_t, warp_size>, 2> values;
  };

  static void live();
  void start(unsigned which);
  void resume(unsigned which);
  void wait(State state);
  // Makes fibers ready to run if all threads have reached the barrier at which they wait. Returns
  // false if all fibers have ended.
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

// Returns the Block of this host thread.
Block& block();

}  // namespace emulated
