#include "device/checked/lifetimes.hpp"

#include <fmt/core.h>

#include <utility>

namespace atoll_v1::atoll::checked {
namespace {

std::string text_of(Label label) {
  return label.of.empty() ? std::string(label.what) : fmt::format("{} {}", label.what, label.of);
}

std::string_view verb(Access access) { return access == Access::read ? "reads" : "writes"; }

// Describes a range of bytes in an allocation, for messages.
std::string place_of(std::uintptr_t begin, std::uintptr_t end, std::uintptr_t first,
                     std::uintptr_t bytes, const std::string* content) {
  const std::string memory = fmt::format("bytes {} to {} of the {} bytes allocated at {:#x}",
                                         first - begin, first - begin + bytes, end - begin, begin);
  return content ? fmt::format("\"{}\" ({})", *content, memory) : memory;
}

}  // namespace

Lifetimes::Lifetimes(std::optional<int> rank)
    : prefix_((rank ? fmt::format("rank {}: ", *rank) : "") + "ATOLL_CHECK=lifetimes: "),
      clocks_(1),
      names_{"the host"} {}

Party Lifetimes::add_stream(std::string name) {
  const std::lock_guard lock(mutex_);
  clocks_.push_back(clocks_[host_party]);
  const auto with_name = std::ranges::count(stream_names_, name);
  names_.push_back(with_name == 0
                       ? fmt::format("stream {}", name)
                       : fmt::format("stream {} (number {} of this name)", name, with_name + 1));
  stream_names_.push_back(std::move(name));
  return clocks_.size() - 1;
}

Clock Lifetimes::record(Party party) {
  const std::lock_guard lock(mutex_);
  clocks_[party].join(clocks_[host_party]);
  return clocks_[party];
}

void Lifetimes::wait(Party party, const Clock& event) {
  const std::lock_guard lock(mutex_);
  clocks_[party].join(event);
  check_found();
}

void Lifetimes::wait_for_unknown(Party party) {
  const std::lock_guard lock(mutex_);
  Clock all;
  for (const Clock& clock : clocks_) all.join(clock);
  clocks_[party].join(all);
  check_found();
}

void Lifetimes::synchronized(const Clock& event) {
  const std::lock_guard lock(mutex_);
  clocks_[host_party].join(event);
}

void Lifetimes::allocated(Range range) {
  const std::lock_guard lock(mutex_);
  const std::uintptr_t begin = address_of(range.data);
  Region region{begin + range.bytes, {}};
  region.cells.emplace(begin, Cell());
  regions_.insert_or_assign(begin, std::move(region));
}

bool Lifetimes::freed(const void* data, By by) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(address_of(data));
  if (found == regions_.end()) return true;
  bool unused = true;
  const auto& [begin, region] = *found;
  for (auto next = region.cells.begin(); next != region.cells.end() && by == By::host && unused;) {
    const auto& [first, cell] = *next++;
    const std::uintptr_t last = next == region.cells.end() ? region.end : next->first;
    std::vector<SharedUse> uses = cell.reads;
    uses.push_back(cell.write);
    for (const SharedUse& use : uses) {
      if (knows(clocks_[host_party], use)) continue;
      unused = false;
      if (found_) break;
      // Freeing must not throw, so the next call on this device reports the error.
      found_ = Error(
          ErrorCode::internal,
          fmt::format("{}{} is freed while {} may still be using it: the host has not synchronized "
                      "with that use",
                      prefix_, place_of(begin, region.end, first, last - first, cell.content.get()),
                      told(*use)));
      break;
    }
  }
  regions_.erase(found);
  return unused;
}

void Lifetimes::mapped(Range second, const void* first) {
  const std::lock_guard lock(mutex_);
  const std::uintptr_t begin = address_of(second.data);
  second_mappings_.insert_or_assign(begin, SecondMapping{begin + second.bytes, address_of(first)});
}

void Lifetimes::unmapped(const void* second) noexcept {
  const std::lock_guard lock(mutex_);
  second_mappings_.erase(address_of(second));
}

std::uintptr_t Lifetimes::first_address(std::uintptr_t address) const {
  const auto after = second_mappings_.upper_bound(address);
  if (after == second_mappings_.begin()) return address;
  const auto& [begin, mapping] = *std::prev(after);
  return address < mapping.end ? mapping.first + (address - begin) : address;
}

