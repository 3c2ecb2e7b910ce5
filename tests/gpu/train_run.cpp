// Compares the losses of the trainer on a GPU with its losses on the CPU, step by step.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "../train/job.hpp"
#include "atoll/checkpoint.hpp"
#include "loop/nonfinite.hpp"
#include "loop/optimizer.hpp"
#include "loop/rank_compute.hpp"
#include "loop/trainer.hpp"
#include "thread_ranks.hpp"
#include "unit/train/data_temporary.hpp"

using train_test::TemporaryFolder;

namespace {

train::RunOptions options_of(const TemporaryFolder& folder) {
  train::RunOptions options = train_test::plain_run(folder.path());
  options.samples = 0;
  options.data = "synthetic";
  options.seq = 24;
  options.global_batch = 4;
  options.micro_batch = 2;
  options.steps = std::getenv("ATOLL_TEST_LONG") ? 50 : 4;
  options.untimed_steps = 1;
  return options;
}

// The environment names the folder of the backend nccl.
void use_plugins(atoll::Config& config) {
  config.log = "error";
  config.owns_process = 1;  // lets atoll configure NCCL's log, which names the transports
  config.plugin_path = atoll::Config::from_env().plugin_path;
}

std::vector<train::StepRecord> run(train::RunOptions options, const char* device) {
  options.device = device;
  // A new run refuses the checkpoints of an earlier one.
  if (options.resume.empty()) std::filesystem::remove_all(options.out);
  auto config = atoll::Config::from_env();
  config.log = "error";
  auto world = atoll::World::single(config);
  return train::run(world, options).steps;
}

// Returns the largest distance between a run on the GPU and one on the CPU over all steps: the
// larger of the distance of the losses and a tenth of the distance of the gradient norms.
double worst(const train::RunOptions& options) {
  const auto there = run(options, "cuda"), here = run(options, "cpu");
  REQUIRE(there.size() == static_cast<std::size_t>(options.steps));
  REQUIRE(here.size() == there.size());
  const train_test::CurveDistance apart = train_test::distance(there, here);
  CHECK(here.front().loss > 1);
  return std::max(apart.loss, apart.grad_norm / 10);
}

}  // namespace

TEST_CASE("f32: the CPU's losses, whatever is recomputed, accumulated and updated when") {
  const TemporaryFolder folder;
  train::RunOptions options = options_of(folder);
  CHECK(worst(options) < 1e-4);
  options.recompute = "full";
  options.head_rows = 7;
  options.strategy = "full_shard";
  CHECK(worst(options) < 1e-4);
  options.recompute = "selective";
  options.optimizer = "sgd";
  options.clip = 0;
  options.skip_nonfinite = false;
  CHECK(worst(options) < 1e-4);
  options = options_of(folder);
  options.optimizer = "muon";
  options.weight_decay = 0.1;
  options.group = {"*norm.weight:weight_decay=0,lr_scale=0.5", "*.mlp.*:lr_scale=2"};
  CHECK(worst(options) < 1e-4);
}

TEST_CASE("weights are searched after the updates that run beside the next forward") {
  namespace fsdp = atoll::fsdp;
  auto world = atoll::World::single();
  const auto mesh = atoll::Mesh::make(world, {1, 1});
  fsdp::Engine engine(mesh, {.device = atoll::Device::cuda()});
  constexpr std::int64_t elements = 4'000'000;  // so that an update takes longer than the search
  engine.add_unit("layers.0", {{"w", {elements}}});
  engine.seal({"layers.0"});
  engine.initialize(1);
  train::RunOptions options;
  options.optimizer = "sgd";
  options.clip = 0;
  options.skip_nonfinite = false;
  const auto machine = train::make_machine(world, {.device = atoll::Device::cuda(), .why = ""}, {});
  const auto optimizer = train::make_optimizer(options, engine, mesh, machine);
  auto compute = engine.device().stream();
  const float nan = std::nanf("");
  {
    auto pass = engine.begin({}, compute);
    { const auto scope = pass.forward(engine.unit("layers.0")); }
    const auto scope = pass.backward(engine.unit("layers.0"));
    const atoll::View gradient = scope.grad("w").view;
    compute.zero(gradient.data, gradient.bytes());
    compute.copy(gradient.part(elements - 1, 1).data, &nan, sizeof nan);
  }
  optimizer->step(0.1F, compute, 8);
  const auto found = train::find_nonfinite(world, engine, *optimizer, compute);
  CHECK(found.gradients.tensors == 1);
  CHECK(found.weights.tensors == 1);
}

