// Fuzzes the reader of a checkpoint's index. Because no mutation keeps the digest of an index
// right, the program also gives each input that is JSON the digest that belongs to it.
#include <cstddef>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "atoll/error.hpp"
#include "checkpoint/bounded_json.hpp"
#include "checkpoint/index.hpp"

namespace fsdp = atoll::fsdp;

namespace {

// Reads what load() reads of an accepted index.
void use(const fsdp::CheckpointIndex& index) {
  if (index.has_digests() && index.files.size() != index.shards) std::abort();
  for (const auto& unit : index.content.at("units")) {
    const auto& buckets = unit.at("buckets");
    for (const auto& param : unit.at("params")) {
      const auto& bucket = buckets.at(param.at("bucket").get<std::size_t>());
      if (bucket.at("name").get_ref<const std::string&>().size() > 1u << 30) std::abort();
      static_cast<void>(bucket.at("elements").get<std::uint64_t>());
      static_cast<void>(param.at("offset").get<std::uint64_t>());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    use(fsdp::parse_index(text, "index.json"));
  } catch (const atoll::Error&) {
  }
  try {
    auto content = fsdp::parse_bounded_json(text, "index.json");
    if (!content.is_object()) return 0;
    // Keeps the entries of the input, such as "files" of wrong types, under a new digest.
    const auto files = content.find("files");
    const auto kept = files == content.end() ? nlohmann::json() : *files;
    const auto save = content.value("save", nlohmann::json());
    std::string sealed =
        fsdp::index_text(content, save.is_string() ? save.get<std::string>() : std::string(32, '0'),
                         std::vector<fsdp::ShardFile>(kept.is_array() ? kept.size() : 0,
                                                      {64, std::string(16, 'a')}));
    use(fsdp::parse_index(sealed, "index.json"));
  } catch (const atoll::Error&) {
    return 0;
  } catch (const nlohmann::json::exception&) {
    return 0;  // index_text() throws it for text that is not UTF-8
  }
  return 0;
}
