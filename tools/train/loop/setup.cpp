#include "loop/setup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "atoll/checkpoint.hpp"
#include "atoll/communicator.hpp"
#include "data/loaders.hpp"
#include "data/sources.hpp"
#include "fail.hpp"
#include "loop/exporting.hpp"
#include "loop/gather_choice.hpp"
#include "loop/model_source.hpp"
#include "loop/processors.hpp"
#include "loop/results.hpp"
#include "loop/run_plan.hpp"
#include "loop/shared_files.hpp"
#include "loop/weight_files.hpp"
#include "model/hf_config.hpp"
#include "model/params.hpp"
#include "report/files.hpp"
#include "report/log.hpp"
#include "report/phase.hpp"

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

// The smallest device memory of any rank.
DeviceMemory memory_of_ranks(atoll::World& world, const atoll::Topology& topology,
                             const atoll::RankDevice& place) {
  const atoll::DeviceKind kind = place.device.kind();
  if (kind == atoll::DeviceKind::cpu) return {kind, shared_memory(world, topology)};
  const auto bytes = exchange_numbers(world, "train/setup/memory",
                                      static_cast<std::int64_t>(place.memory_bytes()));
  return {kind, static_cast<std::uint64_t>(std::ranges::min(bytes))};
}

// OpenMP ends the process without a reason if it cannot start a thread. So this function first
// starts as many threads as OpenMP, the streams, the data and a save will need, and ends them.
void require_threads(int threads) {
  try {
    constexpr int others = 6;
    std::vector<atoll::Stream> each;
    for (int i = 0; i < threads + others; ++i) {
      each.push_back(atoll::Device::cpu().stream({.name = "probe"}));
    }
  } catch (const Error& error) {
    fail(error.code(), "{} compute threads (--threads): {}", threads, error.what());
  }
}

// The compute threads of this rank. Collective.
ComputeThreads compute_threads(atoll::World& world, const RunOptions& options,
                               const atoll::RankDevice& place) {
  const Processors own = read_processors();
  std::vector<Processors> here;
  std::size_t self = 0;
  const auto all = world.exchange("train/setup/processors", own.encode());
  const auto& placements = world.placements();
  for (const atoll::Placement& at : placements) {
    if (at.host != placements[static_cast<std::size_t>(world.rank())].host) continue;
    if (at.rank == world.rank()) self = here.size();
    here.push_back(
        at.rank == world.rank() ? own : Processors::decode(all[static_cast<std::size_t>(at.rank)]));
  }
  const int wanted = options.threads > 0 ? options.threads : world.config().threads;
  auto chosen = choose_threads(here, self, wanted);
  if (place.device.kind() != atoll::DeviceKind::cpu) {
    chosen.why.clear();
    return chosen;
  }
  if (!chosen.warning.empty()) log::warn("{}", chosen.warning);
  require_threads(chosen.threads);
  return chosen;
}

// Throws an error if the text of any rank differs from that of most ranks. It names the first rank
// with another text, and how many others also differ. `describe` returns the part of the error that
// follows "rank N has", from the text of this rank and that of most ranks.
template <class Describe>
void compare(atoll::World& world, std::string_view subject, const std::string& mine,
             const Describe& describe) {
  const auto all = world.exchange(fmt::format("train/setup/{}", subject), mine);
  const auto [odd, usual, others] = odd_one_out(all);
  if (odd < 0) return;
  const std::string more =
      others == 0 ? "" : fmt::format("; {} more rank(s) differ from rank {}", others, usual);
  fail(ErrorCode::mismatch, "rank {} has {}{}", odd,
       describe(all[static_cast<std::size_t>(odd)], all[static_cast<std::size_t>(usual)], usual),
       more);
}

std::string flag_difference(const std::string& theirs, const std::string& usual, int rank) {
  const auto flags = nlohmann::json::parse(theirs), others = nlohmann::json::parse(usual);
  for (const auto& [flag, value] : flags.items()) {
    if (value == others.at(flag)) continue;
    return fmt::format("flags that differ from rank {}: {} is {}, on rank {} {}", rank, flag,
                       value.dump(), rank, others.at(flag).dump());
  }
  return fmt::format("flags that differ from rank {}", rank);
}

