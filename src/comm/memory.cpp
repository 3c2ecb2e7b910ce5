// atoll::allocate: memory that the backends of some communicators use without a copy.
// atoll::allocate_alone: memory of one rank, which the other ranks do not know.
// atoll::register_memory: memory of the caller, which the backends map or register if they can.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <set>

#include "atoll/communicator.hpp"
#include "comm/communicator_impl.hpp"
#include "comm/memory_agreement.hpp"
#include "comm/registry/backend_choice.hpp"
#include "core/log.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll {
namespace {

std::string allocation(const BackendCommunicator& group, std::size_t bytes) {
  return fmt::format("allocate {} bytes for communicator {}", bytes, group.name());
}

// Who makes a call: all ranks, which must then fail together, or this rank alone.
enum class Callers {
  all_ranks,
  this_rank
};

void check(BackendCommunicator& group, Callers callers, atoll_status status,
           const std::string& what) {
  if (callers == Callers::all_ranks) return group.check(status, what);
  if (status == ATOLL_OK) return;
  throw make_error(static_cast<ErrorCode>(status), "cannot {}: {}", what,
                   last_error(group.plugin(), group.handle()));
}

// One allocation. The first backend that has an allocator allocates the memory; without such
// a backend, the device does.
class Memory {
 public:
  Memory(const Device& device, std::size_t bytes,
         std::span<const std::shared_ptr<BackendCommunicator>> groups, Callers callers)
      : device_(device), bytes_(bytes) {
    for (const auto& group : groups) {
      if (!group->plugin().table.mem_alloc) continue;
      check(*group, callers,
            group->plugin().table.mem_alloc(bytes, memory_of(device.kind()), device.ordinal(),
                                            &data_),
            allocation(*group, bytes));
      owner_ = &group->plugin();
      device.backend()->adopt(data_, bytes);
      return;
    }
    buffer_ = device.allocate(bytes);
    data_ = buffer_.data();
    Stream stream = device.stream({.name = "allocate"});
    stream.zero(data_, bytes);
    stream.synchronize();
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (!owner_) return;
    if (owner_->table.mem_free(data_) == ATOLL_OK) return;
    log::warn("cannot free {} bytes: {}", bytes_, last_error(*owner_, nullptr));
  }

  // Call this when the user has destroyed the Buffer, while backends may still have the memory
  // registered.
  void leave() const noexcept {
    if (owner_) device_.backend()->disown(data_, bytes_);
  }

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  Device device_;
  std::size_t bytes_;
  const Plugin* owner_ = nullptr;  // backend that allocated the memory; null if the device did
  void* data_ = nullptr;
  Buffer buffer_;
};

// Memory and its registrations. When the user destroys the Buffer, every open communicator keeps
// the memory alive until its operations in flight are complete and the memory is deregistered, or
// the communicator is closed.
class RegisteredMemory {
 public:
  explicit RegisteredMemory(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  ~RegisteredMemory() {
    memory_->leave();
    for (auto& entry : registered_) {
      const auto group = entry.group.lock();
      if (!group) continue;
      group->registered().remove(memory_->data());
      if (entry.retired.empty()) continue;
      entry.retired.front().memory = std::shared_ptr<void>(memory_, memory_->data());
      group->retire(entry.retired);
    }
  }

  void register_with(const std::shared_ptr<BackendCommunicator>& group) {
    const auto register_memory = group->plugin().table.register_memory;
    // Unregistered GPU memory is not retired: freeing it waits for the operations that use it.
    const bool retires = register_memory || group->device().kind() == DeviceKind::cpu;
    registered_.push_back({{}, RetiredMemory::List(retires ? 1 : 0)});
    group->registered().add(memory_->data(), memory_->bytes());
    if (register_memory) {
      group->check(register_memory(group->handle(), memory_->data(), memory_->bytes()),
                   allocation(*group, memory_->bytes()));
    }
    registered_.back().group = group;
  }
  // Messages with tags may use the memory too. Their group does not register it.
  void keep_for(const std::shared_ptr<BackendCommunicator>& tags) {
    registered_.push_back({tags, RetiredMemory::List(1)});
  }

 private:
  struct Entry {
    std::weak_ptr<BackendCommunicator> group;  // empty until the memory is registered
    // List element that the destructor passes to retire(), so that it need not allocate one; empty
    // if the memory may be freed at once.
    RetiredMemory::List retired;
  };

  std::shared_ptr<Memory> memory_;
  std::vector<Entry> registered_;
};

// The groups that the communicators of a call use.
struct Groups {
  std::vector<std::shared_ptr<BackendCommunicator>> all;  // with groups inside and across hosts
  std::vector<const BackendCommunicator*> named;  // one group per communicator of the caller
  std::vector<std::shared_ptr<BackendCommunicator>> tags;  // of the communicators that have tags
  std::vector<std::unique_lock<std::mutex>> calling;

