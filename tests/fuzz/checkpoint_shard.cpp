// Fuzzes what a load does with a shard file, which is the manifest of its tensors: identity,
// digests of blocks, dtypes and sizes. The index fits the input, so that the input reaches every
// check.
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "atoll/error.hpp"
#include "checkpoint/digests.hpp"
#include "checkpoint/shards.hpp"
#include "device/int8_blocks.hpp"

namespace fsdp = atoll::fsdp;
namespace fs = std::filesystem;

namespace {

const fs::path& folder() {
  static const fs::path made = [] {
    std::string pattern = (fs::temp_directory_path() / "atoll-fuzz-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) std::abort();
    std::atexit([] {
      std::error_code ignored;
      fs::remove_all(folder(), ignored);
    });
    return fs::path(pattern);
  }();
  return made;
}

// Reads every tensor of the only shard, in the sizes that the file states.
void read_all(const fsdp::SafetensorsFile& file, const fsdp::CheckpointIndex& index) {
  fsdp::StoredShards shards(folder(), index);
  for (const auto& entry : file.tensors()) {
    // A tensor of u8 holds blocks of 64 values in 68 bytes.
    const bool blocks = entry.data.dtype == atoll::DType::u8;
    const std::uint64_t elements =
        blocks ? entry.data.count / sizeof(atoll::Int8Block) * atoll::int8_block : entry.data.count;
    std::vector<float> values(std::min<std::uint64_t>(elements, 1 << 20));
    shards.read(entry.name, elements, 0, values);
    if (elements > 5) shards.read(entry.name, elements, 5, std::span(values).subspan(5));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const fs::path path = fsdp::shard_path(folder(), 0, 1);
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    const auto file = fsdp::SafetensorsFile::open(path);
    fsdp::CheckpointIndex index;
    index.shards = 1;
    const auto save = file.metadata().find("save");
    if (save != file.metadata().end()) index.save = save->second;
    index.files = {{size, fsdp::digest_text(fsdp::digest_of(file.header_bytes()))}};
    read_all(file, index);
  } catch (const atoll::Error&) {
    return 0;
  }
  return 0;
}