// A digest of the sizes of the files and of some blocks of each. Other weights of the same shapes
// differ in every block. Reading whole files would take as long as loading them on every rank.
std::string fingerprint(const std::vector<fs::path>& weights) {
  constexpr std::uintmax_t block = std::uintmax_t{64} << 10, blocks = 16;
  std::string text;
  for (const fs::path& file : weights) {
    std::error_code ignored;  // loading the weights reports a file that cannot be read
    const std::uintmax_t size = fs::file_size(file, ignored);
    text += fmt::format("{} {}", file.filename().string(), size);
    std::ifstream in(file, std::ios::binary);
    std::string bytes(block, '\0');
    for (std::uintmax_t i = 0; i < blocks; ++i) {
      in.clear();
      in.seekg(static_cast<std::streamoff>(size / blocks * i));
      in.read(bytes.data(), static_cast<std::streamsize>(block));
      const auto read = static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0));
      text += fmt::format(" {:x}", std::hash<std::string_view>{}({bytes.data(), read}));
    }
    text += '\n';
  }
  return text;
}

void compare_flags(atoll::World& world, const RunOptions& options) {
  compare(world, "flags", to_json(options, Use::compared).dump(), flag_difference);
}

// Compares run name and folder between ranks: their defaults depend on the files that a rank has.
void compare_names(atoll::World& world, const RunOptions& options) {
  const std::string name = run_name(options);
  const nlohmann::json names{{"out", run_directory(options.out, name).string()},
                             {"run_name", name}};
  compare(world, "names", names.dump(), flag_difference);
}

// Compares the files: ranks with different copies would train different models without any error.
void compare_files(atoll::World& world, const RunOptions& options, const ModelConfig& model,
                   const RunData& data, const std::vector<fs::path>& weights) {
  const auto than = [](const char* text) {
    return [text](const std::string&, const std::string&, int rank) {
      return fmt::format(fmt::runtime(text), rank);
    };
  };
  compare(world, "model", hf_config_json(model, options.dtype),
          than("another model than rank {} (another copy of config.json?)"));
  compare(world, "weights", fingerprint(weights),
          than("other weights than rank {} (another copy of the --init files?)"));
  compare(world, "data", fmt::format("{:016x}", data.train.fingerprint()),
          than("other training data than rank {} (another copy of the file?)"));
  if (!data.eval) return;
  compare(world, "eval_data", fmt::format("{:016x}", data.eval->fingerprint()),
          than("other data of the evaluation than rank {} (another copy of the file?)"));
}

// Opens the tokenizer, which must be the same on all ranks.
std::unique_ptr<const Tokenizer> run_tokenizer(atoll::World& world, const RunOptions& options) {
  auto tokenizer = tokenizer_for(options.tokenizer, options.data, options.data_type);
  std::string digest(tokenizer->name());
  for (const std::byte byte : tokenizer->digest())
    digest += fmt::format(" {:02x}", std::to_integer<unsigned>(byte));
  compare(world, "tokenizer", digest, [](const std::string&, const std::string&, int rank) {
    return fmt::format("another tokenizer than rank {} (another copy of its file?)", rank);
  });
  return tokenizer;
}

void warn_of_model(const atoll::World& world, const RunOptions& options, const ModelSource& source,
                   const Tokenizer& tokenizer) {
  if (world.rank() != 0) return;
  if (const auto line = unapplied_adapters(source); !line.empty()) log::warn("{}", line);
  if (options.data.starts_with("synthetic")) return;  // synthetic ids are not text
  if (const auto line = few_ids(source, tokenizer); !line.empty()) log::warn("{}", line);
}

// Lets the kernels allocate what they need for the largest batches.
void reserve(Machine& machine, const RunOptions& options, const ModelConfig& model,
             const ActivationPlan& plan) {
  LargestShapes shapes = largest_shapes(model, plan);
  if (options.pad_to == "pack") {
    // Assumes 64 tokens per document; kernel plans hardly depend on the number of documents.
    shapes.attention.documents = std::max<std::int64_t>(1, plan.max_tokens / 64);
  }
  auto stream = machine.device().stream({.name = "reserve"});
  machine.ops->reserve(stream, shapes);
}

