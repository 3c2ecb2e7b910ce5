#include <doctest/doctest.h>

#include <set>

#include "data/loaders.hpp"
#include "data/sources.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

using atoll::ErrorCode;
using train::DataSpec;
using train_test::failure_of;
using train_test::TemporaryFolder;

const train::Tokenizer& source_bytes() {
  static const auto tokenizer = train::byte_tokenizer();
  return *tokenizer;
}

train_test::Failure open_failure(const DataSpec& spec) {
  return failure_of([&] { (void)train::open_dataset(spec, source_bytes()); });
}

}  // namespace

TEST_CASE("synthetic: full rows of the model's vocabulary, a function of the seed") {
  const DataSpec spec{
      .data = "synthetic", .samples = 20, .seq = 33, .seed = 5, .model = {.vocabulary = 100}};
  const auto data = train::open_dataset(spec, source_bytes());
  REQUIRE(data.size() == 20);
  CHECK(data.statistics[0].trained == 20 * 33);
  std::set<std::int32_t> seen;
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const auto sample = data.sample(i);
    REQUIRE(sample.tokens.size() == 33);
    for (std::size_t t = 0; t + 1 < sample.tokens.size(); ++t) {
      CHECK(sample.labels[t] == sample.tokens[t + 1]);
    }
    seen.insert(sample.tokens.begin(), sample.tokens.end());
  }
  CHECK(*seen.begin() >= 0);
  CHECK(*seen.rbegin() < 100);
  CHECK(seen.size() > 90);
  CHECK(train::open_dataset(spec, source_bytes()).fingerprint() == data.fingerprint());
  auto other = spec;
  other.seed = 6;
  CHECK(train::open_dataset(other, source_bytes()).fingerprint() != data.fingerprint());
  auto more = spec;
  more.samples = 40;
  const auto longer = train::open_dataset(more, source_bytes());
  CHECK(longer.sample(7).tokens[3] == data.sample(7).tokens[3]);
}

TEST_CASE("synthetic:copy: the second half repeats the first and alone carries loss") {
  for (const int seq : {4, 5, 16, 31}) {
    CAPTURE(seq);
    const auto data =
        train::open_dataset({.data = "synthetic:copy", .samples = 12, .seq = seq}, source_bytes());
    REQUIRE(data.size() == 12);
    const auto half = static_cast<std::size_t>(seq / 2);
    for (std::int64_t i = 0; i < data.size(); ++i) {
      const auto sample = data.sample(i);
      REQUIRE(sample.tokens.size() == 2 * half);
      CHECK(sample.tokens[0] == 0);
      CHECK(sample.valid == static_cast<std::int64_t>(half) - 1);
      for (std::size_t t = 0; t < half; ++t) {
        CHECK(sample.tokens[t] == sample.tokens[half + t]);
        CHECK(sample.labels[t] == train::ignored_label);
        if (t > 0) CHECK(sample.tokens[t] >= 1);
        CHECK(sample.tokens[t] < train::copy_vocabulary);
      }
      for (std::size_t t = half; t + 1 < 2 * half; ++t) {
        CHECK(sample.labels[t] == sample.tokens[t + 1]);
      }
      CHECK(sample.labels.back() == train::ignored_label);
    }
  }
  CHECK(open_failure({.data = "synthetic:copy", .seq = 3}).says("at least 4"));
}

TEST_CASE("demo: hundreds of short, varied, seed-fixed records with right answers") {
  const auto data = train::open_dataset({.data = "demo", .seq = 256, .seed = 1}, source_bytes());
  CHECK(data.size() == 800);
  CHECK(data.warnings.empty());
  CHECK(data.longest() <= 160);
  CHECK(
      train::open_dataset({.data = "demo", .seq = 256, .seed = 1}, source_bytes()).fingerprint() ==
      data.fingerprint());
  CHECK(
      train::open_dataset({.data = "demo", .seq = 256, .seed = 2}, source_bytes()).fingerprint() !=
      data.fingerprint());
  std::set<std::string> instructions;
  for (std::int64_t i = 0; i < 800; ++i) {
    const auto record = train::demo_record(1, i);
    CHECK_FALSE(record.output.empty());
    instructions.insert(record.instruction);
    if (record.instruction == "Write the word backwards.") {
      CHECK(record.output == std::string(record.input.rbegin(), record.input.rend()));
    }
    if (record.instruction == "Add the two numbers.") {
      const auto gap = record.input.find(" and ");
      CHECK(std::stoi(record.output) ==
            std::stoi(record.input) + std::stoi(record.input.substr(gap + 5)));
    }
  }
  CHECK(instructions.size() == 5 + 16);
}

