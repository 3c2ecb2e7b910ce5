#include "verbs/memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <mutex>
#include <tuple>

namespace atoll_verbs_backend {

Pages::Pages(std::size_t size) {
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    throw atoll_sdk::Error(ATOLL_OUT_OF_MEMORY,
                           fmt::format("no {} bytes of memory for RDMA", size));
  }
  // Copy-on-write after a fork could give this process other pages than those that adapters write.
  ::madvise(memory, size, MADV_DONTFORK);
  bytes = {static_cast<std::byte*>(memory), size};
}

Pages::~Pages() { ::munmap(bytes.data(), bytes.size()); }

namespace {

constexpr int access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
// libibverbs drops IBV_ACCESS_RELAXED_ORDERING where the kernel does not know it.
constexpr int relaxed_flags = access_flags | IBV_ACCESS_RELAXED_ORDERING;

}  // namespace

Registered::Registered(const Hcas& hcas, std::span<std::byte> memory, Ordering ordering)
    : hcas_(hcas) {
  region_.memory = memory;
  const int flags = ordering == Ordering::relaxed ? relaxed_flags : access_flags;
  for (std::size_t rail = 0; rail < hcas.size(); ++rail) {
    const auto what =
        fmt::format("{}: cannot register {} bytes of memory", hcas[rail]->name(), memory.size());
    ibv_mr* const one =
        checked(ibv_reg_mr(hcas[rail]->domain(), memory.data(), memory.size(), flags), what);
    registrations_.emplace_back(one);
    region_.local[rail] = one->lkey;
    region_.remote[rail] = one->rkey;
  }
}

std::shared_ptr<const Registered> register_range(const Hcas& hcas, std::span<std::byte> memory,
                                                 Ordering ordering) {
  using Key = std::tuple<const std::byte*, std::size_t, Ordering, std::vector<const Hca*>>;
  static std::mutex mutex;
  static std::map<Key, std::weak_ptr<const Registered>> registered;
  std::vector<const Hca*> adapters;
  for (const auto& hca : hcas) adapters.push_back(hca.get());
  const std::lock_guard lock(mutex);
  std::erase_if(registered, [](const auto& entry) { return entry.second.expired(); });
  auto& known = registered[{memory.data(), memory.size(), ordering, adapters}];
  auto result = known.lock();
  if (!result) {
    result = std::make_shared<const Registered>(hcas, memory, ordering);
    known = result;
  }
  return result;
}

void Ranges::add(const Hcas& hcas, std::span<std::byte> memory) {
  ranges_.insert_or_assign(memory.data(), register_range(hcas, memory, Ordering::relaxed));
}

const Region* Ranges::find(std::span<const std::byte> data) const {
  auto next = ranges_.upper_bound(data.data());
  if (next == ranges_.begin()) return nullptr;
  const Region& region = std::prev(next)->second->region();
  const auto* const end = region.memory.data() + region.memory.size();
  return data.data() + data.size() <= end ? &region : nullptr;
}

}  // namespace atoll_verbs_backend