TEST_CASE("evaluation: the CPU's losses") {
  const TemporaryFolder folder;
  train::RunOptions options = options_of(folder);
  options.eval_split = 0.01;
  options.eval_every = 2;
  const auto there = run(options, "cuda"), here = run(options, "cpu");
  CHECK_FALSE(there[0].eval_loss);
  for (const std::size_t step : {std::size_t{1}, there.size() - 1}) {
    CHECK(*there[step].eval_loss == doctest::Approx(*here[step].eval_loss).epsilon(1e-4));
  }
}

TEST_CASE("bf16: the CPU's losses as far as bf16 has them") {
  const TemporaryFolder folder;
  train::RunOptions options = options_of(folder);
  options.dtype = "bf16";
  CHECK(worst(options) < 2e-2);
  options.optimizer = "muon";
  CHECK(worst(options) < 2e-2);
}

TEST_CASE("fp8: other losses than bf16, but near the CPU's") {
  const TemporaryFolder folder;
  train::RunOptions options = options_of(folder);
  options.steps = 4;  // after more steps, two runs in bf16 also differ this much
  options.seq = 32;
  options.dtype = "bf16";
  struct Variant {
    const char* recompute;
    int lora_rank;
  };
  for (const auto& [recompute, lora_rank] :
       {Variant{"none", 0}, {"selective", 0}, {"full", 0}, {"none", 4}}) {
    CAPTURE(recompute);
    CAPTURE(lora_rank);
    options.recompute = recompute;
    options.lora_rank = lora_rank;
    options.fp8 = false;
    const auto here = run(options, "cpu"), in_bf16 = run(options, "cuda");
    options.fp8 = true;
    std::vector<train::StepRecord> there;
    try {
      there = run(options, "cuda");
    } catch (const atoll::Error& error) {
      REQUIRE(std::string(error.what()).find("compute capability") != std::string::npos);
      MESSAGE("not run: " << error.what());
      return;
    }
    REQUIRE(there.size() == here.size());
    CHECK(there.front().loss != in_bf16.front().loss);
    const auto apart = train_test::distance(there, here);
    CHECK(apart.loss < 3e-2);
    CHECK(apart.grad_norm < 0.2);
  }
}

TEST_CASE("fp8: refused on CPUs, in f32, and for other extents than multiples of 16") {
  const TemporaryFolder folder;
  const auto failure = [&](const auto& change) -> std::string {
    train::RunOptions options = options_of(folder);
    options.seq = 32;
    options.dtype = "bf16";
    options.fp8 = true;
    const char* device = "cpu";
    change(options, device);
    try {
      run(options, device);
    } catch (const atoll::Error& error) {
      return error.what();
    }
    return "";
  };
  const auto has = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  has(failure([](auto&, auto&) {}), "--fp8: this run computes on CPUs");
  has(failure([](auto& o, auto&) { o.dtype = "f32"; }), "--fp8: needs --dtype bf16");
  has(failure([](auto& o, auto&) { o.seq = 24; }), "--fp8: --seq 24 must be a multiple of 16");
  has(failure([&](auto& o, auto& device) {
        o.model = folder.write("prime.json", train_test::prime_model_json()).string();
        device = "cuda";
      }),
      "has a hidden size of 67, which is no multiple of 16");
}

TEST_CASE("a checkpoint of the CPU goes on here, and one of here on the CPU") {
  const TemporaryFolder folder;
  train::RunOptions options = options_of(folder);
  for (const char* optimizer : {"adamw", "muon"}) {
    CAPTURE(optimizer);
    options.optimizer = optimizer;
    const auto whole = run(options, "cpu");
    for (const auto& [first, second] : {std::pair("host", "cuda"), std::pair("cuda", "host")}) {
      CAPTURE(first);
      auto half = options;
      half.steps = options.steps / 2;
      half.save_checkpoint = true;
      run(half, first);
      auto rest = options;
      rest.resume = options.out + "/checkpoint";
      const auto steps = run(rest, second);
      REQUIRE(steps.size() == static_cast<std::size_t>(options.steps - half.steps));
      CHECK(steps.back().loss == doctest::Approx(whole.back().loss).epsilon(1e-4));
    }
  }
}

