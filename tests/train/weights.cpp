// Tests of the files that --init reads.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "data/tokenizer.hpp"
#include "fail.hpp"
#include "job.hpp"
#include "loop/model_source.hpp"
#include "loop/weight_files.hpp"
#include "model/hf_config.hpp"
#include "model/params.hpp"
#include "unit/train/data_temporary.hpp"

using namespace train_test;
using nlohmann::json;
using train::ErrorCode;
namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;

namespace {

constexpr const char* index_file = "model.safetensors.index.json";

// Returns a safetensors file with one-element tensors of these names.
std::string file_with(const std::vector<std::string>& tensors) {
  json header = json::object();
  std::size_t end = 0;
  for (const auto& name : tensors) {
    header[name] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {end, end + 4}}};
    end += 4;
  }
  const std::string text = header.dump();
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(text.size() >> (8 * i) & 255);
  return bytes + text + std::string(end, '\0');
}

// Returns options for one step of SGD with learning rate 0, which keeps the initial weights.
train::RunOptions still(const TemporaryFolder& folder) {
  train::RunOptions options = plain_run(folder.path());
  options.samples = 8;
  options.optimizer = "sgd";
  options.lr = 0;
  options.clip = 0;
  options.steps = 1;
  return options;
}

// Writes the initial weights of a seed.
Weights write_weights(train::RunOptions options, std::uint64_t seed, const fs::path& file) {
  options.seed = seed;
  return run_job(2, options,
                 [&](fsdp::Engine& engine) {
                   fsdp::export_weights(file, engine, atoll::DType::f32,
                                        [](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
                                          return train::hf_name(unit.name(), param.name);
                                        });
                 })
      .front()
      .weights;
}

}  // namespace

TEST_CASE("--init: only the files that the index names count") {
  const TemporaryFolder folder;
  const auto options = still(folder);
  fs::create_directories(folder.path() / "hf");
  folder.write("hf/config.json", small_model_json(false));
  write_weights(options, 1, folder.path() / "hf" / "a-stale.safetensors");
  const auto wanted = write_weights(options, 2, folder.path() / "hf" / "model-1.safetensors");
  folder.write("hf/broken.safetensors", "not a file of weights");
  json map = json::object();
  for (const auto& [name, values] : wanted) {
    const auto slash = name.find('/');
    map[train::hf_name(name.substr(0, slash), name.substr(slash + 1))] = "model-1.safetensors";
  }
  folder.write(std::string("hf/") + index_file, json{{"weight_map", map}}.dump());
  auto start = options;
  start.init = (folder.path() / "hf").string();
  const bool same = run_job(2, start).front().weights == wanted;
  CHECK(same);

  // Without an index, the names of the files tell how many there are.
  fs::create_directories(folder.path() / "parts");
  fs::copy(folder.path() / "hf" / "model-1.safetensors",
           folder.path() / "parts" / "model-00002-of-00003.safetensors");
  CHECK(failure_of([&] {
          (void)train::weight_files(folder.path() / "parts");
        }).says("model-00001-of-00003.safetensors: the file does not exist, but model-00002-of-"));

  map["lm_head.weight"] = "model-2.safetensors";
  folder.write(std::string("hf/") + index_file, json{{"weight_map", map}}.dump());
  check_refused(2, start, {"model-2.safetensors: the file does not exist, but model.safetensors."});
}

TEST_CASE("--init: an index that does not fit its files") {
  const TemporaryFolder folder;
  const fs::path index = folder.path() / index_file;
  const auto failure = [&](const std::string& text) {
    folder.write(index_file, text);
    return train_test::failure_of([&] { (void)train::weight_files(folder.path()); });
  };
  const std::string a_and_b =
      R"({"weight_map": {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}})";
  folder.write("a.safetensors", file_with({"x", "y"}));
  folder.write("b.safetensors", file_with({"z"}));
  folder.write(index_file, a_and_b);
  CHECK(train::weight_files(folder.path()) ==
        std::vector<fs::path>{folder.path() / "a.safetensors", folder.path() / "b.safetensors"});

  folder.write("b.safetensors", file_with({"z", "y"}));
  auto error = failure(a_and_b);
  CHECK(error.code == ErrorCode::mismatch);
  CHECK(error.says(index.string() + ": places y in a.safetensors, but b.safetensors has it too"));
  folder.write("a.safetensors", file_with({"x"}));
  CHECK(failure(a_and_b).says("places y in a.safetensors, but b.safetensors has it: the index"));
  folder.write("b.safetensors", file_with({"z"}));
  CHECK(failure(a_and_b).says("places y in a.safetensors, which does not have it"));

  CHECK(
      failure("{\"weight_map\": ").says("index.json: not whole JSON: wrong or cut off at byte 15"));
  CHECK(failure("{}").says("\"weight_map\" is missing or empty"));
  CHECK(failure(R"({"weight_map": {"x": "../a.safetensors"}})")
            .says("the file of \"x\" is not the name of a file in this folder"));
  CHECK(failure(R"({"weight_map": {"x": 7}})").says("the file of \"x\""));
}

