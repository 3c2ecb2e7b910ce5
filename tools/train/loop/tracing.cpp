#include "loop/tracing.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "loop/setup.hpp"
#include "report/files.hpp"
#include "report/log.hpp"

namespace train {
namespace {

// Most records that a rank traces. Each takes about 250 bytes of text in the file.
constexpr std::size_t most_records = 100'000;

template <class Clock>
std::int64_t ns_of(typename Clock::time_point when) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count();
}

// The offset that turns a steady-clock time into a system-clock time.
std::int64_t system_minus_steady() {
  const auto steady = ns_of<std::chrono::steady_clock>(std::chrono::steady_clock::now());
  return ns_of<std::chrono::system_clock>(std::chrono::system_clock::now()) - steady;
}

// The begin of the earliest record of any rank, on this rank's steady clock.
std::int64_t common_zero(atoll::World& world, const std::vector<atoll::TraceRecord>& records) {
  const std::int64_t offset = system_minus_steady();
  std::int64_t first = std::numeric_limits<std::int64_t>::max() - std::max<std::int64_t>(offset, 0);
  for (const auto& record : records) first = std::min(first, record.begin_ns);
  return std::ranges::min(exchange_numbers(world, "train/trace/begin", first + offset)) - offset;
}

// Gathers every rank's text on the root, one rank after another; index i is communicator rank i.
std::vector<std::string> gather(atoll::World& world, atoll::Communicator* communicator, int root,
                                const std::string& mine) {
  if (!communicator) return {mine};
  atoll::Communicator& ranks = *communicator;
  const auto at = exchange_numbers(world, "train/trace/ranks", ranks.rank());
  const auto bytes =
      exchange_numbers(world, "train/trace/bytes", static_cast<std::int64_t>(mine.size()));
  std::vector<std::size_t> sizes(at.size());
  for (std::size_t i = 0; i < at.size(); ++i) {
    sizes[static_cast<std::size_t>(at[i])] = static_cast<std::size_t>(bytes[i]);
  }
  auto stream = ranks.device().stream({.name = "trace"});
  const atoll::Buffer buffer = ranks.device().allocate(
      ranks.rank() == root ? *std::ranges::max_element(sizes) : mine.size());
  const auto part = [&](std::size_t size) { return buffer.view(atoll::DType::u8).part(0, size); };
  if (ranks.rank() != root) {
    stream.copy(buffer.data(), mine.data(), mine.size());
    ranks.send(part(mine.size()), root, stream).synchronize();
    return {};
  }
  std::vector<std::string> all;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank == root) {
      all.push_back(mine);
      continue;
    }
    std::string& text = all.emplace_back(sizes[static_cast<std::size_t>(rank)], '\0');
    const auto work = ranks.recv(part(text.size()), rank, stream);
    work.wait(stream);
    stream.copy(text.data(), buffer.data(), text.size());
    stream.synchronize();
  }
  return all;
}

}  // namespace

void Tracing::add(std::int64_t step, atoll::TraceLog log, Clock::time_point begin,
                  Clock::time_point end) {
  left_out_ += log.left_out;
  log.records.push_back({.row = "step",
                         .label = "step " + std::to_string(step),
                         .begin_ns = ns_of<Clock>(begin),
                         .end_ns = ns_of<Clock>(end)});
  const std::size_t room = most_records - std::min(most_records, records_.size());
  const std::size_t kept = std::min(room, log.records.size());
  left_out_ += log.records.size() - kept;
  std::move(log.records.begin(), log.records.begin() + static_cast<std::ptrdiff_t>(kept),
            std::back_inserter(records_));
}

void Tracing::write(atoll::World& world, atoll::Communicator* ranks, int root,
                    const std::filesystem::path& file) const {
  const auto host =
      static_cast<std::size_t>(world.placements()[static_cast<std::size_t>(world.rank())].host);
  const atoll::TraceProcess process{.rank = world.rank(),
                                    .host = world.hosts()[host].name,
                                    .zero_ns = common_zero(world, records_),
                                    .left_out = left_out_,
                                    .most_records = most_records};
  const auto all = gather(world, ranks, root, atoll::chrome_events(process, records_));
  if (ranks && ranks->rank() != root) return;
  write_file_atomic(file, atoll::chrome_trace(all));
  if (records_.empty()) {
    return log::warn("{}: no step of this run was traced", file.string());
  }
  log::info("trace of steps {} to {} in {}: open the file in https://ui.perfetto.dev", steps_.first,
            steps_.last, file.string());
}

}  // namespace train