  void add(const Communicator::Impl& communicator) {
    named.push_back(communicator.group.get());
    all.push_back(communicator.group);
    if (communicator.tags) tags.push_back(communicator.tags);
    if (!communicator.two_level) return;
    for (auto& part : communicator.two_level->parts()) all.push_back(std::move(part));
  }
  // Waits until the operations of the groups have ended, and keeps other callers out until this
  // object is destroyed. Two calls that name the same communicators in different orders lock them
  // in the same one. Callbacks of operations may call a group, so nothing is locked during a wait.
  void lock() {
    std::set<std::mutex*, std::less<>> mutexes;
    for (const BackendCommunicator* group : named) mutexes.insert(&group->calling());
    while (true) {
      for (std::mutex* mutex : mutexes) calling.emplace_back(*mutex);
      if (std::ranges::all_of(all, &BackendCommunicator::is_idle)) return;
      calling.clear();
      for (const BackendCommunicator* group : named) group->call_when_idle().unlock();
    }
  }
};

// Requires memory that this process has mapped. The addresses of a GPU are not checked.
void check_memory(void* memory, std::size_t bytes, DeviceKind kind) {
  require(memory != nullptr && bytes > 0,
          "the memory is null or has 0 bytes: pass memory that is allocated");
  if (kind != DeviceKind::cpu) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(memory) / page * page;
  const std::size_t length = reinterpret_cast<std::uintptr_t>(memory) - first + bytes;
  // MS_ASYNC writes nothing back; the call only fails if a page is not mapped.
  const bool mapped =
      length > bytes - 1 && ::msync(reinterpret_cast<void*>(first), length, MS_ASYNC) == 0;
  require(mapped,
          "the {} bytes at {} are not all memory of this process: pass memory that is allocated",
          bytes, memory);
}

// Requires memory that is not registered with the group, not even in part.
void check_apart(const BackendCommunicator& group, const void* memory, std::size_t bytes) {
  const auto other = group.registered().overlap(memory, bytes);
  require(!other,
          "the {} bytes at {} overlap the {} bytes at {}, which are registered already: end that "
          "registration first",
          bytes, memory, other->bytes, other->memory);
}

// Requires that the caller names each communicator once.
void check_named_once(std::span<const BackendCommunicator* const> groups,
                      const BackendCommunicator& group) {
  require(std::ranges::count(groups, &group) == 1,
          "the call names this communicator twice: name each communicator once");
}

void prepare(const std::vector<std::shared_ptr<BackendCommunicator>>& groups) {
  // After an abort() other ranks might never make this call, so this rank must not wait for them.
  for (const auto& group : groups) group->check_ended();
  for (const auto& group : groups) {
    group->wait_for_last();       // a backend accepts only one caller at a time
    group->deregister_retired();  // frees memory that the new allocation may need
  }
}

}  // namespace

Buffer allocate(const Device& device, std::size_t bytes,
                std::span<const std::reference_wrapper<Communicator>> communicators) {
  Groups groups;
  for (const Communicator& communicator : communicators) groups.add(*communicator.impl_);
  if (bytes == 0) return {};
  groups.lock();
  prepare(groups.all);
  agree_on_memory(groups.named, MemoryCall::allocates, bytes,
                  [&](const BackendCommunicator& group) { check_named_once(groups.named, group); });
  const auto memory = std::make_shared<Memory>(device, bytes, groups.all, Callers::all_ranks);
  auto registered = std::make_shared<RegisteredMemory>(memory);
  for (const auto& group : groups.all) registered->register_with(group);
  for (const auto& group : groups.tags) registered->keep_for(group);
  return Buffer(std::shared_ptr<void>(std::move(registered), memory->data()), bytes);
}

struct Registration::State {
  void* memory;
  std::vector<std::weak_ptr<BackendCommunicator>> registered;
  std::string slow;

  explicit State(void* memory_) : memory(memory_) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    for (const auto& entry : registered) {
      if (const auto group = entry.lock()) end(*group);
    }
  }

  void register_with(const std::shared_ptr<BackendCommunicator>& group, std::size_t bytes) {
    const Plugin& plugin = group->plugin();
    const char* why = nullptr;
    registered.emplace_back();
    group->registered().add(memory, bytes);
    if (plugin.table.register_caller_memory == nullptr) {
      why = "the backend has no registration, and uses this memory as it is";
    } else {
      group->check(plugin.table.register_caller_memory(group->handle(), memory, bytes, &why),
                   fmt::format("register {} bytes with communicator {}", bytes, group->name()));
    }
    registered.back() = group;
    if (why != nullptr && slow.empty()) {
      slow = fmt::format("communicator {} on backend {}: {}", group->name(), plugin.name, why);
    }
  }

