#include "plan/measure.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "atoll/mesh.hpp"
#include "atoll/optimizer.hpp"
#include "fail.hpp"
#include "json_reader.hpp"
#include "loop/engine_model.hpp"
#include "loop/rank_compute.hpp"
#include "plan/cluster.hpp"
#include "report/phase.hpp"
#include "report/utilization.hpp"

namespace plan {
namespace {

namespace fsdp = atoll::fsdp;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Measured {
  train::simulated::OpTimes ops{};
  double update_s = 0;  // time of an AdamW update of all parameters, without clipping
  // Memory of the process beside what it allocated from the device: programs, libraries, their
  // buffers. Pages that the measuring processes share are divided among them (PSS).
  std::int64_t process_bytes = 0;
};

// Ids that spread over the vocabulary: the tokens and the labels of a batch.
std::vector<std::int32_t> ids_for(const Job& job) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(2 * job.micro_batch * job.seq));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((i * 7919) % static_cast<std::size_t>(job.model.vocab));
  return ids;
}

// Runs passes and updates of the model on this process alone, and returns the mean time of each
// operation.
Measured operations(const Job& job, const MeasureOptions& options, atoll::World& world,
                    const train::Machine& machine) {
  const atoll::Device& device = machine.device();
  fsdp::Engine engine(
      atoll::Mesh::make(world, {1, 1}),
      {.strategy = fsdp::Strategy::no_shard, .precision = {.param = job.dtype}, .device = device});
  std::optional<fsdp::Optimizer> optimizer;
  const auto measured = train::simulated::measure(*machine.ops);
  const train::Decoder decoder(job.model, *measured);
  atoll::Stream compute = device.stream({.name = "compute"});
  train::add_units(engine, job.model);
  optimizer.emplace(engine, fsdp::OptimizerOptions{.max_norm = 0, .moment_dtype = job.moments});
  engine.initialize(1);
  const std::int64_t tokens = job.micro_batch * job.seq;
  const train::ActivationPlan plan{.max_tokens = tokens,
                                   .max_seq = job.seq,
                                   .compute = job.dtype,
                                   .recompute = job.recompute,
                                   .head_rows = train::usual_head_rows(device.kind())};
  machine.ops->reserve(compute, train::largest_shapes(job.model, plan));
  auto activations = decoder.make_activations(plan, device, compute);
  const auto count = static_cast<std::uint64_t>(tokens);
  const std::vector<std::int32_t> values = ids_for(job);
  const atoll::Buffer ids = device.allocate(values.size() * sizeof values[0]);
  compute.copy(ids.data(), values.data(), ids.bytes());
  compute.synchronize();
  const atoll::View all = ids.view(atoll::DType::i32);
  const train::Batch batch{.rows = job.micro_batch,
                           .seq = job.seq,
                           .tokens = all.part(0, count),
                           .labels = all.part(count, count)};
  const train::Step step{compute, batch, activations, 1.0F / static_cast<float>(2 * count)};
  // Two passes make a step, so that gradients are both written and added.
  const auto run_step = [&] {
    decoder.begin(step);
    for (int micro = 0; micro < 2; ++micro)
      train::train_micro_batch(engine, engine.begin({.micro = micro, .of = 2}, compute), decoder,
                               step);
    engine.wait_gradients(compute);
    const atoll::Stamp begin = compute.stamp();
    optimizer->step(1e-4F, compute);
    const atoll::Stamp end = compute.stamp();
    compute.synchronize();
    return static_cast<double>(*end.ns() - *begin.ns()) * 1e-9;
  };
  run_step();
  measured->take(compute);
  Measured result;
  result.update_s = std::numeric_limits<double>::infinity();
  const auto begin = Clock::now();
  do {
    result.update_s = std::min(result.update_s, run_step());
  } while (seconds_since(begin) < options.seconds);
  result.ops = measured->take(compute);
  // The context of a GPU is not measured.
  if (device.kind() == atoll::DeviceKind::cpu)
    result.process_bytes =
        train::proportional_bytes() - static_cast<std::int64_t>(device.allocated_bytes());
  return result;
}

