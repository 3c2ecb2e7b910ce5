#include "sweep.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "atoll/error.hpp"
#include "atoll/version.hpp"

namespace busbw {
namespace {

using Clock = std::chrono::steady_clock;

// The distance between the buffers of consecutive operations is a multiple of this, so that vector
// accesses stay aligned.
constexpr std::uint64_t stride_bytes = 64;
constexpr std::uint64_t widest_element = 8;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Sums of 16-bit types use bf16 kernels, all others f32 kernels, which cause the same memory
// traffic.
traffic::Element element_of(const Call& call) {
  const bool halves = has_reduction(call.collective) && size_of(call.dtype) == 2;
  return halves ? traffic::Element::bf16 : traffic::Element::f32;
}

// Returns the time that -a selects from the times of a group's ranks.
double selected(TimeOf which, const std::vector<double>& times) {
  switch (which) {
    case TimeOf::rank_0:
      return times.front();
    case TimeOf::average:
      return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
    case TimeOf::fastest:
      return std::ranges::min(times);
    case TimeOf::slowest:
      return std::ranges::max(times);
  }
  return 0;
}

// Requires that two buffers for each rank leave some memory of the host or GPU. Checked before
// allocation, with the same result on all ranks.
void require_room(Job& job, std::uint64_t bytes) {
  if (job.is_on_gpu()) {
    const double wanted = 2.0 * static_cast<double>(bytes);
    for (const auto& has : job.exchange({static_cast<double>(job.rank_device.memory_bytes())})) {
      if (wanted <= 0.9 * has.front()) continue;
      throw atoll::Error(
          atoll::ErrorCode::invalid_argument,
          fmt::format("-e {}: two buffers exceed a rank's share of its GPU ({})",
                      human_bytes(bytes), human_bytes(static_cast<std::uint64_t>(has.front()))));
    }
    return;
  }
  for (const atoll::HostInfo& host : job.world.hosts()) {
    const auto known = std::ranges::find(job.topology.hosts, host.id, &atoll::TopologyHost::id);
    if (known == job.topology.hosts.end() || known->memory_bytes == 0) continue;
    const double wanted = 2.0 * static_cast<double>(bytes) * static_cast<double>(host.ranks.size());
    if (wanted <= 0.8 * static_cast<double>(known->memory_bytes)) continue;
    throw atoll::Error(
        atoll::ErrorCode::invalid_argument,
        fmt::format("-e {}: two buffers for each of {} ranks exceed the memory of host {} ({})",
                    human_bytes(bytes), host.ranks.size(), host.name,
                    human_bytes(known->memory_bytes)));
  }
}

// Line of the report's header for each value of option -z (blocking).
constexpr std::array<std::string_view, 4> blocking_lines{
    "", "# Blocking Enabled: wait and barrier after each operation\n",
    "# Blocking Enabled: wait after each operation, no barrier\n",
    "# Blocking Enabled: wait and barrier after each batch (-m); time excludes barrier\n"};

std::string rank_line(const Job& job, const atoll::Placement& placement) {
  const UsedDevice& device = job.devices[static_cast<std::size_t>(placement.rank)];
  return fmt::format("#  Rank {:2} Group {:2} Pid {:6} on {:>10} device {:>2} [{}] {}\n",
                     placement.rank, job.group_of[static_cast<std::size_t>(placement.rank)],
                     placement.pid,
                     job.world.hosts()[static_cast<std::size_t>(placement.host)].name,
                     device.number, device.pci, device.info);
}

}  // namespace

std::string title_line(const Job& job) {
  return fmt::format("# atoll-busbw version {} backend {} launcher {}\n", ATOLL_VERSION,
                     job.communicator->backend(), job.world.launcher());
}

std::string preamble(const Job& job, const Options& o, Collective collective) {
  const atoll::World& world = job.world;
  const bool by_factor = o.step_factor > 1;
  std::string text = fmt::format(
      "{}# Collective test starting: {}\n"
      "# nThread 1 nGpus 1 minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} "
      "agg iters: {} validation: {} graph: 0 unalign: {}\n{}",
      title_line(job), program_name(collective), o.min_bytes, o.max_bytes,
      by_factor ? o.step_factor : o.step_bytes, by_factor ? "factor" : "bytes", o.warmups,
      o.iterations, o.batch, o.checks, o.unalign,
      blocking_lines[static_cast<std::size_t>(o.blocking)]);
  if (!job.rank_device.why.empty()) text += fmt::format("# {}\n", job.rank_device.why);
  for (const std::string& note : o.notes) text += fmt::format("# {}\n", note);
  text += fmt::format(
      "# Axis {}: {} group{} of {} rank{} at once, of mesh {} (replicate x shard); {} memory\n#\n"
      "# Using devices\n",
      o.axis, job.groups.size(), job.groups.size() == 1 ? "" : "s", job.group_size(),
      job.group_size() == 1 ? "" : "s", job.mesh.to_string(), name(o.memory));
  for (const atoll::Placement& placement : world.placements()) text += rank_line(job, placement);
  return text;
}

bool Table::is_good() const noexcept {
  return verdict.wrong_rows == 0 && verdict.is_bandwidth_fine() &&
         (!expectation || expectation->below == 0);
}

Sweep::Sweep(Job& job, const Options& options) : job_(job), options_(options), memory_rate_(job) {
  if (options.root >= job.group_size())
    throw atoll::Error(
        atoll::ErrorCode::invalid_argument,
        fmt::format("-r {}: the axis has ranks 0 to {}", options.root, job.group_size() - 1));
  const std::uint64_t bytes = options.max_bytes + stride_bytes +
                              widest_element * static_cast<std::uint64_t>(options.unalign);
  require_room(job, bytes);
  for (const atoll::HostInfo& host : job.world.hosts())
    rates_.host_gbyte_s.push_back(host_gbyte_s(job.topology, host.id));
  for (atoll::Buffer* buffer : {&send_, &recv_}) {
    *buffer = job.allocate(bytes, options.memory);
    // Writes every page, since untouched pages may all map to one page of zeros.
    if (!job.is_on_gpu()) std::memset(buffer->data(), 1, buffer->bytes());
  }
  const auto sizes =
      sweep_sizes(options.min_bytes, options.max_bytes, options.step_bytes, options.step_factor);
  for (const Collective collective : options.collectives)
    rows_planned_ += sizes.size() * kinds_of(collective).size() * roots_of(collective).size() *
                     static_cast<std::size_t>(std::max(1, options.cycles));
}

std::vector<Sweep::Kind> Sweep::kinds_of(Collective collective) const {
  std::vector<Kind> kinds;
  for (const atoll::DType dtype : options_.dtypes) {
    if (!has_reduction(collective)) kinds.push_back({dtype, Op::none});
    for (const Op op : options_.ops)
      if (has_reduction(collective)) kinds.push_back({dtype, op});
  }
  return kinds;
}

std::vector<int> Sweep::roots_of(Collective collective) const {
  if (!has_root(collective)) return {0};
  if (options_.root >= 0) return {options_.root};
  std::vector<int> roots;
  for (int r = 0; r < job_.group_size(); ++r) roots.push_back(r);
  return roots;
}

// Returns why the operation is not supported, without the name of the collective. Tries the
// smallest operation. All ranks get the same answer, because support does not depend on the rank.
std::optional<std::string> Sweep::why_unsupported(Collective collective, Kind kind) {
  const std::string what = kind.op == Op::none
                               ? std::string(column_name(kind.dtype))
                               : fmt::format("{} {}", column_name(kind.dtype), name(kind.op));
  if (const auto why = why_undefined(kind.op, kind.dtype))
    return fmt::format("{} is left out: {}", what, *why);
  const std::uint64_t bytes = std::min<std::uint64_t>(
      options_.max_bytes, 16 * static_cast<std::uint64_t>(job_.group_size()));
  const Call call{.collective = collective,
                  .dtype = kind.dtype,
                  .op = kind.op,
                  .shape = shape_of(collective, bytes, kind.dtype, job_.group_size())};
  try {
    start(call, memory_at(call, 0), *job_.communicator, *job_.stream).synchronize();
  } catch (const atoll::Error& error) {
    if (error.code() != atoll::ErrorCode::unsupported || job_.world.failure()) throw;
    return fmt::format("not supported by backend {}: {}: {}", job_.communicator->backend(), what,
                       error.what());
  }
  return std::nullopt;
}

Table Sweep::run(Collective collective) {
  Table table{.collective = collective};
  const auto sizes = sweep_sizes(options_.min_bytes, options_.max_bytes, options_.step_bytes,
                                 options_.step_factor);
  std::vector<Kind> kinds;
  for (const Kind kind : kinds_of(collective)) {
    const auto why = why_unsupported(collective, kind);
    if (!why) {
      kinds.push_back(kind);
      continue;
    }
    table.unsupported.push_back(fmt::format("{}: {}", name(collective), *why));
    print(fmt::format("# {}\n", table.unsupported.back()));
    rows_planned_ -= std::min(rows_planned_ - rows_done_, sizes.size());
  }
  if (kinds.empty()) return table;
  print(preamble(job_, options_, collective) + header_lines(options_.layout));
  for (int cycle = 0; options_.cycles == 0 || cycle < options_.cycles; ++cycle)
    for (const Kind kind : kinds)
      for (const int root : roots_of(collective)) measure_rows(kind, root, sizes, table);
  table.verdict = judge(table.rows, options_.wanted_busbw);
  print(footer_lines(table.verdict));
  log_transports();
  if (options_.limit_from != LimitFrom::nothing || options_.layout.latency)
    print(limit_lines(table.rows, options_.layout));
  if (options_.expect) {
    table.expectation = expect(table.rows, *options_.expect);
    print(table.expectation->text + "#\n");
  }
  print(fmt::format("# Collective test concluded: {}\n#\n", program_name(collective)));
  return table;
}

void Sweep::measure_rows(Kind kind, int root, const std::vector<std::uint64_t>& sizes,
                         Table& table) {
  const auto call_of = [&](std::uint64_t bytes) {
    return Call{.collective = table.collective,
                .dtype = kind.dtype,
                .op = kind.op,
                .root = root,
                .shape = shape_of(table.collective, bytes, kind.dtype, job_.group_size())};
  };
  // Warms up all sizes first, as nccl-tests does, so that no row pays for setup.
  for (const std::uint64_t bytes : sizes) warm_up(call_of(bytes));
  for (const std::uint64_t bytes : sizes) {
    const Call call = call_of(bytes);
    show_progress(call);
    table.rows.push_back(measure_row(call));
    ++rows_done_;
    print(row_line(table.rows.back(), options_.layout));
    if (options_.cycles == 0) table.rows.back().out.times_us = table.rows.back().in.times_us = {};
  }
}

// Prints the transports, once the operations of a table have opened connections.
void Sweep::log_transports() {
  const atoll::Transports mine = job_.communicator->transports();
  if (options_.require_gdr) atoll::require_gpudirect_rdma(job_.world, mine);
  if (!job_.is_on_gpu()) return;
  print(fmt::format("# Transports: {}\n", atoll::gather_transports(job_.world, mine).to_string()));
}

Row Sweep::measure_row(const Call& call) {
  Row row{.collective = call.collective,
          .bytes = call.shape.total * size_of(call.dtype),
          .count = call.shape.count,
          .dtype = call.dtype,
          .op = call.op,
          .root = has_root(call.collective) ? call.root : -1,
          .ranks = job_.group_size()};
  Call half = call;
  row.out = measure_half(half);
  half.place = Place::in;
  row.in = measure_half(half);
  if (options_.layout.timestamps) row.timestamp = local_time();
  return row;
}

// Exchanges results once, after all measurements, so that the store is idle during them.
Half Sweep::measure_half(const Call& call) {
  const Ceiling limit = ceiling_of(call);
  const Timing timing = time_batches(call);
  std::vector<double> mine{timing.seconds, timing.cpu_seconds};
  mine.push_back(static_cast<double>(check(call)));
  if (options_.layout.latency) {
    const std::vector<double> times = time_single(call);
    mine.insert(mine.end(), times.begin(), times.end());
  }
  Half half = gather(call, mine);
  half.limit = limit;
  // A rate above 100 % means that the limit was measured too low. All ranks see the same figures.
  constexpr int most_improvements = 3;
  const bool is_measured = options_.limit_from == LimitFrom::machine && !job_.is_on_gpu();
  for (int i = 0; is_measured && i < most_improvements; ++i) {
    if (half.percent().value_or(0) <= 100) break;
    half.limit = ceiling_of(call, MemoryRate::Known::improve);
  }
  return half;
}

Half Sweep::gather(const Call& call, const std::vector<double>& mine) {
  constexpr std::size_t first_sample = 3;
  const auto all = job_.exchange(mine);
  Half half;
  const double seconds = by_time_of(all, 0);
  half.time_us = seconds * 1e6;
  half.cpu_us = by_time_of(all, 1) * 1e6;
  const auto bytes = static_cast<double>(call.shape.total * size_of(call.dtype));
  half.algbw = seconds > 0 ? bytes / seconds / 1e9 : 0;
  half.busbw = half.algbw * bus_factor(call.collective, job_.group_size());
  double wrong = 0;
  for (const auto& numbers : all) wrong += numbers[2];
  const bool is_checked =
      options_.checks > 0 && (call.place == Place::out || has_in_place(call.collective));
  if (is_checked) half.wrong = static_cast<std::uint64_t>(wrong);
  if (!options_.layout.latency) return half;
  std::vector<double> slowest(mine.size() - first_sample);
  for (const auto& numbers : all) {
    auto& times = half.times_us.emplace_back();
    for (std::size_t i = 0; i < slowest.size(); ++i) {
      times.push_back(numbers[first_sample + i] * 1e6);
      slowest[i] = std::max(slowest[i], times.back());
    }
  }
  slowest.erase(slowest.begin(), slowest.begin() + options_.latency_skip);
  half.latency = summarize(std::move(slowest));
  return half;
}

// Returns the time of the slowest group.
double Sweep::by_time_of(const std::vector<std::vector<double>>& all, std::size_t entry) const {
  double slowest = 0;
  for (const std::vector<int>& group : job_.groups) {
    std::vector<double> times;
    for (const int rank : group) times.push_back(all[static_cast<std::size_t>(rank)][entry]);
    slowest = std::max(slowest, selected(options_.time_of, times));
  }
  return slowest;
}

std::uint64_t Sweep::stride_of(const Call& call) const {
  const std::uint64_t bytes = call.shape.total * size_of(call.dtype);
  return std::max(stride_bytes, (bytes + stride_bytes - 1) / stride_bytes * stride_bytes);
}

// As in nccl-tests, consecutive operations use different slots of the buffers, so that caches do
// not serve all of them.
Memory Sweep::memory_at(const Call& call, int iteration) const {
  const std::uint64_t stride = stride_of(call);
  const std::uint64_t slots = std::max<std::uint64_t>(1, options_.max_bytes / stride);
  const std::uint64_t offset = static_cast<std::uint64_t>(iteration) % slots * stride +
                               static_cast<std::uint64_t>(options_.unalign) * size_of(call.dtype);
  return {static_cast<std::byte*>(send_.data()) + offset,
          static_cast<std::byte*>(recv_.data()) + offset};
}

// Returns all parts of the buffers that the timed operations use in turn.
std::vector<Memory> Sweep::slots_of(const Call& call) const {
  const std::uint64_t most = std::max<std::uint64_t>(1, options_.max_bytes / stride_of(call));
  const auto operations =
      static_cast<std::uint64_t>(options_.iterations) * static_cast<std::uint64_t>(options_.batch);
  std::vector<Memory> slots;
  for (std::uint64_t i = 0; i < std::clamp<std::uint64_t>(operations, 1, most); ++i)
    slots.push_back(memory_at(call, static_cast<int>(i)));
  return slots;
}

void Sweep::warm_up(const Call& call) {
  atoll::Work last;
  for (int i = 0; i < options_.warmups; ++i)
    last = start(call, memory_at(call, i), *job_.communicator, *job_.stream);
  last.synchronize();
}

Sweep::Timing Sweep::time_batches(const Call& call) {
  atoll::Communicator& communicator = *job_.communicator;
  atoll::Stream& stream = *job_.stream;
  warm_up(call);
  atoll::Work last;
  job_.meet();
  double batches = 0;
  const auto begin = Clock::now();
  for (int iteration = 0; iteration < options_.iterations; ++iteration) {
    const auto batch_begin = Clock::now();
    for (int i = 0; i < options_.batch; ++i) {
      last = start(call, memory_at(call, iteration * options_.batch + i), communicator, stream);
      if (options_.blocking == Blocking::barrier || options_.blocking == Blocking::wait)
        last.synchronize();
      if (options_.blocking == Blocking::barrier) communicator.barrier(stream).synchronize();
    }
    if (options_.blocking != Blocking::batch) continue;
    last.synchronize();
    batches += seconds_since(batch_begin);
    communicator.barrier(stream).synchronize();
  }
  const double enqueued = seconds_since(begin);
  last.synchronize();
  stream.synchronize();
  const double operations = static_cast<double>(options_.iterations) * options_.batch;
  const bool is_batched = options_.blocking == Blocking::batch;
  return {(is_batched ? batches : seconds_since(begin)) / operations,
          (is_batched ? batches : enqueued) / operations};
}

std::vector<double> Sweep::time_single(const Call& call) {
  std::vector<double> times;
  job_.meet();
  for (int i = 0; i < options_.iterations; ++i) {
    const auto begin = Clock::now();
    start(call, memory_at(call, i), *job_.communicator, *job_.stream).synchronize();
    times.push_back(seconds_since(begin));
  }
  return times;
}

// Continues after a wrong result, because other ranks do not see it.
std::uint64_t Sweep::check(const Call& call) {
  std::uint64_t wrong = 0;
  for (int i = 0; i < options_.checks; ++i) {
    const Memory memory = memory_at(call, i);
    ++seed_;
    prepare(call, memory, *job_.communicator, *job_.stream, seed_);
    start(call, memory, *job_.communicator, *job_.stream).synchronize();
    wrong += count_wrong(call, memory, *job_.communicator, *job_.stream, seed_);
  }
  return wrong;
}

Ceiling Sweep::ceiling_of(const Call& call, MemoryRate::Known known) {
  const auto bytes = static_cast<double>(call.shape.total * size_of(call.dtype));
  switch (options_.limit_from) {
    case LimitFrom::nothing:
      return {};
    case LimitFrom::given:
      return ceiling_of_busbw(call.collective, bytes, job_.group_size(), options_.limit_busbw);
    case LimitFrom::machine:
      if (!job_.is_on_gpu()) break;
      if (has_reduction(call.collective) && job_.world.config().deterministic != 0)
        return {std::nullopt, "sums in a fixed order use no ring"};
      return ceiling_of_ring(call.collective, call.op, call.dtype, bytes, job_.group_size(),
                             job_.axis_gbyte_s);
  }
  rates_.memory_gbyte_s =
      memory_rate_.gbyte_s(traffic_of(call.collective, bytes, job_.group_size(), call.place),
                           element_of(call), slots_of(call), known);
  return ceiling(call.collective, bytes, call.place, call.root, job_.groups, job_.host_of, rates_);
}

void Sweep::show_progress(const Call& call) {
  if (!job_.is_root() || isatty(STDERR_FILENO) != 1) return;
  const double elapsed = seconds_since(begin_);
  std::string left;
  if (rows_done_ > 0 && rows_planned_ > rows_done_ && options_.cycles > 0 && elapsed > 2)
    left =
        fmt::format(", about {:.0f} s left", elapsed / static_cast<double>(rows_done_) *
                                                 static_cast<double>(rows_planned_ - rows_done_));
  fmt::print(stderr, "\r\x1b[K{}/{} {} {} {}{}", rows_done_ + 1, rows_planned_,
             name(call.collective), column_name(call.dtype),
             human_bytes(call.shape.total * size_of(call.dtype)), left);
  std::fflush(stderr);
}

void Sweep::print(const std::string& text) const {
  if (!job_.is_root()) return;
  if (isatty(STDERR_FILENO) == 1) fmt::print(stderr, "\r\x1b[K");
  fmt::print("{}", text);
  std::fflush(stdout);
}

}  // namespace busbw
