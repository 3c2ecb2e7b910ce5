// Tests that damaged, mixed up and foreign files of a checkpoint are refused, each with a message
// that names the first difference.
#include "unit/checkpoint/checkpoint.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>

#include "checkpoint/safetensors.hpp"
#include "unit/error_text.hpp"

using namespace atoll_test::checkpoint;
using atoll_test::has;
using train_test::TemporaryFolder;

namespace {

// A checkpoint of two shards, and a copy to damage.
struct Saved {
  Saved() {
    save(2, whole(), 1.0f, 6);
    afresh();
  }
  fs::path whole() const { return folder.path() / "whole"; }
  fs::path copy() const { return folder.path() / "copy"; }
  void afresh() const {
    fs::remove_all(copy());
    fs::copy(whole(), copy(), fs::copy_options::recursive);
  }
  // The offset of a tensor's data in a shard file of the copy.
  std::uint64_t offset_of(int number, const std::string& tensor) const {
    const auto file = fsdp::SafetensorsFile::open(copy() / shard(number, 2));
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(file.at(tensor).data.data) -
                                      file.bytes().data());
  }
  void flip(int number, std::uint64_t byte) const {
    change(copy() / shard(number, 2), [&](std::string& bytes) { bytes[byte] ^= 4; });
  }
  TemporaryFolder folder;
};

std::string refused(const Saved& saved, int ranks = 2) {
  return refusal(ranks, saved.copy(), 1.0f);
}

}  // namespace

TEST_CASE("a whole checkpoint loads on any number of ranks") {
  const Saved saved;
  for (const int ranks : {1, 2, 3}) CHECK(refused(saved, ranks) == "");
}

TEST_CASE("damaged data is refused with file, byte and tensor, on any number of ranks") {
  const Saved saved;
  const std::uint64_t begin = saved.offset_of(1, "a/f32/weights");
  const std::string file = shard(1, 2);
  const std::uint64_t second = begin + fsdp::digest_block_bytes;
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    saved.afresh();
    saved.flip(1, second + 77);
    CHECK(has(refused(saved, ranks),
              {file + ": byte " + std::to_string(second) + ": tensor a/f32/weights is damaged: ",
               "do not have the digest that was saved with them"}));
  }
  saved.afresh();
  change(saved.copy() / file, [&](std::string& bytes) {
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin + 1000), 65536, '\0');
  });
  CHECK(has(refused(saved), file + ": byte " + std::to_string(begin) + ": tensor"));
  saved.afresh();
  saved.flip(1, saved.offset_of(1, "a/f32/moment2"));
  CHECK(has(refused(saved), "tensor a/f32/moment2 is damaged"));
}

TEST_CASE("a damaged header, and a file that is longer or shorter") {
  const Saved saved;
  const fs::path file = saved.copy() / shard(0, 2);
  change(file, [](std::string& bytes) { bytes[bytes.find("\"shape\"") + 5] = 'f'; });
  CHECK(has(refused(saved), "has no list \"shape\""));
  saved.afresh();
  change(file, [](std::string& bytes) {
    const std::size_t at = bytes.find("xxh3_64:b/f32/weights\":\"") + 24;
    bytes[at] = bytes[at] == '0' ? '1' : '0';
  });
  CHECK(has(refused(saved), shard(0, 2) + ": byte 0: the header is damaged: its "));
  saved.afresh();
  const std::uint64_t size = fs::file_size(file);
  change(file, [](std::string& bytes) { bytes += "more"; });
  CHECK(has(refused(saved),
            {": the file has " + std::to_string(size + 4) + " bytes, but ", " were saved"}));
  fs::resize_file(file, size - 4);
  CHECK(has(refused(saved), "do not fit in"));
}

