// The reader of token files: what it reads, and that hostile files are errors.
#include "data/token_file.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>

#include "data/loaders.hpp"
#include "data/sources.hpp"
#include "unit/train/data_temporary.hpp"
#include "unit/train/data_token_bytes.hpp"

namespace {

using atoll::ErrorCode;
using train::ignored_label;
using train::TokenFile;
using namespace train_test;

TokenBytes three_documents() {
  return {.documents = {{1, 2, 3, 4}, {5, 6}, {7, 8, 9, 10, 11}},
          .mask = {false, false, true, true, false, true, false, true, true, true, true}};
}

TokenFile parse(const std::string& bytes) {
  return TokenFile::parse(std::as_bytes(std::span(bytes)), "a.tok");
}

Failure parse_failure(const std::string& bytes) {
  return failure_of([&] { (void)parse(bytes); });
}

// Returns the failure of the file after one field of the header is replaced.
template <class T>
Failure failure_with(std::size_t at, T value) {
  std::string bytes = token_bytes(three_documents());
  set(bytes, at, value);
  return parse_failure(bytes);
}

train::Dataset load(const TokenBytes& file, const TemporaryFolder& folder,
                    const train::DataSpec& spec) {
  const auto path = folder.write("a.tok", token_bytes(file));
  auto full = spec;
  full.data = path.string();
  return train::open_dataset(full, *train::tokenizer_for("auto", full.data, ""));
}

}  // namespace

TEST_CASE("token file: header, documents, mask and pieces are read") {
  for (const std::uint32_t width : {2U, 4U}) {
    auto file = three_documents();
    file.width = width;
    file.pad = 0;
    file.vocabulary = 12;
    file.eos = 11;
    file.pieces = std::vector<std::string>(12, "x");
    file.pieces[5] = "five";
    file.pieces[11] = "";
    const std::string bytes = token_bytes(file);
    const TokenFile read = parse(bytes);
    CHECK(read.vocabulary() == 12);
    CHECK(read.pad() == 0);
    CHECK(read.eos() == 11);
    CHECK(read.masked());
    CHECK_FALSE(read.joined());
    CHECK(read.documents() == 3);
    CHECK(read.tokens() == 11);
    CHECK(read.begin(2) == 6);
    CHECK(read.end(2) == 11);
    std::vector<std::int32_t> ids(5);
    read.read(6, ids);
    CHECK(ids == std::vector<std::int32_t>{7, 8, 9, 10, 11});
    CHECK(read.piece(5) == "five");
    CHECK(read.piece(11).empty());
    CHECK(read.piece(12).empty());
    CHECK(read.tokenizer_name() == "test");
    for (std::int64_t first = 0; first <= 11; ++first) {
      for (std::int64_t last = first; last <= 11; ++last) {
        std::int64_t count = 0;
        for (std::int64_t t = first; t < last; ++t) count += file.mask[static_cast<std::size_t>(t)];
        CHECK(read.count_trained(first, last) == count);
      }
    }
  }
}

TEST_CASE("token file: counting trained tokens across words of the mask") {
  TokenBytes file;
  file.documents.emplace_back(300, 7U);
  for (int t = 0; t < 300; ++t) file.mask.push_back(t % 3 == 0 || t % 64 == 63);
  const std::string bytes = token_bytes(file);
  const TokenFile read = parse(bytes);
  for (const auto& [first, last] : {std::pair(0, 300), {63, 65}, {64, 128}, {1, 191}, {192, 300}}) {
    std::int64_t count = 0;
    for (int t = first; t < last; ++t) count += file.mask[static_cast<std::size_t>(t)];
    CHECK(read.count_trained(first, last) == count);
  }
}

