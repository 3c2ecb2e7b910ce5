#include "data/sources.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <system_error>

#include "data/file.hpp"
#include "data/token_file.hpp"
#include "fail.hpp"

namespace train {
namespace {

struct Kind {
  std::string_view name;  // file extension without the dot, or prefix as in json:FILE
  SourceKind kind;
};
constexpr Kind kinds[] = {
    {"json", SourceKind::alpaca}, {"tok", SourceKind::token_file}, {"raw", SourceKind::raw_ids},
    {"jsonl", SourceKind::other}, {"ndjson", SourceKind::other},   {"txt", SourceKind::other},
    {"md", SourceKind::other},    {"text", SourceKind::other},     {"parquet", SourceKind::other},
    {"arrow", SourceKind::other}, {"feather", SourceKind::other},  {"gz", SourceKind::other}};
constexpr Kind generated[] = {{"demo", SourceKind::demo},
                              {"synthetic", SourceKind::synthetic},
                              {"synthetic:copy", SourceKind::copy}};

constexpr std::uintmax_t largest_tokenizer = std::uintmax_t{256} << 20U;

// Removes ":WEIGHT" from the end of the text.
std::optional<double> take_weight(std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon + 1 == text.size()) return std::nullopt;
  double weight = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, weight);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  require(std::isfinite(weight) && weight > 0, "--data {}: a weight must be above 0", text);
  text.resize(colon);
  return weight;
}

SourceSpec parse_source(std::string text, const std::string& data_type) {
  SourceSpec source;
  if (const auto weight = take_weight(text)) source.weight = *weight;
  source.text = text;
  source.path = text;
  if (const auto* found = std::ranges::find(generated, text, &Kind::name);
      found != std::end(generated)) {
    source.kind = found->kind;
    return source;
  }
  const std::size_t colon = text.find(':');
  const auto kind_of = [](std::string_view name) {
    return std::ranges::find(kinds, name, &Kind::name);
  };
  const auto* found = colon == text.npos ? std::end(kinds) : kind_of(text.substr(0, colon));
  if (found != std::end(kinds)) {
    source.ending = found->name;
    source.path = text.substr(colon + 1);
  } else if (const std::string ending = source.path.extension().string(); !ending.empty()) {
    found = kind_of(std::string_view(ending).substr(1));
  }
  std::error_code ignored;
  if (found != std::end(kinds)) {
    source.kind = found->kind;
  } else {
    require(!std::filesystem::is_directory(source.path, ignored),
            "data {}: a folder; name the files in it", text);
    require(!data_type.empty(),
            "data {}: use demo, synthetic, synthetic:copy, or a .tok, .json, .jsonl, .txt, .md, "
            ".parquet or .arrow file (tok:FILE, json:FILE, jsonl:FILE, text:FILE for other names); "
            "for raw ids, add --data-type uint16 or uint32",
            text);
    source.kind = SourceKind::raw_ids;
  }
  require(source.kind != SourceKind::raw_ids || !data_type.empty(),
          "data {}: raw ids need --data-type uint16 or uint32", text);
  return source;
}

// Token ids without a tokenizer: their text, if any, comes from a token file.
class IdTokenizer final : public Tokenizer {
 public:
  IdTokenizer(std::string name, std::int32_t size) {
    name_ = std::move(name);
    vocab_size_ = size;
  }
  explicit IdTokenizer(TokenFile file)
      : IdTokenizer(file.tokenizer_name().empty() ? "ids" : file.tokenizer_name(),
                    file.vocabulary()) {
    eos_ = file.eos().value_or(eos_);
    pad_ = file.pad().value_or(std::max(eos_, 0));
    digest_ = file.tokenizer_digest();
    file_.emplace(std::move(file));
  }

  std::vector<std::int32_t> encode(std::string_view) const override {
    fail(
        ErrorCode::invalid_argument,
        "--tokenizer: these data are text, but {} only has token ids; name the tokenizer: bytes or "
        "the path of a SentencePiece model",
        name_);
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      require(id >= 0 && id < vocab_size_, "{}: token {} is not in [0, {})", name_, id,
              vocab_size_);
      if (file_) text += file_->piece(id);
    }
    return text;
  }

 private:
  std::optional<TokenFile> file_;
};

std::unique_ptr<const Tokenizer> ids_of(const std::string& what) {
  std::int32_t size = 0;
  const char* const end = what.data() + what.size();
  const auto parsed = std::from_chars(what.data() + 4, end, size);
  require(parsed.ec == std::errc() && parsed.ptr == end && size > 0,
          "--tokenizer {}: use ids:N with the number of ids, for example ids:50257", what);
  return std::make_unique<IdTokenizer>(what, size);
}

}  // namespace

bool is_generated(const SourceSpec& source) noexcept {
  return source.kind == SourceKind::demo || source.kind == SourceKind::synthetic ||
         source.kind == SourceKind::copy;
}

std::vector<SourceSpec> parse_sources(const std::string& data, const std::string& data_type) {
  if (!data_type.empty()) token_type_from_name(data_type);
  std::vector<SourceSpec> sources;
  // Commas separate sources. A file whose name has a comma can only be the sole source.
  std::error_code ignored;
  const bool is_file = std::filesystem::exists(data, ignored);
  std::string_view rest = data;
  while (!rest.empty() || sources.empty()) {
    const std::size_t comma = is_file ? rest.size() : std::min(rest.find(','), rest.size());
    sources.push_back(parse_source(std::string(rest.substr(0, comma)), data_type));
    require(comma + 1 != rest.size(), "--data {}: nothing follows the last comma", data);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return sources;
}

std::string replace_sources(const std::string& data, const std::string& data_type,
                            const std::function<std::string(const SourceSpec&)>& text) {
  std::string replaced;
  for (const SourceSpec& source : parse_sources(data, data_type)) {
    if (!replaced.empty()) replaced += ',';
    replaced += text(source);
    if (source.weight != 1) replaced += fmt::format(":{}", source.weight);
  }
  return replaced;
}

std::unique_ptr<const Tokenizer> tokenizer_for(const std::string& what, const std::string& data,
                                               const std::string& data_type) {
  if (what.starts_with("ids:")) return ids_of(what);
  const bool is_json = what.ends_with(".json");
  if (what != "auto" && !is_json) return open_tokenizer(what);
  const auto sources = parse_sources(data, data_type);
  const auto tokens = std::ranges::find(sources, SourceKind::token_file, &SourceSpec::kind);
  if (tokens != sources.end()) {
    auto ids = std::make_unique<IdTokenizer>(TokenFile::open(tokens->path, Verify::structure));
    const bool is_unknown = ids->digest() == TokenizerDigest{};
    if (is_json && !is_unknown && ids->digest() != sha256(read_file(what, largest_tokenizer))) {
      fail(ErrorCode::mismatch,
           "{}: was made with another tokenizer than --tokenizer {}: leave --tokenizer out, or "
           "convert the data again",
           tokens->text, what);
    }
    return ids;
  }
  require(!is_json,
          "--tokenizer {}: only atoll-data reads a tokenizer.json, and it does not convert this "
          "kind of data: use --tokenizer bytes, or the path of a SentencePiece model",
          what);
  for (const SourceSpec& source : sources) {
    require(source.kind != SourceKind::raw_ids,
            "data {}: raw ids do not say how many there are: add --tokenizer ids:N (for example "
            "ids:50257), or the tokenizer's path",
            source.text);
  }
  return byte_tokenizer();
}

}  // namespace train