atoll::Mesh make_mesh(atoll::World& world, const RunOptions& options,
                      const atoll::Topology& topology) {
  if (options.mesh.empty()) return atoll::Mesh::plan(topology, world);
  const auto shape = atoll::parse_mesh(options.mesh);
  const int ranks = shape.replicate * shape.shard;
  require(
      ranks == world.size(),
      "--mesh {} needs {}, but this job has {}: start it with mpirun -n {}, or use another mesh",
      options.mesh, counted(ranks, "rank"), world.size(), ranks);
  return atoll::Mesh::make(world, shape, topology);
}

// Refuses flags that would have no effect on these devices or on this number of ranks.
void check_machine_flags(atoll::World& world, const RunOptions& options, atoll::DeviceKind kind) {
  require(
      !options.require_gdr || kind != atoll::DeviceKind::cpu,
      "--require-gdr: this run computes on CPUs, which have no GPUDirect RDMA; remove the flag, "
      "or use --device cuda");
  require(
      !options.fp8 || kind == atoll::DeviceKind::cuda,
      "--fp8: this run computes on CPUs, which have no products in fp8; remove the flag, or use "
      "--device cuda");
  require(options.secondary_shards == 0 || world.size() % options.secondary_shards == 0,
          "--secondary-shards {}: groups of {} do not divide {}", options.secondary_shards,
          options.secondary_shards, counted(world.size(), "rank"));
  // A job of several ranks notices a missing backend later, when it opens the backend.
  if (world.size() > 1 || options.backend.empty()) return;
  std::vector<std::string> names;
  for (const auto& backend : atoll::available_backends(world, kind)) names.push_back(backend.name);
  require(std::ranges::find(names, options.backend) != names.end(),
          "--backend {}: no such backend is installed; there are {}", options.backend,
          fmt::join(names, ", "));
}

// Checks that extents are multiples of 16, as cuBLASLt's products in fp8 require.
void check_fp8(const RunOptions& options, const ModelConfig& model) {
  if (!options.fp8) return;
  for (const auto& [what, extent] : {std::pair("hidden size", model.hidden),
                                     {"width of the queries", model.query_width()},
                                     {"width of the keys", model.kv_width()},
                                     {"width of the MLP", model.ffn}}) {
    require(extent % 16 == 0,
            "--fp8: {} has a {} of {}, which is no multiple of 16: remove --fp8, or use another "
            "model",
            model.name, what, extent);
  }
}

// Sets the micro batch to the largest that fits. Returns the reason.
std::string choose_micro_batch(const atoll::World& world, RunOptions& options,
                               const ModelConfig& model, const atoll::Mesh& mesh,
                               const DeviceMemory& memory) {
  const std::int64_t samples = (options.global_batch + world.size() - 1) / world.size();
  auto chosen = largest_micro_batch({options, model, mesh, memory}, samples);
  options.micro_batch = chosen.rows;
  return std::move(chosen.why);
}

// Activations alone must not exceed --memory-limit. The engine's memory is checked later.
void check_activations(const RunOptions& options, std::size_t bytes) {
  require(options.memory_limit == 0 || bytes <= options.memory_limit,
          "--memory-limit: activations alone take {} of {} bytes: use --recompute full or a "
          "smaller --micro-batch or --seq",
          bytes, options.memory_limit);
}

// Checks the total of a rank before anything is allocated: makes one allocation of that size
// without touching its pages, and releases it.
void check_host_memory(const PlannedRun& run, int micro_batches, fsdp::Strategy strategy) {
  const auto& [options, model, mesh, memory] = run;
  if (memory.kind != atoll::DeviceKind::cpu || options.dry_run) return;
  const auto bytes = planned_bytes(run, micro_batches, strategy);
  const auto gigabytes = [](std::uint64_t count) { return static_cast<double>(count) / 1e9; };
  std::string why;
  if (memory.bytes > 0 && bytes > memory.bytes) {
    why = fmt::format("each rank's share of the memory of this machine is {:.1f} GB",
                      gigabytes(memory.bytes));
  } else {
    try {
      (void)atoll::Device::cpu().allocate(bytes);
    } catch (const Error& error) {
      why = text_of(error);
    }
  }
  if (why.empty()) return;
  fail(ErrorCode::out_of_memory,
       "{} with {:.4g} parameters takes about {:.1f} GB per rank with {}: {}; check the sizes in "
       "config.json, or use a smaller model, --recompute full or more hosts",
       model.name, static_cast<double>(parameter_count(model)), gigabytes(bytes),
       fsdp::name(strategy), why);
}

