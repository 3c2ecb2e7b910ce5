#include <doctest/doctest.h>

#include <numeric>

#include "data/file.hpp"
#include "data/tokenizer.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

using atoll::ErrorCode;
using train_test::failure_of;
using train_test::TemporaryFolder;

// Encodes a length-delimited protobuf field of at most 127 bytes.
std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>((number << 3) | 2), static_cast<char>(bytes.size())} + bytes;
}

}  // namespace

TEST_CASE("bytes: every byte string comes back") {
  const auto tokenizer = train::byte_tokenizer();
  std::string text(256, '\0');
  std::iota(text.begin(), text.end(), '\0');
  const auto ids = tokenizer->encode(text);
  REQUIRE(ids.size() == 256);
  CHECK(ids[0] == 0);
  CHECK(ids[200] == 200);
  CHECK(tokenizer->decode(ids) == text);
  CHECK(tokenizer->encode("").empty());
}

TEST_CASE("bytes: special ids differ from bytes and have no text") {
  const auto tokenizer = train::byte_tokenizer();
  CHECK(tokenizer->vocab_size() == 259);
  CHECK(tokenizer->bos() == 256);
  CHECK(tokenizer->eos() == 257);
  CHECK(tokenizer->pad() == 258);
  CHECK(tokenizer->name() == "bytes");
  const std::vector<std::int32_t> ids{256, 'h', 'i', 257, 258};
  CHECK(tokenizer->decode(ids) == "hi");
}

TEST_CASE("bytes: an id outside the vocabulary is refused") {
  const auto tokenizer = train::byte_tokenizer();
  for (const std::int32_t id : {-1, 259}) {
    const std::vector<std::int32_t> ids{id};
    const auto failure = failure_of([&] { (void)tokenizer->decode(ids); });
    CHECK(failure.code == ErrorCode::invalid_argument);
    CHECK(failure.says(std::to_string(id)));
  }
}

TEST_CASE("open_tokenizer: bytes by name, anything else is a file") {
  CHECK(train::open_tokenizer("bytes")->name() == "bytes");
  CHECK(failure_of([] { (void)train::open_tokenizer(""); }).code == ErrorCode::invalid_argument);
  const auto missing = failure_of([] { (void)train::open_tokenizer("/no/such/tok.model"); });
  CHECK((missing.code == ErrorCode::not_found || missing.code == ErrorCode::unsupported));
  CHECK(missing.says("/no/such/tok.model"));
}

TEST_CASE("sentencepiece layout: whole, truncated anywhere, foreign") {
  const std::string whole = field(1, "piece a") + field(1, "piece b") + field(2, "trainer") +
                            field(3, "normalizer") + field(5, "");
  train::check_sentencepiece_file(whole, "tok.model");
  // A truncated file is an error, unless the cut removes exactly the last field of 2 bytes, which
  // is optional.
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    const auto failure = failure_of(
        [&] { train::check_sentencepiece_file(std::string_view(whole).substr(0, size), "tok"); });
    CHECK(failure.thrown == (size != whole.size() - 2));
    if (failure.thrown) {
      CHECK(failure.code == ErrorCode::bad_data);
      CHECK(failure.message.starts_with("tok: byte "));
    }
  }
  for (const std::string_view foreign :
       {std::string_view("{\"json\": 1}"),
        std::string_view("\x7f"
                         "ELF\x02\x01"),
        std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        std::string_view("\0\0\0\0", 4)}) {
    CHECK(failure_of([&] { train::check_sentencepiece_file(foreign, "x"); }).code ==
          ErrorCode::bad_data);
  }
}

TEST_CASE("sentencepiece layout: a length near 2^64 does not wrap around") {
  const std::string bytes =
      std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11) + "rest";
  const auto failure = failure_of([&] { train::check_sentencepiece_file(bytes, "x"); });
  CHECK(failure.says("byte 0"));
  CHECK(failure.says("4 are left"));
}

TEST_CASE("sentencepiece: a valid layout without a valid model") {
  const TemporaryFolder folder;
  const auto file =
      folder.write("odd.model", field(1, "\x01\x02\x03") + field(2, "\xff\xff") + field(3, "\x7f"));
  const auto failure = failure_of([&] { (void)train::open_tokenizer(file.string()); });
  CHECK((failure.code == ErrorCode::bad_data || failure.code == ErrorCode::unsupported));
  CHECK(failure.says("odd.model"));
}

TEST_CASE("sentencepiece: a small model of our own") {
  const auto file = std::filesystem::path(ATOLL_TEST_SOURCE_DIR) / "tests/train/tokenizer.model";
  std::unique_ptr<const train::Tokenizer> tokenizer;
  const auto failure = failure_of([&] { tokenizer = train::open_tokenizer(file.string()); });
  if (failure.thrown && failure.code == ErrorCode::unsupported)
    return;  // the tokenizer was built without the SentencePiece library
  REQUIRE_FALSE(failure.thrown);
  CHECK(tokenizer->vocab_size() == 400);
  CHECK(tokenizer->bos() == 1);
  CHECK(tokenizer->eos() == 2);
  CHECK(tokenizer->pad() == 2);
  using Ids = std::vector<std::int32_t>;
  CHECK(tokenizer->encode("A reef.") == Ids{275, 337, 362});
  CHECK(tokenizer->encode("  two spaces\n") == Ids{349, 349, 335, 262, 367, 351, 282, 353, 381});
  // Characters that are not in the vocabulary are encoded as bytes.
  const Ids ids{349, 360, 399, 351, 353, 349, 392, 349, 243, 162, 155, 131};
  CHECK(tokenizer->encode("días ≤ 😀") == ids);
  CHECK(tokenizer->decode(ids) == "días ≤ 😀");
  CHECK(tokenizer->encode("</s>").front() != tokenizer->eos());

  const TemporaryFolder folder;
  const std::string whole = train::read_file(file, 1U << 20U);
  for (const std::size_t kept : {std::size_t{1}, whole.size() / 2, whole.size() - 1}) {
    CAPTURE(kept);
    const auto cut = folder.write("cut.model", std::string_view(whole).substr(0, kept));
    CHECK(failure_of([&] { (void)train::open_tokenizer(cut.string()); }).says("cut.model: byte "));
  }
}
