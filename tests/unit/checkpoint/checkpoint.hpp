// A small job that saves and loads checkpoints, and changes of their files.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/index.hpp"
#include "checkpoint/safetensors.hpp"
#include "thread_ranks.hpp"
#include "unit/train/data_temporary.hpp"

namespace atoll_test {

namespace checkpoint {

namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;

// An engine that shards over all ranks. Its units fill three blocks of digests on a rank.
struct Job {
  explicit Job(atoll::World& world, std::int64_t elements = 1'000'003)
      : engine(atoll::Mesh::make(world, {1, world.size()}),
               {.strategy =
                    world.size() == 1 ? fsdp::Strategy::no_shard : fsdp::Strategy::full_shard}),
        optimizer((engine.add_unit("a", {{"w", {elements}}, {"v", {5000}}}),
                   engine.add_unit("b", {{"w", {300}}}), engine.seal({"a", "b"}), engine)) {
    engine.initialize(1);
  }
  // Sets every parameter to `value` plus a number that depends on the index.
  void fill(float value) {
    engine.assign([&](const fsdp::Segment& segment, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = value + static_cast<float>((segment.first + i) % 1000) / 4096.0f;
    });
  }
  // Returns whether every parameter is as fill(value) has left it.
  bool has(float value) {
    bool same = true;
    engine.visit([&](const auto&, const auto&, std::span<const float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        same = same && values[i] == value + static_cast<float>(i % 1000) / 4096.0f;
    });
    return same;
  }

  fsdp::Engine engine;
  fsdp::Optimizer optimizer;
};

inline void save(int ranks, const fs::path& folder, float value, std::int64_t steps = 0,
                 std::int64_t elements = 1'000'003) {
  run_thread_ranks(ranks, [&](atoll::World& world) {
    Job job(world, elements);
    job.fill(value);
    job.optimizer.set_steps(steps);
    fsdp::save(folder, job.engine, job.optimizer);
  });
}

// Returns the message of the error with which `ranks` ranks refuse a checkpoint, or "" if they load
// the parameters of fill(value).
inline std::string refusal(int ranks, const fs::path& folder, float value) {
  try {
    run_thread_ranks(ranks, [&](atoll::World& world) {
      Job job(world);
      fsdp::load(folder, job.engine, job.optimizer);
      if (!job.has(value)) throw std::runtime_error("loaded other values");
    });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

inline std::string shard(int number, int of) {
  return "shard-0000" + std::to_string(number) + "-of-0000" + std::to_string(of) + ".safetensors";
}

inline void change(const fs::path& file, const std::function<void(std::string&)>& change) {
  std::string bytes = train_test::TemporaryFolder::read(file);
  change(bytes);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

constexpr std::int64_t few = 1000;  // elements of the largest parameter of a quick test

using Call = std::function<void(atoll::World&, Job&)>;

// Returns the errors that two ranks get from `call`. They must have the same code.
inline std::vector<std::string> messages_of(const Call& call) {
  std::vector<std::string> messages(2);
  std::vector<atoll::ErrorCode> codes(2);
  run_thread_ranks(2, [&](atoll::World& world) {
    Job job(world, few);
    job.fill(1.0f);
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto failure = train_test::failure_of([&] { call(world, job); });
    messages[rank] = failure.message;
    codes[rank] = failure.code;
    world.barrier();
  });
  CHECK(codes[0] == codes[1]);
  return messages;
}

// Returns the error that both ranks report, or "" if there is none. An error that rank 0 has found
// begins with "rank 0: " on rank 1.
inline std::string message_of(const Call& call) {
  const auto messages = messages_of(call);
  CAPTURE(messages[0]);
  CAPTURE(messages[1]);
  CHECK((messages[1] == messages[0] || messages[1] == "rank 0: " + messages[0]));
  return messages[0];
}

inline std::string name_of(const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
  return unit.name() + "." + param.name;
}

inline std::string save_to(const fs::path& folder) {
  return message_of(
      [&](atoll::World&, Job& job) { fsdp::save(folder, job.engine, job.optimizer); });
}

}  // namespace checkpoint
}  // namespace atoll_test
