#include "collectives/shared_memory/windows.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <span>
#include <thread>

#include "sdk/backend.hpp"

namespace atoll_collectives {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Identifies a message about a window: "atindow1".
constexpr std::uint64_t window_magic = 0x31776f646e697461;
constexpr auto look_period = 5ms;
constexpr auto retry_period = 100us;

// Returns the address of a rank's socket, which is derived from the random name of the rank's
// inbox.
std::string window_address(const std::string& inbox) { return inbox + ".windows"; }

std::uintptr_t number_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

// Returns true if the file has all of the range. An access beyond its end would raise SIGBUS.
bool has_range(int fd, std::uint64_t offset, std::uint64_t bytes) {
  struct stat file {};
  if (::fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) return false;
  const auto size = static_cast<std::uint64_t>(file.st_size);
  return offset <= size && bytes <= size - offset;
}

}  // namespace

struct Windows::Message {
  std::uint64_t magic;
  std::uint64_t number;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::int32_t local;
  std::int32_t with_file;
};

Windows::Windows(const Team& team, const ShmTransport* transport)
    : team_(team), transport_(transport) {
  if (transport_ != nullptr)
    passing_.emplace(window_address(transport_->inbox_name(transport_->self())));
}

// Sends a message, together with the file descriptor `fd` unless `fd` is -1. Returns false if the
// peer's queue is full or if the peer has not opened the communicator yet; the caller then tries
// again.
bool Windows::send(int local, const Message& message, int fd) const {
  const auto peer = static_cast<std::size_t>(local);
  const int error = passing_->send(window_address(transport_->inbox_name(peer)),
                                   std::as_bytes(std::span(&message, 1)), fd);
  if (error == 0) return true;
  if (Passing::is_momentary(error)) return false;
  if (error == ECONNREFUSED && !transport_->closed(peer)) return false;
  throw Error(ATOLL_PEER_LOST,
              fmt::format("cannot pass memory to {}: {}", team_.describe(transport_->ranks()[peer]),
                          std::strerror(error)));
}

// Receives one message; returns false if the queue is empty. Ignores messages from processes of
// other users, and messages about windows that no rank can register now, because keeping them would
// keep their files open. Another rank is at most one window ahead, since it needs a message of this
// rank for each window.
bool Windows::receive_one() {
  Message message{};
  auto parcel = passing_->receive(std::as_writable_bytes(std::span(&message, 1)));
  if (!parcel) return false;
  const bool ours = parcel->is_ours && parcel->bytes == sizeof(message) &&
                    message.magic == window_magic && message.local >= 0 &&
                    static_cast<std::size_t>(message.local) < transport_->ranks().size() &&
                    message.number - windows_.size() <= 1;
  if (!ours) return true;
  if (message.with_file != 0 && !parcel->file) {
    throw Error(
        ATOLL_IO,
        fmt::format("registering memory with communicator {}: {} has no file "
                    "descriptor left for the memory of {}; raise `ulimit -n`",
                    team_.name, team_.describe(team_.rank),
                    team_.describe(transport_->ranks()[static_cast<std::size_t>(message.local)])));
  }
  arrived_[{message.number, message.local}] = {message.offset, message.bytes,
                                               std::move(parcel->file)};
  return true;
}

void Windows::exchange(const Message& mine, int fd, std::int64_t timeout_ns) {
  const auto deadline = timeout_ns > 0 ? Clock::now() + std::chrono::nanoseconds(timeout_ns)
                                       : Clock::time_point::max();
  std::set<int> to_send;
  for (std::size_t i = 0; i < transport_->ranks().size(); ++i) {
    if (i != transport_->self()) to_send.insert(static_cast<int>(i));
  }
  std::set<int> to_receive = to_send;
  while (true) {
    std::erase_if(to_send, [&](int local) { return send(local, mine, fd); });
    for (int i = 0; i < Passing::most_at_once && receive_one(); ++i) {
    }
    std::erase_if(to_receive, [&](int local) { return arrived_.contains({mine.number, local}); });
    if (to_send.empty() && to_receive.empty()) return;
    if (team_.aborted.load(std::memory_order_acquire))
      throw Error(ATOLL_ABORTED, "registering memory was aborted");
    if (Clock::now() >= deadline) {
      std::string names;
      std::set<int> absent = to_receive;
      absent.insert(to_send.begin(), to_send.end());
      for (const int local : absent) {
        names += " " + team_.describe(transport_->ranks()[static_cast<std::size_t>(local)]);
      }
      throw Error(ATOLL_TIMEOUT,
                  fmt::format("registering memory with communicator {} timed out; absent:{}",
                              team_.name, names));
    }
    if (!to_send.empty()) {
      std::this_thread::sleep_for(retry_period);
    } else {
      pollfd descriptor{passing_->get(), POLLIN, 0};
      ::poll(&descriptor, 1, static_cast<int>(look_period / 1ms));
    }
  }
}

