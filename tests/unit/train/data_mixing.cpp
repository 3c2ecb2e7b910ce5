// Mixed sets, splits for evaluation, the queue of prepared steps.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include "data/batches.hpp"
#include "data/sources.hpp"
#include "data/step_queue.hpp"
#include "unit/train/data_temporary.hpp"
#include "unit/train/data_token_bytes.hpp"

namespace {

using namespace train_test;

// Writes a token file with `size` documents of three tokens; the second one counts from `first`.
std::string numbered(const TemporaryFolder& folder, const std::string& name, std::uint32_t first,
                     std::uint32_t size) {
  TokenBytes file;
  file.vocabulary = 10'000;
  file.eos = 0;
  for (std::uint32_t i = 0; i < size; ++i) file.documents.push_back({1, first + i, 2});
  return folder.write(name, token_bytes(file)).string();
}

train::Dataset open(const std::string& data, std::uint64_t seed = 0) {
  return train::open_dataset({.data = data, .seq = 8, .seed = seed},
                             *train::tokenizer_for("auto", data, ""));
}

// The second tokens of all samples of an epoch, in order, taken by one of `ranks` ranks after the
// other.
std::vector<std::int32_t> epoch_of(const train::Dataset& data, std::int64_t epoch, int ranks,
                                   std::uint64_t seed = 0) {
  std::vector<std::int32_t> numbers;
  const train::BatchOptions options{.global_batch = 7, .micro_batch = 2, .seq = 8, .seed = seed};
  std::vector<train::Batches> batches;
  for (int rank = 0; rank < ranks; ++rank)
    batches.emplace_back(data, options, train::Share{rank, ranks});
  for (std::int64_t step = 0; step < batches[0].steps_per_epoch(); ++step) {
    for (auto& mine : batches) {
      const auto plan = mine.step({epoch, step});
      for (int m = 0; m < plan.micro_batches; ++m) {
        const auto batch = mine.micro_batch(plan, m);
        for (std::int32_t row = 0; row < batch.rows; ++row) {
          const auto number = batch.tokens[static_cast<std::size_t>(row * batch.seq + 1)];
          if (number != 0) numbers.push_back(number);
        }
      }
    }
  }
  return numbers;
}

}  // namespace

TEST_CASE("permutation: every place once, for any size") {
  for (const std::int64_t size : {1, 2, 3, 5, 16, 17, 1000, 4097}) {
    std::vector<std::int64_t> values;
    const train::Permutation permutation(size, 42);
    for (std::int64_t i = 0; i < size; ++i) values.push_back(permutation(i));
    std::vector<std::int64_t> sorted = values, all(static_cast<std::size_t>(size));
    std::ranges::sort(sorted);
    std::iota(all.begin(), all.end(), 0);
    CHECK(sorted == all);
    if (size >= 16) CHECK(values != all);
  }
  // Each of three items comes first about equally often.
  std::map<std::int64_t, int> firsts;
  for (std::uint64_t key = 0; key < 3000; ++key) ++firsts[train::Permutation(3, key * 7919)(0)];
  for (const auto& [item, count] : firsts) CHECK((count > 850 && count < 1150));
}

TEST_CASE("order: sets above the size of the table are permuted without one") {
  const std::int64_t size = train::SampleOrder::largest_table + 5;
  train::SampleOrder order(size, {}, 3);
  const auto first = order.samples(0, 0, 1000);
  CHECK(first == order.samples(0, 0, 1000));
  CHECK(first != order.samples(1, 0, 1000));
  CHECK(std::set(first.begin(), first.end()).size() == 1000);
  CHECK(*std::ranges::max_element(first) > size / 2);
}

