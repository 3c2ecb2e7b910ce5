// Tests what a rank says when it opens a communicator and may open no more files. It is a program
// for itself: a backend that another test had loaded would need no file.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "atoll/communicator.hpp"
#include "atoll/flight.hpp"
#include "atoll/mesh.hpp"
#include "flight/flight.hpp"
#include "thread_ranks.hpp"
#include "unit/error_text.hpp"
#include "unit/rank_reports.hpp"
#include "world/world_internals.hpp"

namespace {

#ifdef ATOLL_SANITIZE_ADDRESS
// The undefined-behaviour sanitizer opens a pipe to find out whether an object's memory may be
// read. Without a free descriptor it calls every object with virtual functions invalid.
[[maybe_unused]] const bool skipped = [] {
  std::puts("skipped: the undefined-behaviour sanitizer needs file descriptors");
  std::exit(77);
  return true;
}();
#endif

// Takes all free descriptors from this process, and returns its new limit.
int take_descriptors() {
  const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(next);
  const rlimit limit{static_cast<rlim_t>(next), static_cast<rlim_t>(next)};
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return next;
}

// Returns the text with N in place of the limit.
std::string with_n(std::string text, int limit) {
  const std::string told = "(now " + std::to_string(limit) + ")";
  const std::size_t at = text.find(told);
  return at == std::string::npos ? text : text.replace(at, told.size(), "(now N)");
}

// A child process that sends a text to this process when it ends.
class Child {
 public:
  explicit Child(const std::function<std::string()>& action) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::alarm(60);
      ::dprintf(ends[1], "%s", action().c_str());
      ::_exit(0);
    }
    ::close(ends[1]);
    from_ = ends[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    ::close(from_);
    ::waitpid(pid_, nullptr, 0);
  }

  std::string text() const {
    std::string result;
    std::array<char, 1024> piece{};
    for (ssize_t n = 0; (n = ::read(from_, piece.data(), piece.size())) > 0;) {
      result.append(piece.data(), static_cast<std::size_t>(n));
    }
    return result;
  }

 private:
  pid_t pid_ = -1;
  int from_ = -1;
};

// Returns the error of a rank that opens a communicator, with or without free descriptors.
std::string error_of_rank(atoll::Config config, bool has_descriptors) {
  int limit = 0;
  const std::string error = atoll_test::error_of([&] {
    atoll::World world = atoll::World::from_env(config);
    const auto mesh = atoll::Mesh::make(world, {1, world.size()});
    world.barrier();
    if (!has_descriptors) limit = take_descriptors();
    try {
      atoll::Communicator::open(mesh.axis("shard"));
    } catch (const atoll::Error&) {
      world.barrier();  // the other rank has its error too, before this one leaves the job
      throw;
    }
  });
  return with_n(error, limit);
}

}  // namespace

TEST_CASE("a rank without a free file descriptor says so, and the other rank names that rank") {
  const atoll_test::ReservedPort port;
  const auto config = [&](int rank) { return atoll_test::thread_rank_config(rank, 2, port); };
  const Child zero([&] { return error_of_rank(config(0), true); });
  const Child one([&] { return error_of_rank(config(1), false); });
  CHECK(one.text() ==
        "input/output error: rank 1: communicator shard: no file descriptor is left to load a "
        "backend; raise `ulimit -n` (now N)");
  const std::string other = zero.text();
  CAPTURE(other);
  CHECK(
      other.starts_with("unsupported: rank 0: communicator shard: no backend for CPU memory is "
                        "usable on all ranks ("));
  CHECK(other.find("host: not usable on rank 1") != std::string::npos);
}

TEST_CASE("a job of one rank without a free file descriptor says so") {
  const Child child([] {
    int limit = 0;
    const std::string error = atoll_test::error_of([&] {
      atoll::World world = atoll_test::single_rank();
      const auto mesh = atoll::Mesh::make(world, {1, 1});
      limit = take_descriptors();
      atoll::Communicator::open(mesh.axis("shard"));
    });
    return with_n(error, limit);
  });
  CHECK(child.text() ==
        "input/output error: rank 0: communicator shard: no file descriptor is left to load a "
        "backend; raise `ulimit -n` (now N)");
}

TEST_CASE("a recorder that cannot start leaves nothing behind in its World") {
  const Child child([] {
    atoll::Config config;
    config.flight = (std::filesystem::temp_directory_path() / "atoll-recorder").string();
    config.log = "off";
    atoll::World world = atoll::World::single(config);
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    const rlimit none{0, before.rlim_max};  // of further descriptors
    ::setrlimit(RLIMIT_NOFILE, &none);
    const std::string error = atoll_test::error_of([&] { atoll::Flight::of(world); });
    ::setrlimit(RLIMIT_NOFILE, &before);
    const auto answers =
        atoll::WorldInternals::store(world).ask("question", "", std::chrono::seconds(1));
    return error + "; answer: " + answers.front().text;
  });
  const std::string text = child.text();
  CAPTURE(text);
  CHECK(text.find("eventfd: no file descriptor for the flight recorder") != text.npos);
  CHECK(text.ends_with("; answer: "));
}
