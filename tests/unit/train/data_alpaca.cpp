#include <doctest/doctest.h>
#include <fmt/format.h>

#include <vector>

#include "data/dataset.hpp"
#include "data/loaders.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

using atoll::ErrorCode;
using train::AlpacaRecord;
using train_test::failure_of;

const train::Tokenizer& bytes() {
  static const auto tokenizer = train::byte_tokenizer();
  return *tokenizer;
}

train::Dataset load(std::string_view text, const train::DataSpec& spec = {}) {
  return train::load_alpaca(text, "a.json", spec, bytes());
}

// The text of a sample that is not cut.
std::string whole_text(const train::Dataset& data, std::int64_t index) {
  const auto ids = data.sample(index).tokens;
  return bytes().decode(ids);
}

std::string text_of(const AlpacaRecord& record) {
  return train::alpaca_prompt(record) + record.output;
}

train_test::Failure failure(std::string_view text) {
  return failure_of([&] { (void)load(text); });
}

std::string valid_text(const train::Sample& sample, const train::Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  for (const auto label : sample.labels) {
    if (label != train::ignored_label) ids.push_back(label);
  }
  return tokenizer.decode(ids);
}

}  // namespace

TEST_CASE("list: fields in any order, missing or null input, other keys skipped") {
  const auto data = load(R"(
    [ {"output": "o1", "instruction": "i1", "input": "x1"},
      {"instruction": "i2", "output": "o2"},
      {"instruction": "i3", "input": null, "output": "",
       "meta": {"tags": [1, 2.5, true, null, {"input": "not this"}], "output": "nor this"}} ])");
  REQUIRE(data.size() == 3);
  CHECK(whole_text(data, 0) == text_of({"i1", "x1", "o1"}));
  CHECK(whole_text(data, 1) == text_of({"i2", "", "o2"}));
  CHECK(whole_text(data, 2) == text_of({"i3", "", ""}));
}

TEST_CASE("list: escapes, a byte order mark, an empty list") {
  const auto data =
      load("\xef\xbb\xbf[{\"instruction\": \"\\u00e9\\n\\\"\", \"output\": \"\xf0\x9f\x90\x9a\"}]");
  REQUIRE(data.size() == 1);
  CHECK(whole_text(data, 0) == text_of({"\xc3\xa9\n\"", "", "\xf0\x9f\x90\x9a"}));
  CHECK(load("[]").size() == 0);
}

TEST_CASE("list: files without a list, and elements that are not records") {
  for (const char* text : {R"({"instruction": "i", "output": "o"})", R"("text")", "12", "null"})
    CHECK(failure(text).message == "a.json: not a list of records");
  for (const char* text : {"[1]", "[[]]", "[null]"})
    CHECK(failure(text).message == "a.json: record 1: not a record");
  CHECK(failure(R"([{"instruction": "i", "output": "o"}, "x"])").says("record 2"));
}

TEST_CASE("list: wrong types and missing fields name record and field") {
  const auto number = failure(R"([{"instruction": 7, "output": "o"}])");
  CHECK(number.code == ErrorCode::bad_data);
  CHECK(number.message == "a.json: record 1: \"instruction\" is not a string");
  CHECK(failure(R"([{"instruction": "i", "output": ["o"]}])").says("\"output\" is not a string"));
  CHECK(failure(R"([{"instruction": "i", "input": {}, "output": "o"}])").says("\"input\" is not"));
  CHECK(failure(R"([{"output": "o"}])").says("\"instruction\" is missing"));
  CHECK(failure(R"([{"instruction": "i", "output": null}])").says("\"output\" is missing"));
}

TEST_CASE("list: invalid UTF-8, control characters, lone surrogates, huge nesting and numbers") {
  CHECK(failure("[{\"instruction\": \"\xff\", \"output\": \"o\"}]").says("byte 18"));
  CHECK(failure("[{\"instruction\": \"\xc0\x80\", \"output\": \"o\"}]").thrown);
  CHECK(failure("[{\"instruction\": \"a\nb\", \"output\": \"o\"}]").thrown);
  CHECK(failure(R"([{"instruction": "\ud800", "output": "o"}])").thrown);
  CHECK(failure("[{\"meta\": " + std::string(1'000'000, '[')).thrown);
  CHECK(failure(R"([{"meta": 1e999}])").says("a number is too large"));
}