// Refuses --lora-base where a rank keeps whole parameters, which have the compute dtype.
void check_base(const RunOptions& options, fsdp::Strategy strategy) {
  const bool gathers =
      strategy == fsdp::Strategy::full_shard || strategy == fsdp::Strategy::hybrid_shard;
  require(options.lora_base.empty() || gathers,
          "--lora-base {}: needs --strategy full_shard or hybrid_shard, not {}", options.lora_base,
          name(strategy));
}

}  // namespace

OddOneOut odd_one_out(const std::vector<std::string>& texts) {
  std::map<std::string_view, int> counts;
  for (const std::string& text : texts) ++counts[text];
  std::size_t usual = 0;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (counts[texts[rank]] > counts[texts[usual]]) usual = rank;
  }
  OddOneOut result{-1, static_cast<int>(usual), 0};
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[usual]) continue;
    if (result.odd < 0) {
      result.odd = static_cast<int>(rank);
    } else {
      ++result.others;
    }
  }
  return result;
}

std::vector<std::int64_t> exchange_numbers(atoll::World& world, const char* what,
                                           std::int64_t mine) {
  std::vector<std::int64_t> numbers;
  for (const auto& text : world.exchange(what, std::to_string(mine))) {
    numbers.push_back(std::stoll(text));
  }
  return numbers;
}

BatchOptions batch_options(const RunOptions& options, const Tokenizer& tokenizer,
                           const ModelConfig& model) {
  // Any id of the model can fill rows. The model may lack the padding id of the tokenizer.
  return {options.global_batch, options.micro_batch,
          options.seq,          tokenizer.pad() < model.vocab ? tokenizer.pad() : 0,
          options.seed,         pad_to_from_name(options.pad_to)};
}

RunData open_data(const RunOptions& options, const Tokenizer& tokenizer, const ModelConfig& model) {
  const Phase phase("reading the data");
  const ModelLimits limits{static_cast<std::int32_t>(model.vocab),
                           static_cast<std::int32_t>(position_limit(model))};
  return open_run_data({.data = options.data,
                        .data_type = options.data_type,
                        .samples = options.samples,
                        .seq = options.seq,
                        .seed = options.seed,
                        .train_on = train_on_from_name(options.train_on),
                        .model = limits},
                       {options.eval_data, options.eval_split, options.eval_samples}, tokenizer);
}

void compare_modes(atoll::World& world, const RunOptions& options) {
  compare(world, "modes", to_json(options, Use::early).dump(), flag_difference);
}

void fetch_inputs(atoll::World& world, RunOptions& options) {
  share_files(world, options);
  choose_tokenizer(options);
  const Phase phase("converting the data");
  if (convert_data(world, options)) share_files(world, options);
}

namespace {

atoll::Topology discovered(atoll::World& world) {
  const Phase phase("discovering the topology");
  return atoll::Topology::discover(world);
}

// The inputs that a run reads from its files. compare_files() checks that all ranks have the same.
struct Inputs {
  std::string given;  // as Setup::given
  std::unique_ptr<const Tokenizer> tokenizer;
  ModelSource source;
  RunData data;
  std::vector<fs::path> weights;
};

// Reads the input files. Sets --tokenizer and --data if the files determine them.
Inputs read_inputs(atoll::World& world, RunOptions& options) {
  std::string given = options.init.empty() ? options.model : options.init;
  fetch_inputs(world, options);
  compare_names(world, options);
  auto tokenizer = run_tokenizer(world, options);
  ModelSource source = find_model(options, tokenizer->vocab_size());
  warn_of_model(world, options, source, *tokenizer);
  auto data = open_data(options, *tokenizer, source.config);
  auto weights = source.weights.empty() ? std::vector<fs::path>() : weight_files(source.weights);
  check_shapes(source.config, weights);
  check_export_spares(options, source, weights);
  return {std::move(given), std::move(tokenizer), std::move(source), std::move(data),
          std::move(weights)};
}

// The memory of a rank, and on GPUs what its kernels hold of it.
DeviceMemory memory_beside(atoll::World& world, const atoll::Topology& topology,
                           const Machine& machine) {
  DeviceMemory memory = memory_of_ranks(world, topology, machine.place);
  if (memory.kind == atoll::DeviceKind::cpu) return memory;
  const auto held = exchange_numbers(world, "train/setup/arithmetic",
                                     static_cast<std::int64_t>(machine.ops->device_bytes()));
  memory.arithmetic = static_cast<std::uint64_t>(std::ranges::max(held));
  return memory;
}

}  // namespace