// Returns the kernels' rates in GB/s, with the bytes that simulated devices count for each kernel.
json kernels(const atoll::Device& device) {
  atoll::Stream stream = device.stream({.name = "kernels"});
  constexpr std::uint64_t n = std::uint64_t{4} << 20;
  const atoll::Buffer to = device.allocate(n * 4), from = device.allocate(n * 4);
  stream.zero(to.data(), to.bytes());
  stream.zero(from.data(), from.bytes());
  const auto rate = [&](double bytes, const auto& enqueue) {
    double best = 0;
    for (int round = 0; round < 5; ++round) {
      const atoll::Stamp begin = stream.stamp();
      enqueue();
      const atoll::Stamp end = stream.stamp();
      stream.synchronize();
      best = std::max(best, bytes / static_cast<double>(*end.ns() - *begin.ns()));
    }
    return best;
  };
  const auto bytes = static_cast<double>(n * 4);
  return {{"copy", rate(2 * bytes, [&] { stream.copy(to.data(), from.data(), n * 4); })},
          {"fill", rate(bytes, [&] { stream.zero(to.data(), n * 4); })}};
}

// The memory of this machine, divided among the ranks. Limits of containers are ignored.
std::int64_t memory_of_rank(int ranks) {
  return static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE) / ranks;
}

// Makes one GPU visible to this process. The processes of a host measure at the same time, each on
// a different GPU.
void choose_gpu(int rank) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string gpu = std::to_string(rank);
  if (visible != nullptr && *visible != '\0') {
    std::istringstream list(visible);
    for (int i = 0; i <= rank; ++i)
      train::require(static_cast<bool>(std::getline(list, gpu, ',')),
                     "--gpus-per-host: CUDA_VISIBLE_DEVICES={} names fewer GPUs", visible);
  }
  ::setenv("CUDA_VISIBLE_DEVICES", gpu.c_str(), 1);
}

}  // namespace

std::string measure_here(const Job& job, const MeasureOptions& options, int rank) {
  if (options.ranks > 1) choose_gpu(rank);
  atoll::World world = atoll::World::single();
  const train::Machine machine = train::make_machine(
      world, train::choose_device(world, options.device, ""), {.threads = options.threads});
  const bool is_gpu = machine.device().kind() == atoll::DeviceKind::cuda;
  json result = {{"schema", "atoll-machine-1"},
                 {"device", machine.device().name()},
                 {"ranks", options.ranks},
                 {"threads", options.threads},
                 {"memory_bytes", is_gpu ? static_cast<std::int64_t>(machine.place.memory_bytes())
                                         : memory_of_rank(options.ranks)},
                 {"model", job.model.name}};
  if (is_gpu) result["kind"] = "cuda";
  const Measured measured = operations(job, options, world, machine);
  result["ops"] = measured.ops;
  result["process_bytes"] = std::max<std::int64_t>(measured.process_bytes, 0);
  result["kernels"] = kernels(machine.device());
  const double peak_s = std::min(1.0, options.seconds);
  result["peak_f32"] = machine.matrix_peak(world, atoll::DType::f32, peak_s);
  result["peak_bf16"] = machine.matrix_peak(world, atoll::DType::bf16, peak_s);
  // AdamW reads and writes weights and both moments, reads gradients, and writes a 16-bit copy.
  const double moment = job.moments == atoll::DType::f32 ? 4 : 2;
  const double low = job.dtype == atoll::DType::f32 ? 0 : 2;
  const double bytes = 2 * (4 + 2 * moment) + 4 + low;
  result["kernels"]["adamw"] =
      bytes * static_cast<double>(train::parameter_count(job.model)) / measured.update_s * 1e-9;
  return result.dump(1) + "\n";
}

namespace {

// Starts a process that measures, and writes the result to `file` if that has a name.
pid_t start(const Job& job, const MeasureOptions& options, int rank,
            const std::filesystem::path& file) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int status = 1;
  try {
    const std::string text = measure_here(job, options, rank);
    if (!file.empty()) {
      std::ofstream out(file, std::ios::binary);
      if (!(out << text << std::flush))
        train::fail(atoll::ErrorCode::io, "--measure: {} cannot be written", file.string());
    }
    status = 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "atoll-plan: {}\n", error.what());
  }
  std::fflush(nullptr);
  ::_exit(status);
}