  // Registers memory that the other ranks do not know. Returns false if the backend cannot.
  bool register_alone(const std::shared_ptr<BackendCommunicator>& group, std::size_t bytes) {
    const auto& table = group->plugin().table;
    const auto register_own = table.register_own_memory;
    if (register_own == nullptr || table.deregister_caller_memory == nullptr) return false;
    registered.reserve(registered.size() + 1);
    check(*group, Callers::this_rank, register_own(group->handle(), memory, bytes),
          allocation(*group, bytes));
    group->registered().add(memory, bytes);
    registered.push_back(group);
    return true;
  }

  // The caller may free the memory afterwards, so the backend must forget the memory at once, and
  // not at the communicator's next call.
  void end(BackendCommunicator& group) const {
    group.registered().remove(memory);
    const auto deregister = group.plugin().table.deregister_caller_memory;
    if (deregister == nullptr) return;
    const auto calling = group.call_when_idle();
    const atoll_status status = deregister(group.handle(), memory);
    if (status == ATOLL_OK || status == ATOLL_ABORTED) return;
    log::warn("communicator {}: cannot deregister memory: {}", group.name(),
              last_error(group.plugin(), group.handle()));
  }
};

namespace {

// Memory of one rank. The destructor waits for collectives that may use the memory. Groups for
// messages with tags keep the memory until their messages are complete.
template <class Registrations>
class OwnMemory {
 public:
  OwnMemory(const Device& device, std::size_t bytes, const Groups& groups)
      : memory_(std::make_shared<Memory>(device, bytes, groups.all, Callers::this_rank)),
        registrations_(memory_->data()) {
    for (const auto& group : groups.tags) tags_.emplace_back(group, RetiredMemory::List(1));
  }
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;
  ~OwnMemory() {
    memory_->leave();
    for (const auto& entry : unregistered_) {
      if (const auto group = entry.lock()) group->call_when_idle().unlock();
    }
    for (auto& [entry, retired] : tags_) {
      const auto group = entry.lock();
      if (!group) continue;
      retired.front().memory = std::shared_ptr<void>(memory_, memory_->data());
      group->retire(retired);
    }
  }

  void register_with(const Groups& groups) {
    unregistered_.reserve(groups.all.size());
    for (const auto& group : groups.all) {
      if (!registrations_.register_alone(group, memory_->bytes())) unregistered_.push_back(group);
    }
  }
  void* data() const noexcept { return memory_->data(); }

 private:
  std::shared_ptr<Memory> memory_;
  Registrations registrations_;  // ends before the memory is freed
  std::vector<std::weak_ptr<BackendCommunicator>> unregistered_;
  std::vector<std::pair<std::weak_ptr<BackendCommunicator>, RetiredMemory::List>> tags_;
};

}  // namespace

Buffer allocate_alone(const Device& device, std::size_t bytes,
                      std::span<const std::reference_wrapper<Communicator>> communicators) {
  Groups groups;
  for (const Communicator& communicator : communicators) groups.add(*communicator.impl_);
  for (const BackendCommunicator* group : groups.named) check_named_once(groups.named, *group);
  if (bytes == 0) return {};
  groups.lock();
  for (const auto& group : groups.all) group->check_ended();
  const auto own = std::make_shared<OwnMemory<Registration::State>>(device, bytes, groups);
  try {
    own->register_with(groups);
  } catch (const std::exception&) {
    groups.calling.clear();  // the destructor of `own` takes them
    throw;
  }
  return Buffer(std::shared_ptr<void>(own, own->data()), bytes);
}

Registration::Registration() = default;
Registration::Registration(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Registration::Registration(Registration&&) noexcept = default;
Registration& Registration::operator=(Registration&&) noexcept = default;
Registration::~Registration() = default;

void Registration::deregister() noexcept { state_.reset(); }

bool Registration::fast() const noexcept { return state_ && state_->slow.empty(); }

const std::string& Registration::slow() const noexcept {
  static const std::string nothing = "no memory is registered";
  return state_ ? state_->slow : nothing;
}

Registration register_memory(void* memory, std::size_t bytes,
                             std::span<const std::reference_wrapper<Communicator>> communicators) {
  require(!communicators.empty(),
          "register_memory: no communicator is given: name those that will use the memory");
  Groups groups;
  for (const Communicator& communicator : communicators) groups.add(*communicator.impl_);
  groups.lock();
  prepare(groups.all);
  agree_on_memory(groups.named, MemoryCall::registers, bytes,
                  [&](const BackendCommunicator& group) {
                    check_named_once(groups.named, group);
                    check_memory(memory, bytes, group.device().kind());
                    check_apart(group, memory, bytes);
                  });
  auto state = std::make_unique<Registration::State>(memory);
  for (const auto& group : groups.all) state->register_with(group, bytes);
  return Registration(std::move(state));
}

}  // namespace atoll_v1::atoll
