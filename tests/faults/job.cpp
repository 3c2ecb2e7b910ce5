// job FAULT MOMENT VICTIM DELAY FOLDER: one rank of the jobs of tests/faults/run.
// job check FOLDER: loads the checkpoint in FOLDER/checkpoint with one rank and prints its step.
//
// The job trains a model whose parameters are known after each step: all values are small multiples
// of a power of two, so sums are exact. Each forward compares all gathered values. The job saves
// after steps 1 and 3 and ends after step 4. The fault FAULT happens on the rank VICTIM at MOMENT:
//   opening  from before the rank joins the job until the engine is open
//   gather   forward of step 2
//   reduce   backward of step 2
//   save     the second save, which replaces the first
//   end      after the last step
// A kill, a stop or a crash happens DELAY microseconds later (DELAY / 20 at `end`, because closing
// takes less than a millisecond), on a second thread, so that the rank may be anywhere in the
// library. For faults that the script makes, the rank creates the file FOLDER/at, which contains
// the time in seconds (CLOCK_MONOTONIC), and waits for FOLDER/go.
//
// A rank prints "rank R: right" if every comparison succeeded, or one line with its error.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "atoll/checkpoint.hpp"
#include "atoll/error.hpp"
#include "atoll/fsdp.hpp"
#include "atoll/mesh.hpp"
#include "atoll/optimizer.hpp"
#include "atoll/world.hpp"