json read_json(const std::filesystem::path& file, std::string_view schema) {
  json content = train::read_object(file);
  const auto found = content.find("schema");
  if (found == content.end() || *found != schema)
    train::fail(atoll::ErrorCode::bad_data, "{}: not a file of the form {}", file.string(), schema);
  return content;
}

// All layers have the same operations, so a few layers suffice. More layers would take gigabytes.
Job with_few_layers(Job job) {
  constexpr double most_parameters = 3e8;
  const auto parameters = [&] { return static_cast<double>(train::parameter_count(job.model)); };
  while (job.model.layers > 1 && parameters() > most_parameters) {
    job.model.layers /= 2;
    if (!job.model.rotated.empty())
      job.model.rotated.resize(static_cast<std::size_t>(job.model.layers));
  }
  return job;
}

// Throws if the ranks' weights, gradients and moments do not fit in the memory of the machine.
void check_memory(const Job& job, const MeasureOptions& options) {
  // An f32 weight, a bf16 weight, an f32 gradient and two f32 moments.
  constexpr double bytes_of_parameter = 4 + 2 + 4 + 2 * 4;
  const double needed =
      options.ranks * bytes_of_parameter * static_cast<double>(train::parameter_count(job.model));
  const auto all = static_cast<double>(memory_of_rank(1));
  train::require(needed < all,
                 "--measure: {} processes need {:.1f} GB even for {} layers of {}, and the machine "
                 "has {:.1f} GB: use a smaller --gpus-per-host, or a smaller --model or --vocab",
                 options.ranks, needed / 1e9, job.model.layers, job.model.name, all / 1e9);
}

// Returns the number of GPUs that the processes may measure; 0 for CPUs. Throws Error(not_found) if
// `wanted` is cuda and there is none.
int usable_gpus(const std::string& wanted) {
  atoll::World world = atoll::World::single();
  const auto kind = train::choose_device(world, wanted, "").device.kind();
  return kind == atoll::DeviceKind::cuda ? atoll::Device::cuda_count() : 0;
}

// Returns the result of usable_gpus(). A child process calls it, because CUDA fails in a process
// that forks after it has used CUDA.
int count_gpus(const std::string& wanted) {
  if (wanted == "cpu" || wanted == "host") return 0;
  constexpr int failed = 255;
  const pid_t child = ::fork();
  if (child == 0) {
    int status = failed;
    try {
      status = std::min(usable_gpus(wanted), failed - 1);
    } catch (const std::exception&) {
      // The parent calls usable_gpus() again, which throws the same error.
    }
    ::_exit(status);
  }
  int status = 0;
  const bool ended = child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status);
  if (ended && WEXITSTATUS(status) != failed) return WEXITSTATUS(status);
  return usable_gpus(wanted);  // fails as the child did, and throws the reason
}

}  // namespace

void measure(const Job& whole, const MeasureOptions& wanted, const std::filesystem::path& file) {
  const Job job = with_few_layers(whole);
  MeasureOptions options = wanted;
  const int gpus = count_gpus(wanted.device);
  train::require(gpus == 0 || gpus >= options.ranks,
                 "--gpus-per-host {}: this machine has {} GPUs; --device cpu measures its CPUs",
                 options.ranks, gpus);
  options.device = gpus > 0 ? "cuda" : "cpu";
  if (gpus == 0) check_memory(job, options);
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks; ++rank)
    children.push_back(start(job, options, rank, rank == 0 ? file : std::filesystem::path()));
  // The display has a thread, so it starts after the processes.
  std::optional<train::PhaseDisplay> display;
  if (!options.quiet) display.emplace(stderr, train::progress_options_for(stderr).surface);
  const train::Phase phase(fmt::format("measuring {} with {} layers, {} process(es)",
                                       job.model.name, job.model.layers, options.ranks));
  bool failed = false;
  for (const pid_t child : children) {
    int status = 1;
    failed |= child < 0 || ::waitpid(child, &status, 0) != child || status != 0;
  }
  if (!failed) return;
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  train::fail(atoll::ErrorCode::backend, "--measure: a process that measures failed");
}

