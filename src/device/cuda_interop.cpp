// The functions of atoll/cuda.hpp, which call the implementation of a device. Devices without a GPU
// inherit the default implementations below, which throw.
#include "atoll/cuda.hpp"

#include <string>
#include <utility>

#include "atoll/error.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::unsupported,
              what + " is not on a GPU: atoll/cuda.hpp needs Device::cuda()");
}

}  // namespace

void EventBackend::delay_native(void*) { refuse("the event"); }
void StreamBackend::launch(const std::function<void(void*)>&) { refuse("the stream"); }
void StreamBackend::record_native(void*) { refuse("the stream"); }
void StreamBackend::wait_native(void*) { refuse("the stream"); }
std::unique_ptr<StreamBackend> DeviceBackend::wrap_stream(void*, const StreamOptions&) {
  refuse("the device " + info().name);
}

namespace cuda {

Stream wrap_stream(const Device& device, CUstream_st* stream, std::string name) {
  return device.wrap_stream(stream, {.name = std::move(name)});
}

CUstream_st* native(const Stream& stream) {
  void* const found = stream.backend().native();
  if (found == nullptr) refuse("the stream " + stream.name());
  return static_cast<CUstream_st*>(found);
}

void launch(Stream& stream, const std::function<void(CUstream_st*)>& work) {
  stream.backend().launch([&](void* found) { work(static_cast<CUstream_st*>(found)); });
}

void record(Stream& stream, CUevent_st* event) { stream.backend().record_native(event); }
void wait(Stream& stream, CUevent_st* event) { stream.backend().wait_native(event); }
void wait(CUstream_st* stream, const Event& event) {
  if (event.backend()) event.backend()->delay_native(stream);
}

}  // namespace cuda
}  // namespace atoll_v1::atoll