Setup prepare(atoll::World& world, RunOptions& options) {
  const Phase phase("preparing the run");
  check(options);
  const bool writes = !options.dry_run && !options.evaluate && !only_exports(options);
  if (only_exports(options)) {
    if (world.rank() == 0) check_flag("--export", [&] { check_export(options); });
  } else if (!options.evaluate) {
    check_results(world, options, run_directory(options.out, run_name(options)));
  }
  compare_flags(world, options);
  // Without a checkpoint, an evaluation needs no optimizer, so it freezes all parameters.
  if (options.evaluate && options.resume.empty()) options.freeze = {"*"};
  Inputs in = read_inputs(world, options);
  ModelConfig& model = in.source.config;
  auto place = choose_device(world, options.device, options.backend);
  const atoll::DeviceKind kind = place.device.kind();
  check_machine_flags(world, options, kind);
  if (options.dtype == "auto") options.dtype = kind == atoll::DeviceKind::cuda ? "bf16" : "f32";
  compare_files(world, options, model, in.data, in.weights);
  count_steps(options, static_cast<std::int64_t>(in.data.train.size()));
  RunFolder folder;
  if (writes) {
    folder = RunFolder(world, options, run_directory(options.out, run_name(options)));
  }
  const auto topology = discovered(world);
  auto mesh = make_mesh(world, options, topology);
  check_fp8(options, model);
  std::string micro_batch_why;
  if (options.micro_batch == 0) {
    const DeviceMemory memory = memory_of_ranks(world, topology, place);
    micro_batch_why = choose_micro_batch(world, options, model, mesh, memory);
  }
  const ActivationPlan plan = activation_plan(options, kind);
  check_activations(options, Activations::bytes_for(model, plan));
  auto threads = compute_threads(world, options, place);
  Machine machine =
      make_machine(world, std::move(place), {threads.threads, threads.cores, options.fp8});
  reserve(machine, options, model, plan);
  const DeviceMemory memory = memory_beside(world, topology, machine);
  Batches batches(in.data.train, batch_options(options, *in.tokenizer, model),
                  {world.rank(), world.size()});
  const int micro_batches = batches.step({0, 0}).micro_batches;
  const PlannedRun run{options, model, mesh, memory};
  auto choice = choose_strategy(run, micro_batches);
  check_host_memory(run, micro_batches, choice.strategy);
  check_base(options, choice.strategy);
  if (writes) choose_gather(world, options, model, mesh, machine, choice.strategy);
  return {std::move(in.tokenizer),
          std::move(model),
          std::move(in.data.train),
          std::move(in.data.eval),
          std::move(in.weights),
          in.source.file,
          std::move(in.source.checkpoint),
          std::move(in.given),
          std::move(mesh),
          std::move(machine),
          memory,
          std::move(choice),
          islands_of_ranks(world, topology),
          std::move(micro_batch_why),
          std::move(threads.why),
          {},
          std::move(folder)};
}

void start_weights(const RunOptions& options, const Setup& setup, fsdp::Engine& engine) {
  const Phase phase("loading the weights");
  if (setup.weights.empty()) return engine.initialize(options.seed);
  if (options.lora_rank > 0) engine.initialize(options.seed);
  fsdp::import_weights(setup.weights, engine,
                       [&](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
                         // Files of models have no adapters, so adapters keep their initial values.
                         return is_adapter(param.name) ? "" : hf_name(unit.name(), param.name);
                       });
}

}  // namespace train
