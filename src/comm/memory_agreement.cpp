#include "comm/memory_agreement.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "comm/registry/backend_choice.hpp"
#include "core/errors.hpp"
#include "core/limits.hpp"
#include "core/parse.hpp"
#include "store/store.hpp"

namespace atoll_v1::atoll {
namespace {

// The arguments of one rank, which all ranks receive.
struct MemoryWish {
  int rank = 0;
  MemoryCall call = MemoryCall::allocates;
  std::uint64_t bytes = 0;
  FreeMemory free{};
  int code = 0;  // value of ErrorCode; 0 if the rank has no error
  std::string error{};
};

std::string_view name(MemoryCall call) {
  return call == MemoryCall::allocates ? "allocate" : "register_memory";
}

std::string encode(const MemoryWish& wish) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}", static_cast<int>(wish.call), wish.bytes,
                     wish.free.host, wish.free.process, wish.free.limit, wish.code, wish.error);
}

MemoryWish decode(int rank, std::string_view text) {
  MemoryWish wish{.rank = rank};
  const auto next = [&] {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return line;
  };
  const auto number = [&] { return number_from<std::uint64_t>(next()).value_or(0); };
  wish.call = number() == 0 ? MemoryCall::allocates : MemoryCall::registers;
  wish.bytes = number();
  wish.free.host = number();
  wish.free.process = number();
  wish.free.limit = next();
  wish.code = static_cast<int>(number());
  wish.error = text;
  return wish;
}

// Returns the wishes of the ranks of the group, in ascending order of the ranks.
std::vector<MemoryWish> exchange(const BackendCommunicator& group, const std::string& what,
                                 const MemoryWish& mine) {
  const Axis& axis = group.axis();
  // The id of the communicator makes the key unique, so that threads can use several communicators.
  const std::string base = store::titled("", group.id() + "/memory");
  std::vector<MemoryWish> wishes;
  try {
    const auto texts = exchange_on_axis(
        axis, fmt::format("{}/{}", base, group.world().ticket(base)),
        what + ": all ranks must make this call", encode(mine), group.settings().timeout);
    for (std::size_t i = 0; i < texts.size(); ++i)
      wishes.push_back(decode(axis.ranks[i], texts[i]));
  } catch (const Error&) {
    group.check_ended();
    throw;
  }
  std::ranges::sort(wishes, {}, &MemoryWish::rank);
  return wishes;
}

void check_equal(const std::vector<MemoryWish>& wishes, const std::string& communicator) {
  const MemoryWish& first = wishes.front();
  for (const MemoryWish& other : wishes) {
    require(other.call == first.call, ErrorCode::mismatch,
            "communicator {}: rank {} called {} where rank {} called {}", communicator, other.rank,
            name(other.call), first.rank, name(first.call));
    require(other.bytes == first.bytes, ErrorCode::mismatch,
            "{} on communicator {}: rank {} passes {} bytes, but rank {} passes {}: pass the same "
            "size on all ranks",
            name(first.call), communicator, first.rank, first.bytes, other.rank, other.bytes);
  }
}

// Ranks share the memory of a host, so sizes that fit alone can be too large together. All ranks
// pass the same size here.
void check_fits(const std::vector<MemoryWish>& wishes, const BackendCommunicator& group) {
  const std::string cannot = fmt::format("cannot allocate {} bytes for communicator {}",
                                         wishes.front().bytes, group.name());
  struct Host {
    std::uint64_t ranks = 0, free = std::numeric_limits<std::uint64_t>::max();
  };
  std::map<int, Host> hosts;
  for (const MemoryWish& wish : wishes) {
    require(wish.bytes <= wish.free.process, ErrorCode::out_of_memory,
            "{}: rank {} can take {} more, by {}", cannot, wish.rank, wish.free.process,
            wish.free.limit);
    Host& host = hosts[group.world().placements()[static_cast<std::size_t>(wish.rank)].host];
    ++host.ranks;
    host.free = std::min(host.free, wish.free.host);
  }
  for (const auto& [index, host] : hosts) {
    require(
        wishes.front().bytes <= host.free / host.ranks, ErrorCode::out_of_memory,
        "{}: {} bytes are free on host {} (MemAvailable and SwapFree of /proc/meminfo), too few "
        "for {} ranks",
        cannot, host.free, group.world().hosts()[static_cast<std::size_t>(index)].name, host.ranks);
  }
}

// The memory of a backend can be a file, and a file above this limit ends the process by SIGXFSZ.
void limit_by_file_size(FreeMemory& free) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= free.process) return;
  free.process = limit.rlim_cur;
  free.limit = "its limit of the size of a file (ulimit -f)";
}

std::string description(const BackendCommunicator& group, MemoryCall call) {
  return fmt::format("{} on communicator {}", name(call), group.name());
}

// Returns the error of `body` with the rank and the call, as all ranks will throw it.
std::optional<Error> error_of(const BackendCommunicator& group, MemoryCall call,
                              const std::function<void()>& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& error) {
    return make_error(error.code(), "rank {}: {}: {}", group.world().rank(),
                      description(group, call), error.what());
  }
}

// Compares the call over the ranks of one group. `error` is an error that this rank has already.
// Returns the error that all ranks of the group must throw, if any. Throws the errors of the
// exchange itself, for example when a rank is absent.
std::optional<Error> compare(const BackendCommunicator& group, MemoryCall call, std::size_t bytes,
                             std::optional<Error> error) {
  MemoryWish mine{.rank = group.world().rank(), .call = call, .bytes = bytes};
  if (!error) {
    error = error_of(group, call, [&] {
      mine.free = free_memory();
      if (group.plugin().table.mem_alloc) limit_by_file_size(mine.free);
    });
  }
  if (error) {
    mine.code = static_cast<int>(error->code());
    mine.error = error->what();
  }
  const std::vector<MemoryWish> wishes = exchange(group, description(group, call), mine);
  const auto failed =
      std::ranges::find_if(wishes, [](const MemoryWish& wish) { return wish.code != 0; });
  if (failed != wishes.end()) return Error(static_cast<ErrorCode>(failed->code), failed->error);
  try {
    check_equal(wishes, group.name());
    if (call == MemoryCall::allocates && group.device().kind() == DeviceKind::cpu)
      check_fits(wishes, group);
  } catch (const Error& verdict) {
    return verdict;
  }
  return std::nullopt;
}

}  // namespace

void agree_on_memory(std::span<const BackendCommunicator* const> groups, MemoryCall call,
                     std::size_t bytes,
                     const std::function<void(const BackendCommunicator&)>& check) {
  // Every group is checked before the first exchange: a rank that has passed an exchange without
  // an error must not meet its own error later.
  std::optional<Error> error;
  for (const BackendCommunicator* group : groups) {
    if (error) break;
    error = error_of(*group, call, [&] { check(*group); });
  }
  for (auto group = groups.begin(); group != groups.end(); ++group) {
    // Exchanges once for a group that this rank names twice: the other ranks may name it once.
    if (std::find(groups.begin(), group, *group) != group) continue;
    const auto verdict = compare(**group, call, bytes, error);
    if (verdict) error = verdict;
  }
  if (error) throw Error(*error);
}

}  // namespace atoll_v1::atoll
