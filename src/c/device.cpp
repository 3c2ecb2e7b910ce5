// The functions of atoll.h for devices, streams and memory.
#include "atoll/device.hpp"

#include "c/handles.hpp"

using namespace atoll::c;

namespace atoll_v1::atoll::c {
namespace {

std::vector<std::reference_wrapper<Communicator>> communicators_of(
    atoll_communicator* const* communicators, std::size_t n) {
  std::vector<std::reference_wrapper<Communicator>> result;
  if (n > 0) at(communicators, "communicators");
  for (std::size_t i = 0; i < n; ++i)
    result.emplace_back(at(communicators[i], "communicators").communicator);
  return result;
}

StreamOptions named(const char* name) {
  return name != nullptr ? StreamOptions{.name = name} : StreamOptions{};
}

}  // namespace
}  // namespace atoll_v1::atoll::c

atoll_status atoll_device_open(int32_t memory, int32_t ordinal, atoll_device** device) {
  return create(device, "device", [&] {
    if (memory != ATOLL_MEMORY_CPU && memory != ATOLL_MEMORY_CUDA)
      throw BadArgument{"memory", "is neither ATOLL_MEMORY_CPU nor ATOLL_MEMORY_CUDA"};
    return memory == ATOLL_MEMORY_CPU ? atoll::Device::cpu() : atoll::Device::cuda(ordinal);
  });
}
void atoll_device_close(atoll_device* device) { release(device); }

atoll_status atoll_stream_open(const atoll_device* device, const char* name,
                               atoll_stream** stream) {
  return create(stream, "stream", [&] { return at(device, "device").device.stream(named(name)); });
}
atoll_status atoll_stream_wrap(const atoll_device* device, void* cuda_stream, const char* name,
                               atoll_stream** stream) {
  return create(stream, "stream",
                [&] { return at(device, "device").device.wrap_stream(cuda_stream, named(name)); });
}
void atoll_stream_close(atoll_stream* stream) { release(stream); }
atoll_status atoll_stream_enqueue(atoll_stream* stream, void (*work)(void* context),
                                  void* context) {
  return guard([&] {
    at(work, "work");
    at(stream, "stream").stream.enqueue([work, context] { work(context); });
  });
}
atoll_status atoll_stream_copy(atoll_stream* stream, void* dst, const void* src, size_t bytes) {
  return guard([&] { at(stream, "stream").stream.copy(dst, src, bytes); });
}
atoll_status atoll_stream_zero(atoll_stream* stream, void* dst, size_t bytes) {
  return guard([&] { at(stream, "stream").stream.zero(dst, bytes); });
}
atoll_status atoll_stream_wait(atoll_stream* stream, atoll_stream* other) {
  return guard([&] { at(stream, "stream").stream.wait(at(other, "other").stream.record()); });
}
atoll_status atoll_stream_synchronize(atoll_stream* stream) {
  return guard([&] { at(stream, "stream").stream.synchronize(); });
}

atoll_status atoll_buffer_open(const atoll_device* device, size_t bytes,
                               atoll_communicator* const* communicators, size_t n,
                               atoll_buffer** buffer) {
  return create(buffer, "buffer", [&] {
    const auto& memory = at(device, "device").device;
    const auto users = communicators_of(communicators, n);
    return users.empty() ? memory.allocate(bytes) : atoll::allocate(memory, bytes, users);
  });
}
atoll_status atoll_buffer_open_alone(const atoll_device* device, size_t bytes,
                                     atoll_communicator* const* communicators, size_t n,
                                     atoll_buffer** buffer) {
  return create(buffer, "buffer", [&] {
    return atoll::allocate_alone(at(device, "device").device, bytes,
                                 communicators_of(communicators, n));
  });
}
atoll_status atoll_buffer_data(const atoll_buffer* buffer, void** data) {
  return guard([&] { at(data, "data") = at(buffer, "buffer").buffer.data(); });
}
void atoll_buffer_close(atoll_buffer* buffer) { release(buffer); }

atoll_status atoll_registration_open(void* memory, size_t bytes,
                                     atoll_communicator* const* communicators, size_t n,
                                     atoll_registration** registration) {
  return create(registration, "registration", [&] {
    const auto users = communicators_of(communicators, n);
    return atoll::register_memory(memory, bytes, users);
  });
}
atoll_status atoll_registration_slow(const atoll_registration* registration, const char** reason) {
  return guard(
      [&] { at(reason, "reason") = at(registration, "registration").registration.slow().c_str(); });
}
void atoll_registration_close(atoll_registration* registration) { release(registration); }