namespace {

constexpr std::int64_t most_ranks = 1 << 16, most_bytes = std::int64_t{1} << 60;

std::map<std::string, double, std::less<>> rates_in(const train::JsonReader& reader) {
  std::map<std::string, double, std::less<>> rates;
  for (const auto& [key, value] : reader.json().items()) rates[key] = reader.positive(key);
  return rates;
}

std::uint64_t bytes_in(const train::JsonReader& reader, const std::string& key) {
  return reader.present(key) ? static_cast<std::uint64_t>(reader.integer_in(key, 0, most_bytes))
                             : 0;
}

}  // namespace

MeasuredMachine read_machine(const std::filesystem::path& file) {
  const json content = read_json(file, "atoll-machine-1");
  const train::JsonReader reader(content, file.string());
  MeasuredMachine machine;
  if (reader.text_or("kind", "") == "cuda") machine.gpu = reader.text("device");
  const auto kernels = reader.object("kernels");
  machine.copy_gbyte_s = kernels.positive("copy");
  machine.kernel_gbyte_s = rates_in(kernels);
  machine.peak_f32 = reader.positive("peak_f32");
  machine.peak_bf16 = reader.positive("peak_bf16");
  machine.memory_bytes = bytes_in(reader, "memory_bytes");
  const auto ops = reader.object("ops");
  for (const auto& [operation, value] : ops.json().items()) {
    const double seconds = ops.number(operation);
    if (seconds < 0)
      ops.complain(operation, fmt::format("is {}, and must not be negative", seconds));
    machine.times[operation] = seconds;
  }
  machine.process_bytes = bytes_in(reader, "process_bytes");
  machine.ranks = static_cast<int>(reader.integer_in("ranks", 1, most_ranks));
  machine.source = file.string();
  return machine;
}

void use(const MeasuredMachine& machine, Cluster& cluster) {
  cluster.times = machine.times;
  cluster.kernel_gbyte_s = machine.kernel_gbyte_s;
  cluster.process_bytes = machine.process_bytes;
  if (machine.memory_bytes > 0) cluster.compute.memory_bytes = machine.memory_bytes;
  if (!machine.gpu.empty()) {
    if (has_model(machine.gpu)) return;  // MFU refers to the published peak
    cluster.compute.name = machine.gpu;
    cluster.compute.peak_f32 = machine.peak_f32;
    cluster.compute.peak_bf16 = machine.peak_bf16;
    return;
  }
  cluster.compute = atoll::find_compute_model("CPU");
  cluster.compute.source = machine.source;
  cluster.compute.peak_f32 = machine.peak_f32;
  cluster.compute.peak_bf16 = machine.peak_bf16;
  cluster.compute.best_product = 1;
  cluster.compute.memory_bytes = machine.memory_bytes;
  cluster.compute.memory_gbyte_s = machine.copy_gbyte_s;
  cluster.ranks_per_host = machine.ranks;
  assume_links_of_cpus(cluster);
}

void add_curve(atoll::FabricModel& fabric, const std::filesystem::path& file) {
  const json content = read_json(file, "atoll-curve-1");
  const train::JsonReader reader(content, file.string());
  bool found = false;
  for (const auto& row : reader.objects("rows")) {
    if (row.text("place") != "out" || row.text("dtype") != "f32") continue;
    found = true;
    fabric.measured.push_back({row.text("collective"),
                               static_cast<int>(row.integer_in("ranks", 1, most_ranks)),
                               static_cast<int>(row.integer_in("hosts", 1, most_ranks)),
                               static_cast<std::uint64_t>(row.integer_in("bytes", 1, most_bytes)),
                               row.positive("time_us") * 1e-6});
  }
  if (!found) {
    train::fail(atoll::ErrorCode::bad_data,
                "{}: no rows of f32 out of place, which predictions need: measure with atoll-busbw "
                "-d f32",
                file.string());
  }
}

}  // namespace plan
