// Tests of the model families, of the places where --model and --init find a model and of adapters.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "job.hpp"
#include "loop/adapters.hpp"
#include "loop/model_source.hpp"
#include "model/hf_config.hpp"
#include "model/params.hpp"
#include "unit/train/data_temporary.hpp"

using namespace train_test;
namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;

namespace {

train::RunOptions base(const TemporaryFolder& folder) {
  train::RunOptions options = plain_run(folder.path());
  options.model = "mistral-tiny";
  options.samples = 12;
  options.global_batch = 6;
  options.micro_batch = 2;
  return options;
}

// A model of 5 layers, so that one has no rotary embedding, for the bytes tokenizer.
train::ModelConfig small(train::Family family) {
  train::ModelConfig config;
  config.family = family;
  config.layers = 5;
  config.hidden = 64;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.ffn = 96;
  config.vocab = 260;
  config.max_seq = 256;
  config.qkv_bias = family == train::Family::qwen2;
  config.qk_norm = family == train::Family::qwen3;
  if (family == train::Family::smollm3) config.rotated = {true, true, true, false, true};
  if (family == train::Family::llama) config.qkv_bias = config.o_bias = config.mlp_bias = true;
  return config;
}

// Writes a model as transformers does, with random weights from a seed, and returns the weights.
Weights write_model(const TemporaryFolder& folder, const std::string& place, std::uint64_t seed,
                    bool tied) {
  fs::create_directories(folder.path() / place);
  auto config = small(train::Family::llama);
  config.tied = tied;
  folder.write(place + "/config.json", train::hf_config_json(config, "float32"));
  auto options = base(folder);
  options.model = (folder.path() / place / "config.json").string();
  options.seed = seed;
  options.steps = 1;
  options.lr = 0;
  const auto name = [](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
    return train::hf_name(unit.name(), param.name);
  };
  return run_job(1, options,
                 [&](fsdp::Engine& engine) {
                   fsdp::export_weights(folder.path() / place / "model.safetensors", engine,
                                        atoll::DType::f32, name);
                 })
      .front()
      .weights;
}

// Runs one step that does not change the weights, and returns them.
Weights weights_of(const TemporaryFolder& folder, const std::string& model,
                   const std::string& init) {
  auto options = base(folder);
  options.model = model;
  options.init = init;
  options.seed = 77;
  options.steps = 1;
  options.lr = 0;
  return run_job(1, options).front().weights;
}

}  // namespace

TEST_CASE("every family trains alike on one rank, on shards and with recomputation") {
  for (const auto family : {train::Family::mistral, train::Family::llama, train::Family::qwen2,
                            train::Family::qwen3, train::Family::smollm3}) {
    CAPTURE(train::name(family));
    const TemporaryFolder folder;
    auto options = base(folder);
    options.model =
        folder.write("small.json", train::hf_config_json(small(family), "float32")).string();
    const auto alone = run_job(1, options);
    auto sharded = options;
    sharded.strategy = "full_shard";
    sharded.recompute = "selective";
    const auto three = run_job(3, sharded);
    check_ranks_agree(three);
    CHECK(distance(three[0].run.steps, alone[0].run.steps).loss < 1e-5);
    CHECK(distance(three[0].run.steps, alone[0].run.steps).grad_norm < 1e-4);
    CHECK(distance(three[0].weights, alone[0].weights) < 1e-4);
    auto recomputed = options;
    recomputed.recompute = "full";
    CHECK(run_job(1, recomputed).front().weights == alone[0].weights);
  }
}

TEST_CASE("a model is a preset, a config.json, a folder, or a name in the Hub's cache") {
  const TemporaryFolder folder;
  const Weights stored = write_model(folder, "My-Model", 5, false);
  const std::string place = (folder.path() / "My-Model").string();
  CHECK(weights_of(folder, place, "") == stored);
  CHECK(weights_of(folder, "mistral-tiny", place) == stored);
  CHECK(weights_of(folder, place, "none") != stored);
  CHECK(weights_of(folder, place + "/config.json", "") != stored);  // its shape alone

  const fs::path cached = folder.path() / "hub" / "models--acme--tiny.model";
  fs::create_directories(cached / "refs");
  folder.write("hub/models--acme--tiny.model/refs/main", "0123abcd");
  fs::create_directories(cached / "snapshots");
  fs::copy(place, cached / "snapshots" / "0123abcd", fs::copy_options::recursive);
  ::setenv("HF_HUB_CACHE", (folder.path() / "hub").c_str(), 1);
  CHECK(weights_of(folder, "acme/tiny.model", "") == stored);
  CHECK(weights_of(folder, "acme/tiny.model@0123abcd", "") == stored);
  CHECK(weights_of(folder, "mistral-tiny", "acme/tiny.model") == stored);
  auto options = base(folder);
  options.model = "acme/absent@v2";
  const auto absent = folder.path() / "hub/models--acme--absent/snapshots/v2/config.json";
  check_refused(2, options,
                {"model acme/absent@v2: " + absent.string() + " does not exist",
                 "`hf download acme/absent --revision v2`"});
  ::unsetenv("HF_HUB_CACHE");

  const auto name = [](const std::string& model, const std::string& init) {
    train::RunOptions one;
    one.model = model;
    one.init = init;
    return train::model_name(one);
  };
  CHECK(name("qwen3-tiny", "") == "qwen3-tiny");
  CHECK(name("qwen3-tiny", place) == "My-Model");
  CHECK(name("qwen3-tiny", place + "/model.safetensors") == "My-Model");
  CHECK(name(place + "/config.json", "") == "My-Model");
  CHECK(name((folder.path() / "other.json").string(), "") == "other");
  CHECK(name("acme/tiny.model@0123abcd", "") == "tiny.model");
  CHECK(name((cached / "snapshots" / "0123abcd").string(), "") == "tiny.model");
  // A run has the name of the model that it reads.
  train::RunOptions named;
  named.model = "qwen3-tiny";
  named.init = place;
  named.data = "demo:0.5,synthetic";
  named.strategy = "full_shard";
  CHECK(train::run_name(named) == "My-Model-demo+synthetic-full_shard");
  named.init = "none";
  CHECK(train::run_name(named) == "qwen3-tiny-demo+synthetic-full_shard");
  named.model = "./config.json";
  CHECK(train::run_name(named) ==
        fs::current_path().filename().string() + "-demo+synthetic-full_shard");
}

