// Orders work of atoll and CUDA code of the caller: both can use the same streams and events.
//
// This header needs no CUDA header: a cudaStream_t is a pointer to CUstream_st, and a cudaEvent_t
// is a pointer to CUevent_st. Every function throws Error(unsupported) for a stream, event or
// device that is not on a GPU, and Error(backend) if a CUDA call fails. The rules of Stream
// (device.hpp) about threads and about the time at which failures are reported apply here too.
//
//   atoll::Stream compute = atoll::cuda::wrap_stream(engine.device(), my_stream);
//   auto pass = engine.begin({}, compute);
//   { auto w = pass.forward(block);  my_layer<<<grid, threads, 0, my_stream>>>(...); }
#pragma once

#include <functional>
#include <string>

#include "atoll/device.hpp"

struct CUstream_st;
struct CUevent_st;

namespace atoll_v1::atoll::cuda {

// Makes a Stream of a CUDA stream that the caller has created on the GPU of `device`, for example
// the current stream of a framework; null means the legacy default stream. The caller owns the CUDA
// stream, keeps it alive as long as the result, and may also enqueue work directly: all work runs
// in the order of the calls. `name` is shown in messages and traces. The destructor of the result
// blocks until the work enqueued so far is done.
ATOLL_API Stream wrap_stream(const Device& device, CUstream_st* stream,
                             std::string name = "stream");

// Returns the CUDA stream, for launches and library calls of the caller. The GPU of the stream must
// be current for most CUDA calls; launch() and Current (atoll/cuda/runtime.hpp) make it current.
ATOLL_API CUstream_st* native(const Stream& stream);

// Calls `work` on this thread, at once, with the CUDA stream as argument and its GPU current.
// `work` enqueues kernels or calls libraries such as cuBLAS. It checks the errors of these calls,
// for example with check() of atoll/cuda/runtime.hpp: a program has its own copy of the CUDA
// runtime, whose errors atoll's copy does not see. Exceptions pass through.
ATOLL_API void launch(Stream& stream, const std::function<void(CUstream_st*)>& work);

// Records the caller's event at this point of `stream`: it happens when all work enqueued before it
// is done.
ATOLL_API void record(Stream& stream, CUevent_st* event);
// Makes later work of `stream` wait for the last point at which the caller's event was recorded.
ATOLL_API void wait(Stream& stream, CUevent_st* event);
// Makes later work of the caller's CUDA stream wait for an event of atoll. A failure before the
// event does not stop the CUDA stream: only Event::synchronize() reports it.
ATOLL_API void wait(CUstream_st* stream, const Event& event);

}  // namespace atoll_v1::atoll::cuda
