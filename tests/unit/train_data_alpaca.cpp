#include <doctest/doctest.h>
#include <fmt/format.h>

#include <vector>

#include "data/dataset.hpp"
#include "data/loaders.hpp"
#include "train_data_temporary.hpp"

namespace {

using atoll::ErrorCode;
using train::AlpacaRecord;
using train_test::failure_of;

std::vector<AlpacaRecord> read_list(std::string_view text) {
  std::vector<AlpacaRecord> records;
  train::read_alpaca_json({text, "a.json"}, [&](const AlpacaRecord& record) {
    records.push_back(record);
    return true;
  });
  return records;
}

std::vector<AlpacaRecord> read_lines(std::string_view text) {
  std::vector<AlpacaRecord> records;
  train::read_alpaca_jsonl({text, "a.jsonl"}, [&](const AlpacaRecord& record) {
    records.push_back(record);
    return true;
  });
  return records;
}

train_test::Failure list_failure(std::string_view text) {
  return failure_of([&] { (void)read_list(text); });
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
  const auto records = read_list(R"(
    [ {"output": "o1", "instruction": "i1", "input": "x1"},
      {"instruction": "i2", "output": "o2"},
      {"instruction": "i3", "input": null, "output": "",
       "meta": {"tags": [1, 2.5, true, null, {"input": "not this"}], "output": "nor this"}} ])");
  REQUIRE(records.size() == 3);
  CHECK(records[0].instruction == "i1");
  CHECK(records[0].input == "x1");
  CHECK(records[0].output == "o1");
  CHECK(records[1].input.empty());
  CHECK(records[2].input.empty());
  CHECK(records[2].output.empty());
}

TEST_CASE("list: escapes, a byte order mark, an empty list") {
  const auto records = read_list(
      "\xef\xbb\xbf[{\"instruction\": \"\\u00e9\\n\\\"\", \"output\": \"\xf0\x9f\x90\x9a\"}]");
  REQUIRE(records.size() == 1);
  CHECK(records[0].instruction == "\xc3\xa9\n\"");
  CHECK(records[0].output == "\xf0\x9f\x90\x9a");
  CHECK(read_list("[]").empty());
}

TEST_CASE("list: a file without a list") {
  CHECK(list_failure(R"({"instruction": "i", "output": "o"})").says("not a list"));
  CHECK(list_failure(R"("text")").says("not a list of records, but a string"));
  CHECK(list_failure("12").says("not a list of records, but a number"));
  CHECK(list_failure("null").says("not a list of records, but null"));
  CHECK(list_failure("true").says("not a list"));
}

TEST_CASE("list: elements that are not records") {
  CHECK(list_failure("[1]").says("record 1: not a record, but a number"));
  CHECK(list_failure("[[]]").says("not a record, but a list"));
  CHECK(list_failure("[null]").says("not a record, but null"));
  CHECK(list_failure(R"([{"instruction": "i", "output": "o"}, "x"])").says("record 2"));
}

TEST_CASE("list: wrong types and missing fields name record, field and byte") {
  const auto number = list_failure(R"([{"instruction": 7, "output": "o"}])");
  CHECK(number.code == ErrorCode::bad_data);
  CHECK(number.says("a.json: byte "));
  CHECK(number.says("record 1: `instruction` is not a string, but a number"));
  CHECK(
      list_failure(R"([{"instruction": "i", "output": ["o"]}])").says("`output` is not a string"));
  CHECK(
      list_failure(R"([{"instruction": "i", "input": {}, "output": "o"}])").says("but an object"));
  CHECK(list_failure(R"([{"instruction": "i", "output": false}])").says("but a boolean"));
  CHECK(list_failure(R"([{"output": "o"}])").says("no `instruction`"));
  CHECK(list_failure(R"([{"instruction": "i"}])").says("no `output`"));
  CHECK(list_failure(R"([{"instruction": "i", "output": null}])").says("no `output`"));
}

TEST_CASE("list: cut anywhere is an error with a byte inside the file") {
  const std::string whole = R"([{"instruction": "i", "input": "x", "output": "o"}])";
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    const auto failure = list_failure(std::string_view(whole).substr(0, size));
    CHECK(failure.code == ErrorCode::bad_data);
    CHECK(failure.says("a.json: byte "));
    const auto byte = std::stoul(failure.message.substr(std::string("a.json: byte ").size()));
    CHECK(byte <= size);
  }
  CHECK(list_failure(whole + "]").thrown);
  CHECK(list_failure(whole + " x").thrown);
}