TEST_CASE("mixture: shares by weight, whole passes of each set, equal for any number of ranks") {
  const TemporaryFolder folder;
  const auto a = numbered(folder, "a.tok", 100, 30), b = numbered(folder, "b.tok", 1000, 70);
  const auto data = open(a + ":0.6," + b + ":0.4");
  CHECK(data.size() == 100);
  std::map<std::int32_t, int> seen;
  for (std::int64_t epoch = 0; epoch < 7; ++epoch) {
    const auto numbers = epoch_of(data, epoch, 1);
    REQUIRE(numbers.size() == 100);
    CHECK(std::ranges::count_if(numbers, [](auto n) { return n < 1000; }) == 60);
    for (const int ranks : {2, 3, 4}) CHECK(epoch_of(data, epoch, ranks) == numbers);
    for (const auto n : numbers) ++seen[n];
  }
  // Seven epochs draw 420 samples from the set of 30, which are 14 whole passes, and 280 from the
  // set of 70, which are 4.
  CHECK(seen.size() == 100);
  for (const auto& [number, count] : seen) CHECK(count == (number < 1000 ? 14 : 4));
  CHECK(epoch_of(data, 0, 1, 5) != epoch_of(data, 0, 1, 6));
  CHECK(epoch_of(data, 0, 1) != epoch_of(data, 1, 1));
  const auto lines = train::statistics_lines(data);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].find("60.0 % of each epoch, which passes it 2.00 times") != std::string::npos);
}

TEST_CASE("mixture: weights need not sum to 1, default to 1, and must be above 0") {
  const TemporaryFolder folder;
  const auto a = numbered(folder, "a.tok", 100, 30), b = numbered(folder, "b.tok", 1000, 30);
  const auto count = [&](const std::string& data) {
    const auto numbers = epoch_of(open(data), 0, 1);
    return std::ranges::count_if(numbers, [](auto n) { return n < 1000; });
  };
  CHECK(count(a + "," + b) == 30);
  CHECK(count(a + ":3," + b) == 45);
  CHECK(count(a + ":30," + b + ":10") == 45);
  CHECK(failure_of([&] { open(a + ":0," + b); }).says("a weight must be above 0"));
  CHECK(failure_of([&] { open(a + ":-1," + b); }).says("a weight must be above 0"));
  CHECK(failure_of([&] { open(a + ",," + b); }).says("use demo, synthetic"));
  CHECK(open(a).fingerprint() != open(a + "," + b).fingerprint());
  CHECK(open(a + ":2," + b).fingerprint() != open(a + "," + b).fingerprint());
  CHECK(train::parse_sources("jsonl:x:0.5", "").front().weight == 0.5);
  CHECK(train::parse_sources("synthetic:copy", "").front().kind == train::SourceKind::copy);
}

TEST_CASE("split: parts have no sample in common, whatever the seed") {
  const TemporaryFolder folder;
  const auto a = numbered(folder, "a.tok", 100, 40), b = numbered(folder, "b.tok", 1000, 11);
  const std::string data = a + ":0.5," + b + ":0.5";
  const auto tokenizer = train::tokenizer_for("auto", data, "");
  const auto numbers = [](const train::Dataset& set) {
    std::set<std::int32_t> found;
    for (std::int64_t i = 0; i < set.size(); ++i) found.insert(set.sample(i).tokens[1]);
    return found;
  };
  const auto run = train::open_run_data({.data = data, .seq = 8}, {.split = 0.1}, *tokenizer);
  REQUIRE(run.eval);
  CHECK(run.eval->size() == 4 + 1);
  CHECK(run.train.size() == 36 + 10);
  auto together = numbers(run.train);
  for (const auto n : numbers(*run.eval)) CHECK(together.insert(n).second);
  CHECK(together.size() == 51);
  const auto other =
      train::open_run_data({.data = data, .seq = 8, .seed = 9}, {.split = 0.1}, *tokenizer);
  CHECK(numbers(*other.eval) == numbers(*run.eval));
  // Every sample of the evaluation comes once, although the sets have weights.
  CHECK(epoch_of(*run.eval, 0, 2).size() == 5);
  CHECK(epoch_of(run.train, 0, 2).size() == 46);
  const auto few =
      train::open_run_data({.data = data, .seq = 8}, {.split = 0.1, .samples = 2}, *tokenizer);
  CHECK(few.eval->size() == 2);  // limited to 2; 0.1 gives 4 and 1
  const auto file = train::open_run_data({.data = a, .seq = 8}, {.data = b}, *tokenizer);
  CHECK(file.eval->size() == 11);
  CHECK(file.train.size() == 40);
  // Sources of 40 and 11 samples contribute to the evaluation in proportion to their sizes.
  const auto both =
      train::open_run_data({.data = a, .seq = 8}, {.data = a + "," + b, .samples = 10}, *tokenizer);
  CHECK(both.eval->size() == 10);
  std::int64_t of_a = 0;
  for (const auto n : numbers(*both.eval)) of_a += numbers(file.train).contains(n) ? 1 : 0;
  CHECK(of_a == 8);
}

