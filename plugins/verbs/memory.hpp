// Memory that is registered with the adapters of all rails. Communicators of a process that use the
// same adapters share registrations: each range is registered once, until the last user drops it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "verbs/hca.hpp"
#include "verbs/stream.hpp"

namespace atoll_verbs_backend {

using Hcas = std::vector<std::shared_ptr<Hca>>;

// Zeroed memory of whole pages that an adapter may write.
struct Pages {
  explicit Pages(std::size_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::span<std::byte> bytes;
};

// The order in which the writes of an adapter reach the memory. With `relaxed` the writes may
// overtake each other, so PCIe moves them faster; a completion still shows that the data before it
// has arrived. Memory must be `strict` if it is read without a completion, or written again before
// the completion has been read.
enum class Ordering {
  strict,
  relaxed,
};

// A registered range. The registration ends with the object.
class Registered {
 public:
  Registered(const Hcas& hcas, std::span<std::byte> memory, Ordering ordering);
  const Region& region() const noexcept { return region_; }

 private:
  Hcas hcas_;  // adapters, which must outlive the registrations
  std::vector<Registration> registrations_;
  Region region_;
};

// Returns the registration of the range, which users of equal adapters share. Throws Error if an
// adapter refuses it.
std::shared_ptr<const Registered> register_range(const Hcas& hcas, std::span<std::byte> memory,
                                                 Ordering ordering);

// The registered ranges that one communicator knows. They do not overlap.
class Ranges {
 public:
  void add(const Hcas& hcas, std::span<std::byte> memory);
  void remove(const std::byte* memory) { ranges_.erase(memory); }
  // Returns the range that contains all of `data`, or null.
  const Region* find(std::span<const std::byte> data) const;

 private:
  std::map<const std::byte*, std::shared_ptr<const Registered>> ranges_;
};

}  // namespace atoll_verbs_backend
