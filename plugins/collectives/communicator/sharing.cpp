#include "collectives/communicator/sharing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <sstream>
#include <thread>

#include "collectives/communicator/processors.hpp"
#include "sdk/backend.hpp"

namespace atoll_collectives {
namespace {

using namespace std::chrono_literals;
using atoll_sdk::Error;
using Clock = std::chrono::steady_clock;

constexpr auto first_nap = 50us;
constexpr auto longest_nap = 2ms;
constexpr auto check_period = 100ms;
// The `grace` of GroupStore::get() for a value whose publisher waits for other ranks itself.
constexpr auto verdict_grace = 500ms;
// The start of the text that a rank publishes instead of an address if it cannot share memory. The
// reason follows.
constexpr std::string_view refusal = "none ";
// The text that rank 0 publishes if the list of hosts without shared memory is too long.
constexpr std::string_view every_host = "all";
constexpr std::size_t longest_list = 1000;

// Opens the shared memory of the ranks of one host.
class LocalOpening {
 public:
  LocalOpening(const Team& team, const Layout& layout, const GroupStore& store)
      : team_(team),
        store_(store),
        number_(layout.host_of(team.rank)),
        here_(layout.ranks_of(number_)),
        doorbell_(layout.hosts() == 1 ? Doorbell::futex_only : Doorbell::futex_or_socket) {}

  // Returns null if the ranks of this host cannot share memory; reason() then states why.
  std::unique_ptr<ShmTransport> run() {
    try {
      return open();
    } catch (const NoSharedMemory& error) {
      // Another rank may have given up first, and its reason is then the cause.
      const auto earlier = store_.find(refused_key());
      reason_ =
          earlier ? *earlier : fmt::format("{}: {}", team_.describe(team_.rank), error.what());
      if (!earlier) store_.put(refused_key(), reason_);
      return nullptr;
    }
  }
  const std::string& reason() const noexcept { return reason_; }
  const std::vector<std::string>& masks() const noexcept { return masks_; }

 private:
  static std::string inbox_key(int rank) { return fmt::format("inbox/{}", rank); }
  std::string refused_key() const { return fmt::format("inbox/refused/{}", number_); }

  std::unique_ptr<ShmTransport> open() {
    std::unique_ptr<ShmTransport> shm;
    try {
      shm = std::make_unique<ShmTransport>(here_, team_.rank, doorbell_);
    } catch (const NoSharedMemory& error) {
      store_.put(inbox_key(team_.rank), fmt::format("{}{}", refusal, error.what()));
      throw;
    }
    store_.put(inbox_key(team_.rank), fmt::format("{} {}", shm->published(), masks_.front()));
    std::vector<int> others = here_;
    std::erase(others, team_.rank);
    std::vector<std::string> keys;
    for (const int rank : others) keys.push_back(inbox_key(rank));
    const auto texts = store_.get_all(
        keys, [&](std::size_t i) { return "the address of " + team_.describe(others[i]); });
    for (std::size_t i = 0; i < others.size(); ++i) {
      const auto who = team_.describe(others[i]);
      if (texts[i].starts_with(refusal)) give_up(who, texts[i].substr(refusal.size()));
      const std::size_t space = std::min(texts[i].find(' '), texts[i].size());
      shm->await_peer(others[i], texts[i].substr(0, space));
      masks_.push_back(texts[i].substr(std::min(space + 1, texts[i].size())));
    }
    await(*shm);
    return shm;
  }

  [[noreturn]] static void give_up(const std::string& who, const std::string& why) {
    throw NoSharedMemory(fmt::format("{}: {}", who, why));
  }

  void await(ShmTransport& shm) const {
    std::chrono::microseconds nap = first_nap;
    auto next_check = Clock::now() + check_period;
    while (!shm.advance()) {
      if (Clock::now() >= store_.deadline()) {
        std::string names;
        for (const int rank : shm.absent()) names += fmt::format(" {}", team_.describe(rank));
        throw Error(ATOLL_TIMEOUT,
                    fmt::format("{}: these ranks did not attach to this rank's shared memory:{}",
                                store_.opening(), names));
      }
      if (Clock::now() >= next_check) {
        if (const auto why = store_.find(refused_key())) throw NoSharedMemory(*why);
        next_check = Clock::now() + check_period;
      }
      std::this_thread::sleep_for(nap);
      nap = std::min<std::chrono::microseconds>(nap * 2, longest_nap);
    }
  }

