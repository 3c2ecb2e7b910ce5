// The graph of waits. A node is an operation in which ranks wait. An edge leads from operation A to
// operation B if A waits for ranks that are in B.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <compare>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include "flight/explanation.hpp"
#include "flight/inquiry.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t most_reasons = 8;
constexpr std::size_t most_links = 8;  // largest number of links of a chain in a text

using How = store::Answered::How;

// Why a rank at the end of a chain keeps others waiting.
enum class Why {
  silent,
  departed,
  absent,     // the rank has not called the collective
  idle,       // the rank is in no operation, while another rank sends to it or receives from it
  unreached,  // the rank has called the collective, but its stream has not reached the call
};

// A communicator has one node for all its collectives: ranks in an earlier collective wait for a
// subset of the ranks for which a later one waits. Each message (send or recv) has its own node.
struct Key {
  std::string_view communicator;
  int from = -1;
  int to = -1;
  auto operator<=>(const Key&) const = default;
};

struct Node {
  Key key;
  std::int64_t collective = -1;
  std::string name{};
  bool is_send = false;
  const std::vector<int>* members = nullptr;  // ranks of the communicator; null if not known
  std::size_t parent = 0;
  std::map<Why, std::vector<int>> causes{};
  // The nodes that contain ranks for which this node waits, each with these ranks.
  std::map<std::size_t, std::vector<int>> next{};
  bool is_late = false;  // true if a member is still in an earlier collective of this communicator
};

// The sentence about one rank, and the sentence about several ranks, for each value of Why.
constexpr std::array<std::array<std::string_view, 2>, 5> wait_reasons = {{
    {"does not answer (its process is stopped, or its host is unreachable)",
     "do not answer (its process is stopped, or its host is unreachable)"},
    {"has left the job", "have left the job"},
    {"has not called it and is in no operation", "have not called it and are in no operation"},
    {"is in no operation", "are in no operation"},
    {"has called it, but the stream has not reached it",
     "have called it, but the stream has not reached it"},
}};

std::string why_text(Why why, std::size_t ranks) {
  return std::string(wait_reasons[static_cast<std::size_t>(why)][ranks == 1 ? 0 : 1]);
}

std::string wait_text(const std::vector<int>& ranks, std::string_view name) {
  return fmt::format("{} in {} for ", ranks.size() == 1 ? "waits" : "wait", name);
}

class Graph {
 public:
  Graph(const std::vector<RankState>& states, const InquirySubject& subject);
  std::vector<std::string> explain();

 private:
  const FlightLog* log_of(int rank) const { return states_[static_cast<std::size_t>(rank)].log; }
  // Returns the World rank of the peer of a message; -1 when no answer lists the communicator.
  int peer_of(const FlightLog& log, const FlightOperation& message) const;
  void examine(std::size_t index);
  void examine_member(std::size_t index, int rank);
  // Records that the node waits for `rank`. Adds an edge to each operation below `number` in which
  // the rank itself is; if there is none, the rank is the cause, for the reason `why`.
  void block(std::size_t index, int rank, Why why, std::uint64_t number);
  std::size_t node_of(const FlightLog& log, const FlightOperation& operation, std::size_t parent);
  std::vector<std::size_t> cycle() const;
  std::string chain_text(std::size_t index) const;
  // Returns true when there is no room for another sentence, and counts the omitted one.
  bool is_full() { return sentences_.size() >= most_reasons && ++omitted_ > 0; }
  void add_cycle();
  void add_causes(Why why);
  void add_ends();

  const std::vector<RankState>& states_;
  std::map<std::string_view, const std::vector<int>*> members_;  // keys: ids of communicators
  std::vector<Node> nodes_;                                      // the first node is the subject
  std::map<Key, std::size_t> known_;
  std::set<int> named_;
  std::vector<std::string> sentences_;
  std::size_t omitted_ = 0;
};

Graph::Graph(const std::vector<RankState>& states, const InquirySubject& subject)
    : states_(states) {
  for (const RankState& state : states) {
    if (!state.log) continue;
    for (const FlightCommunicator& communicator : state.log->communicators) {
      const std::vector<int>*& longest = members_[communicator.id];
      if (!longest || longest->size() < communicator.ranks.size()) longest = &communicator.ranks;
    }
  }
  Node first;
  first.key.communicator = subject.communicator;
  first.collective = subject.collective;
  first.members = &subject.ranks;
  for (const RankState& state : states) {
    if (!state.log || !first.name.empty()) continue;
    const FlightView view = view_of(*state.log, subject.communicator);
    const auto found = view.collectives.find(subject.collective);
    if (found == view.collectives.end()) continue;
    first.name =
        fmt::format("{} of communicator {}", name_text(*found->second), view.communicator->name);
  }
  // Registers the subject, so that edges can lead back to it. A subject of messages has no key,
  // because each message has its own node.
  if (subject.collective >= 0) known_[first.key] = 0;
  nodes_.push_back(std::move(first));
  for (std::size_t i = 0; i < nodes_.size(); ++i) examine(i);
}

