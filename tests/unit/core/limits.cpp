// Tests of the limits of memory and threads, on files of a made-up machine.
#include <doctest/doctest.h>

#include <filesystem>
#include <limits>
#include <string>

#include "atoll/error.hpp"
#include "core/limits.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

namespace fs = std::filesystem;

// The root of a made-up file system.
struct Root : train_test::TemporaryFolder {
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((path() / file).parent_path());
    TemporaryFolder::write(file, text);
  }
};

}  // namespace

TEST_CASE("the free memory of a host is what is available, and free swap") {
  const Root root;
  root.write("proc/meminfo",
             "MemTotal: 4000 kB\nMemFree: 10 kB\nMemAvailable:   1000 kB\nSwapFree: 24 kB\n");
  CHECK(atoll::free_memory(root.path()).host == 1024 * 1024);
}

TEST_CASE("files that are absent limit nothing") {
  const Root root;
  CHECK(atoll::free_memory(root.path()).host == std::numeric_limits<std::uint64_t>::max());
}

TEST_CASE(
    "the smallest limit of the control groups around a process counts, without cached files") {
  const Root root;
  root.write("proc/self/cgroup", "0::/job/rank\n");
  root.write("sys/fs/cgroup/job/memory.max", "100000\n");
  root.write("sys/fs/cgroup/job/memory.stat", "anon 30000\nfile 60000\nkernel 1000\nshmem 9000\n");
  root.write("sys/fs/cgroup/job/rank/memory.max", "max\n");
  const auto free = atoll::free_memory(root.path());
  CHECK(free.process == 60000);
  CHECK(free.limit == "the memory limit of its control group");
}

TEST_CASE("a thread that cannot start names the control group that is full, of version 1 or 2") {
  const Root root;
  root.write("proc/self/cgroup", "8:cpu,pids:/job/rank\n0::/other\n");
  root.write("sys/fs/cgroup/pids/job/rank/pids.max", "max\n");
  root.write("sys/fs/cgroup/pids/job/rank/pids.current", "12\n");
  root.write("sys/fs/cgroup/pids/job/pids.max", "13\n");
  root.write("sys/fs/cgroup/pids/job/pids.current", "12\n");
  root.write("sys/fs/cgroup/other/pids.max", "7\n");
  root.write("sys/fs/cgroup/other/pids.current", "7\n");
  CHECK(atoll::thread_limit(root.path()) ==
        "the control group of this process allows 7 processes and threads: raise " +
            (root.path() / "sys/fs/cgroup/other/pids.max").string());
  root.write("sys/fs/cgroup/pids/job/pids.current", "13\n");
  CHECK(atoll::thread_limit(root.path()).ends_with("cgroup/pids/job/pids.max"));
}

TEST_CASE("a thread that cannot start, without control groups: other limits are named") {
  const Root root;
  CHECK(atoll::thread_limit(root.path()).find("raise `ulimit -") != std::string::npos);
}

TEST_CASE("sizes above the memory of this machine are refused, and small ones are not checked") {
  CHECK_NOTHROW(atoll::require_free_memory(4096));
  CHECK_THROWS_AS(atoll::require_free_memory(std::uint64_t{1} << 60), atoll::Error);
}