TEST_CASE("a tokenizer.json is that of the token file") {
  const TemporaryFolder folder;
  const auto path = folder.write("tokenizer.json", "{}").string();
  TokenBytes file{.documents = {{0, 1, 2, 3}}, .vocabulary = 4, .eos = 3};
  const auto data = folder.write("a.tok", token_bytes(file)).string();
  CHECK(train::tokenizer_for(path, data, "")->vocab_size() == 4);  // a file without a digest
  file.digest[0] = 1;
  folder.write("a.tok", token_bytes(file));
  const auto failure = [](const std::string& what, const std::string& sources) {
    return failure_of([&] { (void)train::tokenizer_for(what, sources, ""); });
  };
  CHECK(failure(path, data).says("a.tok: was made with another tokenizer than --tokenizer "));
  CHECK(failure(path, "demo").says("only atoll-data reads a tokenizer.json"));
  CHECK(failure("auto", "x.bin").says("--data-type"));
}

TEST_CASE("queue: an error arrives when the step that causes it is taken") {
  // Sample 5 of each epoch cannot be read.
  class Damaged final : public train::Samples {
   public:
    std::int64_t size() const noexcept override { return 8; }
    std::int64_t length(std::int64_t) const noexcept override { return 3; }
    std::int64_t valid(std::int64_t) const noexcept override { return 3; }
    std::int64_t longest() const noexcept override { return 3; }
    void read(std::int64_t index, std::span<std::int32_t>, std::span<std::int32_t>) const override {
      if (index == 5) throw atoll::Error(atoll::ErrorCode::bad_data, "sample 5");
    }
    std::uint64_t fingerprint() const noexcept override { return 0; }
  };
  const train::Dataset data("damaged", std::make_shared<Damaged>());
  train::Batches batches(data, {.global_batch = 1, .seq = 8}, {});
  train::StepQueue queue(batches, 0, 8);
  const auto order = train::epoch_order(8, 0, 0);
  for (std::size_t step = 0; order[step] != 5; ++step)
    CHECK(queue.take().plan.rows[0][0] == order[step]);
  for (int again = 0; again < 2; ++again) {
    CHECK(failure_of([&] { (void)queue.take(); }).says("sample 5"));
  }
}

TEST_CASE("show: ids, targets and text of samples") {
  const TemporaryFolder folder;
  TokenBytes file{
      .documents = {{0, 1, 2, 3}}, .mask = {false, false, true, true}, .vocabulary = 4, .eos = 3};
  file.pieces = {"<s>", "Hi\n", "you", ""};
  const auto path = folder.write("a.tok", token_bytes(file)).string();
  const auto tokenizer = train::tokenizer_for("auto", path, "");
  const auto text = train::show_samples(open(path), *tokenizer, 3, 0);
  CHECK(text.find("sample 1 of a.tok: 3 tokens, 2 trained") != std::string::npos);
  CHECK(text.find("ids     0 1 2\n") != std::string::npos);
  CHECK(text.find("targets . 2 3\n") != std::string::npos);
  CHECK(text.find("prompt  \"<s>Hi\\n\"") != std::string::npos);
  CHECK(text.find("trained \"you\"") != std::string::npos);
}