namespace {

namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;
using namespace std::chrono_literals;

constexpr int steps = 4;
constexpr int units = 3;
constexpr std::int64_t elements = 100'003;  // not a multiple of any number of ranks
constexpr float rate = 1.0f / 64;

struct Plan {
  std::string fault, moment;
  int victim = 0;
  std::chrono::microseconds delay{0};
  fs::path folder;
};

// --- the faults that the rank makes itself ---

rlim_t used_memory() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

rlim_t used_descriptors() {
  rlim_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

void limit(__rlimit_resource resource, rlim_t value) {
  const rlimit both{value, value};
  if (::setrlimit(resource, &both) != 0) throw std::runtime_error("setrlimit failed");
}

class Fault {
 public:
  Fault(Plan plan, int rank) : plan_(std::move(plan)), mine_(rank == plan_.victim) {}

  // Makes the fault if this rank is the victim and `moment` is the planned one. Every rank calls it
  // at each moment of the job: opening, gather, reduce, save and end.
  void at(std::string_view moment) {
    if (!mine_ || done_ || moment != plan_.moment) return;
    done_ = true;
    const std::string_view fault = plan_.fault;
    if (fault == "kill") return later([] { ::kill(::getpid(), SIGKILL); });
    if (fault == "stop" || fault == "hang") return later([] { ::raise(SIGSTOP); });
    if (fault == "segfault") {
      return later([] {
        ::signal(SIGSEGV, SIG_DFL);
        *static_cast<volatile int*>(nullptr) = 1;
      });
    }
    announce();
    if (fault == "exit") std::exit(3);
    if (fault == "exception") throw std::runtime_error("planted exception");
    if (fault == "memory")
      return limit(RLIMIT_AS, used_memory() + rlim_t(plan_.delay.count()) * 1024);
    if (fault == "descriptors")
      return limit(RLIMIT_NOFILE, used_descriptors() + rlim_t(plan_.delay.count()) % 12);
    while (!fs::exists(plan_.folder / "go")) std::this_thread::sleep_for(1ms);
  }

 private:
  void announce() const {
    const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
    std::ofstream(plan_.folder / "at.new") << fmt::format("{:.6f}\n", now.count());
    fs::rename(plan_.folder / "at.new", plan_.folder / "at");
  }

  template <class Action>
  void later(const Action& action) const {
    const auto delay = plan_.moment == "end" ? plan_.delay / 20 : plan_.delay;
    std::thread([action, delay, this] {
      std::this_thread::sleep_for(delay);
      announce();
      action();
    }).detach();
  }

  const Plan plan_;
  const bool mine_;
  bool done_ = false;
};

// --- the training job ---

float first_value(std::uint64_t element) { return static_cast<float>(element % 64); }
float part_of_gradient(int rank, int step, std::uint64_t element) {
  return static_cast<float>((rank + 1) *
                            static_cast<int>((element * 7 + std::uint64_t(step) * 3) % 16));
}
float value_after(int steps_done, int ranks, std::uint64_t element) {
  float value = first_value(element);
  for (int step = 0; step < steps_done; ++step)
    for (int rank = 0; rank < ranks; ++rank) value -= rate * part_of_gradient(rank, step, element);
  return value;
}

void compare(const float* values, std::uint64_t count, int steps_done, int ranks) {
  for (std::uint64_t i = 0; i < count; ++i) {
    if (values[i] == value_after(steps_done, ranks, i)) continue;
    throw std::runtime_error(fmt::format("WRONG element {} after {} steps: {} instead of {}", i,
                                         steps_done, values[i], value_after(steps_done, ranks, i)));
  }
}

struct Model {
  Model(const atoll::Mesh& mesh, fsdp::Strategy strategy)
      : engine(mesh, {.strategy = strategy, .backend = "host", .synchronous = true}) {
    for (int i = 0; i < units; ++i) {
      order.push_back("unit" + std::to_string(i));
      engine.add_unit(order.back(), {{"w", {elements}}});
    }
    engine.seal(order);
    engine.assign([](const fsdp::Segment& segment, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = first_value(segment.first + i);
    });
  }
  void check(int steps_done, int ranks) {
    engine.visit([&](const fsdp::Unit&, const fsdp::ParamSpec&, std::span<const float> values) {
      compare(values.data(), values.size(), steps_done, ranks);
    });
  }

  fsdp::Engine engine;
  std::vector<std::string> order;
};

void train_step(Model& model, const atoll::World& world, int step, atoll::Stream& compute,
                Fault& fault) {
  auto pass = model.engine.begin({}, compute);
  for (const std::string& name : model.order) {
    const auto w = pass.forward(model.engine.unit(name));
    if (step == 1) fault.at("gather");
    compare(w["w"].as<float>(), elements, step, world.size());
  }
  for (auto name = model.order.rbegin(); name != model.order.rend(); ++name) {
    const auto w = pass.backward(model.engine.unit(*name));
    auto* out = w.grad("w").view.as<float>();
    for (std::uint64_t i = 0; i < elements; ++i) out[i] = part_of_gradient(world.rank(), step, i);
    if (step == 1 && name != model.order.rbegin()) fault.at("reduce");
  }
}

void train(atoll::World& world, const Plan& plan, Fault& fault) {
  // The delay is random, so half of the jobs with an even number of ranks have replicas. Variants
  // of faults depend on the delay modulo 2 or 12, on which the quotient does not depend.
  const int replicas = plan.delay.count() / 12 % 2 == 1 && world.size() % 2 == 0 ? 2 : 1;
  const auto mesh =
      atoll::Mesh::make(world, {.replicate = replicas, .shard = world.size() / replicas});
  Model model(mesh, replicas > 1 ? fsdp::Strategy::hybrid_shard : fsdp::Strategy::full_shard);
  fsdp::Optimizer optimizer(model.engine,
                            {.kind = fsdp::OptimizerOptions::Kind::sgd, .max_norm = 0});
  auto compute = model.engine.device().stream({.name = "compute"});
  const fs::path checkpoint = plan.folder / "disk" / "checkpoint";
  for (int step = 0; step < steps; ++step) {
    train_step(model, world, step, compute, fault);
    optimizer.step(rate, compute);
    compute.synchronize();
    if (step == 2) fault.at("save");
    if (step % 2 == 0) {
      fsdp::save(checkpoint, model.engine, optimizer,
                 {{"step", std::to_string(step + 1)}, {"ranks", std::to_string(world.size())}});
    }
  }
  model.check(steps, world.size());
  fault.at("end");
}

int check_checkpoint(const fs::path& folder) {
  auto world = atoll::World::single();
  const auto mesh = atoll::Mesh::make(world, {.replicate = 1, .shard = 1});
  Model model(mesh, fsdp::Strategy::full_shard);
  fsdp::Optimizer optimizer(model.engine,
                            {.kind = fsdp::OptimizerOptions::Kind::sgd, .max_norm = 0});
  const auto extra = fsdp::load(folder / "disk" / "checkpoint", model.engine, optimizer);
  model.check(std::stoi(extra.at("step")), std::stoi(extra.at("ranks")));
  fmt::print("checkpoint of step {} is whole\n", extra.at("step"));
  return EXIT_SUCCESS;
}

int environment_rank() {
  const char* text = std::getenv("ATOLL_RANK");
  return text == nullptr ? 0 : std::atoi(text);
}

int run(const Plan& plan) {
  Fault fault(plan, environment_rank());
  fault.at("opening");
  atoll::Config config = atoll::Config::from_env();
  config.owns_process = 1;
  auto world = atoll::World::from_env(config);
  train(world, plan, fault);
  fmt::print("rank {}: right\n", world.rank());
  std::fflush(stdout);
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "check") argc = -1;
  if (argc != 6 && argc != -1) return 2;
  const int rank = environment_rank();
  try {
    if (argc == -1) return check_checkpoint(argv[2]);
    return run({argv[1], argv[2], std::atoi(argv[3]), std::chrono::microseconds(std::atoi(argv[4])),
                argv[5]});
  } catch (const atoll::Error& error) {
    fmt::print("rank {}: {}: {}\n", rank, name(error.code()), error.what());
  } catch (const std::exception& error) {
    fmt::print("rank {}: {}\n", rank, error.what());
  }
  std::fflush(stdout);
  return EXIT_FAILURE;
}
