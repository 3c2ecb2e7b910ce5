// Fuzzes what a process of the same host sends to the Unix sockets of a rank: messages with the
// inboxes of other ranks while the transport opens, and messages about registered memory. The first
// byte selects which. The rest is a script of datagrams, with or without file descriptors, and of
// what the rank does meanwhile. The rank must report bad messages or ignore them, keep no file
// descriptor, and be able to access all memory that it has mapped from a file.
//
// The ranks of a host write into each other's memory, so they trust what that memory contains. The
// fuzzer does not change it.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/shared_memory/shm_transport.hpp"
#include "collectives/shared_memory/unix_socket.hpp"
#include "collectives/shared_memory/windows.hpp"
#include "script.hpp"
#include "sdk/backend.hpp"

namespace {

using namespace atoll_collectives;
using fuzz::require;
using fuzz::Script;
using Bytes = std::vector<std::byte>;

constexpr std::size_t most_steps = 24;
constexpr std::size_t page = 4096;

std::size_t open_descriptors() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  require(folder != nullptr);
  std::size_t count = 0;
  while (::readdir(folder.get()) != nullptr) ++count;
  return count;
}

// The layouts of the two messages.
struct InboxMessage {
  std::uint64_t magic = 0x317361706e697461;
  std::int64_t local = 0;
  Digest word{};
};
struct WindowMessage {
  std::uint64_t magic = 0x31776f646e697461;
  std::uint64_t number = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::int32_t local = 0;
  std::int32_t with_file = 0;
};

template <class Message>
Bytes bytes_of(const Message& message) {
  const auto bytes = std::as_bytes(std::span(&message, 1));
  return {bytes.begin(), bytes.end()};
}

// Sends a datagram with `copies` copies of the descriptor. A full queue loses it.
void send(const std::string& name, const Bytes& data, int fd, std::size_t copies) {
  const Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  UnixAddress to(name);
  iovec part{const_cast<std::byte*>(data.data()), data.size()};
  msghdr header{};
  header.msg_name = &to.socket;
  header.msg_namelen = to.size;
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  std::array<int, 8> fds;
  fds.fill(fd);
  const std::size_t length = std::min(copies, fds.size()) * sizeof(int);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(fds))> control{};
  if (fd >= 0 && length > 0) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(length);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(length);
    std::memcpy(CMSG_DATA(rights), fds.data(), length);
  }
  ::sendmsg(socket.get(), &header, MSG_NOSIGNAL);
}

