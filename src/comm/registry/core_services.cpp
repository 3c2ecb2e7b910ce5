#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/device.hpp"
#include "comm/placement/rank_adapters.hpp"
#include "comm/placement/rank_environment.hpp"
#include "comm/registry/registry.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "store/protocol.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

World& world_of(void* ctx) { return *static_cast<World*>(ctx); }

// Calls `body` and converts an exception to a status, because no exception may cross into a plugin.
template <class Body>
atoll_status guarded(const Body& body) noexcept {
  try {
    body();
    return ATOLL_OK;
  } catch (const Error& error) {
    return static_cast<atoll_status>(error.code());
  } catch (const std::bad_alloc&) {
    return ATOLL_OUT_OF_MEMORY;
  } catch (...) {
    return ATOLL_INTERNAL;
  }
}

void log_line(void*, int32_t level, const char* message) {
  const bool known = level >= ATOLL_LOG_TRACE && level <= ATOLL_LOG_ERROR;
  const log::Level same = known ? static_cast<log::Level>(level) : log::Level::error;
  if (log::enabled(same)) log::write(same, message);
}

atoll_status store_put(void* ctx, const char* key, const void* value, size_t n) {
  return guarded(
      [&] { world_of(ctx).put(key, std::string_view(static_cast<const char*>(value), n)); });
}

std::chrono::milliseconds limit_of(int64_t timeout_ns) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::nanoseconds(timeout_ns));
}

// Copies a value to a buffer of `size` bytes, and sets `size` to the size of the value. If the
// value does not fit, copies nothing and returns false.
bool pass(const std::string& value, void* buffer, size_t& size) {
  const bool fits = value.size() <= size;
  size = value.size();
  if (fits && !value.empty()) std::memcpy(buffer, value.data(), value.size());
  return fits;
}

atoll_status store_get(void* ctx, const char* key, void* value, size_t* n, int64_t timeout_ns) {
  return guarded([&] {
    require(pass(world_of(ctx).get(key, limit_of(timeout_ns)), value, *n),
            "store_get: the value is larger than the buffer");
  });
}

atoll_status store_get_all(void* ctx, const char* const* keys, int32_t n, void* const* values,
                           size_t* sizes, int64_t timeout_ns) {
  return guarded([&] {
    const std::vector<std::string> names(keys, keys + n);
    for (const std::string& name : names)
      require(!name.empty() && name.size() <= store::max_key_bytes,
              "store_get_all: a key has {} bytes", name.size());
    const auto found = WorldInternals::store(world_of(ctx)).get_all(names, limit_of(timeout_ns));
    bool fits = true;
    for (std::size_t i = 0; i < found.size(); ++i) fits &= pass(found[i], values[i], sizes[i]);
    require(fits, "store_get_all: a value is larger than its buffer");
  });
}

atoll_status adapters(void*, int32_t device, char* value, size_t* n) {
  return guarded([&] {
    const std::string gpu(device < 0 ? "" : Device::cuda(device).pci_address());
    const auto chosen = choose_adapters(Topology::discover_local(), look_around(), gpu);
    const auto text = fmt::format("{}\n{}", fmt::join(chosen.ports, ","), chosen.why);
    require(pass(text, value, *n), "adapters: the text is larger than the buffer");
  });
}

}  // namespace

atoll_core core_services(World& world) {
  return {sizeof(atoll_core), &world, log_line, store_put, store_get, store_get_all, adapters};
}

}  // namespace atoll_v1::atoll