void Lifetimes::use(Party party, Range range, Access access, Label by, Label content) {
  const std::lock_guard lock(mutex_);
  check_found();
  const auto [begin, region, span] = target(range);
  if (region == nullptr) return;
  const SharedUse use = start(party, access, text_of(by));
  check_end(*region, span, *use);
  const std::string expected = text_of(content);
  visit(*region, span, [&, start = begin, end = region->end, span = span](Cell& cell) {
    const std::string* holds = cell.content.get();
    const auto place = [&] { return place_of(start, end, span.begin, range.bytes, holds); };
    if (!cell.alive) {
      find(fmt::format("{} {} {} after its lifetime has ended on {}", told(*use), verb(access),
                       place(), names_[cell.write->party]));
    }
    if (!expected.empty() && (!holds || *holds != expected)) {
      find(fmt::format("{} {} \"{}\", but the memory holds {}", told(*use), verb(access), expected,
                       place()));
    }
    check_order(cell, *use, place());
    if (access == Access::write) {
      cell.write = use;
      cell.reads.clear();
    } else {
      std::erase_if(cell.reads, [&](const SharedUse& read) { return read->party == party; });
      cell.reads.push_back(use);
    }
  });
}

void Lifetimes::hold(Party party, Range range, Label content) {
  const std::lock_guard lock(mutex_);
  check_found();
  const auto [begin, region, span] = target(range);
  if (region == nullptr) return;
  const bool begins = !content.what.empty();
  const auto text = std::make_shared<const std::string>(text_of(content));
  const SharedUse use = start(
      party, Access::write,
      begins ? fmt::format("the start of \"{}\"", *text) : std::string("the end of its lifetime"));
  check_end(*region, span, *use);
  visit(*region, span, [&, start = begin, end = region->end, span = span](Cell& cell) {
    const std::string* holds = cell.content.get();
    const std::string place = place_of(start, end, span.begin, range.bytes, holds);
    if (begins && holds && cell.alive && *holds != *text) {
      find(fmt::format("{} overwrites {}, although that content is still in use", told(*use),
                       place));
    }
    check_order(cell, *use, place);
    cell.write = use;
    cell.reads.clear();
    cell.alive = begins;
    if (begins) cell.content = text;
  });
}

void Lifetimes::report(const std::string& text) {
  const std::lock_guard lock(mutex_);
  find(text);
}

void Lifetimes::check() const {
  const std::lock_guard lock(mutex_);
  check_found();
}

Lifetimes::Target Lifetimes::target(Range range) {
  const std::uintptr_t address = first_address(address_of(range.data));
  auto found = regions_.upper_bound(address);
  if (range.bytes == 0 || found == regions_.begin()) return {};
  --found;
  if (address >= found->second.end) return {};
  return {found->first, &found->second, {address, address + range.bytes}};
}

void Lifetimes::visit(Region& region, Span span, const std::function<void(Cell&)>& visit) {
  const std::uintptr_t end = std::min(span.end, region.end);
  const auto split = [&](std::uintptr_t at) {
    if (at == region.end) return region.cells.end();
    const auto after = region.cells.upper_bound(at);
    const auto cell = std::prev(after);
    return cell->first == at ? cell : region.cells.emplace_hint(after, at, cell->second);
  };
  const auto last = split(end);
  for (auto cell = split(span.begin); cell != last; ++cell) visit(cell->second);
}

Lifetimes::SharedUse Lifetimes::start(Party party, Access access, std::string by) {
  Clock& clock = clocks_[party];
  clock.join(clocks_[host_party]);
  return std::make_shared<const Use>(Use{party, clock.tick(party), access, std::move(by)});
}

bool Lifetimes::knows(const Clock& clock, const SharedUse& use) const {
  return !use || clock.of(use->party) >= use->moment;
}

void Lifetimes::check_order(const Cell& cell, const Use& use, const std::string& place) {
  const Clock& clock = clocks_[use.party];
  SharedUse rival = knows(clock, cell.write) ? nullptr : cell.write;
  for (const SharedUse& read : cell.reads) {
    if (use.access == Access::write && !rival && !knows(clock, read)) rival = read;
  }
  if (!rival) return;
  find(
      fmt::format("{} {} {}, and {} {} it, unordered: {} waits for no event that {} records "
                  "after that use",
                  told(use), verb(use.access), place, told(*rival), verb(rival->access),
                  names_[use.party], names_[rival->party]));
}

void Lifetimes::check_end(const Region& region, Span span, const Use& use) {
  if (span.end <= region.end) return;
  find(fmt::format("{} {} {} bytes at {:#x}, {} of them past the end of the allocation", told(use),
                   verb(use.access), span.end - span.begin, span.begin, span.end - region.end));
}

std::string Lifetimes::told(const Use& use) const {
  return fmt::format("{} on {}", use.by, names_[use.party]);
}

void Lifetimes::check_found() const {
  if (found_) throw *found_;
}

void Lifetimes::find(const std::string& text) {
  if (!found_) found_ = Error(ErrorCode::internal, prefix_ + text);
  throw *found_;
}

}  // namespace atoll_v1::atoll::checked
