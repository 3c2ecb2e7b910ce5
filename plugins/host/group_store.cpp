#include "host/group_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sdk/guard.hpp"

namespace atoll_host_backend {
namespace {

using namespace std::chrono_literals;
using atoll_sdk::Error;

constexpr std::size_t largest_value = 1024;  // maximum size in bytes of a value in the store
constexpr auto no_limit =
    10'000h;  // replaces an infinite time limit; adding it to a time does not overflow

}  // namespace

atoll_status read(const atoll_host& host, const std::string& id, const std::string& key,
                  std::int64_t limit_ns, std::string& value) {
  std::array<char, largest_value> buffer{};
  std::size_t size = buffer.size();
  const auto path = fmt::format("{}/{}", id, key);
  const auto status = host.get(host.ctx, path.c_str(), buffer.data(), &size, limit_ns);
  if (status == ATOLL_OK) value.assign(buffer.data(), size);
  return status;
}

GroupStore::GroupStore(const atoll_host& host, const atoll_group& group,
                       const atoll_collectives::Team& team)
    : host_(host), group_(group), team_(team), deadline_(Clock::time_point::max()) {
  const auto timeout = std::chrono::nanoseconds(group.timeout_ns);
  if (timeout > 0ns && timeout < deadline_ - Clock::now()) deadline_ = Clock::now() + timeout;
}

std::string GroupStore::opening() const {
  return fmt::format("opening communicator {} on {}", team_.name, team_.describe(team_.rank));
}

void GroupStore::put(const std::string& key, const std::string& value) const {
  const auto path = fmt::format("{}/{}", group_.id, key);
  const auto status = host_.put(host_.ctx, path.c_str(), value.data(), value.size());
  if (status != ATOLL_OK)
    throw Error(status, fmt::format("{}: cannot publish {} in the store", opening(), path));
}

std::string GroupStore::get(const std::string& key, const std::string& what) const {
  // The time limit is at least 1 ns, because a store may treat 0 as no limit.
  std::int64_t left = std::chrono::nanoseconds(no_limit).count();
  if (deadline_ != Clock::time_point::max()) {
    left = std::max<std::int64_t>(1, std::chrono::nanoseconds(deadline_ - Clock::now()).count());
  }
  std::string value;
  const auto status = read(host_, group_.id, key, left, value);
  if (status != ATOLL_OK) {
    throw Error(status, fmt::format("{}: cannot read {} from the store", opening(), what));
  }
  return value;
}

std::optional<std::string> GroupStore::find(const std::string& key) const {
  std::string value;
  const auto status = read(host_, group_.id, key, 1, value);
  if (status == ATOLL_OK) return value;
  if (status == ATOLL_TIMEOUT) return std::nullopt;
  throw Error(status, fmt::format("{}: cannot read {} from the store", opening(), key));
}

}  // namespace atoll_host_backend
