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

// Maximum number of records that a rank traces. Each takes about 250 bytes of text in the file.
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

// Gathers every rank's text on rank 0, one rank after another, in the order of the axis.
std::vector<std::string> gather(const atoll::Axis& axis, atoll::Communicator* communicator,
                                const std::string& mine) {
  if (!communicator) return {mine};
  const auto bytes =
      exchange_numbers(*axis.world, "train/trace/bytes", static_cast<std::int64_t>(mine.size()));
  const auto root = static_cast<int>(std::ranges::find(axis.ranks, 0) - axis.ranks.begin());
  const bool receives = axis.world->rank() == 0;
  auto stream = communicator->device().stream({.name = "trace"});
  const atoll::Buffer buffer = communicator->device().allocate(
      receives ? static_cast<std::size_t>(std::ranges::max(bytes)) : mine.size());
  const auto part = [&](std::size_t size) { return buffer.view(atoll::DType::u8).part(0, size); };
  if (!receives) {
    stream.copy(buffer.data(), mine.data(), mine.size());
    communicator->send(part(mine.size()), root, stream).synchronize();
    return {};
  }
  std::vector<std::string> all;
  for (int i = 0; i < communicator->size(); ++i) {
    if (i == root) {
      all.push_back(mine);
      continue;
    }
    const auto rank = static_cast<std::size_t>(axis.ranks[static_cast<std::size_t>(i)]);
    std::string& text = all.emplace_back(static_cast<std::size_t>(bytes[rank]), '\0');
    communicator->recv(part(text.size()), i, stream).wait(stream);
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

void Tracing::write(const atoll::Axis& axis, atoll::Communicator* communicator,
                    const std::filesystem::path& file) const {
  atoll::World& world = *axis.world;
  const auto host =
      static_cast<std::size_t>(world.placements()[static_cast<std::size_t>(world.rank())].host);
  const atoll::TraceProcess process{.rank = world.rank(),
                                    .host = world.hosts()[host].name,
                                    .zero_ns = common_zero(world, records_),
                                    .left_out = left_out_,
                                    .most_records = most_records};
  const auto all = gather(axis, communicator, atoll::chrome_events(process, records_));
  if (world.rank() != 0) return;
  make_directory(std::filesystem::absolute(file).parent_path());
  write_file_atomic(file, atoll::chrome_trace(all));
  if (records_.empty()) {
    return log::warn("{}: no step of this run was traced", file.string());
  }
  log::info("trace of steps {} to {} in {}: open the file in https://ui.perfetto.dev", steps_.first,
            steps_.last, file.string());
}

}  // namespace train
