// Loads plain text, packed into full rows.

#include <algorithm>
#include <filesystem>
#include <optional>

#include "data/loaders.hpp"
#include "fail.hpp"

namespace train {
namespace {

// Length of the UTF-8 sequence at the start of `text`; 0 if it is invalid (RFC 3629: overlong,
// a surrogate, or above U+10FFFF).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xc0U) == 0x80U; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xc2) return 0;
  if (first < 0xe0) return continues(1) ? 2 : 0;
  if (first < 0xf0) {
    const bool overlong = first == 0xe0 && byte(1) < 0xa0;
    const bool surrogate = first == 0xed && byte(1) >= 0xa0;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first > 0xf4) return 0;
  const bool overlong = first == 0xf0 && byte(1) < 0x90;
  const bool too_high = first == 0xf4 && byte(1) >= 0x90;
  return continues(1) && continues(2) && continues(3) && !overlong && !too_high ? 4 : 0;
}

void check_utf8(const Source& source) {
  for (std::size_t at = 0; at < source.text.size();) {
    const std::size_t length = utf8_length(source.text.substr(at));
    if (length == 0) {
      fail(ErrorCode::bad_data, "{}: byte {}: not UTF-8", source.file, at);
    }
    at += length;
  }
}

// Removes the next document, up to a blank line, from the front of `rest`.
std::optional<std::string_view> next_document(std::string_view& rest) {
  std::size_t begin = std::string_view::npos;
  std::size_t end = 0;
  std::size_t at = 0;
  while (at < rest.size()) {
    const std::size_t line_end = std::min(rest.find('\n', at), rest.size());
    const std::string_view line = rest.substr(at, line_end - at);
    const bool blank = line.find_first_not_of(" \t\r") == std::string_view::npos;
    if (blank && begin != std::string_view::npos) break;
    if (!blank) {
      if (begin == std::string_view::npos) begin = at;
      end = line_end;
    }
    at = line_end + 1;
  }
  if (begin == std::string_view::npos) return std::nullopt;
  const std::string_view document = rest.substr(begin, end - begin);
  rest.remove_prefix(std::min(at, rest.size()));
  return document;
}

}  // namespace

Dataset load_text(const Source& source, const DataSpec& spec, const Tokenizer& tokenizer) {
  check_utf8(source);
  Dataset dataset(std::filesystem::path(source.file).filename().string());
  const auto seq = static_cast<std::size_t>(spec.seq);
  const auto wanted = [&] { return spec.samples == 0 || dataset.size() < spec.samples; };

  // A row's last label is the first token of the next row.
  std::vector<std::int32_t> stream;
  std::size_t row = 0;
  const auto take = [&](std::size_t length) {
    const std::span ids(stream);
    dataset.add(ids.subspan(row, length), ids.subspan(row + 1, length));
    row += length;
  };
  std::string_view rest = source.text;
  while (wanted()) {
    const auto document = next_document(rest);
    if (!document) break;
    const auto ids = tokenizer.encode(*document);
    stream.erase(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(row));
    row = 0;
    stream.push_back(tokenizer.bos());
    stream.insert(stream.end(), ids.begin(), ids.end());
    stream.push_back(tokenizer.eos());
    while (wanted() && stream.size() - row > seq) take(seq);
  }
  if (wanted() && stream.size() - row > 1) take(stream.size() - row - 1);
  return dataset;
}

}  // namespace train