TEST_CASE("a folder without weights needs --init none, and tensors without a parameter are named") {
  const TemporaryFolder folder;
  auto options = still(folder);
  const auto config = small_model_json(false);
  fs::create_directories(folder.path() / "hf");
  folder.write("hf/config.json", config);
  options.model = (folder.path() / "hf").string();
  options.init = "";
  check_refused(2, options, {"--model " + options.model + ": no .safetensors file in it"});
  auto random = options;
  random.init = "none";
  CHECK(run_job(2, random).front().weights.size() > 0);

  auto shape = train::parse_hf_config(config, "config.json");
  folder.write("extra.safetensors",
               file_with({"model.norm.weight", "model.layers.0.self_attn.q_proj.bias",
                          "model.layers.0.self_attn.rotary_emb.inv_freq", "model.x"}));
  const std::vector<fs::path> files{folder.path() / "extra.safetensors"};
  CHECK(train::unused_weights(shape, files) ==
        folder.path().string() +
            ": the model of config.json has no parameter for 2 of its tensors, for example "
            "model.layers.0.self_attn.q_proj.bias; they are not used, so check config.json");
  folder.write("extra.safetensors", file_with({"model.norm.weight", "lm_head.weight"}));
  CHECK(train::unused_weights(shape, files).empty());
  shape.tied = true;
  CHECK(train::unused_weights(shape, files).empty());
}

TEST_CASE("--init: a folder without an index") {
  const TemporaryFolder folder;
  folder.write("b.safetensors", file_with({"b"}));
  CHECK(train::weight_files(folder.path()).size() == 1);
  folder.write("a.safetensors", file_with({"a"}));
  CHECK(train::weight_files(folder.path()) ==
        std::vector<fs::path>{folder.path() / "a.safetensors", folder.path() / "b.safetensors"});
  folder.write("model.safetensors", file_with({"a", "b"}));
  CHECK(train::weight_files(folder.path()) ==
        std::vector<fs::path>{folder.path() / "model.safetensors"});
}

TEST_CASE("an adapter is no model, and beside a model it is not applied") {
  const TemporaryFolder folder;
  auto options = still(folder);
  options.data = "synthetic";
  fs::create_directories(folder.path() / "lora");
  folder.write("lora/adapter_model.safetensors", file_with({"base_model.model.x.lora_A.weight"}));
  folder.write("lora/adapter_config.json", R"({"base_model_name_or_path": "acme/tiny"})");
  folder.write("lora/tokenizer.json", "{}");
  const std::string place = (folder.path() / "lora").string();
  const auto check = [&](const std::string& flag) {
    check_refused(2, options, {flag + ": a LoRA adapter of \"acme/tiny\"", "--init \"acme/tiny\""});
  };
  for (const char* data : {"synthetic", "demo"}) {
    options.data = data;  // text wants a tokenizer, which the folder of an adapter may have
    options.model = place;
    options.init = "";
    check("--model " + place);
    options.init = place;
    check("--init " + place);
  }
  fs::remove(folder.path() / "lora" / "tokenizer.json");
  options.data = "synthetic";
  options.init = place + "/adapter_model.safetensors";
  check("--init " + options.init);
  // The folder has the config.json of the base, but not its weights.
  folder.write("lora/config.json", small_model_json(false));
  options.model = place;
  options.init = "";
  check("--model " + place);
  folder.write("lora/adapter_config.json", "[]");
  check_refused(1, options, {"--model " + place + ": a LoRA adapter, not"});

  // If the folder of an adapter also has the weights of the base model, --model reads these and
  // ignores the adapter, whatever the name of the weights file.
  const auto base = write_weights(still(folder), 3, folder.path() / "lora" / "weights.safetensors");
  const bool same = run_job(2, options).front().weights == base;
  CHECK(same);
  const auto tokenizer = train::byte_tokenizer();
  CHECK(train::unapplied_adapters(train::find_model(options, tokenizer->vocab_size()))
            .starts_with(place + ": has a LoRA adapter beside the model"));
  fs::remove(folder.path() / "lora" / "adapter_config.json");
  CHECK(train::unapplied_adapters(train::find_model(options, tokenizer->vocab_size())) == "");
}

TEST_CASE("sizes are compared with the files and the memory before anything is allocated") {
  const TemporaryFolder folder;
  auto options = still(folder);
  options.data = "synthetic";
  fs::create_directories(folder.path() / "hf");
  write_weights(options, 1, folder.path() / "hf" / "model.safetensors");
  auto config = json::parse(small_model_json(false));
  const auto vocab = config["vocab_size"].get<std::int64_t>();
  config["vocab_size"] = 16'000'000;
  folder.write("hf/config.json", config.dump());
  options.model = (folder.path() / "hf").string();
  check_refused(1, options,
                {"model.embed_tokens.weight has the shape [" + std::to_string(vocab) +
                 ", 64], but config.json makes it [16000000, 64]"});
  config["hidden_size"] = 1'000'000;
  options.model = folder.write("large.json", config.dump()).string();
  check_refused(1, options, {": each rank's share of the memory", "check the sizes in config"});
  options.dry_run = true;  // plans for other machines
  CHECK(failures_of_job(1, options).front().find("check the sizes") == std::string::npos);
}
