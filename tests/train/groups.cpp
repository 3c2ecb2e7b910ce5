// Tests of --group and --decay: parameter groups in whole runs and their errors. The warning of a
// resumed run with other groups is that of the library, in unit/checkpoint/saved_settings.cpp.
#include "loop/parameter_groups.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "job.hpp"
#include "unit/train/data_temporary.hpp"

using namespace train_test;

namespace {

train::RunOptions base(const TemporaryFolder& folder, const std::string& optimizer) {
  train::RunOptions options = small_run(folder.path());
  options.optimizer = optimizer;
  options.samples = 8;
  options.warmup_steps = 0;
  options.steps = 1;
  options.clip = 0;  // with clipping, a group would change the steps of all parameters
  options.save_checkpoint = false;
  options.peak_seconds = 0.01;
  return options;
}

Weights weights_of(const train::RunOptions& options) { return run_job(2, options)[0].weights; }

// Returns the names of the parameters that differ between two runs.
std::vector<std::string> changed(const Weights& a, const Weights& b) {
  std::vector<std::string> names;
  for (const auto& [name, values] : a) {
    if (values != b.at(name)) names.push_back(name);
  }
  return names;
}

}  // namespace

TEST_CASE("groups: each optimizer applies settings to the parameters of a group alone") {
  const TemporaryFolder folder;
  for (const char* optimizer : {"adamw", "sgd", "muon"}) {
    CAPTURE(optimizer);
    auto options = base(folder, optimizer);
    options.weight_decay = 0.5;
    options.decay = "all";
    const Weights usual = weights_of(options);
    options.group = {"*norm.weight:weight_decay=0", "model.layers.1.mlp.up_proj.weight:lr_scale=0",
                     "model.layers.1.mlp.*:lr_scale=0.5", "lm_head.weight:lr_scale=1"};
    const Weights grouped = weights_of(options);
    CHECK(changed(usual, grouped) ==
          std::vector<std::string>{
              "head/norm.weight", "layers.0/input_layernorm.weight",
              "layers.0/post_attention_layernorm.weight", "layers.1/input_layernorm.weight",
              "layers.1/mlp.down_proj.weight", "layers.1/mlp.gate_proj.weight",
              "layers.1/mlp.up_proj.weight", "layers.1/post_attention_layernorm.weight"});
    // lr_scale=0 acts like --lr 0, and weight_decay=0 for the norms like --decay matrices.
    auto still = options;
    still.lr = 0;
    CHECK(weights_of(still).at("layers.1/mlp.up_proj.weight") ==
          grouped.at("layers.1/mlp.up_proj.weight"));
    options.group.erase(options.group.begin());
    options.decay = "matrices";
    CHECK(weights_of(options) == grouped);
  }
}

TEST_CASE("groups: by default norms do not decay; the embedding is spared on request") {
  const TemporaryFolder folder;
  for (const char* optimizer : {"adamw", "sgd", "muon"}) {
    CAPTURE(optimizer);
    auto options = base(folder, optimizer);
    options.weight_decay = 0.5;
    CHECK(options.decay == "matrices");
    const Weights usual = weights_of(options);
    options.decay = "all";
    CHECK(changed(usual, weights_of(options)) ==
          std::vector<std::string>{"head/norm.weight", "layers.0/input_layernorm.weight",
                                   "layers.0/post_attention_layernorm.weight",
                                   "layers.1/input_layernorm.weight",
                                   "layers.1/post_attention_layernorm.weight"});
    options.decay = "matrices-no-embeddings";
    const Weights spared = weights_of(options);
    CHECK(changed(usual, spared) == std::vector<std::string>{"embed/embed_tokens.weight"});
    options.group = {"model.embed_tokens.*:lr_scale=1"};
    const bool same = weights_of(options) == spared;
    CHECK(same);
    options.group = {"model.embed_tokens.*:weight_decay=0.5"};
    const bool decays = weights_of(options) == usual;
    CHECK(decays);
  }
}

TEST_CASE("groups: a flag that is wrong") {
  const auto error_of = [](const std::string& group) {
    return failure_of([&] { train::parse_group(group); }).message;
  };
  CHECK(error_of("*norm.weight:lr_scale=0.1,weight_decay=0,beta1=0,beta2=0.5") == "");
  for (const std::string text : {"*norm.weight", ":lr_scale=1", "*norm.weight:", ""}) {
    CHECK(
        error_of(text).starts_with("--group " + text + ": use PATTERN:SETTING=NUMBER,..., as in "));
  }
  const std::pair<std::string, std::string> wrong[] = {
      {"*:lr=0.1", "\"lr\" is not a setting: use lr_scale, "},
      {"*:decay=0.1", "\"decay\" is not a setting: use lr_scale, "},
      {"*:beta1=0,lr_scale", "\"lr_scale\" is not SETTING=NUMBER, as in "},
      {"*:lr_scale=fast", "lr_scale=fast is not a number"},
      {"*:lr_scale=inf", "lr_scale=inf is not a number"},
      {"*:lr_scale=", "lr_scale= is not a number"},
      {"*:lr_scale=-1", "lr_scale=-1 is not 0 or above"},
      {"*:beta2=1", "beta2=1 is not in [0, 1)"},
      {"*:beta1=0,beta1=0", "beta1 is there twice"}};
  for (const auto& [text, reason] : wrong) {
    CAPTURE(text);
    CHECK(error_of(text).starts_with("--group " + text + ": " + reason));
  }
}

TEST_CASE("groups: a pattern without effect, and settings that the optimizer lacks") {
  const TemporaryFolder folder;
  const auto refused = [&](std::vector<std::string> groups, const char* optimizer = "adamw") {
    auto options = base(folder, optimizer);
    options.mesh.clear();
    options.group = std::move(groups);
    options.freeze = {"lm_head.weight"};
    return failures_of_job(1, options).front();
  };
  CHECK(refused({"*bias:lr_scale=2"}) ==
        "--group *bias: matches no trainable parameter; model.embed_tokens.weight is one of their "
        "names");
  CHECK(refused({"lm_head.*:lr_scale=2"}).starts_with("--group lm_head.*: matches no trainable"));
  CHECK(refused({"*:lr_scale=2", "*norm*:lr_scale=1"}) ==
        "--group *norm*: has no effect: earlier groups match all its parameters");
  CHECK(refused({"*:beta1=0.5"}, "sgd") ==
        "--group *:beta1=0.5: --optimizer sgd has no beta1 and no beta2");
}