TEST_CASE("token file: documents are rows, cut and dropped by what they train") {
  const TemporaryFolder folder;
  const auto data = load(three_documents(), folder, {.seq = 3});
  REQUIRE(data.size() == 3);
  const auto first = data.sample(0);
  CHECK(first.tokens == std::vector<std::int32_t>{1, 2, 3});
  CHECK(first.labels == std::vector<std::int32_t>{ignored_label, 3, 4});
  CHECK(first.valid == 2);
  const auto last = data.sample(2);  // five tokens, cut to four
  CHECK(last.tokens == std::vector<std::int32_t>{7, 8, 9});
  CHECK(last.labels == std::vector<std::int32_t>{8, 9, 10});
  REQUIRE(data.statistics.size() == 1);
  CHECK(data.statistics[0].cut == 1);
  CHECK(data.statistics[0].documents == 3);
  CHECK(data.statistics[0].tokens == 11);
  CHECK(data.statistics[0].trained == 7);
  CHECK(data.statistics[0].shortest == 2);
  CHECK(data.statistics[0].longest == 5);
  // With rows of one prediction, the first document has no target.
  const auto narrow = load(three_documents(), folder, {.seq = 1});
  REQUIRE(narrow.size() == 2);
  CHECK(narrow.sample(0).tokens == std::vector<std::int32_t>{5});
  CHECK(narrow.statistics[0].dropped == 1);
  CHECK(narrow.warnings.size() == 2);
  // Prompts can be trained too.
  const auto all = load(three_documents(), folder, {.seq = 3, .train_on = train::TrainOn::all});
  CHECK(all.sample(0).labels == std::vector<std::int32_t>{2, 3, 4});
  CHECK(all.valid(0) + all.valid(1) + all.valid(2) == 3 + 1 + 3);
  CHECK(load(three_documents(), folder, {.samples = 2, .seq = 3}).size() == 2);
}

TEST_CASE("token file: joined documents are cut into rows of seq predictions") {
  const TemporaryFolder folder;
  auto file = three_documents();
  file.joined = true;
  file.mask.clear();
  for (const int seq : {1, 3, 4, 10, 20}) {
    CAPTURE(seq);
    const auto data = load(file, folder, {.seq = seq});
    std::int32_t next = 1;
    for (std::int64_t i = 0; i < data.size(); ++i) {
      const auto sample = data.sample(i);
      CHECK(sample.valid == static_cast<std::int64_t>(sample.labels.size()));
      for (std::size_t t = 0; t < sample.tokens.size(); ++t) {
        CHECK(sample.tokens[t] == next);
        CHECK(sample.labels[t] == ++next);
      }
    }
    CHECK(next == 11);
  }
}

TEST_CASE("raw ids are one stream") {
  const TemporaryFolder folder;
  const std::vector<std::uint16_t> ids{3, 1, 4, 1, 5};
  const auto path = folder.write(
      "a.bin", std::string_view(reinterpret_cast<const char*>(ids.data()), ids.size() * 2));
  const auto open = [&](const char* type, const char* tokenizer) {
    const train::DataSpec spec{.data = path.string(), .data_type = type, .seq = 3};
    return train::open_dataset(spec, *train::tokenizer_for(tokenizer, spec.data, type));
  };
  const auto data = open("uint16", "ids:6");
  REQUIRE(data.size() == 2);
  CHECK(data.sample(0).labels == std::vector<std::int32_t>{1, 4, 1});
  CHECK(data.sample(1).tokens == std::vector<std::int32_t>{1});
  CHECK(failure_of([&] {
          open("uint16", "ids:5");
        }).says("token 4: id 5 is not in a vocabulary of 5 tokens"));
  CHECK(failure_of([&] { open("uint16", "auto"); }).says("add --tokenizer ids:N"));
  CHECK(failure_of([&] { open("uint32", "ids:6"); }).says("is --data-type right?"));
  CHECK(failure_of([&] { open("", "ids:6"); }).says("for raw ids, add --data-type"));
  CHECK(failure_of([&] { open("int8", "ids:6"); }).says("use uint16 or uint32"));
  CHECK(failure_of([&] { open("uint16", "ids:x"); }).says("use ids:N"));
}

TEST_CASE("token file: another tokenizer, or a small model, is refused") {
  const TemporaryFolder folder;
  auto file = three_documents();
  const auto path = folder.write("a.tok", token_bytes(file)).string();
  const auto bytes = train::byte_tokenizer();
  CHECK(train::open_dataset({.data = path}, *bytes).size() == 3);  // a file without a digest
  // The vocabulary of the file has 300 ids, but ids above 11 do not occur.
  CHECK(train::open_dataset({.data = path, .model = {.vocabulary = 12}}, *bytes).size() == 3);
  CHECK(failure_of([&] {
          (void)train::open_dataset({.data = path, .model = {.vocabulary = 11}}, *bytes);
        }).says("token 10: id 11 is not in the model's vocabulary of 11 tokens"));
  file.digest = std::string(32, 'x');
  (void)folder.write("a.tok", token_bytes(file));
  const auto failure = failure_of([&] { (void)train::open_dataset({.data = path}, *bytes); });
  CHECK(failure.code == ErrorCode::mismatch);
  CHECK(failure.says("was made with the tokenizer test, which is not --tokenizer bytes"));
  CHECK(failure_of([&] {
          const auto ids = train::tokenizer_for("auto", path, "");
          (void)ids->encode("text");
        }).says("name the tokenizer"));
}