TEST_CASE("list: invalid UTF-8, control characters, lone surrogates") {
  CHECK(list_failure("[{\"instruction\": \"\xff\", \"output\": \"o\"}]").says("byte 18"));
  CHECK(list_failure("[{\"instruction\": \"\xc0\x80\", \"output\": \"o\"}]").thrown);
  CHECK(list_failure("[{\"instruction\": \"a\nb\", \"output\": \"o\"}]").thrown);
  CHECK(list_failure(R"([{"instruction": "\ud800", "output": "o"}])").thrown);
}

TEST_CASE("list: huge nesting ends early and cheaply") {
  const std::string deep(5'000'000, '[');
  CHECK(list_failure("[{\"meta\": " + deep).says("nested deeper than 64"));
  CHECK(list_failure(deep).says("not a record, but a list"));
  std::string objects = "[{\"meta\": ";
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  CHECK(list_failure(objects).says("nested deeper"));
}

TEST_CASE("list: a field of many megabytes is refused") {
  const std::string large(std::size_t{5} << 20U, 'x');
  const auto failure = list_failure(R"([{"instruction": ")" + large + R"(", "output": "o"}])");
  CHECK(failure.says("`instruction` has 5242880 bytes"));
  CHECK(failure.message.size() < 300);
}

TEST_CASE("list: the sink can stop before a broken record") {
  int seen = 0;
  train::read_alpaca_json({R"([{"instruction": "i", "output": "o"}, broken)", "a.json"},
                          [&](const AlpacaRecord&) { return ++seen < 1; });
  CHECK(seen == 1);
}

TEST_CASE("lines: records, blank lines, CRLF, no newline at the end") {
  const auto records = read_lines(
      "{\"instruction\": \"1\", \"output\": \"a\"}\r\n\n  \t\n{\"instruction\": \"2\", \"output\": "
      "\"b\"}");
  REQUIRE(records.size() == 2);
  CHECK(records[1].instruction == "2");
  CHECK(read_lines("").empty());
  CHECK(read_lines("\n\n").empty());
}

TEST_CASE("lines: errors name the line") {
  const std::string good = "{\"instruction\": \"1\", \"output\": \"a\"}\n";
  const auto at_three = failure_of([&] { (void)read_lines(good + "\n{\"instruction\": 3}\n"); });
  CHECK(at_three.says("a.jsonl: line 3, byte "));
  CHECK(at_three.says("`instruction` is not a string"));
  const auto list = failure_of([&] { (void)read_lines(good + "[]"); });
  CHECK(list.says("line 2, byte "));
  CHECK(list.says("not a record, but a list: if the file is one list of records, name it json:a"));
  CHECK(failure_of([&] { (void)read_lines(good + good + "{\"inst"); }).says("line 3"));
  CHECK(failure_of([&] { (void)read_lines(good + "{} {}"); }).says("line 2"));
}

TEST_CASE("prompt: with and without input") {
  CHECK(train::alpaca_prompt({"Add.", "1 and 2", "3"}) ==
        "### Instruction:\nAdd.\n\n### Input:\n1 and 2\n\n### Response:\n");
  CHECK(train::alpaca_prompt({"Greet.", "", "Hi"}) ==
        "### Instruction:\nGreet.\n\n### Response:\n");
}