TEST_CASE("a head that differs from the embedding is not tied, whatever config.json says") {
  const TemporaryFolder folder;
  const Weights stored = write_model(folder, "model", 6, false);
  auto config = small(train::Family::llama);
  config.tied = true;
  folder.write("model/config.json", train::hf_config_json(config, "float32"));
  CHECK(weights_of(folder, (folder.path() / "model").string(), "") == stored);
  // The tied model has no weight of the head in its file.
  const Weights tied = write_model(folder, "tied", 6, true);
  CHECK(tied.size() + 1 == stored.size());
  CHECK(weights_of(folder, (folder.path() / "tied").string(), "") == tied);
}
TEST_CASE("adapters: the base does not move, the loss falls, and shards train alike") {
  const TemporaryFolder folder;
  write_model(folder, "base", 5, false);
  auto options = base(folder);
  options.model = (folder.path() / "base").string();
  options.lora_rank = 4;
  options.lr = 0.02;
  options.steps = 8;
  const auto alone = run_job(1, options);
  CHECK(alone[0].run.steps.back().loss < alone[0].run.steps.front().loss - 0.05);
  auto plain = options;
  plain.lora_rank = 0;
  plain.lr = 0;
  plain.steps = 1;
  const auto before = run_job(1, plain);
  // Adapters begin without an effect.
  CHECK(before[0].run.steps.front().loss == doctest::Approx(alone[0].run.steps.front().loss));
  for (const auto& [name, values] : before[0].weights) {
    const bool same = alone[0].weights.at(name) == values;
    CHECK_MESSAGE(same, name);
  }
  CHECK(alone[0].weights.size() == before[0].weights.size() + 5 * 7 * 2);
  auto sharded = options;
  sharded.strategy = "full_shard";
  sharded.recompute = "selective";
  const auto three = run_job(3, sharded);
  check_ranks_agree(three);
  CHECK(distance(three[0].run.steps, alone[0].run.steps).loss < 1e-5);
  CHECK(distance(three[0].weights, alone[0].weights) < 1e-4);
}

TEST_CASE("adapters on a base in 8 bits: nearly the losses of the exact base, alike on all ranks") {
  const TemporaryFolder folder;
  write_model(folder, "base", 5, false);
  auto options = base(folder);
  options.model = (folder.path() / "base").string();
  options.lora_rank = 4;
  options.lr = 0.02;
  options.steps = 8;
  options.strategy = "full_shard";
  const auto exact = run_job(1, options);
  options.lora_base = "int8";
  const auto alone = run_job(1, options), three = run_job(3, options);
  check_ranks_agree(three);
  CHECK(distance(three[0].run.steps, alone[0].run.steps).loss < 1e-5);
  CHECK(distance(three[0].weights, alone[0].weights) < 1e-4);
  const double moved = distance(alone[0].run.steps, exact[0].run.steps).loss;
  CHECK(moved > 0);
  CHECK(moved < 0.01);
  CHECK(alone[0].run.steps.back().loss < alone[0].run.steps.front().loss - 0.05);
  // Only the matrices of the layers are rounded.
  for (const auto& [name, values] : exact[0].weights) {
    const bool matrix = train::can_have_adapter(name);
    if (train::is_adapter(name)) continue;
    CAPTURE(name);
    CHECK((alone[0].weights.at(name) == values) != matrix);
  }
}

