#include "schedule/activity_log.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

namespace atoll_v1::atoll {
namespace {

using Entry = ActivityLog::Entry;
using LaneEntries = std::array<std::vector<Entry*>, 3>;  // entries of collectives, grouped by lane

// Waits shorter than this are dropped, because they are only the overhead of the time stamps.
constexpr std::int64_t shortest_wait_ns = 1'000;

bool set_times(Entry& entry) {
  const auto begin = entry.begin.ns(), end = entry.end.ns();
  if (!begin || !end) return false;
  entry.record.begin_ns = *begin;
  entry.record.end_ns = std::max(*begin, *end);
  return true;
}

std::int64_t overlap_ns(const TraceRecord& a, const TraceRecord& b) {
  return std::min(a.end_ns, b.end_ns) - std::max(a.begin_ns, b.begin_ns);
}

void attribute(const Entry& wait, std::span<Entry* const> collectives) {
  const auto first = std::ranges::partition_point(collectives, [&](const Entry* entry) {
    return entry->record.end_ns <= wait.record.begin_ns;
  });
  for (auto entry = first; entry != collectives.end(); ++entry) {
    if ((*entry)->number > wait.number) break;
    const std::int64_t both = overlap_ns(wait.record, (*entry)->record);
    if (both <= 0) break;
    (*entry)->record.waited_ns += both;
  }
}

void attribute_waits(std::span<Entry* const> entries) {
  LaneEntries lanes;
  for (Entry* entry : entries) {
    if (!is_collective(entry->record.activity)) continue;
    lanes[static_cast<std::size_t>(entry->lane)].push_back(entry);
  }
  for (const Entry* entry : entries) {
    if (entry->record.activity != Activity::wait) continue;
    attribute(*entry, lanes[static_cast<std::size_t>(entry->lane)]);
    if (entry->lane != Lane::replicate) continue;
    attribute(*entry, lanes[static_cast<std::size_t>(Lane::reduce)]);
  }
}

bool is_wait_for_nothing(const TraceRecord& record) {
  return record.activity == Activity::wait && record.end_ns - record.begin_ns < shortest_wait_ns;
}

}  // namespace

void ActivityLog::add(Entry&& entry) {
  if (entries_.size() < capacity_) {
    entries_.push_back(std::move(entry));
    return;
  }
  entries_[oldest_] = std::move(entry);
  oldest_ = (oldest_ + 1) % capacity_;
  ++left_out_;
}

TraceLog ActivityLog::take() {
  std::ranges::rotate(entries_, entries_.begin() + static_cast<std::ptrdiff_t>(oldest_));
  oldest_ = 0;
  capacity_ = capacity_asked;
  std::vector<Entry*> complete;
  std::vector<Entry> open;
  for (Entry& entry : entries_) {
    if (set_times(entry)) {
      complete.push_back(&entry);
    } else {
      open.push_back(std::move(entry));
    }
  }
  attribute_waits(complete);
  TraceLog log;
  log.left_out = std::exchange(left_out_, 0);
  log.records.reserve(complete.size());
  for (Entry* entry : complete) {
    if (!is_wait_for_nothing(entry->record)) log.records.push_back(std::move(entry->record));
  }
  entries_.clear();  // unlike an assignment, clear() keeps the allocation
  std::ranges::move(open, std::back_inserter(entries_));
  return log;
}

}  // namespace atoll_v1::atoll
