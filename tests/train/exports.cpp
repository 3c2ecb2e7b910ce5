// Tests of what --export writes beside the weights, and that it spares the model that it starts
// from.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.hpp"
#include "job.hpp"
#include "loop/model_source.hpp"
#include "model/hf_config.hpp"
#include "unit/train/data_temporary.hpp"

using namespace train_test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

train::RunOptions base(const TemporaryFolder& folder) {
  train::RunOptions options = small_run(folder.path());
  options.steps = 1;
  options.save_checkpoint = false;
  return options;
}

// Writes a model with weights to the folder NAME.
fs::path write_model(const TemporaryFolder& folder, const std::string& name) {
  auto options = base(folder);
  options.export_weights = (folder.path() / name).string();
  run_job(2, options);
  return options.export_weights;
}

json read_json(const fs::path& file) { return json::parse(TemporaryFolder::read(file)); }

}  // namespace

TEST_CASE("--export spares the model that the run starts from") {
  const TemporaryFolder folder;
  const fs::path model = write_model(folder, "model");
  const std::string weights = TemporaryFolder::read(model / "model.safetensors");
  const auto refused = [&](const auto& change) {
    auto options = base(folder);
    options.model = model.string();
    options.export_weights = model.string();
    change(options);
    check_refused(2, options,
                  {"--export " + options.export_weights + ": the weights of the model"});
    CHECK(TemporaryFolder::read(model / "model.safetensors") == weights);
  };
  using Options = train::RunOptions;
  const std::string file = (model / "model.safetensors").string();
  refused([](Options&) {});
  refused([](Options& o) { o.export_weights += "/"; });
  refused([](Options& o) { o.lora_rank = 2; });
  refused([&](Options& o) { o.export_weights = file; });
  refused([&](Options& o) {
    o.model = "mistral-tiny";
    o.init = file;
  });
  // The export spares the model's weights even if the run does not load them.
  refused([](Options& o) { o.init = "none"; });
  refused([&](Options& o) { o.model = (model / "config.json").string(); });
  // Links to the folder and a folder of links, as in the Hub's cache, are spared, too.
  fs::create_directory_symlink(model, folder.path() / "link");
  refused([&](Options& o) { o.export_weights = (folder.path() / "link").string(); });
  fs::create_directories(folder.path() / "snapshot");
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::create_symlink(model / name, folder.path() / "snapshot" / name);
  }
  refused([&](Options& o) { o.model = (folder.path() / "snapshot").string(); });
  auto other = base(folder);
  other.model = model.string();
  other.export_weights = (folder.path() / "other").string();
  run_job(2, other);
  CHECK(fs::exists(folder.path() / "other" / "model.safetensors"));
}

TEST_CASE("--export: ids of tokens, and the files of the tokenizer of a model without weights") {
  const TemporaryFolder folder;
  // The ids of the tokenizer are exported if no config.json has any.
  const fs::path model = write_model(folder, "model");
  CHECK(read_json(model / "config.json")["bos_token_id"] == 256);
  CHECK(read_json(model / "config.json")["eos_token_id"] == 257);
  // The ids in the config.json of the model that the run reads take precedence.
  auto config = read_json(model / "config.json");
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = {3, 4};
  config["pad_token_id"] = 5;
  folder.write("model/config.json", config.dump());
  folder.write("model/tokenizer_config.json", "{}");
  auto options = base(folder);
  options.tokenizer = "ids:259";
  options.data = "synthetic";
  options.model = model.string();
  for (const std::string init : {"", "none"}) {
    CAPTURE(init);
    options.init = init;
    options.export_weights = (folder.path() / ("again-" + init)).string();
    run_job(2, options);
    const fs::path written = options.export_weights;
    const auto again = read_json(written / "config.json");
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      CHECK(again[key] == config[key]);
    }
    CHECK(TemporaryFolder::read(written / "tokenizer_config.json") == "{}");
  }
}

TEST_CASE("--export: no ids of tokens that nobody knows, and no model beside adapters") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.tokenizer = "ids:259";
  options.data = "synthetic";
  options.export_weights = (folder.path() / "model").string();
  options.steps = 0;  // only writes
  fs::create_directories(options.export_weights);
  folder.write("model/adapter_config.json", "{}");
  check_refused(2, options, {"--export: " + options.export_weights + " has adapters"});
  CHECK(fs::exists(folder.path() / "model" / "adapter_config.json"));
  fs::remove(folder.path() / "model" / "adapter_config.json");
  run_job(2, options);
  const auto config = read_json(folder.path() / "model" / "config.json");
  CHECK_FALSE(config.contains("bos_token_id"));
  CHECK_FALSE(config.contains("eos_token_id"));
  CHECK(fs::exists(folder.path() / "model" / "model.safetensors"));
}