int Graph::peer_of(const FlightLog& log, const FlightOperation& message) const {
  const std::vector<int>& members = *members_.at(log.communicators[message.communicator].id);
  const auto peer = static_cast<std::size_t>(message.peer);
  return peer < members.size() ? members[peer] : -1;
}

void Graph::examine(std::size_t index) {
  const Key key = nodes_[index].key;
  if (key.to >= 0) return examine_member(index, key.to);
  if (!nodes_[index].members) return;
  for (const int rank :
       std::set<int>(nodes_[index].members->begin(), nodes_[index].members->end())) {
    examine_member(index, rank);
  }
}

void Graph::examine_member(std::size_t index, int rank) {
  const RankState& state = states_[static_cast<std::size_t>(rank)];
  Node& node = nodes_[index];
  if (!state.log) {
    node.causes[state.how == How::departed ? Why::departed : Why::silent].push_back(rank);
    return;
  }
  constexpr auto any = std::numeric_limits<std::uint64_t>::max();
  const FlightLog& log = *state.log;
  if (node.collective < 0) {
    const bool answers = std::ranges::any_of(log.operations, [&](const FlightOperation& o) {
      return o.state == FlightState::started && o.collective < 0 &&
             log.communicators[o.communicator].id == node.key.communicator &&
             (o.kind == "send") != node.is_send && peer_of(log, o) == node.key.from;
    });
    if (!answers) block(index, rank, Why::idle, any);
    return;
  }
  const auto c =
      std::ranges::find(log.communicators, node.key.communicator, &FlightCommunicator::id);
  const auto collective = static_cast<std::uint64_t>(node.collective);
  if (c == log.communicators.end() || c->collectives_enqueued <= collective) {
    return block(index, rank, Why::absent, any);
  }
  if (c->collectives_completed > collective) return;
  const auto own = static_cast<std::size_t>(c - log.communicators.begin());
  const auto called = std::ranges::find_if(log.operations, [&](const FlightOperation& o) {
    return o.communicator == own && o.collective == node.collective;
  });
  if (called == log.operations.end()) return block(index, rank, Why::unreached, any);
  if (called->state == FlightState::enqueued) block(index, rank, Why::unreached, called->number);
}

void Graph::block(std::size_t index, int rank, Why why, std::uint64_t number) {
  const FlightLog& log = *log_of(rank);
  bool waits = false;
  for (const FlightOperation& operation : log.operations) {
    if (operation.state != FlightState::started || operation.number >= number) continue;
    waits = true;
    const std::size_t next = node_of(log, operation, index);
    if (next == index) {
      nodes_[index].is_late = true;
    } else if (nodes_[next].collective == operation.collective) {
      std::vector<int>& ranks = nodes_[index].next[next];
      if (ranks.empty() || ranks.back() != rank) ranks.push_back(rank);
    }
  }
  if (!waits) nodes_[index].causes[why].push_back(rank);
}

std::size_t Graph::node_of(const FlightLog& log, const FlightOperation& operation,
                           std::size_t parent) {
  const FlightCommunicator& communicator = log.communicators[operation.communicator];
  Key key{communicator.id};
  const std::vector<int>* const members = members_.at(communicator.id);
  if (operation.collective < 0) {
    key.from = log.rank;
    key.to = peer_of(log, operation);
  }
  const auto [entry, is_new] = known_.try_emplace(key, nodes_.size());
  if (is_new) {
    nodes_.push_back(
        {.key = key,
         .collective = operation.collective,
         .name = fmt::format("{} of communicator {}", name_text(operation), communicator.name),
         .is_send = operation.kind == "send",
         // A rank that lists only itself has cut its list, so the members are unknown.
         .members = members->size() > 1 && operation.collective >= 0 ? members : nullptr,
         .parent = parent});
  }
  return entry->second;
}

