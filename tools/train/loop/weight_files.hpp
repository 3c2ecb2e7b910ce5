// The files in the folder of a model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace train {

// The file that names the file of each tensor, as transformers writes it.
inline constexpr std::string_view weight_index_name = "model.safetensors.index.json";

// Returns the safetensors files that hold the weights at `place`, which is a file or a folder. In a
// folder with model.safetensors.index.json these are the files that the index names; other files do
// not count, even if they are damaged. Without an index it is model.safetensors, or otherwise every
// file whose name ends in .safetensors, sorted by name, but for the adapters (LoRA) of a model.
//
// Reads the headers of the files that an index names. Throws Error(io), Error(not_found) for a file
// that is missing, Error(bad_data) for an index that is malformed, and Error(mismatch) for a tensor
// that is in another file than the index says.
std::vector<std::filesystem::path> weight_files(const std::filesystem::path& place);

// Returns the names of tokenizer files in a folder of weights.
std::span<const std::string_view> tokenizer_files();

// Returns whether a folder has files that weight_files() would return.
bool has_weights(const std::filesystem::path& folder);

// A tensor of a file, by the file's header.
struct StoredTensor {
  std::filesystem::path file;
  std::vector<std::int64_t> shape;
  std::string dtype;                  // name of the type in safetensors, such as "BF16"
  std::uint64_t first = 0, last = 0;  // range [first, last) of its bytes in the file
};
// Returns the tensors of the files by name; none of a damaged file. Of a name that several files
// have, the first counts, as for the import.
std::map<std::string, StoredTensor> stored_tensors(const std::vector<std::filesystem::path>& files);

// Whether the files have a weight of the head, and it differs from that of the embedding.
bool head_differs(const std::vector<std::filesystem::path>& files);

}  // namespace train