TEST_CASE("adapters on a base in 8 bits: --strategy auto shards, and wrong flags are named") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.model = "llama-tiny";
  options.lora_rank = 2;
  options.lora_base = "int8";
  options.strategy = "auto";
  options.steps = 2;
  run_job(2, options, [](fsdp::Engine& engine) {
    CHECK(engine.options().strategy == fsdp::Strategy::full_shard);
  });
  const auto failure = [&](const auto& change) {
    auto changed = options;
    change(changed);
    return failures_of_job(1, changed).front();
  };
  CHECK(failure([](auto& o) { o.lora_base = "int4"; }) == "--lora-base int4: use int8");
  CHECK(
      failure([](auto& o) { o.lora_merge = true; }).starts_with("--lora-merge: the base is in 8"));
  CHECK(failure([](auto& o) { o.strategy = "no_shard"; }) ==
        "--lora-base int8: needs --strategy full_shard or hybrid_shard, not no_shard");
  CHECK(failure([](auto& o) {
          o.lora_base.clear();
          o.lora_rank = 0;
          o.lora_targets.clear();
          o.lora_alpha = 0;
          o.lora_merge = true;
        }) == "--lora-merge: needs --lora-rank");
}

TEST_CASE("adapters: wrong flags") {
  const TemporaryFolder folder;
  const auto failure = [&](std::int64_t rank, double alpha, std::vector<std::string> targets) {
    auto options = base(folder);
    options.model = "llama-tiny";
    options.lora_rank = rank;
    options.lora_alpha = alpha;
    options.lora_targets = std::move(targets);
    return failures_of_job(1, options).front();
  };
  CHECK(failure(-1, 0, {}) == "--lora-rank: must not be negative");
  CHECK(failure(0, 4, {}) == "--lora-alpha: needs --lora-rank");
  for (const std::string target : {"lm_head", "q_*_proj", "layers.6.*", "mlp", ""}) {
    CHECK(failure(2, 0, {"k_proj", target})
              .starts_with("--lora-targets " + target + ": matches no matrix of a layer"));
  }
  auto options = base(folder);
  options.lora_rank = 2;
  options.export_weights = "w.safetensors";
  check_refused(1, options, {"--export w.safetensors: adapters need a folder"});
}

TEST_CASE("adapters: patterns of the matrices that have them") {
  using Names = std::vector<std::string>;
  auto model = small(train::Family::llama);
  model.name = "small";
  const auto targets = [&](Names patterns) {
    train::RunOptions options;
    options.lora_rank = 2;
    options.lora_targets = std::move(patterns);
    model.adapters = train::adapters_of(options, model);
    train::validate(model);
    return train::target_modules(model);
  };
  CHECK(targets({}) == train::adapter_targets());
  CHECK(targets({"*"}) == train::adapter_targets());
  CHECK(targets({"down_proj", "q_proj"}) == Names{"q_proj", "down_proj"});
  CHECK(targets({"q_*", "?_proj"}) == Names{"q_proj", "k_proj", "v_proj", "o_proj"});
  CHECK(targets({"*.mlp.*"}) == Names{"gate_proj", "up_proj", "down_proj"});
  CHECK(targets({"mlp.[gu]*"}) == Names{"gate_proj", "up_proj"});
  CHECK(targets({"layers.*.q_proj"}) == Names{"q_proj"});
  // Where layers differ, the list has whole names.
  CHECK(targets({"layers.1.*.v_proj"}) == Names{"model.layers.1.self_attn.v_proj"});
  CHECK(targets({"model.layers.0.self_attn.q_proj", "up_proj"})[0] ==
        "model.layers.0.self_attn.q_proj");
  CHECK(model.adapters.targets == Names{"q_proj", "up_proj"});
  std::int64_t counted = 0;
  for (std::size_t unit = 0; unit < train::unit_count(model); ++unit) {
    for (const auto& spec : train::param_specs(model, unit)) {
      if (train::is_adapter(spec.name)) counted += spec.count();
    }
  }
  CHECK(train::adapter_count(model) == counted);
}

TEST_CASE("adapters that differ between layers train alike on all ranks, and merge") {
  const TemporaryFolder folder;
  write_model(folder, "base", 5, false);
  auto options = base(folder);
  options.model = (folder.path() / "base").string();
  options.lora_rank = 3;
  options.lora_targets = {"layers.0.*", "layers.1.mlp.down_proj"};
  options.lr = 0.05;
  options.steps = 5;
  const auto alone = run_job(1, options);
  CHECK(alone[0].weights.contains("layers.0/self_attn.q_proj.lora_A.weight"));
  CHECK_FALSE(alone[0].weights.contains("layers.1/self_attn.q_proj.lora_A.weight"));
  for (const char* recompute : {"none", "selective", "full"}) {
    CAPTURE(recompute);
    auto sharded = options;
    sharded.strategy = "full_shard";
    sharded.recompute = recompute;
    const auto three = run_job(3, sharded);
    check_ranks_agree(three);
    CHECK(distance(three[0].run.steps, alone[0].run.steps).loss < 1e-5);
  }
  auto merged = options;
  merged.lora_merge = true;
  merged.export_weights = (folder.path() / "merged").string();
  run_job(2, merged);
  auto next = options;
  next.steps = 6;
  const double adapted = run_job(1, next)[0].run.steps.back().loss;
  auto plain = base(folder);
  plain.model = merged.export_weights;
  plain.lr = 0;
  plain.steps = 6;
  CHECK(run_job(1, plain)[0].run.steps.back().loss == doctest::Approx(adapted).epsilon(1e-5));
}