namespace {

// Trains with threads as ranks. Each rank uses a separate GPU if there are enough GPUs.
std::vector<train::StepRecord> run_ranks(int ranks, train::RunOptions options) {
  options.device = "cuda";
  std::vector<train::StepRecord> steps;
  atoll_test::run_thread_ranks(
      ranks,
      [&](atoll::World& world) {
        const auto result = train::run(world, options);
        if (world.rank() == 0) steps = result.steps;
      },
      use_plugins);
  return steps;
}

bool is_emulated() {
  return atoll::Device::cuda_count() > 0 &&
         atoll::Device::cuda().name().find("emulated") != std::string_view::npos;
}

bool has_four_gpus() {
  const int gpus = atoll::Device::cuda_count();
  if (gpus < 4) MESSAGE("left out: ", gpus, " GPUs; this test needs four");
  return gpus >= 4;
}

// Returns the device that train::choose_device chooses on each rank.
std::vector<atoll::RankDevice> choices(int ranks, const std::string& wanted,
                                       const std::string& backend) {
  std::vector<atoll::RankDevice> chosen(static_cast<std::size_t>(ranks),
                                        {atoll::Device::cpu(), ""});
  atoll_test::run_thread_ranks(
      ranks,
      [&](atoll::World& world) {
        chosen[static_cast<std::size_t>(world.rank())] =
            train::choose_device(world, wanted, backend);
      },
      use_plugins);
  return chosen;
}

}  // namespace

TEST_CASE("auto takes GPUs if each rank gets a different one, and otherwise says why not") {
  const int gpus = atoll::Device::cuda_count();
  if (gpus > 1) {
    for (const auto& choice : choices(2, "auto", "")) {
      CHECK(choice.device.kind() == atoll::DeviceKind::cuda);
      CHECK(choice.why.empty());
      CHECK(choice.sharing == 1);
    }
  }
  // There is one rank more than GPUs, so the first and the last rank share a GPU.
  const auto alone = choices(gpus + 1, "auto", "");
  CHECK(alone.back().device.kind() == atoll::DeviceKind::cpu);
  CHECK(alone.back().why.find(fmt::format("ranks 0, {} have only one GPU", gpus)) !=
        std::string::npos);
  const auto shared = choices(gpus + 1, "cuda", "");
  CHECK(shared.front().sharing == 2);
  CHECK(shared.front().memory_bytes() == shared.front().device.memory_bytes() / 2);
  CHECK(alone.front().memory_bytes() == 0);
  CHECK(shared.front().turn == 0);
  CHECK(shared.back().turn == 1);
  CHECK(shared.back().most_turns == 2);
  if (gpus > 1) CHECK(shared[1].sharing == 1);
  const auto other = choices(2, "auto", "host");
  CHECK(other.front().device.kind() == atoll::DeviceKind::cpu);
  CHECK(other.front().why.find("rank 0 cannot use its GPU: no backend") != std::string::npos);
  CHECK_THROWS_WITH_AS(choices(2, "cuda", "host"),
                       doctest::Contains("device cuda: rank 0 cannot use its GPU"), atoll::Error);
}

TEST_CASE("a run that requires GPUDirect RDMA ends where another host is reached without") {
  if (!is_emulated()) {
    MESSAGE("left out: this test needs the emulated NCCL");
    return;
  }
  ::setenv("FAKE_NCCL_LOG", "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n", 1);
  const TemporaryFolder folder;
  train::RunOptions options = options_of(folder);
  options.device = "cuda";
  options.require_gdr = true;
  const auto run_on = [&](const char* second_host) {
    atoll_test::run_thread_ranks(
        2, [&](atoll::World& world) { train::run(world, options); },
        [&](atoll::Config& config) {
          use_plugins(config);
          config.host_id = config.rank == 0 ? "here" : second_host;
        });
  };
  CHECK_NOTHROW(run_on("here"));
  CHECK_THROWS_WITH_AS(
      run_on("there"),
      doctest::Contains("GPUDirect RDMA is required: rank 0 reaches other hosts by Socket without "
                        "GPUDirect RDMA"),
      atoll::Error);
  ::unsetenv("FAKE_NCCL_LOG");
}

