// Tests of writing files under limits, and of headers and indexes with many entries.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <optional>
#include <tuple>

#include "atoll/communicator.hpp"
#include "checkpoint/bounded_json.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/together.hpp"
#include "unit/checkpoint/checkpoint.hpp"
#include "unit/error_text.hpp"

using namespace atoll_test::checkpoint;
using atoll_test::has;
using atoll_test::run_thread_ranks;
using train_test::failure_of;
using train_test::TemporaryFolder;

namespace {

// Limits the size of files while it exists.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) {
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit lower{bytes, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &lower) == 0);
  }
  ~SizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  SizeLimit(const SizeLimit&) = delete;
  SizeLimit& operator=(const SizeLimit&) = delete;

 private:
  rlimit before_{};
};

// Returns the message of the error that both ranks get from `body`, which runs under a limit of
// 1 MiB. Shared memory counts as a file, so the limit begins after the engine has allocated.
std::string message_under_limit(const std::function<void(Job&)>& body) {
  std::string message;
  run_thread_ranks(2, [&](atoll::World& world) {
    Job job(world);
    job.fill(2.0f);
    world.barrier();
    std::optional<SizeLimit> limit;
    if (world.rank() == 0) limit.emplace(1 << 20);
    world.barrier();
    const auto failure = failure_of([&] { body(job); });
    world.barrier();
    limit.reset();
    const auto messages = world.exchange("message", failure.message);
    CHECK(messages[0] == messages[1]);
    if (world.rank() == 0) message = messages[0];
  });
  return message;
}

std::string header_of(std::size_t tensors) {
  std::string text = "{";
  for (std::size_t i = 0; i < tensors; ++i) {
    const std::string number = std::to_string(i);
    if (i > 0) text += ',';
    text += "\"model.layers." + number + ".weight\":{\"dtype\":\"U8\",\"shape\":[1],";
    text += "\"data_offsets\":[" + number + "," + std::to_string(i + 1) + "]}";
  }
  text += "}";
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(text.size() >> (8 * i));
  file += text;
  file.resize(file.size() + tensors);
  return file;
}

}  // namespace

TEST_CASE(
    "a save or an export beyond the limit of size is an error on every rank, leaving nothing") {
  const TemporaryFolder folder;
  const fs::path checkpoint = folder.path() / "checkpoint", file = folder.path() / "model";
  save(2, checkpoint, 1.0f);
  CHECK(
      has(message_under_limit([&](Job& job) { fsdp::save(checkpoint, job.engine, job.optimizer); }),
          "-of-00002.safetensors: cannot write: File too large"));
  CHECK(has(message_under_limit([&](Job& job) {
              fsdp::export_weights(file, job.engine, atoll::DType::f32, name_of);
            }),
            ".partial: cannot write: File too large"));
  // Nothing but the old checkpoint is left.
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
  CHECK(refusal(2, checkpoint, 1.0f) == "");
  sigset_t pending;
  REQUIRE(sigpending(&pending) == 0);
  CHECK(sigismember(&pending, SIGXFSZ) == 0);
}

TEST_CASE("a save does not replace a file") {
  const TemporaryFolder folder;
  const fs::path file = folder.write("checkpoint", "text of the user");
  const auto failure = failure_of([&] { save(1, file, 1.0f); });
  CHECK(failure.says("checkpoint: exists and is not a folder, so no checkpoint can replace it"));
  CHECK(TemporaryFolder::read(file) == "text of the user");
}

TEST_CASE("a slow disk does not count against the time of a collective") {
  const auto slow = [](std::chrono::seconds limit) {
    run_thread_ranks(
        2,
        [](atoll::World& world) {
          fsdp::together(world, [&] {
            if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
          });
        },
        [&](atoll::Config& config) {
          config.timeout = std::chrono::seconds(1);
          config.file_timeout = limit;
        });
  };
  CHECK_FALSE(failure_of([&] { slow(std::chrono::seconds(60)); }).thrown);
  CHECK(failure_of([&] { slow(std::chrono::seconds(1)); }).says("rank 1"));
}