TEST_CASE("shards that are swapped, or of another save") {
  const Saved saved;
  fs::rename(saved.copy() / shard(0, 2), saved.copy() / "kept");
  fs::rename(saved.copy() / shard(1, 2), saved.copy() / shard(0, 2));
  fs::rename(saved.copy() / "kept", saved.copy() / shard(1, 2));
  CHECK(has(refused(saved), ": holds shard 1 of 2, but its name is that of shard 0 of 2"));
  const fs::path later = saved.folder.path() / "later";
  save(2, later, 2.0f, 12);
  const auto refused_with = [&](const std::string& name) {
    saved.afresh();
    fs::copy_file(later / name, saved.copy() / name, fs::copy_options::overwrite_existing);
    return refused(saved);
  };
  CHECK(has(refused_with(shard(1, 2)),
            {": belongs to another save (id ", ", step 12) than the index (id ", ", step 6)"}));
  CHECK(has(refused_with("index.json"), ", step 6) than the index (id "));
}

TEST_CASE("a damaged index is refused") {
  const Saved saved;
  const fs::path file = saved.copy() / "index.json";
  const auto with = [&](const std::string& from, const std::string& to) {
    saved.afresh();
    change(file, [&](std::string& text) {
      REQUIRE(text.find(from) != std::string::npos);
      text.replace(text.find(from), from.size(), to);
    });
    return refused(saved);
  };
  const std::string damaged = "index.json: the file is damaged: it does not have the digest";
  CHECK(has(with("\"steps\": 6", "\"steps\": 7"), damaged));
  CHECK(has(with("\n \"digest\"", "\n  \"digest\""), damaged));
  CHECK(has(with("\"version\": 3", "\"version\": 2"), "not a checkpoint of version 2 or 3"));
  CHECK(has(with("\"steps\": 6", "\"steps\": 6, \"steps\": 7"), "the key \"steps\" appears twice"));
  saved.afresh();
  fs::resize_file(file, fs::file_size(file) / 2);
  CHECK(has(refused(saved), "the text is not JSON"));
}

TEST_CASE("a FIFO in place of a file is refused at once") {
  const Saved saved;
  for (const std::string& name : {shard(1, 2), std::string("index.json")}) {
    saved.afresh();
    fs::remove(saved.copy() / name);
    REQUIRE(::mkfifo((saved.copy() / name).c_str(), 0600) == 0);
    CHECK(has(refused(saved), name + ": not a regular file, but a FIFO"));
  }
  saved.afresh();
  fs::remove(saved.copy() / shard(1, 2));
  fs::create_symlink("/dev/zero", saved.copy() / shard(1, 2));
  CHECK(has(refused(saved), shard(1, 2) + ": not a regular file, but a device"));
}

TEST_CASE("a checkpoint of version 2, without digests, still loads") {
  const Saved saved;
  // Version 2 had neither metadata nor digests.
  for (const int number : {0, 1}) {
    const fs::path path = saved.copy() / shard(number, 2);
    std::vector<fsdp::SafetensorsDeclaration> declared;
    std::vector<std::byte> data;
    {
      const auto file = fsdp::SafetensorsFile::open(path);
      for (const auto& entry : file.tensors()) {
        declared.push_back({entry.name, entry.data.dtype, entry.shape});
        const auto* bytes = static_cast<const std::byte*>(entry.data.data);
        data.insert(data.end(), bytes, bytes + entry.data.bytes());
      }
    }
    fsdp::SafetensorsWriter writer(path, declared);
    writer.write(data);
    writer.close();
  }
  change(saved.copy() / "index.json", [](std::string& text) {
    auto index = nlohmann::json::parse(text);
    for (const char* key : {"digest", "save", "files"}) index.erase(key);
    index["version"] = 2;
    text = index.dump(1);
  });
  CHECK(refused(saved) == "");
}

TEST_CASE("names of a file reach the terminal without control characters") {
  const Saved saved;
  change(saved.copy() / "index.json", [](std::string& text) {
    auto index = nlohmann::json::parse(text);
    index["units"][0]["name"] = "\x1b]0;owned\x07\xc2\x9b";
    const auto parsed = fsdp::parse_index(text, "index.json");
    text = fsdp::index_text(index, parsed.save, parsed.files);
  });
  const std::string text = refused(saved);
  CHECK(has(text, "the name of unit 0"));
  CHECK(std::ranges::all_of(text, [](unsigned char c) { return c >= 0x20 && c < 0x7f; }));
}
