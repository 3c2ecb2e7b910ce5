// Tests what a rank does with messages of other processes of its host that no rank sends: to the
// socket of its transport while that opens, and to the socket for registered memory.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "collectives/shared_memory/caller_memory.hpp"
#include "collectives/shared_memory/passing.hpp"
#include "collectives/shared_memory/segment.hpp"
#include "collectives/shared_memory/shm_transport.hpp"
#include "collectives/shared_memory/windows.hpp"
#include "unit/plugin/sdk_error.hpp"

namespace {

using namespace atoll_collectives;
using atoll_test::sdk_error;

constexpr std::size_t page = 4096;

Fd memory_file(std::size_t bytes) {
  Fd file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
  return file;
}

// The layout of a message about registered memory.
struct WindowMessage {
  std::uint64_t magic = 0x31776f646e697461;
  std::uint64_t number = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = page;
  std::int32_t local = 1;
  std::int32_t with_file = 1;
};

struct OpenTransports {
  OpenTransports() {
    zero.await_peer(1, one.published());
    one.await_peer(0, zero.published());
    for (bool opened = false; !opened;) {
      const bool first = zero.advance();
      opened = one.advance() && first;
    }
  }

  ShmTransport zero{{0, 1}, 0, Doorbell::futex_only};
  ShmTransport one{{0, 1}, 1, Doorbell::futex_only};
};

// Rank 0 of a host with two ranks. The test plays rank 1 when rank 0 registers memory.
struct Host : OpenTransports {
  Host() {
    team.name = "world";
    team.world_ranks = {1, 3};
  }

  void send(const WindowMessage& message, int fd) const {
    const auto bytes = std::as_bytes(std::span(&message, 1));
    REQUIRE(peer.send(zero.inbox_name(0) + ".windows", bytes, fd) == 0);
  }
  // Registers memory, and returns the error.
  std::string add() {
    std::string text = sdk_error(
        [&] { windows.add(memory.data(), memory.size(), std::nullopt, 1); }, ATOLL_BAD_DATA);
    WindowMessage ignored;
    while (peer.receive(std::as_writable_bytes(std::span(&ignored, 1)))) {
    }
    return text;
  }

  Team team{};
  Windows windows{team, &zero};
  Passing peer{zero.inbox_name(1) + ".windows"};
  std::array<std::byte, page> memory{};
};

}  // namespace

TEST_CASE("registered memory of another rank is mapped only if its file has all of it") {
  const Fd file = memory_file(2 * page);
  for (const std::uint64_t offset : {page + 1, 2 * page, 3 * page, ~std::uint64_t{0}}) {
    CAPTURE(offset);
    Host host;
    host.send({.offset = offset}, file.get());
    CHECK(host.add() ==
          "registering memory with communicator world: rank 1 (world rank 3) passed a file that "
          "does not have its 4096 bytes");
  }
  {
    Host host;
    const Fd device(::open("/dev/zero", O_RDWR | O_CLOEXEC));
    host.send({}, device.get());
    CHECK(host.add() != "no error");
  }
  Host host;
  host.send({.number = 1}, file.get());  // early: rank 1 may be one window ahead
  host.send({.offset = page}, file.get());
  REQUIRE(host.add() == "no error");
  *host.windows.at(1, {0, page - 1}) = std::byte{5};
  std::byte last{};
  REQUIRE(::pread(file.get(), &last, 1, 2 * page - 1) == 1);
  CHECK(last == std::byte{5});
  host.windows.remove(host.memory.data());
  CHECK(host.add() == "no error");
}

TEST_CASE("only memory of shared mappings has a file that other processes can map") {
  using shared_memory::find_file;
  std::string private_memory(100'000, 'x');
  CHECK_FALSE(find_file(private_memory.data(), private_memory.size()).has_value());
  void* const own = shared_memory::allocate(8192);
  const auto range = find_file(static_cast<std::byte*>(own) + 100, 1000);
  REQUIRE(range.has_value());
  CHECK(range->offset == 100);
  CHECK_FALSE(find_file(static_cast<std::byte*>(own) + 8000, 8192).has_value());
  shared_memory::free(own);
}

TEST_CASE("a rank that publishes rings of an impossible size is refused") {
  const std::string word(64, 'a');
  for (const std::string_view bytes :
       {"9223372036854775808", "1048576", "0", "3", "", "-1", "99999999999999999999"}) {
    CAPTURE(bytes);
    ShmTransport transport({0, 1, 2}, 0, Doorbell::futex_only);
    const std::string text = "atoll-peer:" + std::string(bytes) + ":" + word;
    CHECK(sdk_error([&] { transport.await_peer(1, text); }, ATOLL_BAD_DATA) ==
          "rank 1 published an invalid shared memory address '" + text + "'");
  }
  ShmTransport transport({0, 1, 2}, 0, Doorbell::futex_only);
  CHECK(sdk_error([&] { transport.await_peer(1, "atoll-peer:65536:" + word); }) == "no error");
}

TEST_CASE("an inbox whose file could become shorter is refused") {
  const auto sealed = Segment::create(1, 64 * 1024);
  const auto bytes = ::lseek(sealed->file(), 0, SEEK_END);
  const Fd copy = memory_file(static_cast<std::size_t>(bytes));
  REQUIRE(::pwrite(copy.get(), &sealed->inbox(), sizeof(Inbox), 0) == sizeof(Inbox));
  const auto attach = [&] { Segment::attach(copy.get(), "atoll-peer", 1, 64 * 1024); };
  CHECK(sdk_error(attach, ATOLL_BAD_DATA) ==
        "the shared memory of a rank is not sealed, so it could shrink while in use");
  REQUIRE(::fcntl(copy.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  CHECK(sdk_error(attach) == "no error");
}
