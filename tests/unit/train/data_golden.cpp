// Compares the tokenizer with the token ids of Mistral 7B v0.1. The Mistral model file is not part
// of the repository, so these tests are skipped without the file. data_tokenizer.cpp tests a
// small model that is part of the repository.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "atoll/error.hpp"
#include "data/file.hpp"
#include "data/tokenizer.hpp"

namespace {

using atoll::ErrorCode;

const std::filesystem::path source_dir = ATOLL_TEST_SOURCE_DIR;

// Returns the path of the model below ATOLL_TEST_SHARED, or below the folder `shared` beside the
// source tree if ATOLL_TEST_SHARED is not set.
std::filesystem::path model_file() {
  const char* shared = std::getenv("ATOLL_TEST_SHARED");
  const auto root =
      shared != nullptr ? std::filesystem::path(shared) : source_dir / ".." / "shared";
  return root / "data" / "mistral-7b-v0.1.tokenizer.model";
}

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
