#include "loop/setup.hpp"

#include <fmt/core.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "data/loaders.hpp"
#include "data/sources.hpp"
#include "fail.hpp"
#include "loop/model_source.hpp"
#include "loop/results.hpp"
#include "loop/run_plan.hpp"
#include "loop/weight_files.hpp"
#include "model/hf_config.hpp"
#include "model/params.hpp"
#include "report/files.hpp"
#include "report/log.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;

std::uint64_t shared_memory(const atoll::World& world, const atoll::Topology& topology) {
  std::uint64_t least = 0;
  for (const atoll::HostInfo& info : world.hosts()) {
    for (const atoll::TopologyHost& host : topology.hosts) {
      if (host.id != info.id || host.memory_bytes == 0) continue;
      const std::uint64_t share = host.memory_bytes / info.ranks.size();
      least = least == 0 ? share : std::min(least, share);
    }
  }
  return least;
}

// The smallest device memory of any rank, and the most that kernels hold on any rank.
DeviceMemory memory_of_ranks(atoll::World& world, const atoll::Topology& topology,
                             const Machine& machine) {
  const atoll::DeviceKind kind = machine.device().kind();
  if (kind == atoll::DeviceKind::host) return {kind, shared_memory(world, topology)};
  const auto bytes = exchange_numbers(world, "train/setup/memory",
                                      static_cast<std::int64_t>(machine.place.memory_bytes()));
  const auto held = exchange_numbers(world, "train/setup/arithmetic",
                                     static_cast<std::int64_t>(machine.ops->device_bytes()));
  return {kind, static_cast<std::uint64_t>(std::ranges::min(bytes)),
          static_cast<std::uint64_t>(std::ranges::max(held))};
}

int cores_allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

int compute_threads(const atoll::World& world, const RunOptions& options,
                    atoll::DeviceKind device) {
  const int told = options.threads > 0 ? options.threads : world.config().threads;
  const auto cores = static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  const int fair = std::max(1, cores / world.local_size());
  const int threads = told > 0 ? told : fair;
  if (device == atoll::DeviceKind::host && cores_allowed() < threads) {
    log::warn(
        "this rank computes with {} threads but is bound to {} of {} cores: start mpirun with "
        "--bind-to none, or set --threads",
        threads, cores_allowed(), cores);
  }
  return threads;
}

// Throws an error if the string `mine` of any rank differs from that of rank 0. `tell` returns the
// part of the error text that follows "rank N has".
template <class Tell>
void compare(atoll::World& world, std::string_view subject, const std::string& mine,
             const Tell& tell) {
  const auto all = world.exchange(fmt::format("train/setup/{}", subject), mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    fail(ErrorCode::mismatch, "rank {} has {}", rank, tell(all[rank], all[0]));
  }
}

std::string flag_difference(const std::string& theirs, const std::string& first) {
  const auto flags = nlohmann::json::parse(theirs), others = nlohmann::json::parse(first);
  for (const auto& [flag, value] : flags.items()) {
    if (value == others.at(flag)) continue;
    return fmt::format("flags that differ from rank 0: {} is {}, on rank 0 {}", flag, value.dump(),
                       others.at(flag).dump());
  }
  return "flags that differ from rank 0";
}

// Ranks with different copies of a file or flag would train different models without any error.
void compare_ranks(atoll::World& world, const RunOptions& options, const ModelConfig& model,
                   const RunData& data) {
  auto flags = to_json(options);
  flags.erase("threads");
  compare(world, "flags", flags.dump(), flag_difference);
  compare(world, "model", hf_config_json(model, options.dtype),
          [](auto&&...) { return "another model than rank 0 (another copy of config.json?)"; });
  compare(world, "data", fmt::format("{:016x}", data.train.fingerprint()),
          [](auto&&...) { return "other training data than rank 0 (another copy of the file?)"; });
  if (!data.eval) return;
  compare(world, "eval_data", fmt::format("{:016x}", data.eval->fingerprint()), [](auto&&...) {
    return "other data of the evaluation than rank 0 (another copy of the file?)";
  });
}

}  // namespace