namespace {

void check_near(const std::vector<train::StepRecord>& there,
                const std::vector<train::StepRecord>& here) {
  const train_test::CurveDistance apart = train_test::distance(there, here);
  CHECK(apart.loss < 1e-4);
  CHECK(apart.grad_norm < 1e-3);
}

}  // namespace

TEST_CASE("four ranks over nccl, in every strategy: the losses of one rank on the CPU") {
  if (!has_four_gpus()) return;
  const TemporaryFolder folder;
  train::RunOptions options = options_of(folder);
  options.micro_batch = 1;
  const auto alone = run(options, "cpu");
  struct Shape {
    std::string mesh, strategy;
  };
  for (const auto& [mesh, strategy] :
       {Shape{"2x2", "hybrid_shard"}, Shape{"1x4", "full_shard"}, Shape{"2x2", "no_shard"},
        Shape{"2x2", "shard_optimizer"}, Shape{"1x4", "shard_grad"}}) {
    CAPTURE(mesh);
    CAPTURE(strategy);
    options.mesh = mesh;
    options.strategy = strategy;
    check_near(run_ranks(4, options), alone);
  }
  train::RunOptions muon = options;
  muon.optimizer = "muon";
  muon.mesh.clear();
  const auto muon_alone = run(muon, "host");
  muon.mesh = "1x4";
  muon.strategy = "full_shard";
  check_near(run_ranks(4, muon), muon_alone);
  options.mesh = "2x2";
  options.strategy = "hybrid_shard";
  options.dtype = "bf16";
  options.reduce_dtype = "bf16";
  const train_test::CurveDistance apart = train_test::distance(run_ranks(4, options), alone);
  CHECK(apart.loss < 2e-2);
}

TEST_CASE("--gather auto measures gathers on every mesh, and the losses stay the same") {
  if (!has_four_gpus()) return;
  const TemporaryFolder folder;
  train::RunOptions options = options_of(folder);
  options.micro_batch = 1;
  const auto alone = run(options, "cpu");
  options.mesh = "2x2";
  options.gather = "auto";
  for (const char* strategy : {"hybrid_shard", "full_shard", "no_shard"}) {
    CAPTURE(strategy);
    options.strategy = strategy;
    CHECK(train_test::distance(run_ranks(4, options), alone).loss < 1e-4);
    std::ifstream file(std::filesystem::path(options.out) / "run_args.json");
    const auto chosen = nlohmann::json::parse(file).at("gather").get<std::string>();
    const bool gathers = std::string(strategy) != "no_shard";
    CHECK((chosen == "sms" || chosen == "copy-engines") == gathers);
  }
}

TEST_CASE("--gather auto takes what is faster") {
  if (!is_emulated()) {
    MESSAGE("left out: this test needs the emulated NCCL");
    return;
  }
  const TemporaryFolder folder;
  train::RunOptions options = options_of(folder);
  options.steps = 1;
  options.mesh = "1x2";
  options.strategy = "full_shard";
  // Returns the chosen value of --gather, then what metrics.json says of gathers: "sms, gather:
  // SM".
  const auto chosen_beside = [&](const char* slow_policy) {
    std::filesystem::remove_all(options.out);
    ::setenv("FAKE_NCCL_SLOW_POLICY", slow_policy, 1);
    run_ranks(2, options);
    ::unsetenv("FAKE_NCCL_SLOW_POLICY");
    const auto text = [&](const char* name, const char* key) {
      std::ifstream file(std::filesystem::path(options.out) / name);
      return nlohmann::json::parse(file).at(key).get<std::string>();
    };
    const std::string told = text("metrics.json", "transports");
    const auto at = told.find("gather: ");
    return text("run_args.json", "gather") + ", " +
           (at == std::string::npos ? told : told.substr(at));
  };
  // 2 is NCCL_CTA_POLICY_ZERO, with which copy engines are slow here.
  CHECK(chosen_beside("2").starts_with("sms, gather: SM"));
  // 1 is NCCL_CTA_POLICY_EFFICIENCY, with which SMs are slow here.
  CHECK(chosen_beside("1").starts_with("copy-engines, gather: copy engine"));
}
