#include "operation.hpp"

#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "correctness.hpp"

namespace busbw {
namespace {

struct Views {
  atoll::View src, dst;
};

// Element offset of the part that belongs to `rank`.
std::uint64_t offset_of(const Call& call, int rank) {
  if (call.shape.counts.empty()) return call.shape.count * static_cast<std::uint64_t>(rank);
  return std::accumulate(call.shape.counts.begin(), call.shape.counts.begin() + rank,
                         std::uint64_t{0});
}

std::uint64_t part_of(const Call& call, int rank) {
  return call.shape.counts.empty() ? call.shape.count
                                   : call.shape.counts[static_cast<std::size_t>(rank)];
}

Views views_of(const Call& call, Memory memory, int rank) {
  const atoll::View send(memory.send, call.shape.total, call.dtype);
  const atoll::View recv(memory.recv, call.shape.total, call.dtype);
  const atoll::View none(nullptr, 0, call.dtype);
  const bool in = call.place == Place::in;
  const bool at_root = rank == call.root;
  const std::uint64_t part = part_of(call, rank);
  const std::uint64_t offset = offset_of(call, rank);
  switch (call.collective) {
    case Collective::all_reduce:
      return {in ? recv : send, recv};
    case Collective::all_gather:
    case Collective::all_gather_v:
      return {in ? recv.part(offset, part) : send.part(0, part), recv};
    case Collective::reduce_scatter:
    case Collective::reduce_scatter_v:
      return {in ? recv : send, in ? recv.part(offset, part) : recv.part(0, part)};
    case Collective::broadcast:
      return {at_root ? recv : none, recv};
    case Collective::reduce:
      return {in ? recv : send, at_root ? recv : none};
    case Collective::gather:
      return {in ? recv.part(offset, part) : send.part(0, part), at_root ? recv : none};
    case Collective::scatter:
      return {at_root ? (in ? recv : send) : none,
              in ? recv.part(offset, part) : recv.part(0, part)};
    case Collective::all_to_all:
    case Collective::send_recv:
      return {send, recv};
  }
  return {};
}

atoll::Reduction reduction_of(Op op, int rank) {
  using atoll::ReduceOp;
  if (op == Op::mulsum) return {ReduceOp::sum, mulsum_factor(rank)};
  if (op == Op::prod) return ReduceOp::product;
  // The list has the order of the enumerators of Op. Its first entry is for Op::none and has no
  // effect.
  constexpr std::array ops{ReduceOp::sum, ReduceOp::sum, ReduceOp::min, ReduceOp::max,
                           ReduceOp::avg};
  return ops[static_cast<std::size_t>(op)];
}

// Sends to the next rank of a ring and receives from the previous one.
atoll::Work send_recv(const Views& views, atoll::Communicator& communicator,
                      atoll::Stream& stream) {
  const int ranks = communicator.size();
  if (ranks == 1) return atoll::Work::local_copy(views.src, views.dst, stream);
  using Kind = atoll::Communicator::SendRecv::Kind;
  const std::array<atoll::Communicator::SendRecv, 2> both{
      {{Kind::send, views.src, (communicator.rank() + 1) % ranks},
       {Kind::recv, views.dst, (communicator.rank() + ranks - 1) % ranks}}};
  return communicator.group(both, stream);
}

bool on_host(const atoll::Communicator& communicator) {
  return communicator.device().kind() == atoll::DeviceKind::cpu;
}

// Calls fill(view) with CPU memory and copies the result to `to` if that is on a GPU.
template <class Fill>
void write(atoll::View to, const atoll::Communicator& communicator, atoll::Stream& stream,
           const Fill& fill) {
  if (to.count == 0) return;
  if (on_host(communicator)) return fill(to);
  std::vector<std::byte> bytes(to.bytes());
  fill(atoll::View(bytes.data(), to.count, to.dtype));
  stream.copy(to.data, bytes.data(), bytes.size());
  stream.synchronize();
}

bool at_all_ranks(Collective collective) {
  return collective == Collective::all_gather || collective == Collective::all_gather_v ||
         collective == Collective::gather;
}

}  // namespace

atoll::Work start(const Call& call, Memory memory, atoll::Communicator& communicator,
                  atoll::Stream& stream) {
  const Views views = views_of(call, memory, communicator.rank());
  const auto reduction = reduction_of(call.op, communicator.rank());
  switch (call.collective) {
    case Collective::all_reduce:
      return communicator.all_reduce(views.src, views.dst, reduction, stream);
    case Collective::all_gather:
      return communicator.all_gather(views.src, views.dst, stream);
    case Collective::reduce_scatter:
      return communicator.reduce_scatter(views.src, views.dst, reduction, stream);
    case Collective::broadcast:
      return communicator.broadcast(views.dst, call.root, stream);
    case Collective::reduce:
      return communicator.reduce(views.src, views.dst, reduction, call.root, stream);
    case Collective::gather:
      return communicator.gather(views.src, views.dst, call.root, stream);
    case Collective::scatter:
      return communicator.scatter(views.src, views.dst, call.root, stream);
    case Collective::all_to_all:
      return communicator.all_to_all(views.src, views.dst, stream);
    case Collective::all_gather_v:
      return communicator.all_gather_v(views.src, views.dst, call.shape.counts, stream);
    case Collective::reduce_scatter_v:
      return communicator.reduce_scatter_v(views.src, views.dst, call.shape.counts, reduction,
                                           stream);
    case Collective::send_recv:
      return send_recv(views, communicator, stream);
  }
  return {};
}

void prepare(const Call& call, Memory memory, const atoll::Communicator& communicator,
             atoll::Stream& stream, std::uint64_t seed) {
  const int rank = communicator.rank();
  const Views views = views_of(call, memory, rank);
  // In place, inputs are inside the results, so they are written last.
  write(views.dst, communicator, stream,
        [](atoll::View to) { std::memset(to.data, poison, to.bytes()); });
  write(views.src, communicator, stream,
        [input = Pattern::input(call.dtype, call.op, rank, communicator.size(), seed)](
            atoll::View to) { input.fill(to); });
}

std::uint64_t count_wrong(const Call& call, Memory memory, const atoll::Communicator& communicator,
                          atoll::Stream& stream, std::uint64_t seed) {
  const int rank = communicator.rank();
  const int ranks = communicator.size();
  atoll::View dst = views_of(call, memory, rank).dst;
  if (dst.count == 0) return 0;
  std::vector<std::byte> seen;
  if (!on_host(communicator)) {
    seen.resize(dst.bytes());
    stream.copy(seen.data(), dst.data, seen.size());
    stream.synchronize();
    dst.data = seen.data();
  }
  const auto input = [&](int of) { return Pattern::input(call.dtype, call.op, of, ranks, seed); };
  if (has_reduction(call.collective)) {
    const bool parts = call.collective == Collective::reduce_scatter ||
                       call.collective == Collective::reduce_scatter_v;
    return Pattern::reduced(call.dtype, call.op, ranks, seed)
        .count_wrong(dst, parts ? offset_of(call, rank) : 0);
  }
  if (call.collective == Collective::broadcast) return input(call.root).count_wrong(dst);
  if (call.collective == Collective::scatter)
    return input(call.root).count_wrong(dst, offset_of(call, rank));
  if (call.collective == Collective::send_recv)
    return input((rank + ranks - 1) % ranks).count_wrong(dst);
  std::uint64_t wrong = 0;
  for (int r = 0; r < ranks; ++r) {
    const std::uint64_t first = at_all_ranks(call.collective) ? 0 : offset_of(call, rank);
    wrong += input(r).count_wrong(dst.part(offset_of(call, r), part_of(call, r)), first);
  }
  return wrong;
}

}  // namespace busbw
