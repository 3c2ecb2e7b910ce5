// Tests of reading safetensors files.
#include <doctest/doctest.h>

#include <cstring>

#include "atoll/error.hpp"
#include "checkpoint/safetensors.hpp"
#include "unit/train/data_temporary.hpp"

using atoll::DType;
using atoll::Error;
using atoll::ErrorCode;
using atoll::fsdp::SafetensorsFile;
using train_test::TemporaryFolder;

namespace {

std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i));
  text += header;
  for (std::size_t i = 0; i < data_bytes; ++i) text += static_cast<char>(i);
  return text;
}

void check_bad(const std::string& content, const std::string& expected,
               ErrorCode code = ErrorCode::bad_data) {
  CAPTURE(expected);
  const TemporaryFolder folder;
  const auto file = folder.write("bad.safetensors", content);
  const auto failure = train_test::failure_of([&] { SafetensorsFile::open(file); });
  CHECK(failure.code == code);
  CHECK(failure.says(expected));
  CHECK(failure.says("bad.safetensors: byte "));
}

}  // namespace

TEST_CASE("tensors and metadata of a safetensors file") {
  const TemporaryFolder folder;
  const auto file = folder.write(
      "good.safetensors", file_of(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[16,19]},)"
                                  R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                                  R"("none":{"dtype":"BF16","shape":[0,7],"data_offsets":[16,16]},)"
                                  R"("__metadata__":{"format":"pt"}})",
                                  19));
  SafetensorsFile opened = SafetensorsFile::open(file);
  const SafetensorsFile moved = std::move(opened);
  REQUIRE(moved.tensors().size() == 3);
  CHECK(moved.tensors()[0].name == "a");
  CHECK(moved.at("a").shape == std::vector<std::uint64_t>{2, 2});
  CHECK(moved.at("a").data.dtype == DType::f32);
  CHECK(moved.at("a").data.count == 4);
  CHECK(moved.at("none").data.count == 0);
  CHECK(std::memcmp(moved.at("b").data.data, "\x10\x11\x12", 3) == 0);
  CHECK(moved.metadata().at("format") == "pt");
  CHECK(moved.find("c") == nullptr);
  CHECK_THROWS_AS(moved.at("c"), Error);
}

TEST_CASE("an inconsistent safetensors file is refused with its name and a byte offset") {
  const auto tensor = [](const std::string& body) { return file_of("{\"t\":" + body + "}", 16); };
  check_bad("", "byte 0");
  check_bad("1234", "byte 4");
  check_bad(std::string(8, '\xff'), "at most 0 are possible");
  check_bad(file_of("{\"t\":", 0), "byte 14: the text is not JSON");
  check_bad(file_of("[]", 0), "not a JSON object");
  check_bad(file_of("\"\xff\"", 0), "the text is not JSON");
  check_bad(file_of(std::string(100000, '['), 0), "byte 8: the JSON is nested");
  check_bad(file_of(R"({"a":{"b":[[1]]}})", 0), "byte 8: the JSON is nested more than 3 deep");
  check_bad(tensor("1"), "byte 9: tensor t: is not an object");
  check_bad(tensor(R"({"shape":[4],"data_offsets":[0,16]})"), "no dtype");
  check_bad(tensor(R"({"dtype":"F8","shape":[4],"data_offsets":[0,16]})"), "dtype F8",
            ErrorCode::unsupported);
  check_bad(tensor(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})"), "unsigned");
  check_bad(tensor(R"({"dtype":"F32","shape":[4],"data_offsets":[0,17]})"), "in 16 bytes");
  check_bad(tensor(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})"), "in 16 bytes");
  check_bad(tensor(R"({"dtype":"F32","shape":[5],"data_offsets":[0,16]})"), "16 bytes of data");
  check_bad(tensor(R"({"dtype":"F32","shape":[4],"data_offsets":[0]})"), "not a pair");
  check_bad(tensor(R"({"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]})"),
            "more than 2^64");
  check_bad(tensor(R"({"dtype":"F32","shape":[9223372036854775807],"data_offsets":[0,16]})"),
            "bytes of data");
  check_bad(file_of(R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},)"
                    R"("b":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})",
                    16),
            "overlap");
  check_bad(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                    R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                    16),
            "byte 9: tensor a: appears twice in the header");
  check_bad(file_of(R"({"__metadata__":{"a":1}})", 0), "not a string");
  check_bad(file_of(R"({"__metadata__":[]})", 0), "is not an object");
  check_bad(file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "appears twice in the header");
  check_bad(tensor(R"({"dtype":"F32","dtype":"U8"})"),
            "the key \"dtype\" appears twice in an object");
}

TEST_CASE("a missing safetensors file, or a folder") {
  CHECK_THROWS_AS(SafetensorsFile::open("no-such-file.safetensors"), Error);
  CHECK_THROWS_AS(SafetensorsFile::open(std::filesystem::temp_directory_path()), Error);
}