TEST_CASE("small lists of Alpaca records are known by their size and first record") {
  const train_test::TemporaryFolder folder;
  const auto is_small = [&](std::string_view text) {
    return train::is_small_alpaca(folder.write("a.json", text));
  };
  CHECK(is_small(R"([{"output": "o", "instruction": "i"}])"));
  CHECK(is_small(R"([{"instruction": ")" + std::string(100'000, 'x')));
  CHECK_FALSE(is_small(R"([{"messages": [{"role": "user"}]}, {"instruction": "i"}])"));
  CHECK_FALSE(is_small(R"({"data": [{"instruction": "i", "output": "o"}]})"));
  CHECK_FALSE(is_small("[]"));
  CHECK(train::is_small_alpaca(folder.path() / "none.json"));  // the loader reports that
  const auto large = folder.write("large.json", R"([{"instruction": "i"})");
  std::filesystem::resize_file(large, train::largest_alpaca + 1);
  CHECK_FALSE(train::is_small_alpaca(large));
}

TEST_CASE("prompt: with and without input") {
  CHECK(train::alpaca_prompt({"Add.", "1 and 2", "3"}) ==
        "### Instruction:\nAdd.\n\n### Input:\n1 and 2\n\n### Response:\n");
  CHECK(train::alpaca_prompt({"Greet.", "", "Hi"}) ==
        "### Instruction:\nGreet.\n\n### Response:\n");
}

TEST_CASE("rows: shifted labels, loss on the output and eos only") {
  const auto data = train::load_alpaca(R"([{"instruction": "Go", "output": "ok"}])", "dir/a.json",
                                       {.seq = 128}, bytes());
  REQUIRE(data.size() == 1);
  CHECK(data.name() == "a.json");
  const auto sample = data.sample(0);
  const std::string prompt = train::alpaca_prompt({"Go", "", ""});
  // The inputs are bos, the prompt, "o" and "k". The targets are the prompt, "o", "k" and eos.
  REQUIRE(sample.tokens.size() == 1 + prompt.size() + 2);
  CHECK(sample.labels.size() == sample.tokens.size());
  CHECK(sample.valid == 3);
  for (std::size_t t = 0; t < sample.tokens.size(); ++t) {
    CAPTURE(t);
    if (t < prompt.size()) {
      CHECK(sample.labels[t] == train::ignored_label);
    } else if (t + 1 < sample.tokens.size()) {
      CHECK(sample.labels[t] == sample.tokens[t + 1]);
    } else {
      CHECK(sample.labels[t] == bytes().eos());
    }
  }
}

TEST_CASE("rows: an empty output still teaches to stop") {
  const auto data = load(R"([{"instruction": "Go", "output": ""}])");
  REQUIRE(data.size() == 1);
  CHECK(data.sample(0).valid == 1);
  CHECK(data.sample(0).labels.back() == bytes().eos());
}

TEST_CASE("rows: cut to seq, and dropped when no output is left") {
  const auto prompt = static_cast<std::int32_t>(train::alpaca_prompt({"Go", "", ""}).size());
  const auto load_to = [&](std::int32_t seq) {
    return load(R"([{"instruction": "Go", "output": "abcdef"}])", {.seq = seq});
  };
  // `seq` inputs have `seq` targets. The first `prompt` targets belong to the prompt, and the
  // output follows them.
  const auto whole = load_to(prompt + 7);
  CHECK(whole.sample(0).valid == 7);
  CHECK(whole.warnings.empty());
  const auto cut = load_to(prompt + 6);
  CHECK(valid_text(cut.sample(0), bytes()) == "abcdef");
  CHECK(cut.sample(0).valid == 6);  // the sample has no eos, because its output was cut
  CHECK(cut.sample(0).tokens.size() == static_cast<std::size_t>(prompt) + 6);
  REQUIRE(cut.warnings.size() == 1);
  CHECK(cut.warnings[0].find("1 samples cut") != std::string::npos);
  CHECK(load_to(prompt + 1).sample(0).valid == 1);
  const auto dropped = load_to(prompt);
  CHECK(dropped.size() == 0);
  REQUIRE(dropped.warnings.size() == 1);
  CHECK(dropped.warnings[0].find("1 samples dropped") != std::string::npos);
  CHECK(dropped.statistics.front().dropped == 1);
  CHECK(dropped.statistics.front().documents == 1);
  CHECK(cut.statistics.front().cut == 1);
}

TEST_CASE("rows: the mean length is of the kept records, as the shortest and longest are") {
  const std::string far(300, 'x');
  const std::string text = R"([{"instruction": "Go", "output": "ab"}, {"instruction": ")" + far +
                           R"(", "output": "ab"}])";
  const auto set = load(text, {.seq = 200});
  const auto& figures = set.statistics.front();
  CHECK(figures.documents == 2);
  CHECK(figures.dropped == 1);
  CHECK(figures.shortest == figures.longest);
  CHECK(figures.mean == static_cast<double>(figures.shortest));
  CHECK(train::statistics_lines(set).front().find(
            fmt::format(" documents, {} tokens ({} to {} each, mean {}, ", figures.tokens,
                        figures.shortest, figures.longest, figures.shortest)) != std::string::npos);
}

TEST_CASE("rows: samples stops after N kept rows") {
  const std::string_view text = R"([{"instruction": "a", "output": "1"},
      {"instruction": "b", "output": "2"}, "not a record"])";
  CHECK(load(text, {.samples = 2, .seq = 64}).size() == 2);
}

TEST_CASE("rows: a record far longer than a row costs a row") {
  const std::string text =
      R"([{"instruction": "a", "output": ")" + std::string(3'000'000, 'x') + R"("}])";
  const auto data = load(text, {.seq = 64});
  REQUIRE(data.size() == 1);
  CHECK(data.sample(0).tokens.size() == 64);
}