bool Windows::overlaps(const void* memory, std::size_t bytes) const noexcept {
  const std::uintptr_t begin = number_of(memory);
  return std::ranges::any_of(by_address_, [&](const auto& entry) {
    return entry.first < begin + bytes && begin < entry.first + windows_[entry.second].bytes;
  });
}

void Windows::add(void* memory, std::size_t bytes, const std::optional<shared_memory::Range>& file,
                  std::int64_t timeout_ns) {
  Window window;
  window.own = static_cast<std::byte*>(memory);
  window.bytes = bytes;
  const auto number = static_cast<std::uint64_t>(windows_.size());
  if (transport_ != nullptr) {
    window.shared = file.has_value();
    window.parts.resize(transport_->ranks().size());
    const Message mine{window_magic,
                       number,
                       file ? file->offset : 0,
                       bytes,
                       static_cast<std::int32_t>(transport_->self()),
                       file ? 1 : 0};
    exchange(mine, file ? file->file->get() : -1, timeout_ns);
    for (std::size_t i = 0; i < window.parts.size(); ++i) {
      auto node = arrived_.extract({number, static_cast<int>(i)});
      if (node.empty()) continue;
      const Part& part = node.mapped();
      if (part.bytes != bytes) {
        throw Error(ATOLL_MISMATCH,
                    fmt::format("registering memory with communicator {}: {} registers {} bytes "
                                "where {} registers {}",
                                team_.name, team_.describe(team_.rank), bytes,
                                team_.describe(transport_->ranks()[i]), part.bytes));
      }
      if (!part.file) continue;
      if (!has_range(part.file.get(), part.offset, bytes)) {
        throw Error(ATOLL_BAD_DATA,
                    fmt::format("registering memory with communicator {}: {} passed a file that "
                                "does not have its {} bytes",
                                team_.name, team_.describe(transport_->ranks()[i]), bytes));
      }
      window.parts[i] = Mapping(part.file.get(), part.offset, bytes);
    }
  }
  by_address_[number_of(memory)] = windows_.size();
  windows_.push_back(std::move(window));
}

void Windows::remove(void* memory) {
  const auto found = by_address_.find(number_of(memory));
  if (found == by_address_.end()) {
    throw Error(ATOLL_NOT_FOUND, "deregister_memory: this address is not registered");
  }
  windows_[found->second] = Window{};
  by_address_.erase(found);
}

WindowOffset Windows::find(const void* data, std::size_t bytes) const noexcept {
  const auto after = by_address_.upper_bound(number_of(data));
  if (after == by_address_.begin()) return {};
  const auto& [begin, number] = *std::prev(after);
  const Window& window = windows_[number];
  const std::size_t offset = number_of(data) - begin;
  if (!window.shared || offset > window.bytes || bytes > window.bytes - offset) return {};
  return {static_cast<std::int64_t>(number), offset};
}

std::byte* Windows::at(int local, const WindowOffset& place) const {
  const auto& window = windows_[static_cast<std::size_t>(place.window)];
  const auto i = static_cast<std::size_t>(local);
  if (i == (transport_ == nullptr ? 0 : transport_->self())) return window.own + place.offset;
  if (i >= window.parts.size()) {
    throw Error(ATOLL_INVALID_ARGUMENT,
                fmt::format("communicator {}: {} still uses memory that {} has freed", team_.name,
                            team_.describe(transport_->ranks()[i]), team_.describe(team_.rank)));
  }
  return window.parts[i].data() + place.offset;
}

}  // namespace atoll_collectives
