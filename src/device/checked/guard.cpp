#include "device/checked/guard.hpp"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "device/checked/fault_handler.hpp"

namespace atoll_v1::atoll::checked {
namespace {

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

class Guard final : public GuardedMapping {
 public:
  // Takes over the mapping of `length` bytes at `pages`; the memory begins `before` bytes into it.
  Guard(void* pages, std::size_t length, std::size_t before, GuardRule rule)
      : pages_(pages), length_(length), before_(before), rule_(std::move(rule)) {}
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() override;

  void announce(Range first, std::shared_ptr<Lifetimes> lifetimes);
  void* data() const noexcept override { return static_cast<std::byte*>(pages_) + before_; }
  void begin() noexcept override { open_ = true; }
  void end() noexcept override { open_ = false; }
  void allow() noexcept override {
    allowed_ = true;
    ::mprotect(pages_, length_, rule_.access == Access::write ? PROT_READ | PROT_WRITE : PROT_READ);
  }
  void forbid() noexcept override {
    allowed_ = false;
    ::mprotect(pages_, length_, PROT_NONE);
  }

  std::uintptr_t begin_address() const noexcept { return address_of(pages_); }
  std::uintptr_t end_address() const noexcept { return address_of(pages_) + length_; }
  const GuardRule& rule() const noexcept { return rule_; }
  std::string describe(std::uintptr_t address) const;

 private:
  void* pages_;
  std::size_t length_, before_;
  GuardRule rule_;
  std::shared_ptr<Lifetimes> lifetimes_;
  std::atomic<bool> open_{false};
  std::atomic<bool> allowed_{false};
};

// All guards of the process. A signal handler can find its data only through a global variable.
struct Guards {
  std::mutex mutex;
  std::map<std::uintptr_t, const Guard*> by_end;  // guards by the end address of their mapping
};
Guards& guards() {
  static Guards all;
  return all;
}

// Prints and reports the message if the address belongs to a guard; returns false otherwise. The
// instruction that caused the signal uses a tensor, so this thread holds no lock that the report
// needs.
bool report(std::uintptr_t address) {
  std::string text;
  std::function<void(const std::string&)> on_fault;
  {
    const std::lock_guard lock(guards().mutex);
    const auto found = guards().by_end.upper_bound(address);
    if (found == guards().by_end.end() || address < found->second->begin_address()) return false;
    text = found->second->describe(address);
    on_fault = found->second->rule().on_fault;
  }
  const std::string line = text + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  if (on_fault) on_fault(text);
  return true;
}

Guard::~Guard() {
  {
    const std::lock_guard lock(guards().mutex);
    guards().by_end.erase(end_address());
  }
  if (lifetimes_) lifetimes_->unmapped(data());
  ::munmap(pages_, length_);
}

void Guard::announce(Range first, std::shared_ptr<Lifetimes> lifetimes) {
  lifetimes_ = std::move(lifetimes);
  lifetimes_->mapped({data(), first.bytes}, first.data);
  const std::lock_guard lock(guards().mutex);
  guards().by_end.emplace(end_address(), this);
  install_fault_handler(report);
}

std::string Guard::describe(std::uintptr_t address) const {
  std::string_view name = "memory between parameters";
  for (const GuardedPart& part : rule_.parts) {
    if (address - address_of(data()) - part.offset < part.bytes) name = part.name;
  }
  const std::string& what = allowed_ ? rule_.written : open_ ? rule_.early : rule_.late;
  return fmt::format("{}{} {}", lifetimes_->prefix(), name, what);
}

}  // namespace

void* allocate_shared(std::size_t bytes) {
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (data != MAP_FAILED) return data;
  throw Error(ErrorCode::out_of_memory, fmt::format("CPU memory: cannot allocate {} bytes", bytes));
}

void free_shared(void* data, std::size_t bytes) noexcept { ::munmap(data, bytes); }

std::shared_ptr<GuardedMapping> map_guarded(Range memory, GuardRule rule,
                                            std::shared_ptr<Lifetimes> lifetimes) {
  const std::size_t before = address_of(memory.data) % page_bytes();
  const std::size_t length =
      (before + memory.bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  void* const first = reinterpret_cast<void*>(address_of(memory.data) - before);
  // With an old size of 0, mremap() maps shared pages a second time and leaves the first mapping.
  void* const pages = ::mremap(first, 0, length, MREMAP_MAYMOVE);
  if (pages == MAP_FAILED) return nullptr;
  auto guard = std::make_shared<Guard>(pages, length, before, std::move(rule));
  guard->forbid();
  guard->announce(memory, std::move(lifetimes));
  return guard;
}

}  // namespace atoll_v1::atoll::checked
