// One collective on two buffers: the parts that it uses, how it starts, and its expected result.
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

// Buffers of shape.total elements each. Place::in uses `recv` alone, except for collectives that
// have no in-place form.
struct Memory {
  std::byte* send = nullptr;
  std::byte* recv = nullptr;
};

// Enqueues the operation.
[[nodiscard]] atoll::Work start(const Call& call, Memory memory, atoll::Communicator& communicator,
                                atoll::Stream& stream);

// Fills the inputs of this rank, and its results with a value that no operation produces. Waits for
// the stream, which copies to buffers that the CPU cannot write.
void prepare(const Call& call, Memory memory, const atoll::Communicator& communicator,
             atoll::Stream& stream, std::uint64_t seed);
// Counts wrong elements of this rank after an operation on prepared memory.
std::uint64_t count_wrong(const Call& call, Memory memory, const atoll::Communicator& communicator,
                          atoll::Stream& stream, std::uint64_t seed);

}  // namespace busbw
