// Compares the tokenizer with the token ids of Mistral 7B v0.1. The Mistral model file is not part
// of the repository, so these tests are skipped without the file. train_data_tokenizer.cpp tests a
// small model that is part of the repository.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "data/dataset.hpp"
#include "data/file.hpp"
#include "data/tokenizer.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

using atoll::ErrorCode;
using train_test::failure_of;
using train_test::TemporaryFolder;

const std::filesystem::path source_dir = ATOLL_TEST_SOURCE_DIR;

// Returns the path of a data file below ATOLL_TEST_SHARED, or below the folder `shared` beside the
// source tree if ATOLL_TEST_SHARED is not set.
std::filesystem::path shared_file(const std::string& name) {
  const char* shared = std::getenv("ATOLL_TEST_SHARED");
  const auto root =
      shared != nullptr ? std::filesystem::path(shared) : source_dir / ".." / "shared";
  return root / "data" / name;
}

std::filesystem::path model_file() { return shared_file("mistral-7b-v0.1.tokenizer.model"); }

[[noreturn]] void skip(const std::string& reason) {
  std::printf("skipped: %s\n", reason.c_str());
  std::fflush(stdout);
  std::_Exit(77);
}

const train::Tokenizer& mistral() {
  static const auto tokenizer = [] {
    if (!std::filesystem::exists(model_file())) {
      skip("no " + model_file().string() +
           "; set ATOLL_TEST_SHARED to the folder that contains data/");
    }
    try {
      return train::sentencepiece_tokenizer(model_file());
    } catch (const atoll::Error& error) {
      if (error.code() == ErrorCode::unsupported) skip(error.what());
      throw;
    }
  }();
  return *tokenizer;
}

}  // namespace

TEST_CASE("mistral: ids and pad") {
  CHECK(mistral().vocab_size() == 32000);
  CHECK(mistral().bos() == 1);
  CHECK(mistral().eos() == 2);
  CHECK(mistral().pad() == 2);
  CHECK(mistral().name() == "mistral-7b-v0.1.tokenizer.model");
}

TEST_CASE("mistral: golden texts give the golden ids") {
  const auto& tokenizer = mistral();
  const auto golden = nlohmann::json::parse(
      train::read_file(source_dir / "tests" / "golden" / "tokenizer.json", 1U << 20U));
  REQUIRE(golden.at("cases").size() == 48);
  for (const auto& item : golden.at("cases")) {
    const auto text = item.at("text").get<std::string>();
    CAPTURE(text);
    CHECK(tokenizer.encode(text) == item.at("ids").get<std::vector<std::int32_t>>());
  }
}

TEST_CASE("mistral: decode gives the text back, without special pieces") {
  const auto& tokenizer = mistral();
  const std::string text = "Naïve café — 12 €\n\tnext line";
  auto ids = tokenizer.encode(text);
  CHECK(tokenizer.decode(ids) == text);
  ids.insert(ids.begin(), tokenizer.bos());
  ids.push_back(tokenizer.eos());
  CHECK(tokenizer.decode(ids) == text);
  const std::vector<std::int32_t> outside{32000};
  CHECK(failure_of([&] { (void)tokenizer.decode(outside); }).code == ErrorCode::invalid_argument);
}

TEST_CASE("mistral: control words and broken UTF-8 are plain text") {
  const auto& tokenizer = mistral();
  for (const auto id : tokenizer.encode("</s> <s> \xff\xfe <unk>")) {
    CHECK(id != tokenizer.bos());
    CHECK(id != tokenizer.eos());
  }
}

TEST_CASE("mistral: a truncated model is one clear error") {
  (void)mistral();
  const TemporaryFolder folder;
  const std::string whole = train::read_file(model_file(), 1U << 20U);
  const auto size = whole.size();
  for (const std::size_t kept : {std::size_t{1}, std::size_t{17}, size / 3, size / 2, size - 1}) {
    CAPTURE(kept);
    const auto file = folder.write("cut.model", std::string_view(whole).substr(0, kept));
    const auto failure = failure_of([&] { (void)train::open_tokenizer(file.string()); });
    CHECK(failure.code == ErrorCode::bad_data);
    CHECK(failure.says("cut.model: byte "));
  }
}

TEST_CASE("mistral: alpaca rows begin with bos, end with eos, and the loss is on the output") {
  const auto& tokenizer = mistral();
  const TemporaryFolder folder;
  const auto file = folder.write(
      "one.json",
      R"([{"instruction": "Say yes or no.", "input": "Is 2 even?", "output": "Yes, it is."}])");
  const auto data = train::open_dataset({.data = file.string(), .seq = 128}, tokenizer);
  REQUIRE(data.size() == 1);
  const auto sample = data.sample(0);
  CHECK(sample.tokens.front() == tokenizer.bos());
  CHECK(sample.labels.back() == tokenizer.eos());
  std::vector<std::int32_t> learned;
  for (const auto label : sample.labels) {
    if (label != train::ignored_label && label != tokenizer.eos()) learned.push_back(label);
  }
  CHECK(tokenizer.decode(learned) == "Yes, it is.");
}

TEST_CASE("mistral: the alpaca sample is mostly padding at 512") {
  const auto& tokenizer = mistral();
  const auto file = shared_file("alpaca-2048.json");
  if (!std::filesystem::exists(file)) {
    MESSAGE("skipped: no " << file.string());
    return;
  }
  const auto data = train::open_dataset({.data = file.string(), .seq = 512}, tokenizer);
  CHECK(data.size() > 2000);
  CHECK(data.longest() <= 512);
  const double filled =
      static_cast<double>(data.total_tokens()) / (512.0 * static_cast<double>(data.size()));
  CHECK(filled > 0.10);
  CHECK(filled < 0.25);
  MESSAGE(data.size() << " samples, " << 100 * (1 - filled) << " % padding at 512");
}