// Returns a file descriptor that another process might pass, usually that of a memfd.
Fd some_file(Script& script) {
  const auto which = script.number();
  const auto opened = [](const char* path, int how) { return Fd(::open(path, how | O_CLOEXEC)); };
  switch (which % 16) {
    case 0:
      return opened("/dev/null", O_RDWR);
    case 1:
      return opened("/dev/zero", O_RDWR);
    case 2:
      return opened("/", O_RDONLY | O_DIRECTORY);
    case 3:
      return opened("/proc/self/maps", O_RDONLY);
    case 4:
      return Fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    default:
      break;
  }
  Fd file(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto bytes = script.below(4) == 0 ? script.number<std::uint16_t>() : 4 * page;
  require(::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
  const int seals = which % 16 == 5 ? F_SEAL_WRITE : which % 16 == 6 ? F_SEAL_SHRINK : 0;
  require(::fcntl(file.get(), F_ADD_SEALS, seals) == 0);
  if (which % 16 != 7) return file;
  return opened(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY);
}

Bytes some_bytes(Script& script) {
  const std::string text = script.text(script.number());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Cuts or extends some messages.
Bytes of_some_length(Script& script, Bytes message) {
  const auto choice = script.number();
  if (choice % 8 == 1) message.resize(choice / 8);
  if (choice % 8 == 2) message.resize(message.size() + 1 + choice / 8);
  return message;
}

// A rank that the script plays. Its inbox is real.
struct Peer {
  std::unique_ptr<Segment> inbox = Segment::create(2, 64 * 1024);
  Passing passing{inbox->name() + ".inboxes"};
  Digest word = random_digest();

  std::string published() const {
    std::string text = inbox->name() + ":65536:";
    for (const unsigned octet : word) {
      for (const unsigned half : {octet >> 4U, octet & 15U}) text += "0123456789abcdef"[half];
    }
    return text;
  }
};

// Rank 0 of three opens its transport; the script plays ranks 1 and 2.
class Opening {
 public:
  explicit Opening(Script& script) : script_(script) {}

  void run() {
    transport_.await_peer(1, published(peers_[0]));
    transport_.await_peer(2, published(peers_[1]));
    for (std::size_t i = 0; i < most_steps && !script_.is_over() && !is_open_; ++i) step();
    if (is_open_) use();
  }

 private:
  std::string name() const {
    const std::string text = transport_.published();
    return text.substr(0, text.find(':'));
  }

  std::string published(const Peer& peer) {
    const auto choice = script_.number();
    std::string text = peer.published();
    if (choice % 8 == 1) return script_.text(script_.number());
    if (choice % 8 == 2) {
      text.replace(text.find(':') + 1, 5, std::to_string(script_.number<std::uint64_t>()));
    }
    if (choice % 8 == 3) {
      const auto at = std::min<std::size_t>(script_.number(), text.size());
      text.replace(at, 1, script_.text(script_.below(4)));
    }
    if (choice % 8 == 4) {
      const auto bit = std::uint64_t{1} << script_.below(64);
      text.replace(text.find(':') + 1, 5, std::to_string(bit));
    }
    return text;
  }

  void step() {
    const auto choice = script_.number();
    Peer& peer = peers_[choice / 8 % 2];
    InboxMessage message;
    message.local = 1 + choice / 8 % 2;
    message.word = peer.word;
    switch (choice % 8) {
      case 0:
        is_open_ = transport_.advance();
        break;
      case 1:
        return pass(some_bytes(script_), some_file(script_).get());
      case 2:
        message.local = script_.number<std::int64_t>();
        return pass(bytes_of(message), peer.inbox->file());
      case 3:
        message.word[script_.below(message.word.size())] ^= script_.number();
        return pass(bytes_of(message), peer.inbox->file());
      case 4:
        return pass(of_some_length(script_, bytes_of(message)), some_file(script_).get());
      case 5:
        return pass_unsealed(message, peer);
      case 6:
        return answer(peer, choice / 8 % 2);
      default:
        pass(of_some_length(script_, bytes_of(message)), peer.inbox->file());
    }
  }

  void pass(const Bytes& message, int fd) {
    const auto choice = script_.number();
    const std::string socket = choice % 16 == 15 ? name() : name() + ".inboxes";
    send(socket, message, choice % 16 == 14 ? -1 : fd, 1 + choice / 16 % 8);
  }

  // Passes a copy of an inbox, which the sender truncates after the rank has mapped it.
  void pass_unsealed(const InboxMessage& message, const Peer& peer) {
    const auto bytes = ::lseek(peer.inbox->file(), 0, SEEK_END);
    const Fd copy(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    require(::ftruncate(copy.get(), bytes) == 0);
    require(::pwrite(copy.get(), &peer.inbox->inbox(), sizeof(Inbox), 0) == sizeof(Inbox));
    pass(bytes_of(message), copy.get());
    is_open_ = transport_.advance();
    require(::ftruncate(copy.get(), 0) == 0);
  }

  // Answers as a rank does that has mapped the inbox of rank 0.
  void answer(Peer& peer, std::size_t slot) {
    InboxMessage message;
    const auto parcel = peer.passing.receive(std::as_writable_bytes(std::span(&message, 1)));
    if (!parcel || !parcel->file) return;
    const std::string text = transport_.published();
    const auto rings =
        Segment::attach(parcel->file.get(), name(), 2, std::stoul(text.substr(text.find(':') + 1)));
    rings->ring(slot).opened.store(script_.number() % 4);
  }

  void use() {
    std::array<std::byte, 100> data{};
    for (const int rank : {1, 2}) {
      require(transport_.send(rank, data) == data.size());
      require(transport_.recv(rank, data) == 0);
    }
    std::vector<pollfd> descriptors;
    transport_.arm(transport_.ticket(), {}, descriptors);
    transport_.disarm();
    transport_.notify_sleepers();
  }

  Script& script_;
  std::array<Peer, 2> peers_;
  ShmTransport transport_{{0, 1, 2}, 0, Doorbell::futex_or_socket};
  bool is_open_ = false;
};

// Two ranks whose transports are open. The script plays rank 1 when rank 0 registers memory.
struct Host {
  Host() {
    zero.await_peer(1, one.published());
    one.await_peer(0, zero.published());
    for (bool opened = false; !opened;) {
      const bool first = zero.advance();
      opened = one.advance() && first;
    }
    team.name = "fuzz";
    team.world_ranks = {0, 1};
    memory = static_cast<std::byte*>(shared_memory::allocate(4 * page));
  }

  ShmTransport zero{{0, 1}, 0, Doorbell::futex_only};
  ShmTransport one{{0, 1}, 1, Doorbell::futex_only};
  Team team;
  std::byte* memory = nullptr;
};

class Registering {
 public:
  Registering(Script& script, Host& host)
      : script_(script), host_(host), peer_(host.zero.inbox_name(1) + ".windows") {}

  void run() {
    for (std::size_t i = 0; i < 3 && !script_.is_over(); ++i) {
      const std::size_t bytes = 1 + script_.number<std::uint16_t>() % (4 * page);
      for (std::size_t k = script_.below(6); k-- > 0;) message(i, bytes);
      add(i, bytes);
    }
  }

 private:
  void message(std::uint64_t number, std::size_t bytes) {
    const auto choice = script_.number();
    WindowMessage one{.number = number, .bytes = bytes, .local = 1, .with_file = 1};
    if (choice % 8 == 1) return pass(some_bytes(script_));
    if (choice % 8 == 2) one.local = script_.number<std::int32_t>();
    if (choice % 8 == 3) one.bytes = script_.number<std::uint64_t>();
    if (choice % 8 == 4) one.number = script_.number<std::uint64_t>();
    if (choice % 8 == 5) one.offset = script_.number<std::uint64_t>();
    if (choice % 8 == 6) one.offset = script_.number<std::uint16_t>();
    if (choice / 8 % 8 == 1) one.with_file = script_.number<std::int32_t>();
    pass(of_some_length(script_, bytes_of(one)));
  }

  void pass(const Bytes& message) {
    const auto choice = script_.number();
    const Fd file = choice % 16 == 15 ? Fd() : some_file(script_);
    send(host_.zero.inbox_name(0) + ".windows", message, file.get(), 1 + choice / 16 % 8);
  }

  // Registers memory and, if that succeeds, reads and writes that of the peer.
  void add(std::size_t number, std::size_t bytes) {
    const auto choice = script_.number();
    std::optional<shared_memory::Range> range;
    if (choice % 4 != 0) range = shared_memory::find(host_.memory, bytes);
    windows_.add(host_.memory, bytes, range, 1);
    std::byte* const there = windows_.at(1, {static_cast<std::int64_t>(number), 0});
    if (there != nullptr) {
      for (const std::size_t at : {std::size_t{0}, bytes / 2, bytes - 1}) {
        *const_cast<volatile std::byte*>(there + at) = std::byte{1};
      }
    }
    require(windows_.overlaps(host_.memory, 1));
    windows_.remove(host_.memory);
  }

  Script& script_;
  Host& host_;
  Passing peer_;  // takes the messages of rank 0
  Windows windows_{host_.team, &host_.zero};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size == 0 || size > 4096) return 0;
  static Host host;
  const std::size_t before = open_descriptors();
  Script script({data, size});
  try {
    if (script.number() % 2 == 0) {
      Opening(script).run();
    } else {
      Registering(script, host).run();
    }
  } catch (const atoll_sdk::Error&) {
  }
  require(open_descriptors() == before);
  return 0;
}
