#include "communicator.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>

#include "collectives.hpp"
#include "sdk/backend.hpp"

namespace atoll_mpi {
namespace {

constexpr int rendezvous_tag = 1;
constexpr std::uint64_t different_groups = 0;

std::vector<int> world_ranks(const atoll_group& group) {
  std::vector<int> ranks;
  for (int i = 0; i < group.nranks; ++i) ranks.push_back(group.placements[i]->world_rank);
  return ranks;
}

// Returns an FNV-1a hash of the group's id and its ranks, which never equals `different_groups`.
std::uint64_t fingerprint(const atoll_group& group) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  };
  add(group.id);
  for (const int rank : world_ranks(group)) add("," + std::to_string(rank));
  return hash == different_groups ? 1 : hash;
}

// Makes sure that all ranks of a group are about to open the same communicator: each rank sends a
// fingerprint of the group to the first rank and receives an answer. This precedes
// MPI_Comm_create_group, which waits inside MPI for all ranks of the group: it would not report an
// absent rank, and under MPI_THREAD_SERIALIZED it would keep other threads from using MPI.
void meet(Session& session, const atoll_group& group) {
  const std::uint64_t own = fingerprint(group);
  // On the first rank, `words` holds the fingerprint of each rank, and words[0] later holds the
  // answer to the other ranks. On the other ranks, words[0] holds this rank's fingerprint, and the
  // last word receives the answer of the first rank.
  std::vector<std::uint64_t> words(static_cast<std::size_t>(group.nranks) + 1, different_groups);
  words.front() = own;
  const auto send = [&](Requests& requests, int to) {
    requests.post("MPI_Isend", [&](MPI_Request* request) {
      return MPI_Isend(words.data(), 1, MPI_UINT64_T, group.placements[to]->world_rank,
                       rendezvous_tag, session.world(), request);
    });
  };
  const auto receive = [&](Requests& requests, std::uint64_t& word, int from) {
    requests.post("MPI_Irecv", [&](MPI_Request* request) {
      return MPI_Irecv(&word, 1, MPI_UINT64_T, group.placements[from]->world_rank, rendezvous_tag,
                       session.world(), request);
    });
  };
  const std::atomic<bool> aborted{false};
  Backoff backoff(aborted, group.timeout_ns);
  try {
    Requests arrivals(session);
    Requests answers(session);
    if (group.rank == 0) {
      for (int i = 1; i < group.nranks; ++i) {
        receive(arrivals, words[static_cast<std::size_t>(i)], i);
      }
      arrivals.wait(backoff);
      const bool equal = std::ranges::count(words, own) == group.nranks;
      words.front() = words.back() = equal ? own : different_groups;
      for (int i = 1; i < group.nranks; ++i) send(answers, i);
    } else {
      send(answers, 0);
      receive(answers, words.back(), 0);
    }
    answers.wait(backoff);
  } catch (...) {
    session.retain(std::move(words));  // late ranks may still send to this memory
    throw;
  }
  if (words.back() != own) {
    throw Error(ATOLL_MISMATCH,
                "ranks are opening different communicators: all ranks must open their "
                "communicators in the same order");
  }
}

MPI_Comm create_group(Session& session, const atoll_group& group) {
  const std::vector<int> ranks = world_ranks(group);
  constexpr std::uint64_t guaranteed_tags = 32768;  // the MPI standard guarantees tags up to 32767
  const int tag = static_cast<int>(fingerprint(group) % guaranteed_tags);
  MPI_Group everyone = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  const auto lock = session.lock();
  check(MPI_Comm_group(session.world(), &everyone), "MPI_Comm_group");
  check(MPI_Group_incl(everyone, group.nranks, ranks.data(), &members), "MPI_Group_incl");
  check(MPI_Comm_create_group(session.world(), members, tag, &comm), "MPI_Comm_create_group");
  check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Group_free(&members);
  MPI_Group_free(&everyone);
  return comm;
}

// Throws Error for options that MPI cannot honor: MPI chooses algorithms itself and does not
// guarantee an order of sums.
void refuse_options(const atoll_group& group) {
  if (group.tuning != nullptr && *group.tuning != '\0') {
    throw Error(ATOLL_INVALID_ARGUMENT,
                "the mpi backend leaves algorithms to MPI: set OMPI_MCA_coll_tuned_... or "
                "MPIR_CVAR_..._INTRA_ALGORITHM instead of ATOLL_ALGORITHM and ATOLL_TUNING");
  }
  if (group.tags != 0)
    throw Error(ATOLL_UNSUPPORTED,
                "the mpi backend does not support tags: use the backend host or verbs");
  if (group.deterministic != 0) {
    throw Error(ATOLL_UNSUPPORTED,
                "the mpi backend cannot sum in a fixed order, because MPI chooses the order");
  }
}

}  // namespace

