// Formats the statistics of datasets, and samples, for the user.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/dataset.hpp"
#include "data/order.hpp"

namespace train {
namespace {

std::string grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > 3 && digits[at - 4] != '-'; at -= 3) {
    digits.insert(at - 3, ",");
  }
  return digits;
}

// Text of a sample, in runs of positions whose targets are all trained or all ignored. The first
// token, which is no target, is in the first run.
std::string marked_text(const Sample& sample, const Tokenizer& tokenizer) {
  std::string text;
  const auto token_after = [&](std::size_t t) {
    return t + 1 < sample.tokens.size() ? sample.tokens[t + 1] : sample.labels[t];
  };
  for (std::size_t t = 0; t < sample.labels.size();) {
    const bool trained = sample.labels[t] != ignored_label;
    std::vector<std::int32_t> run;
    if (t == 0) run.push_back(sample.tokens[0]);
    while (t < sample.labels.size() && (sample.labels[t] != ignored_label) == trained) {
      if (token_after(t) != ignored_label) run.push_back(token_after(t));
      ++t;
    }
    // Quotes and escapes keep the text on its line and free of terminal codes.
    using Json = nlohmann::json;
    text += fmt::format(
        "  {} {}\n", trained ? "trained" : "prompt ",
        Json(tokenizer.decode(run)).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return text;
}

}  // namespace

SetStatistics measure(const Samples& rows, std::string name) {
  SetStatistics result;
  result.name = std::move(name);
  result.documents = result.samples = rows.size();
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    result.tokens += rows.length(i);
    result.trained += rows.valid(i);
  }
  measure_lengths([&](std::int64_t i) { return rows.length(i); }, result);
  return result;
}

void measure_lengths(const std::function<std::int64_t(std::int64_t)>& length,
                     SetStatistics& result) {
  if (result.documents == 0) return;
  constexpr std::int64_t most = std::int64_t{1} << 20U;
  const std::int64_t step = (result.documents - 1) / most + 1;
  std::vector<std::int64_t> some;
  result.shortest = result.tokens;
  for (std::int64_t d = 0; d < result.documents; ++d) {
    const std::int64_t tokens = length(d);
    result.shortest = std::min(result.shortest, tokens);
    result.longest = std::max(result.longest, tokens);
    if (d % step == 0) some.push_back(tokens);
  }
  const auto place = some.begin() + static_cast<std::ptrdiff_t>(some.size() * 95 / 100);
  std::nth_element(some.begin(), place, some.end());
  result.percentile95 = *place;
  result.mean = static_cast<double>(result.tokens) / static_cast<double>(result.documents);
}

std::vector<std::string> statistics_lines(const Dataset& dataset) {
  const bool mixes = dataset.portions.size() > 1;
  const SampleOrder order(dataset.size(), dataset.portions, 0);
  std::vector<std::string> lines;
  for (std::size_t s = 0; s < dataset.statistics.size(); ++s) {
    const SetStatistics& set = dataset.statistics[s];
    std::string line = fmt::format(
        "data {}: {} documents, {} tokens ({} to {} each, mean {:.0f}, 95 % have at most {}), "
        "{:.1f} % trained, {} samples",
        set.name, grouped(set.documents), grouped(set.tokens), grouped(set.shortest),
        grouped(set.longest), set.mean, grouped(set.percentile95),
        100 * static_cast<double>(set.trained) /
            static_cast<double>(std::max<std::int64_t>(set.tokens, 1)),
        grouped(set.samples));
    if (set.cut + set.dropped > 0) {
      line += fmt::format(", {} cut, {} dropped", grouped(set.cut), grouped(set.dropped));
    }
    if (mixes) {
      const auto given = static_cast<double>(order.given(s));
      line += fmt::format("; {:.1f} % of each epoch, which passes it {:.2f} times",
                          100 * given / static_cast<double>(dataset.size()),
                          given / static_cast<double>(dataset.portions[s].size));
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string show_samples(const Dataset& dataset, const Tokenizer& tokenizer, std::int64_t count,
                         std::uint64_t seed) {
  std::string text;
  SampleOrder order(dataset.size(), dataset.portions, seed);
  const std::int64_t shown = std::min(count, dataset.size());
  std::int64_t number = 0;
  for (const std::uint32_t index : order.samples(0, 0, shown)) {
    const Sample sample = dataset.sample(index);
    text += fmt::format("sample {} of {}: {} tokens, {} trained\n", ++number, dataset.name(),
                        sample.tokens.size(), sample.valid);
    text += fmt::format("  ids     {}\n", fmt::join(sample.tokens, " "));
    std::vector<std::string> labels;
    for (const std::int32_t label : sample.labels) {
      labels.push_back(label == ignored_label ? "." : std::to_string(label));
    }
    text += fmt::format("  targets {}\n", fmt::join(labels, " "));
    text += marked_text(sample, tokenizer);
  }
  return text;
}

}  // namespace train
