// Generated instruction data, so that a first run needs no download. With few templates and small
// vocabularies, a small model learns the wording in a few hundred steps, and the sums later.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "data/loaders.hpp"
#include "data/random.hpp"

namespace train {
namespace {

constexpr std::int64_t default_records = 800;

constexpr std::array<std::string_view, 24> words{
    "reef",  "sand",  "wave",  "palm",  "shell", "tide", "coral", "boat",
    "whale", "crab",  "storm", "beach", "stone", "gull", "pearl", "island",
    "rope",  "cloud", "shore", "kelp",  "ray",   "net",  "sail",  "lagoon"};

// The last word of each entry is the answer to a question: the colour of a thing, or the opposite
// of a word.
constexpr std::array<std::string_view, 16> colours{
    "grass green",     "snow white",       "coal black",      "blood red",
    "the sea blue",    "a lemon yellow",   "a carrot orange", "a plum purple",
    "milk white",      "an emerald green", "a ruby red",      "the sun yellow",
    "chocolate brown", "ash grey",         "a flamingo pink", "a raven black"};

constexpr std::array<std::string_view, 16> opposites{
    "hot cold",   "big small",  "fast slow", "light dark", "open closed", "up down",
    "early late", "full empty", "wet dry",   "hard soft",  "old new",     "loud quiet",
    "rich poor",  "near far",   "high low",  "sweet sour"};

struct Pair {
  std::string_view first, second;
  explicit Pair(std::string_view entry)
      : first(entry.substr(0, entry.rfind(' '))), second(entry.substr(first.size() + 1)) {}
};

class Draw {
 public:
  explicit Draw(const RandomKey& key) noexcept : random_(key) {}

  std::uint64_t below(std::uint64_t bound) noexcept { return random_.below(counter_++, bound); }

  template <typename Range>
  const auto& pick(const Range& range) noexcept {
    return range[below(range.size())];
  }

 private:
  CounterRandom random_;
  std::uint64_t counter_ = 0;
};

AlpacaRecord sum(Draw& draw) {
  const auto a = draw.below(20);
  const auto b = draw.below(20);
  return {"Add the two numbers.", fmt::format("{} and {}", a, b), fmt::format("{}", a + b)};
}

AlpacaRecord reversed(Draw& draw) {
  const std::string word(draw.pick(words));
  return {"Write the word backwards.", word, std::string(word.rbegin(), word.rend())};
}

AlpacaRecord colour(Draw& draw) {
  const Pair fact(draw.pick(colours));
  return {fmt::format("What colour is {}?", fact.first), "",
          fmt::format("The colour of {} is {}.", fact.first, fact.second)};
}

AlpacaRecord opposite(Draw& draw) {
  const Pair pair(draw.pick(opposites));
  return {"Give the opposite.", std::string(pair.first),
          fmt::format("The opposite of {} is {}.", pair.first, pair.second)};
}

AlpacaRecord repeated(Draw& draw) {
  const std::string_view word = draw.pick(words);
  return {"Repeat the word three times.", std::string(word),
          fmt::format("{} {} {}", word, word, word)};
}

AlpacaRecord larger(Draw& draw) {
  const auto a = draw.below(100);
  const auto b = draw.below(100);
  return {"Which number is larger?", fmt::format("{} or {}", a, b),
          fmt::format("{}", std::max(a, b))};
}

}  // namespace

AlpacaRecord demo_record(std::uint64_t seed, std::int64_t index) {
  using Template = AlpacaRecord (*)(Draw&);
  constexpr std::array<Template, 6> templates{sum, reversed, colour, opposite, repeated, larger};
  Draw draw({seed, RandomStream::demo_records, index});
  return draw.pick(templates)(draw);
}

Dataset make_demo(const DataSpec& spec, const Tokenizer& tokenizer) {
  return alpaca_rows("demo", spec, tokenizer, spec.samples > 0 ? spec.samples : default_records,
                     [&](std::int64_t i) { return demo_record(spec.seed, i); });
}

}  // namespace train