TEST_CASE("token file: every wrong field of the header is an error with its byte") {
  CHECK(parse_failure("").says("not a token file"));
  CHECK(parse_failure("ATOLLTOK").says("ends inside its header"));
  CHECK(failure_with<std::uint8_t>(0, 'B').says("not a token file"));
  CHECK(failure_with<std::uint32_t>(8, 3).says("byte 8: version 3"));
  CHECK(failure_with<std::uint32_t>(12, 9).says("byte 12: unknown flags"));
  CHECK(failure_with<std::uint32_t>(16, 3).says("byte 16: ids of 3 bytes"));
  CHECK(failure_with<std::uint32_t>(20, 0).says("byte 20: a vocabulary of 0"));
  CHECK(failure_with<std::uint32_t>(20, 0x80000000U).says("byte 20"));
  CHECK(failure_with<std::uint32_t>(24, 300).says("byte 24: a special id"));
  CHECK(failure_with<std::uint32_t>(28, 300).says("byte 28: a special id"));
  CHECK(failure_with<std::uint8_t>(255, 1).says("byte 176: unknown content"));
  for (const std::uint64_t wrong :
       {std::uint64_t{0}, std::uint64_t{1} << 40U, std::numeric_limits<std::uint64_t>::max(),
        std::uint64_t{1} << 63U}) {
    CHECK(failure_with<std::uint64_t>(32, wrong).says("byte 32"));
    CHECK(failure_with<std::uint64_t>(40, wrong).says("byte 40"));
  }
  CHECK(failure_with<std::uint64_t>(40, 200).says("the file ends early"));
  CHECK(failure_with<std::uint64_t>(40, 10).code == ErrorCode::bad_data);
  CHECK(failure_with<std::uint64_t>(32, 2).thrown);
  auto small = three_documents();
  small.eos = 0xffffffff;
  small.vocabulary = 11;
  CHECK(parse_failure(token_bytes(small))
            .says("token 10: id 11 is not in a vocabulary of 11 tokens"));
  CHECK(failure_with<std::uint8_t>(50, 1).says("fingerprint"));
}

TEST_CASE("token file: wrong documents and pieces, flipped bits, cut files") {
  const std::string whole = token_bytes(three_documents());
  constexpr std::size_t offsets = 256 + 24;
  const auto with_offset = [&](std::size_t document, std::int64_t value) {
    std::string bytes = whole;
    set(bytes, offsets + 8 * document, value);
    set_fingerprint(bytes.data(), bytes.size());
    return parse_failure(bytes);
  };
  CHECK(with_offset(0, 1).says("document 0 begins at token 1"));
  CHECK(with_offset(1, 7).says("document 2 begins at token 6"));
  CHECK(with_offset(1, -1).says("document 1 begins at token -1"));
  CHECK(with_offset(3, 12).says("document 3 begins at token 12"));
  CHECK(with_offset(3, 10).says("documents do not cover all tokens"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CHECK(parse_failure(whole.substr(0, size)).code == ErrorCode::bad_data);
  }
  CHECK(parse_failure(whole + "x").says("bytes after the last section"));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1U << bit));
      CAPTURE(at);
      CHECK(parse_failure(bytes).thrown);
    }
  }
  auto old = three_documents();
  old.version = 1;
  CHECK_FALSE(parse_failure(token_bytes(old)).thrown);
  auto file = three_documents();
  file.vocabulary = 12;
  file.eos = 0xffffffff;
  file.pieces = std::vector<std::string>(12, "x");
  std::string bytes = token_bytes(file);
  const std::size_t pieces = bytes.size() - 12 - 13 * 4;
  CHECK_FALSE(parse_failure(bytes).thrown);
  CHECK(parse_failure(bytes + "x").says("bytes after the last section"));
  set<std::uint32_t>(bytes, pieces + 8, 100);
  CHECK(parse_failure(bytes).says("the text of id 2 lies outside the file"));
}

TEST_CASE("token file: missing, empty and foreign files") {
  const TemporaryFolder folder;
  const auto open = [&](const std::filesystem::path& path) {
    return failure_of([&] { (void)TokenFile::open(path); });
  };
  CHECK(open(folder.path() / "none.tok").code == ErrorCode::not_found);
  CHECK(open(folder.write("empty.tok", "")).says("empty file"));
  CHECK(open(folder.path()).says("a folder; name a file in it"));
  CHECK(open(folder.write("text.tok", "hello")).says("not a token file of atoll-data"));
}
