// Text above the table: what runs where, in the format of nccl-tests.
#include <fmt/format.h>

#include <array>

#include "sweep.hpp"

namespace busbw {
namespace {

// Line for each value of Blocking.
constexpr std::array<std::string_view, 4> blocking_lines{
    "", "# Blocking Enabled: wait and barrier after each operation\n",
    "# Blocking Enabled: wait after each operation, no barrier\n",
    "# Blocking Enabled: wait and barrier after each batch (-m); time excludes barrier\n"};

std::string rank_line(const Job& job, const atoll::Placement& placement) {
  const UsedDevice& device = job.devices()[static_cast<std::size_t>(placement.rank)];
  return fmt::format("#  Rank {:2} Group {:2} Pid {:6} on {:>10} device {:>2} [{}] {}\n",
                     placement.rank, job.group_of(placement.rank), placement.pid,
                     job.world().hosts()[static_cast<std::size_t>(placement.host)].name,
                     device.number, device.pci, device.info);
}

}  // namespace

std::string title_line(const Job& job) {
  return fmt::format("# atoll-busbw version {} backend {} launcher {}\n", ATOLL_VERSION,
                     job.communicator().backend(), job.world().launcher());
}

std::string preamble(const Job& job, const Options& o, Collective collective) {
  const atoll::World& world = job.world();
  const bool by_factor = o.step_factor > 1;
  std::string text = fmt::format(
      "{}# Collective test starting: {}\n"
      "# nThread 1 nGpus 1 minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} "
      "agg iters: {} validation: {} graph: 0 unalign: {}\n{}",
      title_line(job), program_name(collective), o.min_bytes, o.max_bytes,
      by_factor ? o.step_factor : o.step_bytes, by_factor ? "factor" : "bytes", o.warmups,
      o.iterations, o.batch, o.checks, o.unalign,
      blocking_lines[static_cast<std::size_t>(o.blocking)]);
  if (!job.rank_device().why.empty()) text += fmt::format("# {}\n", job.rank_device().why);
  for (const std::string& note : o.notes) text += fmt::format("# {}\n", note);
  text += fmt::format(
      "# Axis {}: {} group{} of {} rank{} at once, of mesh {} (replicate x shard); {} memory\n#\n"
      "# Using devices\n",
      name(o.axis), job.groups().size(), job.groups().size() == 1 ? "" : "s", job.group_size(),
      job.group_size() == 1 ? "" : "s", job.mesh().to_string(), name(o.memory));
  for (const atoll::Placement& placement : world.placements()) text += rank_line(job, placement);
  return text;
}

}  // namespace busbw