TEST_CASE("open: kinds of files by name or by prefix") {
  const TemporaryFolder folder;
  const std::string record = R"([{"instruction": "i", "output": "o"}])";
  const auto list = folder.write("a.json", record), odd = folder.write("a.data", record);
  CHECK(train::open_dataset({.data = list.string()}, source_bytes()).size() == 1);
  CHECK(train::open_dataset({.data = "json:" + odd.string()}, source_bytes()).size() == 1);
  CHECK(open_failure({.data = odd.string()}).code == ErrorCode::invalid_argument);
  CHECK(open_failure({.data = "synthetic:unknown"}).says("synthetic:copy"));
  CHECK(open_failure({.data = list.string() + "x"}).thrown);
  for (const char* name : {"a.jsonl", "a.txt", "a.md", "a.parquet", "a.txt.gz", "text:a.data"}) {
    const auto source = train::parse_sources(name, "").front();
    CHECK(source.kind == train::SourceKind::other);
    CHECK(source.ending == (source.text == "text:a.data" ? "text" : ""));
  }
}

TEST_CASE("open: bad files") {
  const TemporaryFolder folder;
  const auto missing = open_failure({.data = (folder.path() / "none.json").string()});
  CHECK(missing.code == ErrorCode::not_found);
  CHECK(missing.says("none.json: no such file"));
  CHECK(open_failure({.data = folder.write("e.json", "").string()}).says("empty file"));
  CHECK(open_failure({.data = folder.write("o.json", "{}").string()}).says("not a list"));
  CHECK(
      open_failure({.data = folder.write("l.json", "[]").string()}).says("no sample to train on"));
}

TEST_CASE("open: every sample dropped is an error that says why") {
  const TemporaryFolder folder;
  const auto file = folder.write("a.json", R"([{"instruction": "i", "output": "o"}])");
  const auto failure = open_failure({.data = file.string(), .seq = 4});
  CHECK(failure.code == ErrorCode::bad_data);
  CHECK(failure.says("1 samples dropped"));
}

TEST_CASE("open: limits of the model") {
  CHECK(open_failure({.seq = 4097, .model = {.positions = 4096}}).says("at most 4096"));
  CHECK_FALSE(open_failure({.seq = 4096, .model = {.positions = 4096}}).thrown);
  CHECK(open_failure({.model = {.vocabulary = 258}})
            .says("tokenizer bytes needs a vocabulary of 259 tokens"));
  CHECK_FALSE(open_failure({.model = {.vocabulary = 259}}).thrown);
  CHECK(open_failure({.data = "synthetic:copy", .model = {.vocabulary = 63}}).thrown);
  CHECK_FALSE(open_failure({.data = "synthetic:copy", .model = {.vocabulary = 64}}).thrown);
}

TEST_CASE("open: fewer samples than requested is a warning") {
  const TemporaryFolder folder;
  const auto file = folder.write("a.json", R"([{"instruction": "i", "output": "o"}])");
  const auto data = train::open_dataset({.data = file.string(), .samples = 5}, source_bytes());
  REQUIRE(data.warnings.size() == 1);
  CHECK(data.warnings[0] == "a.json: 5 samples requested, 1 available");
}

TEST_CASE("fingerprint: depends on tokens, labels and sample boundaries") {
  const std::vector<std::int32_t> a{1, 2, 3, 4};
  const std::vector<std::int32_t> b{1, 2, 3, 5};
  const auto print = [](std::initializer_list<std::span<const std::int32_t>> rows,
                        std::span<const std::int32_t> labels) {
    train::Dataset data("x");
    for (const auto row : rows) data.add(row, labels.first(row.size()));
    return data.fingerprint();
  };
  const std::span sa(a);
  std::set<std::uint64_t> prints{print({sa}, a), print({b}, a), print({a}, b),
                                 print({sa.first(2), sa.first(2)}, a),
                                 print({sa.first(1), sa.first(3)}, a)};
  CHECK(prints.size() == 5);
}