std::vector<std::int64_t> exchange_numbers(atoll::World& world, const char* what,
                                           std::int64_t mine) {
  std::vector<std::int64_t> numbers;
  for (const auto& text : world.exchange(what, std::to_string(mine))) {
    numbers.push_back(std::stoll(text));
  }
  return numbers;
}

BatchOptions batch_options(const RunOptions& options, const Tokenizer& tokenizer) {
  return {options.global_batch, options.micro_batch,
          options.seq,          options.data == "synthetic:copy" ? 0 : tokenizer.pad(),
          options.seed,         pad_to_from_name(options.pad_to)};
}

RunData open_data(const RunOptions& options, const Tokenizer& tokenizer, const ModelConfig& model) {
  const ModelLimits limits{static_cast<std::int32_t>(model.vocab),
                           static_cast<std::int32_t>(model.max_seq)};
  return open_run_data({.data = options.data,
                        .data_type = options.data_type,
                        .samples = options.samples,
                        .seq = options.seq,
                        .seed = options.seed,
                        .train_on = train_on_from_name(options.train_on),
                        .model = limits},
                       {options.eval_data, options.eval_split, options.eval_samples}, tokenizer);
}

Setup prepare(atoll::World& world, const RunOptions& options) {
  check(options);
  check_results(world, options, run_directory(options.out, run_name(options)));
  auto tokenizer = tokenizer_for(options.tokenizer, options.data, options.data_type);
  const ModelSource source = find_model(options, *tokenizer);
  auto model = source.config;
  auto data = open_data(options, *tokenizer, model);
  compare_ranks(world, options, model, data);
  std::vector<fs::path> weights;
  if (!source.weights.empty()) weights = weight_files(source.weights);
  const auto topology = atoll::Topology::discover(world);
  auto mesh = options.mesh.empty()
                  ? atoll::Mesh::plan(topology, world)
                  : atoll::Mesh::make(world, atoll::parse_mesh(options.mesh), topology);
  auto place = choose_device(world, options.device, options.backend);
  const atoll::DeviceKind kind = place.device.kind();
  const ActivationPlan plan = activation_plan(options, kind);
  // Activations alone must not exceed --memory-limit. The engine's memory is checked later.
  const std::size_t activations = Activations::bytes_for(model, plan);
  require(options.memory_limit == 0 || activations <= options.memory_limit,
          "--memory-limit: activations alone take {} of {} bytes: use --recompute full or a "
          "smaller --micro-batch or --seq",
          activations, options.memory_limit);
  const int threads = compute_threads(world, options, kind);
  Machine machine = make_machine(world, std::move(place), threads);
  LargestShapes shapes = largest_shapes(model, plan);
  if (options.pad_to == "pack") {
    // Assumes 64 tokens per document; kernel plans hardly depend on the number of documents.
    shapes.attention.documents = std::max<std::int64_t>(1, plan.max_tokens / 64);
  }
  auto stream = machine.device().stream({.name = "reserve"});
  machine.ops->reserve(stream, shapes);
  const DeviceMemory memory = memory_of_ranks(world, topology, machine);
  Batches batches(data.train, batch_options(options, *tokenizer), {world.rank(), world.size()});
  const int micro_batches = batches.step({0, 0}).micro_batches;
  auto choice = choose_strategy(options, model, mesh, memory, micro_batches);
  auto islands = islands_of_ranks(world, topology);
  return {std::move(tokenizer), std::move(model),  std::move(data.train), std::move(data.eval),
          std::move(weights),   std::move(mesh),   std::move(machine),    memory,
          std::move(choice),    std::move(islands)};
}

void start_weights(const RunOptions& options, const Setup& setup, fsdp::Engine& engine) {
  if (setup.weights.empty()) return engine.initialize(options.seed);
  if (options.lora_rank > 0) engine.initialize(options.seed);
  fsdp::import_weights(setup.weights, engine,
                       [&](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
                         // Files of models have no adapters; these keep their initial values.
                         return is_adapter(param.name) ? "" : hf_name(unit.name(), param.name);
                       });
}

}  // namespace train