TEST_CASE("file work that throws anything fails on all ranks at once") {
  run_thread_ranks(2, [](atoll::World& world) {
    const auto fail = [&](const std::function<void()>& work) {
      return failure_of([&] {
        fsdp::together(world, [&] {
          if (world.rank() == 1) work();
        });
      });
    };
    CHECK(fail([] { throw std::bad_alloc(); }).says("out of memory"));
    CHECK(fail([] { throw 1; }).says("an exception that is not a std::exception"));
  });
}

TEST_CASE("a header of 100,000 tensors parses at once") {
  // With quadratic time, this takes minutes, and the test reaches its time limit.
  const std::string file = header_of(100'000);
  const auto header = fsdp::parse_safetensors(std::as_bytes(std::span(file)), "large.safetensors");
  REQUIRE(header.entries.size() == 100'000);
  CHECK(header.find("model.layers.99999.weight") == &header.entries.back());
  CHECK(header.find("model.layers.100000.weight") == nullptr);
}

TEST_CASE("a header of more than 1 GiB is refused before it is read") {
  std::string file(16, '\0');
  const std::uint64_t length = (std::uint64_t{1} << 30) + 1;
  std::memcpy(file.data(), &length, sizeof(length));
  const TemporaryFolder folder;
  const fs::path path = folder.write("large.safetensors", file);
  fs::resize_file(path, length + 8);  // a file with a hole
  CHECK(failure_of([&] { fsdp::SafetensorsFile::open(path); })
            .says("large.safetensors: byte 0: the header claims 1073741825 bytes, but at most "
                  "1073741824 are possible"));
}

TEST_CASE("what is often taken for weights is named") {
  const TemporaryFolder folder;
  const std::pair<const char*, const char*> files[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"},
      {"<!DOCTYPE html><html></html>", "begins like a web page"},
      {"{\"model_type\": \"mistral\"}", "begins like JSON"}};
  for (const auto& [content, text] : files) {
    const fs::path path = folder.write("model.safetensors", content);
    CHECK(failure_of([&] { fsdp::SafetensorsFile::open(path); }).says(text));
  }
}

TEST_CASE("an index of 100,000 entries parses at once, within its limits") {
  std::string text = "{\"list\":[";
  for (int i = 0; i < 100'000; ++i) text += "{\"a\":1},";
  text += "{}]}";
  CHECK(fsdp::parse_bounded_json(text, "index.json").at("list").size() == 100'001);
  CHECK(failure_of([&] {
          fsdp::parse_bounded_json(text, "index.json", {8, 1000});
        }).says("index.json: byte 0: the JSON has more than 1000 values"));
  CHECK(failure_of([&] {
          fsdp::parse_bounded_json("[[[1]]]", "index.json", {2, 1000});
        }).says("index.json: byte 0: the JSON is nested more than 2 deep"));
}

TEST_CASE("ranks with a small limit of the size of a file still meet, and leave no flight file") {
  const TemporaryFolder folder;
  const std::string flight = (folder.path() / "flight").string();
  const SizeLimit limit(1 << 10);
  run_thread_ranks(
      2,
      [&](atoll::World& world) {
        const auto mesh = atoll::Mesh::make(world, {1, 2});
        auto comm = atoll::Communicator::open(mesh.axis("shard"), {.backend = "host"});
        auto stream = comm.device().stream();
        std::vector<float> numbers(1000, 1.0f);
        const atoll::View view(numbers);
        comm.all_reduce(view, view, atoll::ReduceOp::sum, stream).synchronize();
        CHECK(numbers.back() == 2.0f);
        const auto failure =
            failure_of([&] { std::ignore = atoll::allocate(comm.device(), 4096, {comm}); });
        CHECK(failure.message.find("its limit of the size of a file (ulimit -f)") !=
              std::string::npos);
        world.barrier();
        if (world.rank() == 0) world.fail("the end");
      },
      [&](atoll::Config& config) {
        config.flight = flight;
        config.owns_process = 1;  // with stacks, the file is larger than the limit
      });
  CHECK_FALSE(std::filesystem::exists(flight + ".0.json"));
  CHECK(std::filesystem::is_empty(folder.path()));
}
