// The counters of network ports, and the comparison of their values before and after a run.
//
// Meaning of the counters: Documentation/ABI/stable/sysfs-class-infiniband of the kernel for those
// in `counters`; for those in `hw_counters`, NVIDIA's "Understanding mlx5 Linux Counters and Status
// Parameters" and the kernel's commits e1f24a79f424 (CNP, ECN) and d7fab916374c (roce_adp_retrans);
// rxe_hw_counters.c and rxe_comp.c of the kernel for Soft-RoCE.
#include "port_counters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <unordered_map>

#include "atoll/topology.hpp"
#include "parse_number.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::uint64_t no_warning = std::numeric_limits<std::uint64_t>::max();
// Congestion control of RoCE marks packets, so a few marks are no fault. Nothing documents how many
// are normal; this number shows that senders were slowed down again and again.
constexpr std::uint64_t many = 1000;
constexpr std::size_t most_shown = 3;  // number of ports that a finding lists with their counters

// Errors of the cable and of the far end. Discards are not among them, since congestion causes
// discards too.
constexpr std::string_view errors[] = {
    "symbol_error",    "link_error_recovery",         "link_downed",
    "port_rcv_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors"};
// Packets that were missing at the receiver, NAKs and timeouts at the sender, and what the sender
// sent again. The last three are Soft-RoCE's.
constexpr std::string_view losses[] = {
    "out_of_sequence",       "packet_seq_err", "implied_nak_seq_err", "roce_adp_retrans",
    "local_ack_timeout_err", "rcvd_seq_err",   "out_of_seq_request",  "completer_retry_err"};
constexpr std::string_view discards[] = {"port_xmit_discards"};
// RNR NAKs that the sender received; the second is Soft-RoCE's.
constexpr std::string_view not_ready[] = {"rnr_nak_retry_err", "rcvd_rnr_err"};
// Packets that arrived with an ECN mark, the congestion notifications (CNPs) that the receiver
// sent, and the notifications that made the sender slower.
constexpr std::string_view marks[] = {"np_ecn_marked_roce_packets", "np_cnp_sent",
                                      "rp_cnp_handled"};
// Ticks in which the port had data, but no credits or not its turn to send. The length of a tick
// depends on the adapter, so no number of ticks proves a loss of speed.
constexpr std::string_view waits[] = {"port_xmit_wait"};

constexpr PortCounters counter_table[] = {
    {.finding = "errors_rose",
     .fact = fact::errors,
     .names = errors,
     .consequence = "packets are sent again or lost, because a cable, transceiver or port is bad",
     .fix = "mlxlink -d NAME -p PORT -c; clean or change the cable, then the transceiver"},
    {.finding = "packets_lost",
     .fact = fact::congestion,
     .names = losses,
     .consequence = "packets were lost or overtook each other, and were sent again",
     .fix = "find errors and discards on the way of the packets: ibqueryerrors; perfquery -x",
     .ethernet_fix =
         "give RoCE one priority with PFC and ECN on all NICs and switch ports: mlnx_qos -i $(ls "
         "/sys/class/infiniband/NAME/device/net); look for discards on the switches"},
    {.finding = "packets_discarded",
     .fact = fact::congestion,
     .names = discards,
     .consequence = "the port discarded packets, because it was down or congested",
     .fix = "find a link that went down (dmesg) or a congested switch port (ibqueryerrors)",
     .ethernet_fix = "find a link that went down (dmesg) or a congested switch port (its counters "
                     "of discards and pause frames)"},
    {.finding = "receiver_not_ready",
     .fact = fact::congestion,
     .names = not_ready,
     .warning_from = many,
     .consequence = "the port waited for receivers that had no buffer ready",
     .fix = "find the slow ranks among those that this port sends to: atoll-topo --top"},
    {.finding = "fabric_congested",
     .fact = fact::congestion,
     .names = marks,
     .warning_from = many,
     .consequence = "queues in switches grew, and senders slowed down",
     .fix = "spread flows over the links between switches (adaptive routing, ECMP), connect each "
            "rail to one leaf switch, and look for other jobs on these links"},
    {.finding = "sender_waited",
     .fact = fact::congestion,
     .names = waits,
     .warning_from = no_warning,
     .consequence = "the port had data to send, but a receiver or a switch was slow; the length "
                    "of a tick depends on the adapter, so compare ports and runs",
     .fix = "find slow receivers (atoll-topo --doctor) and congested switch ports (ibqueryerrors)"},
};