// Returns a cycle of waits, in which each node leads to the next and the last one to the first;
// empty if there is none. Searches depth first.
std::vector<std::size_t> Graph::cycle() const {
  enum class Seen {
    no,
    open,
    done
  };
  std::vector<Seen> seen(nodes_.size(), Seen::no);
  std::vector<std::map<std::size_t, std::vector<int>>::const_iterator> edges;
  for (const Node& node : nodes_) edges.push_back(node.next.begin());
  std::vector<std::size_t> path = {0};
  while (!path.empty()) {
    const std::size_t here = path.back();
    seen[here] = Seen::open;
    if (edges[here] == nodes_[here].next.end()) {
      seen[here] = Seen::done;
      path.pop_back();
      continue;
    }
    const std::size_t next = (edges[here]++)->first;
    if (seen[next] == Seen::no) path.push_back(next);
    if (seen[next] != Seen::open) continue;
    path.erase(path.begin(), std::ranges::find(path, next));
    return path;
  }
  return {};
}

// Returns text such as "rank 1 waits in A for rank 2, which waits in B for ", where B is the node.
// A long chain loses its middle.
std::string Graph::chain_text(std::size_t index) const {
  std::vector<std::size_t> path;
  for (; index != 0; index = nodes_[index].parent) path.push_back(index);
  std::ranges::reverse(path);
  std::string text;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const Node& node = nodes_[path[i]];
    if (i == most_links / 2 && path.size() > most_links) {
      const std::size_t omitted = path.size() - most_links;
      text += fmt::format("ranks that wait in {} other operation{}, the last one for ", omitted,
                          omitted == 1 ? "" : "s");
      i += omitted - 1;
      continue;
    }
    const std::vector<int>& ranks = nodes_[node.parent].next.at(path[i]);
    text += fmt::format("{}{} {}", ranks_text(ranks), i == 0 ? "" : ", which",
                        wait_text(ranks, node.name));
  }
  return text;
}

void Graph::add_cycle() {
  const std::vector<std::size_t> path = cycle();
  if (path.empty()) return;
  const auto ranks_after = [&](std::size_t i) -> const std::vector<int>& {
    return nodes_[path[i]].next.at(path[(i + 1) % path.size()]);
  };
  const std::vector<int>& last = ranks_after(path.size() - 1);
  std::string text = fmt::format("{} {}", ranks_text(last), wait_text(last, nodes_[path[0]].name));
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    if (i == most_links) {
      text += "further ranks, and so on, to ";
      break;
    }
    const std::vector<int>& ranks = ranks_after(i);
    text +=
        fmt::format("{}, which {}", ranks_text(ranks), wait_text(ranks, nodes_[path[i + 1]].name));
  }
  sentences_.push_back(text + ranks_text(last) +
                       ": these ranks called their operations in different orders");
}

void Graph::add_causes(Why why) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const auto found = nodes_[i].causes.find(why);
    if (found == nodes_[i].causes.end()) continue;
    std::vector<int> ranks;
    for (const int rank : found->second) {
      if (named_.insert(rank).second) ranks.push_back(rank);
    }
    if (i == 0 || ranks.empty()) continue;  // the caller says what the subject itself waits for
    if (is_full()) continue;
    sentences_.push_back(fmt::format("{}{}, which {}", chain_text(i), ranks_text(ranks),
                                     why_text(why, ranks.size())));
  }
}

// Adds a sentence for each operation that waits for no rank, although it has not completed.
void Graph::add_ends() {
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!node.members || node.is_late || !node.causes.empty() || !node.next.empty()) continue;
    if (is_full()) continue;
    const std::vector<int>& ranks = nodes_[node.parent].next.at(i);
    sentences_.push_back(fmt::format("{}{}{} {} in {}, which all ranks of that communicator called",
                                     chain_text(node.parent), ranks_text(ranks),
                                     node.parent == 0 ? "" : ", which",
                                     ranks.size() == 1 ? "is" : "are", node.name));
  }
}

std::vector<std::string> Graph::explain() {
  add_causes(Why::silent);
  add_causes(Why::departed);
  // Silent and departed ranks explain why all others wait, so no other reasons are added then.
  const bool gone = std::ranges::any_of(nodes_, [](const Node& node) {
    return node.causes.contains(Why::silent) || node.causes.contains(Why::departed);
  });
  if (!gone) {
    add_cycle();
    for (const Why why : {Why::absent, Why::idle, Why::unreached}) add_causes(why);
    add_ends();
  }
  if (omitted_ > 0) sentences_.push_back(fmt::format("and {} more", omitted_));
  return std::move(sentences_);
}

}  // namespace

std::string silence_text(std::size_t ranks) { return why_text(Why::silent, ranks); }
std::string departure_text(std::size_t ranks) { return why_text(Why::departed, ranks); }

std::vector<std::string> explain_waits(const std::vector<RankState>& states,
                                       const InquirySubject& subject) {
  return Graph(states, subject).explain();
}

}  // namespace atoll_v1::atoll