TEST_CASE("--export of adapters: the base model that peft opens") {
  const TemporaryFolder folder;
  const fs::path model = write_model(folder, "model");
  const fs::path cached = folder.path() / "hub" / "models--acme--tiny" / "snapshots" / "v2";
  fs::create_directories(cached);
  fs::copy(model, cached, fs::copy_options::recursive);
  ::setenv("HF_HUB_CACHE", (folder.path() / "hub").c_str(), 1);
  const auto config_of = [&](const std::string& name, const std::string& init) {
    auto options = base(folder);
    options.model = name;
    options.init = init;
    options.lora_rank = 2;
    options.export_weights = (folder.path() / "adapters").string();
    run_job(2, options);
    return read_json(folder.path() / "adapters" / "adapter_config.json");
  };
  auto config = config_of("acme/tiny@v2", "");
  CHECK(config["base_model_name_or_path"] == "acme/tiny");
  CHECK(config["revision"] == "v2");
  config = config_of("mistral-tiny", model.string());
  CHECK(config["base_model_name_or_path"] == model.string());
  CHECK(config["revision"].is_null());
  config = config_of("mistral-tiny", (model / "model.safetensors").string());
  CHECK(config["base_model_name_or_path"] == model.string());
  // A relative path becomes absolute, since adapters may be opened in another folder.
  config = config_of("mistral-tiny", fs::relative(model).string());
  CHECK(config["base_model_name_or_path"] == model.string());
  CHECK(config_of(model.string(), "none")["base_model_name_or_path"].is_null());
  CHECK(config_of(base(folder).model, "")["base_model_name_or_path"].is_null());
  ::unsetenv("HF_HUB_CACHE");
}

TEST_CASE("--export: what transformers needs to open a SentencePiece tokenizer") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.model = "mistral-tiny";
  options.tokenizer = (folder.path() / "tokenizer.model").string();
  fs::copy_file(fs::path(ATOLL_TEST_SOURCE_DIR) / "tests/train/tokenizer.model", options.tokenizer);
  options.export_weights = (folder.path() / "model").string();
  run_job(2, options);
  const auto config = read_json(folder.path() / "model" / "tokenizer_config.json");
  CHECK(config["add_bos_token"] == true);
  CHECK(config["bos_token"] == "<s>");
  CHECK(config["eos_token"] == "</s>");
  CHECK(config["tokenizer_class"] == "LlamaTokenizer");
  // A tokenizer_config.json in the tokenizer's own folder takes precedence.
  folder.write("tokenizer_config.json", "{}");
  run_job(2, options);
  CHECK(TemporaryFolder::read(folder.path() / "model" / "tokenizer_config.json") == "{}");

  // For text data, the tokenizer in the model's folder is chosen.
  const auto chosen = [&](const std::string& data, const std::string& tokenizer) {
    train::RunOptions next;
    next.model = (folder.path() / "model").string();
    next.data = data;
    next.tokenizer = tokenizer;
    train::choose_tokenizer(next);
    return next.tokenizer;
  };
  const std::string own = (folder.path() / "model" / "tokenizer.model").string();
  CHECK(chosen("demo", "auto") == own);
  CHECK(chosen("a.json,b.txt:2", "auto") == own);
  CHECK(chosen("a.json,ids.tok", "auto") == "auto");
  CHECK(chosen("synthetic", "auto") == "auto");
  CHECK(chosen("demo", "bytes") == "bytes");
  CHECK(chosen("ids.tok", (folder.path() / "model").string()) == own);

  train::ModelSource source;
  source.config.vocab = 32'000;
  const auto bytes = train::byte_tokenizer();
  CHECK(train::few_ids(source, *bytes).empty());  // no warning, since the weights are random
  source.weights = own;
  CHECK(train::few_ids(source, *bytes)
            .starts_with("the model has 32000 ids, but the data have at most 259 (bytes): "));
  source.config.vocab = 280;
  CHECK(train::few_ids(source, *bytes).empty());
}

TEST_CASE(
    "--export: one line says that nobody has the base of adapters, or the tokenizer's files") {
  const TemporaryFolder folder;
  auto options = base(folder);
  const auto told = [&](std::string_view part) {
    return run_and_listen(options).with(part).size();
  };
  options.export_weights = (folder.path() / "model").string();
  CHECK(told("--export: the run has no files of a tokenizer (bytes), so ") == 1);
  options.lora_rank = 2;
  options.export_weights = (folder.path() / "adapters").string();
  const std::string_view random = "--export: the base of the adapters has random weights";
  CHECK(told(random) == 1);
  options.lora_merge = true;
  options.export_weights = (folder.path() / "merged").string();
  CHECK(told(random) == 0);
  options.lora_merge = false;
  options.init = (folder.path() / "model").string();
  options.export_weights = (folder.path() / "adapters").string();
  CHECK(told(random) == 0);
}
