// The index of a checkpoint: index.json, which names the units, their parameters and the shard
// files. It is untrusted. Entries that are not named here are allowed; their readers check them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace atoll_v1::atoll::fsdp {

inline constexpr std::string_view checkpoint_format = "atoll-checkpoint";
// Version 3 added digests. Checkpoints of version 2 load with a warning.
inline constexpr int checkpoint_version = 3;

// A shard file as its save left it.
struct ShardFile {
  std::uint64_t bytes = 0;  // size of the file
  std::string header;       // digest of the file's header, which contains the digests of the data
};

struct CheckpointIndex {
  nlohmann::json content;  // entries of index.json: "units", "extra" and others
  std::uint64_t shards = 0;
  std::uint64_t steps = 0;  // number of steps of the optimizer
  // The members below are empty in version 2.
  std::string save;              // id of the save, equal in all files of a checkpoint
  std::vector<ShardFile> files;  // shard files, indexed by shard

  bool has_digests() const noexcept { return !save.empty(); }
};

// Returns the text of index.json for `content`, with the entries "save", "files" and "digest",
// which is the digest of the text itself.
std::string index_text(nlohmann::json content, const std::string& save,
                       const std::vector<ShardFile>& files);

// Parses and checks the text of an index. After it, "units" is a list in which every unit has its
// "name", its "buckets" with "name" and "elements", and its "params" with "name", "shape", "offset"
// and "bucket", which is the number of a bucket. Throws Error(bad_data), or Error(mismatch) for
// another format or version; both name the file.
CheckpointIndex parse_index(std::string_view text, const std::filesystem::path& file);

// Reads the file, which may have 1 GiB, and calls parse_index(), whose errors it throws. Throws
// Error(io) if the file cannot be read.
CheckpointIndex read_index(const std::filesystem::path& file);

}  // namespace atoll_v1::atoll::fsdp