using Counts = std::map<std::string_view, std::uint64_t>;

// Parses a fact such as "symbol_error 12, link_downed 3"; counters of 0 are left out.
Counts counts_in(std::string_view text) {
  Counts counts;
  for (const std::string_view entry : words_of(text, ",")) {
    const std::vector<std::string_view> words = words_of(entry);
    if (words.size() != 2) continue;
    if (const auto count = parse_number<std::uint64_t>(words[1])) counts[words[0]] = *count;
  }
  return counts;
}

struct Rise {
  const TopologyNic* nic = nullptr;
  std::uint64_t most = 0;  // the largest rise of a counter
  std::string text = {};   // the rises: "symbol_error +12, link_downed +1"
};

Rise rise_of(const PortCounters& counters, const TopologyNic& before, const TopologyNic& after) {
  Rise rise{.nic = &after};
  const std::string_view earlier = get_fact(before.facts, counters.fact);
  if (earlier.empty()) return rise;  // the earlier counts are unknown, not 0
  const Counts old = counts_in(earlier), now = counts_in(get_fact(after.facts, counters.fact));
  for (const std::string_view name : counters.names) {
    const auto was = old.find(name), is = now.find(name);
    const std::uint64_t low = was == old.end() ? 0 : was->second;
    const std::uint64_t high = is == now.end() ? 0 : is->second;
    if (high <= low) continue;
    rise.most = std::max(rise.most, high - low);
    rise.text += fmt::format("{}{} +{}", rise.text.empty() ? "" : ", ", name, high - low);
  }
  return rise;
}

Finding finding_of(const PortCounters& counters, std::vector<Rise> rises,
                   const DisplayNames& names) {
  std::ranges::stable_sort(rises, std::greater{}, &Rise::most);
  const TopologyNic& worst = *rises.front().nic;
  Finding finding{
      .id = std::string(counters.finding),
      .severity = rises.front().most >= counters.warning_from ? Severity::warning : Severity::info,
      .consequence = std::string(counters.consequence)};
  std::vector<std::string> shown;
  for (const Rise& rise : rises) {
    finding.subjects.push_back(rise.nic->id);
    if (shown.size() < most_shown)
      shown.push_back(fmt::format("{}: {}", names.device(rise.nic->id), rise.text));
  }
  finding.evidence = fmt::format("during the run, {}", fmt::join(shown, "; "));
  if (rises.size() > shown.size())
    finding.evidence += fmt::format("; and {} more", rises.size() - shown.size());
  const bool is_roce = worst.layer == "ethernet" && !counters.ethernet_fix.empty();
  const PortName name = split_port(worst.name);
  finding.fix = with_name(
      with_name(std::string(is_roce ? counters.ethernet_fix : counters.fix), "NAME", name.device),
      "PORT", name.port.empty() ? "1" : name.port);
  return finding;
}

}  // namespace

const std::span<const PortCounters> port_counters(counter_table);

std::vector<Finding> compare_ports(const Topology& before, const Topology& after) {
  std::unordered_map<std::string_view, const TopologyNic*> earlier;
  for (const TopologyNic& nic : before.nics) earlier.try_emplace(nic.id, &nic);
  const DisplayNames names(after);
  std::vector<Finding> findings;
  for (const PortCounters& counters : port_counters) {
    // The remedies for RoCE differ, so the two kinds of ports have separate findings.
    std::vector<Rise> rises, rises_of_roce;
    for (const TopologyNic& nic : after.nics) {
      const auto old = earlier.find(nic.id);
      if (old == earlier.end()) continue;
      Rise rise = rise_of(counters, *old->second, nic);
      if (rise.most > 0) (nic.layer == "ethernet" ? rises_of_roce : rises).push_back(rise);
    }
    for (auto* const some : {&rises, &rises_of_roce})
      if (!some->empty()) findings.push_back(finding_of(counters, std::move(*some), names));
  }
  std::ranges::stable_sort(findings, std::greater{}, &Finding::severity);
  return findings;
}

}  // namespace atoll_v1::atoll
