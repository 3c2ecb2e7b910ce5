// One collective on two buffers: which parts it uses, how it is started, what has to come out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "atoll/communicator.hpp"
#include "collective.hpp"

namespace busbw {

struct Call {
  Collective collective = Collective::all_reduce;
  atoll::DType dtype = atoll::DType::f32;
  Op op = Op::none;
  int root = 0;
  Place place = Place::out;
  Shape shape = {};
};

// Each has room for shape.total elements. Place::in runs on `recv` alone, but for collectives that
// have no such form.
struct Memory {
  std::byte* send = nullptr;
  std::byte* recv = nullptr;
};

// Enqueues it.
[[nodiscard]] atoll::Work start(const Call& call, Memory memory, atoll::Communicator& communicator,
                                atoll::Stream& stream);

// Fills the inputs of this rank, and its results with what no operation gives. Waits for the
// stream, which copies where the CPU cannot write.
void prepare(const Call& call, Memory memory, const atoll::Communicator& communicator,
             atoll::Stream& stream, std::uint64_t seed);
// Wrong elements of this rank after an operation on prepared memory.
std::uint64_t count_wrong(const Call& call, Memory memory, const atoll::Communicator& communicator,
                          atoll::Stream& stream, std::uint64_t seed);

}  // namespace busbw
