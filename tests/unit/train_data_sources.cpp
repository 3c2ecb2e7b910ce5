#include <doctest/doctest.h>

#include <set>

#include "data/loaders.hpp"
#include "train_data_temporary.hpp"

namespace {

using atoll::ErrorCode;
using train::DataSpec;
using train_test::failure_of;
using train_test::TemporaryFolder;
using namespace std::string_view_literals;

const train::Tokenizer& bytes() {
  static const auto tokenizer = train::byte_tokenizer();
  return *tokenizer;
}

train_test::Failure open_failure(const DataSpec& spec) {
  return failure_of([&] { (void)train::open_dataset(spec, bytes()); });
}

std::vector<std::int32_t> all_tokens(const train::Dataset& data) {
  std::vector<std::int32_t> all;
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const auto tokens = data.sample(i).tokens;
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  return all;
}

}  // namespace

TEST_CASE("text: documents are packed with bos and eos, nothing is lost") {
  const auto data =
      train::load_text({"ab\ncd\n\n \t\nef\r\n\r\n\r\ng\n", "t.txt"}, {.seq = 4}, bytes());
  const std::vector<std::int32_t> stream{256, 'a', 'b',  '\n', 'c', 'd', 257, 256,
                                         'e', 'f', '\r', 257,  256, 'g', 257};
  auto expected = stream;
  // A "\r" at the end of a line is part of the document.
  CHECK(data.size() == 4);
  expected.pop_back();  // the last eos is never an input, only a target
  CHECK(all_tokens(data) == expected);
  std::size_t at = 0;
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const auto sample = data.sample(i);
    CHECK(sample.tokens.size() == (i < 3 ? 4 : 2));
    CHECK(sample.valid == static_cast<std::int64_t>(sample.tokens.size()));
    for (const auto label : sample.labels) CHECK(label == stream[++at]);
  }
}

TEST_CASE("text: samples limits the rows, rows of any length agree on the stream") {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "line " + std::to_string(i) + (i % 3 == 0 ? "\n\n" : "\n");
  const auto long_rows = train::load_text({text, "t"}, {.seq = 1000}, bytes());
  for (const int seq : {1, 2, 7, 64}) {
    const auto data = train::load_text({text, "t"}, {.seq = seq}, bytes());
    CHECK(all_tokens(data) == all_tokens(long_rows));
    CHECK(data.longest() == seq);
  }
  CHECK(train::load_text({text, "t"}, {.samples = 3, .seq = 7}, bytes()).size() == 3);
}

TEST_CASE("text: not UTF-8 is refused with its byte") {
  const auto failure = [](std::string_view text) {
    return failure_of([&] { (void)train::load_text({text, "t.txt"}, {.seq = 8}, bytes()); });
  };
  CHECK(failure("abc\xff").says("t.txt: byte 3: not UTF-8"));
  CHECK(failure("a\xc3").thrown);             // a truncated UTF-8 sequence
  CHECK(failure("\xc0\xaf").thrown);          // an overlong UTF-8 encoding
  CHECK(failure("\xe0\x80\xaf").thrown);      // an overlong UTF-8 encoding
  CHECK(failure("\xed\xa0\x80").thrown);      // an encoded surrogate code point
  CHECK(failure("\xf4\x90\x80\x80").thrown);  // a code point above U+10FFFF
  CHECK(failure("\xf0\x80\x80\x80").thrown);  // an overlong UTF-8 encoding
  CHECK(failure("\x80").thrown);              // a sequence that begins with a continuation byte
  CHECK_FALSE(
      failure("\xc3\xa9 \xe2\x82\xac \xed\x9f\xbf \xf0\x9f\x90\x9a \xf4\x8f\xbf\xbf").thrown);
}

TEST_CASE("text: only blanks is no sample") {
  const TemporaryFolder folder;
  const auto file = folder.write("blank.txt", "\n \n\t\r\n");
  const auto failure = open_failure({.data = file.string()});
  CHECK(failure.code == ErrorCode::bad_data);
  CHECK(failure.says("no sample to train on"));
}

TEST_CASE("synthetic: full rows of the model's vocabulary, a function of the seed") {
  const DataSpec spec{
      .data = "synthetic", .samples = 20, .seq = 33, .seed = 5, .model = {.vocabulary = 100}};
  const auto data = train::open_dataset(spec, bytes());
  REQUIRE(data.size() == 20);
  CHECK(data.total_valid() == 20 * 33);
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
  CHECK(train::open_dataset(spec, bytes()).fingerprint() == data.fingerprint());
  auto other = spec;
  other.seed = 6;
  CHECK(train::open_dataset(other, bytes()).fingerprint() != data.fingerprint());
  auto more = spec;
  more.samples = 40;
  const auto longer = train::open_dataset(more, bytes());
  CHECK(longer.sample(7).tokens[3] == data.sample(7).tokens[3]);
}

TEST_CASE("synthetic:copy: the second half repeats the first and alone carries loss") {
  for (const int seq : {4, 5, 16, 31}) {
    CAPTURE(seq);
    const auto data =
        train::open_dataset({.data = "synthetic:copy", .samples = 12, .seq = seq}, bytes());
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
  const auto data = train::open_dataset({.data = "demo", .seq = 256, .seed = 1}, bytes());
  CHECK(data.size() == 800);
  CHECK(data.warnings.empty());
  CHECK(data.longest() <= 160);
  CHECK(train::open_dataset({.data = "demo", .seq = 256, .seed = 1}, bytes()).fingerprint() ==
        data.fingerprint());
  CHECK(train::open_dataset({.data = "demo", .seq = 256, .seed = 2}, bytes()).fingerprint() !=
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
  const std::string record = R"({"instruction": "i", "output": "o"})";
  const auto list = folder.write("a.json", "[" + record + "]");
  const auto lines = folder.write("a.jsonl", record + "\n" + record);
  const auto text = folder.write("a.txt", "hello");
  const auto odd = folder.write("a.data", record);
  CHECK(train::open_dataset({.data = list.string()}, bytes()).size() == 1);
  CHECK(train::open_dataset({.data = lines.string()}, bytes()).size() == 2);
  CHECK(train::open_dataset({.data = text.string()}, bytes()).size() == 1);
  CHECK(train::open_dataset({.data = "jsonl:" + odd.string()}, bytes()).size() == 1);
  CHECK(train::open_dataset({.data = "text:" + odd.string()}, bytes()).size() == 1);
  CHECK(open_failure({.data = odd.string()}).code == ErrorCode::invalid_argument);
  CHECK(open_failure({.data = "synthetic:unknown"}).says("synthetic:copy"));
  CHECK(open_failure({.data = lines.string() + "x"}).thrown);
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
  CHECK(open_failure({.data = folder.write("b.txt", "\xff").string()}).says("byte 0"));
  for (const char* name : {"u.json", "u.jsonl", "u.txt"}) {
    for (const std::string_view start :
         {"\xff\xfe{\0"sv, "\xfe\xff\0{"sv, "{\0\"\0"sv, "\0{\0\""sv}) {
      CHECK(open_failure({.data = folder.write(name, start).string()}).says("UTF-16"));
    }
  }
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
  CHECK(open_failure({.seq = 0}).code == ErrorCode::invalid_argument);
  CHECK(open_failure({.samples = -1}).code == ErrorCode::invalid_argument);
}

TEST_CASE("open: fewer samples than requested is a warning") {
  const TemporaryFolder folder;
  const auto file = folder.write("a.json", R"([{"instruction": "i", "output": "o"}])");
  const auto data = train::open_dataset({.data = file.string(), .samples = 5}, bytes());
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
