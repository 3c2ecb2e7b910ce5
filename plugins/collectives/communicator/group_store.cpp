#include "collectives/communicator/group_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sdk/backend.hpp"

namespace atoll_collectives {
namespace {

using namespace std::chrono_literals;
using atoll_sdk::Error;

constexpr std::size_t largest_value = 2048;  // maximum size in bytes of a value in the store

}  // namespace

atoll_status read(const atoll_core& core, const std::string& key, std::int64_t limit_ns,
                  std::string& value) {
  std::array<char, largest_value> buffer{};
  std::size_t size = buffer.size();
  const auto status = core.get(core.ctx, key.c_str(), buffer.data(), &size, limit_ns);
  if (status == ATOLL_OK) value.assign(buffer.data(), size);
  return status;
}

GroupStore::GroupStore(const atoll_core& core, const atoll_group& group, const Team& team)
    : core_(core), group_(group), team_(team), deadline_(Clock::time_point::max()) {
  const auto timeout = std::chrono::nanoseconds(group.timeout_ns);
  if (timeout > 0ns && timeout < deadline_ - Clock::now()) deadline_ = Clock::now() + timeout;
}

std::string GroupStore::opening() const {
  return fmt::format("opening communicator {} on {}", team_.name, team_.describe(team_.rank));
}

std::string GroupStore::path(const std::string& key) const {
  return fmt::format("{}/{}", group_.id, key);
}

void GroupStore::put(const std::string& key, const std::string& value) const {
  const auto status = core_.put(core_.ctx, path(key).c_str(), value.data(), value.size());
  if (status != ATOLL_OK)
    throw Error(status, fmt::format("{}: cannot publish {} in the store", opening(), path(key)));
}

// Returns the time until the deadline in nanoseconds. Returns at least 1, because a store may treat
// 0 as no limit.
std::int64_t GroupStore::left(std::chrono::nanoseconds grace) const {
  if (deadline_ == Clock::time_point::max()) return std::chrono::nanoseconds(no_limit).count();
  const std::chrono::nanoseconds left = deadline_ - Clock::now() + grace;
  return std::max<std::int64_t>(1, left.count());
}

std::string GroupStore::get(const std::string& key, const std::string& what,
                            std::chrono::nanoseconds grace) const {
  std::string value;
  const auto status = read(core_, path(key), left(grace), value);
  if (status != ATOLL_OK) {
    throw Error(status, fmt::format("{}: cannot read {} from the store", opening(), what));
  }
  return value;
}

std::vector<std::string> GroupStore::get_all(const std::vector<std::string>& keys,
                                             const std::function<std::string(std::size_t)>& what,
                                             std::chrono::nanoseconds grace) const {
  if (keys.empty()) return {};
  atoll_status status = ATOLL_OK;
  auto values = get_at_once(keys, grace, status);
  if (status == ATOLL_OK) return values;
  if (status != ATOLL_TIMEOUT) {
    throw Error(status, fmt::format("{}: cannot read {} values from the store, such as {}",
                                    opening(), keys.size(), what(0)));
  }
  // Reads the values one by one, so that an error names the value that was missing at the deadline.
  values.clear();
  for (std::size_t i = 0; i < keys.size(); ++i) values.push_back(get(keys[i], what(i)));
  return values;
}

std::vector<std::string> GroupStore::get_at_once(const std::vector<std::string>& keys,
                                                 std::chrono::nanoseconds grace,
                                                 atoll_status& status) const {
  std::vector<std::string> paths, values(keys.size(), std::string(largest_value, '\0'));
  std::vector<const char*> names;
  std::vector<void*> buffers;
  std::vector<std::size_t> sizes(keys.size(), largest_value);
  for (const auto& key : keys) paths.push_back(path(key));
  for (const auto& one : paths) names.push_back(one.c_str());
  for (auto& value : values) buffers.push_back(value.data());
  status = core_.get_all(core_.ctx, names.data(), static_cast<std::int32_t>(names.size()),
                         buffers.data(), sizes.data(), left(grace));
  for (std::size_t i = 0; status == ATOLL_OK && i < keys.size(); ++i) values[i].resize(sizes[i]);
  return values;
}

std::optional<std::string> GroupStore::find(const std::string& key) const {
  std::string value;
  const auto status = read(core_, path(key), 1, value);
  if (status == ATOLL_OK) return value;
  if (status == ATOLL_TIMEOUT) return std::nullopt;
  throw Error(status, fmt::format("{}: cannot read {} from the store", opening(), key));
}

}  // namespace atoll_collectives