TEST_CASE("rows: shifted labels, loss on the output and eos only") {
  const auto tokenizer = train::byte_tokenizer();
  const train::DataSpec spec{.seq = 128};
  const auto data = train::load_alpaca_json(
      {R"([{"instruction": "Go", "output": "ok"}])", "dir/a.json"}, spec, *tokenizer);
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
      CHECK(sample.labels[t] == tokenizer->eos());
    }
  }
}

TEST_CASE("rows: an empty output still teaches to stop") {
  const auto tokenizer = train::byte_tokenizer();
  const auto data = train::load_alpaca_json({R"([{"instruction": "Go", "output": ""}])", "a.json"},
                                            {.seq = 128}, *tokenizer);
  REQUIRE(data.size() == 1);
  CHECK(data.sample(0).valid == 1);
  CHECK(data.sample(0).labels.back() == tokenizer->eos());
}

TEST_CASE("rows: cut to seq, and dropped when no output is left") {
  const auto tokenizer = train::byte_tokenizer();
  const auto prompt = static_cast<std::int32_t>(train::alpaca_prompt({"Go", "", ""}).size());
  const std::string_view text = R"([{"instruction": "Go", "output": "abcdef"}])";
  const auto load = [&](std::int32_t seq) {
    return train::load_alpaca_json({text, "a.json"}, {.seq = seq}, *tokenizer);
  };
  // `seq` inputs have `seq` targets. The first `prompt` targets belong to the prompt, and the
  // output follows them.
  const auto whole = load(prompt + 7);
  CHECK(whole.sample(0).valid == 7);
  CHECK(whole.warnings.empty());
  const auto cut = load(prompt + 6);
  CHECK(valid_text(cut.sample(0), *tokenizer) == "abcdef");
  CHECK(cut.sample(0).valid == 6);  // the sample has no eos, because its output was cut
  CHECK(cut.sample(0).tokens.size() == static_cast<std::size_t>(prompt) + 6);
  REQUIRE(cut.warnings.size() == 1);
  CHECK(cut.warnings[0].find("1 samples cut") != std::string::npos);
  CHECK(load(prompt + 1).sample(0).valid == 1);
  const auto dropped = load(prompt);
  CHECK(dropped.size() == 0);
  REQUIRE(dropped.warnings.size() == 1);
  CHECK(dropped.warnings[0].find("1 samples dropped") != std::string::npos);
  CHECK(dropped.statistics.front().dropped == 1);
  CHECK(dropped.statistics.front().documents == 1);
  CHECK(cut.statistics.front().cut == 1);
}

TEST_CASE("rows: the mean length is of the kept records, as the shortest and longest are") {
  const auto tokenizer = train::byte_tokenizer();
  const std::string far(300, 'x');
  const std::string text = R"([{"instruction": "Go", "output": "ab"}, {"instruction": ")" + far +
                           R"(", "output": "ab"}])";
  const auto set = train::load_alpaca_json({text, "a.json"}, {.seq = 200}, *tokenizer);
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
  const auto tokenizer = train::byte_tokenizer();
  const std::string_view text =
      "{\"instruction\": \"a\", \"output\": \"1\"}\n{\"instruction\": \"b\", \"output\": "
      "\"2\"}\nbroken";
  const auto data =
      train::load_alpaca_jsonl({text, "a.jsonl"}, {.samples = 2, .seq = 64}, *tokenizer);
  CHECK(data.size() == 2);
}

TEST_CASE("rows: a record far longer than a row costs a row") {
  const auto tokenizer = train::byte_tokenizer();
  const std::string text =
      R"([{"instruction": "a", "output": ")" + std::string(3'000'000, 'x') + R"("}])";
  const auto data = train::load_alpaca_json({text, "a.json"}, {.seq = 64}, *tokenizer);
  REQUIRE(data.size() == 1);
  CHECK(data.sample(0).tokens.size() == 64);
}
