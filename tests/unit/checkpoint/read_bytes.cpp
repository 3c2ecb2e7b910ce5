// Tests of what import_weights() reads from the disk: every rank reads its shards, not the files.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "thread_ranks.hpp"
#include "unit/fsdp/toy.hpp"

using namespace atoll_test;
namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;
using atoll::Mesh;
using atoll::World;

namespace {

// Throws unless `holds`. REQUIRE cannot be used on the threads of ranks.
void must(bool holds) {
  if (!holds) throw std::runtime_error(std::strerror(errno));
}

// Writes a file to the disk and drops its pages from memory.
void drop_pages(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDWR);
  must(fd >= 0);
  must(::fsync(fd) == 0);
  must(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
  ::close(fd);
}

// Returns the bytes of a file that are in memory.
std::size_t bytes_in_memory(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDWR);  // mincore() tells only owners and writers
  must(fd >= 0);
  const std::size_t size = fs::file_size(file);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  must(mapped != MAP_FAILED);
  std::vector<unsigned char> present((size + page - 1) / page);
  CHECK(::mincore(mapped, size, present.data()) == 0);
  ::munmap(mapped, size);
  std::size_t count = 0;
  for (const unsigned char one : present) count += one & 1U;
  return count * page;
}

std::string name_of(const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
  return unit.name() + "." + param.name;
}

}  // namespace

TEST_CASE("import_weights: every rank reads only the bytes of its shards") {
  constexpr int ranks = 4;
  constexpr std::int64_t elements = 4 << 20;  // 16 MiB each
  const fs::path folder =
      fs::temp_directory_path() / ("atoll-read-bytes-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  // Every rank reads its own copy of the file. The pages of a copy that are in memory then show
  // which bytes this rank has read.
  const auto copy_of = [&](int rank) {
    return folder / ("rank-" + std::to_string(rank) + ".safetensors");
  };
  std::vector<std::size_t> read(ranks);
  std::atomic<bool> evicts{true};
  run_thread_ranks(ranks, [&](World& world) {
    const fs::path own = copy_of(world.rank());
    fsdp::Engine engine(Mesh::make(world, {1, ranks}), {.strategy = fsdp::Strategy::full_shard});
    add_units(engine, {"a", "b"}, elements);
    engine.initialize(7);
    fsdp::export_weights(copy_of(0), engine, atoll::DType::f32, name_of);
    world.barrier();
    if (world.rank() > 0) fs::copy_file(copy_of(0), own);
    world.barrier();
    drop_pages(own);
    if (bytes_in_memory(own) > fs::file_size(own) / 10) evicts = false;
    world.barrier();
    engine.initialize(99);
    fsdp::import_weights({own}, engine, name_of);
    read[static_cast<std::size_t>(world.rank())] = bytes_in_memory(own);
  });
  const std::size_t size = fs::file_size(copy_of(0));
  fs::remove_all(folder);
  if (!evicts) {
    std::puts("skipped: this file system keeps the pages of files: set TMPDIR to another one");
    std::exit(77);
  }
  for (const std::size_t bytes : read) {
    CAPTURE(size);
    CHECK(bytes >= size / ranks / 2);         // the kernel may have dropped some pages
    CHECK(bytes < size / ranks + size / 10);  // up to 1 MiB more for the header
  }
}