// Reports reductions of 16-bit floating point types as unsupported, because MPI does not have these
// types, and all_to_all_v and gather_v, which need only messages. The library builds all of these
// from other operations.
std::int32_t MpiCommunicator::capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                                         std::int32_t memory) {
  if (memory != ATOLL_MEMORY_CPU || !is_known(kind, dtype, op)) return 0;
  if (kind == ATOLL_ALL_TO_ALL_V || kind == ATOLL_GATHER_V) return 0;
  return !reduces(kind) || (dtype != ATOLL_BF16 && dtype != ATOLL_F16) ? 1 : 0;
}

std::unique_ptr<MpiCommunicator> MpiCommunicator::open(const atoll_core& core,
                                                       const atoll_group& group) {
  if (group.memory != ATOLL_MEMORY_CPU) {
    throw Error(ATOLL_UNSUPPORTED, "the mpi backend supports CPU memory only");
  }
  refuse_options(group);
  Session& session = Session::get();
  session.start(core, group);
  meet(session, group);
  return std::unique_ptr<MpiCommunicator>(new MpiCommunicator(group, create_group(session, group)));
}

MpiCommunicator::MpiCommunicator(const atoll_group& group, MPI_Comm mpi)
    : session_(Session::get()), mpi_(mpi), rank_(group.rank), size_(group.nranks) {}

// Ranks may close a communicator at different times: the standard defines MPI_Comm_free as
// collective, but expects MPI libraries to implement it locally (MPI 3.1, section 6.4.3). After a
// failure the destructor makes no MPI call, and the scratch memory is kept because MPI may still
// access it.
MpiCommunicator::~MpiCommunicator() {
  if (broken_ || aborted_) {
    if (broken_) session_.abandon();
    session_.retain(std::move(scratch_));
  } else if (session_.alive()) {
    const auto lock = session_.lock();
    MPI_Comm_free(&mpi_);
  }
}

std::byte* MpiCommunicator::scratch(std::size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return scratch_.data();
}

void MpiCommunicator::submit(std::span<atoll_operation* const> operations) {
  std::int64_t timeout_ns = 0;
  std::vector<const atoll_operation*> messages;
  for (const atoll_operation* operation : operations) {
    timeout_ns = std::max(timeout_ns, operation->timeout_ns);
    if (is_message(operation->kind)) messages.push_back(operation);
  }
  const atoll_operation* current = messages.empty() ? operations.front() : messages.front();
  try {
    if (broken_) throw Error(ATOLL_ABORTED, "an earlier operation of this communicator failed");
    backoff_ = std::make_unique<Backoff>(aborted_, timeout_ns);
    if (!messages.empty()) send_recv(*this, messages);
    for (const atoll_operation* operation : operations) {
      if (is_message(operation->kind)) continue;
      current = operation;
      perform(*current);
    }
  } catch (const Error& error) {
    broken_ = true;
    throw Error(error.status(), describe(*current) + ": " + error.what());
  }
}

void MpiCommunicator::perform(const atoll_operation& operation) {
  if (operation.kind == ATOLL_BARRIER) return barrier(*this, operation);
  if (operation.count == 0) return;
  switch (operation.kind) {
    case ATOLL_BROADCAST:
      return broadcast(*this, operation);
    case ATOLL_ALL_GATHER:
      return all_gather(*this, operation);
    case ATOLL_REDUCE_SCATTER:
    case ATOLL_REDUCE_SCATTER_V:
      return reduce_scatter(*this, operation);
    case ATOLL_ALL_REDUCE:
      return all_reduce(*this, operation);
    case ATOLL_ALL_TO_ALL:
      return all_to_all(*this, operation);
    case ATOLL_REDUCE:
      return reduce(*this, operation);
    case ATOLL_GATHER:
      return gather(*this, operation);
    case ATOLL_SCATTER:
      return scatter(*this, operation);
    case ATOLL_ALL_GATHER_V:
      return all_gather_v(*this, operation);
  }
}

}  // namespace atoll_mpi