  const Team& team_;
  const GroupStore& store_;
  int number_;
  const std::vector<int>& here_;  // ranks of this host, including this rank
  Doorbell doorbell_;
  std::string reason_;
  // The value of own_processors() of each rank, which follows its address in the store. The value
  // of this rank is the first.
  std::vector<std::string> masks_{own_processors()};
};

// Logs once in a process that ranks use the network although they run on one host.
void report(const atoll_core& core, const GroupStore& store, const std::string& reason) {
  static std::atomic<bool> is_reported = false;
  if (is_reported.exchange(true)) return;
  const auto line = fmt::format(
      "{}: the ranks of this host cannot share memory ({}). They exchange data through the network "
      "instead, as if each ran on a host of its own, which is several times slower. Shared memory "
      "needs memfd_create, Unix sockets between the ranks, one user for all of them, and memory. "
      "This line is not repeated for other communicators.",
      store.opening(), reason);
  core.log(core.ctx, ATOLL_LOG_WARN, line.c_str());
}

std::string verdict_key(int number) { return fmt::format("inbox/verdict/{}", number); }

// Rank 0 reads in the store, for each host, whether its ranks share memory, and publishes the hosts
// whose ranks do not. Every rank returns these hosts.
std::set<int> agree(const Layout& layout, const Team& team, const GroupStore& store) {
  constexpr auto key = "inbox/split";
  if (team.rank == 0) {
    std::vector<int> numbers;
    std::vector<std::string> keys;
    for (int number = 0; number < layout.hosts(); ++number) {
      if (layout.ranks_of(number).size() == 1) continue;
      numbers.push_back(number);
      keys.push_back(verdict_key(number));
    }
    const auto what = [&](std::size_t i) {
      return fmt::format("whether the host of {} shares memory",
                         team.describe(layout.ranks_of(numbers[i]).front()));
    };
    const auto verdicts = store.get_all(keys, what, verdict_grace);
    std::string list;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (verdicts[i] != "shared") list += fmt::format("{} ", numbers[i]);
    }
    store.put(key, list.size() > longest_list ? std::string(every_host) : list);
  }
  const auto text = store.get(key, "the hosts without shared memory", 2 * verdict_grace);
  std::set<int> split;
  std::istringstream in(text);
  for (int number = 0; in >> number;) split.insert(number);
  for (int number = 0; text == every_host && number < layout.hosts(); ++number)
    split.insert(number);
  return split;
}

}  // namespace

Sharing share_memory(const atoll_core& core, const atoll_group& group, const Team& team,
                     const GroupStore& store) {
  const Layout layout = layout_of(group);
  if (layout.hosts() == layout.size()) return {.shm = {}, .masks = {own_processors()}};
  const int number = layout.host_of(team.rank);
  const auto& here = layout.ranks_of(number);
  Sharing result{.shm = {}, .masks = {own_processors()}};
  bool is_refused = false;
  if (here.size() > 1) {
    LocalOpening local(team, layout, store);
    result.shm = local.run();
    result.masks = local.masks();
    is_refused = result.shm == nullptr;
    if (is_refused && here.front() == team.rank) report(core, store, local.reason());
  }
  if (layout.hosts() == 1) {
    if (is_refused) result.split = {number};
    return result;
  }
  if (here.size() > 1 && here.front() == team.rank)
    store.put(verdict_key(number), is_refused ? "split" : "shared");
  result.split = agree(layout, team, store);
  if (result.split.contains(number)) result.shm.reset();
  return result;
}

SplitGroup::SplitGroup(const atoll_group& group, const std::set<int>& split) : group_(group) {
  const Layout layout = layout_of(group);
  for (int rank = 0; rank < group.nranks; ++rank) {
    atoll_placement place = *group.placements[rank];
    const int number = layout.host_of(rank);
    place.host = split.contains(number) ? layout.hosts() + rank : number;
    placements_.push_back(place);
  }
  for (const auto& place : placements_) pointers_.push_back(&place);
  group_.placements = pointers_.data();
}

}  // namespace atoll_collectives
