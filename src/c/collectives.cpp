// The collectives: views of the program's addresses, in the order of the header.
#include "c/handles.hpp"

using namespace atoll::c;

namespace atoll_v1::atoll::c {
namespace {

// The arguments that all collectives have.
struct Call {
  Communicator& comm;
  DType dtype;
  Stream& stream;
  std::uint64_t ranks = static_cast<std::uint64_t>(comm.size());

  ConstView src(const void* data, std::uint64_t count) const { return {data, count, dtype}; }
  View dst(void* data, std::uint64_t count) const { return {data, count, dtype}; }
  // Returns the number of elements of a buffer with `count` elements for each rank.
  std::uint64_t all(std::uint64_t count) const {
    if (count > ~std::uint64_t{0} / ranks)
      throw BadArgument{"count", "is too large: " + std::to_string(count)};
    return count * ranks;
  }
  std::span<const std::uint64_t> counts(const std::uint64_t* given, const char* name) const {
    return {&at(given, name), static_cast<std::size_t>(ranks)};
  }
  std::uint64_t own(const std::uint64_t* given) const {
    return given[static_cast<std::size_t>(comm.rank())];
  }
  // Returns the sum of the counts. A sum above 64 bits becomes a number that the operation refuses.
  std::uint64_t sum(const std::uint64_t* given) const {
    std::uint64_t total = 0;
    for (const std::uint64_t count : counts(given, "counts"))
      total = count > ~total ? ~std::uint64_t{0} : total + count;
    return total;
  }
};

Reduction reduction(int32_t op, std::optional<double> factor = {}) {
  const auto own = static_cast<ReduceOp>(op & ~ATOLL_NATIVE);
  const Reduction result = factor ? Reduction(own, *factor) : Reduction(own);
  return (op & ATOLL_NATIVE) != 0 ? result.natively() : result;
}

// Allocates the handle before `body` enqueues the operation: if the allocation failed afterwards,
// the caller would get no Work for an operation that runs.
template <class Body>
atoll_status enqueue(atoll_communicator* comm, int32_t dtype, atoll_stream* stream,
                     atoll_work** work, Body&& body,
                     const char* function = __builtin_FUNCTION()) noexcept {
  return guard(
      [&] {
        auto handle = std::make_unique<atoll_work>();
        const Call call{at(comm, "comm").communicator, static_cast<DType>(dtype),
                        at(stream, "stream").stream};
        handle->work = body(call);
        if (work != nullptr) *work = handle.release();
      },
      function);
}

}  // namespace
}  // namespace atoll_v1::atoll::c

atoll_status atoll_all_reduce(atoll_communicator* comm, const void* src, void* dst, uint64_t count,
                              int32_t dtype, int32_t op, atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    return call.comm.all_reduce(call.src(src, count), call.dst(dst, count), reduction(op),
                                call.stream);
  });
}
atoll_status atoll_all_gather(atoll_communicator* comm, const void* src, void* dst, uint64_t count,
                              int32_t dtype, atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    return call.comm.all_gather(call.src(src, count), call.dst(dst, call.all(count)), call.stream);
  });
}
atoll_status atoll_reduce_scatter(atoll_communicator* comm, const void* src, void* dst,
                                  uint64_t count, int32_t dtype, int32_t op, atoll_stream* stream,
                                  atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    return call.comm.reduce_scatter(call.src(src, call.all(count)), call.dst(dst, count),
                                    reduction(op), call.stream);
  });
}
atoll_status atoll_all_reduce_scaled(atoll_communicator* comm, const void* src, void* dst,
                                     uint64_t count, int32_t dtype, int32_t op, double factor,
                                     atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    return call.comm.all_reduce(call.src(src, count), call.dst(dst, count), reduction(op, factor),
                                call.stream);
  });
}
atoll_status atoll_reduce_scatter_scaled(atoll_communicator* comm, const void* src, void* dst,
                                         uint64_t count, int32_t dtype, int32_t op, double factor,
                                         atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    return call.comm.reduce_scatter(call.src(src, call.all(count)), call.dst(dst, count),
                                    reduction(op, factor), call.stream);
  });
}
atoll_status atoll_reduce(atoll_communicator* comm, const void* src, void* dst, uint64_t count,
                          int32_t dtype, int32_t op, int32_t root, atoll_stream* stream,
                          atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    const bool here = call.comm.rank() == root;
    return call.comm.reduce(call.src(src, count), call.dst(dst, here ? count : 0), reduction(op),
                            root, call.stream);
  });
}
atoll_status atoll_broadcast(atoll_communicator* comm, void* data, uint64_t count, int32_t dtype,
                             int32_t root, atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    return call.comm.broadcast(call.dst(data, count), root, call.stream);
  });
}
atoll_status atoll_all_to_all(atoll_communicator* comm, const void* src, void* dst, uint64_t count,
                              int32_t dtype, atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    return call.comm.all_to_all(call.src(src, call.all(count)), call.dst(dst, call.all(count)),
                                call.stream);
  });
}
atoll_status atoll_gather(atoll_communicator* comm, const void* src, void* dst, uint64_t count,
                          int32_t dtype, int32_t root, atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    const bool here = call.comm.rank() == root;
    return call.comm.gather(call.src(src, count), call.dst(dst, here ? call.all(count) : 0), root,
                            call.stream);
  });
}
atoll_status atoll_scatter(atoll_communicator* comm, const void* src, void* dst, uint64_t count,
                           int32_t dtype, int32_t root, atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    const bool here = call.comm.rank() == root;
    return call.comm.scatter(call.src(src, here ? call.all(count) : 0), call.dst(dst, count), root,
                             call.stream);
  });
}

atoll_status atoll_all_gather_v(atoll_communicator* comm, const void* src, void* dst,
                                const uint64_t* counts, int32_t dtype, atoll_stream* stream,
                                atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    const auto each = call.counts(counts, "counts");
    return call.comm.all_gather_v(call.src(src, call.own(counts)), call.dst(dst, call.sum(counts)),
                                  each, call.stream);
  });
}
atoll_status atoll_reduce_scatter_v(atoll_communicator* comm, const void* src, void* dst,
                                    const uint64_t* counts, int32_t dtype, int32_t op,
                                    atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    const auto each = call.counts(counts, "counts");
    return call.comm.reduce_scatter_v(call.src(src, call.sum(counts)),
                                      call.dst(dst, call.own(counts)), each, reduction(op),
                                      call.stream);
  });
}
atoll_status atoll_gather_v(atoll_communicator* comm, const void* src, void* dst,
                            const uint64_t* counts, int32_t dtype, int32_t root,
                            atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    const auto each = call.counts(counts, "counts");
    const bool here = call.comm.rank() == root;
    return call.comm.gather_v(call.src(src, call.own(counts)),
                              call.dst(dst, here ? call.sum(counts) : 0), each, root, call.stream);
  });
}
atoll_status atoll_all_to_all_v(atoll_communicator* comm, const void* src,
                                const uint64_t* send_counts, void* dst, const uint64_t* recv_counts,
                                int32_t dtype, atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    const auto sent = call.counts(send_counts, "send_counts");
    const auto received = call.counts(recv_counts, "recv_counts");
    return call.comm.all_to_all_v(call.src(src, call.sum(send_counts)), sent,
                                  call.dst(dst, call.sum(recv_counts)), received, call.stream);
  });
}

atoll_status atoll_send(atoll_communicator* comm, const void* src, uint64_t count, int32_t dtype,
                        int32_t peer, int32_t tag, atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    return call.comm.send(call.src(src, count), peer, call.stream, tag);
  });
}
atoll_status atoll_recv(atoll_communicator* comm, void* dst, uint64_t count, int32_t dtype,
                        int32_t peer, int32_t tag, atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, dtype, stream, work, [&](const Call& call) {
    return call.comm.recv(call.dst(dst, count), peer, call.stream, tag);
  });
}
atoll_status atoll_send_recv(atoll_communicator* comm, const atoll_message* messages, size_t n,
                             atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, ATOLL_U8, stream, work, [&](const Call& call) {
    using SendRecv = atoll::Communicator::SendRecv;
    std::vector<SendRecv> group;
    if (n > 0) at(messages, "messages");
    for (std::size_t i = 0; i < n; ++i) {
      const atoll_message& one = messages[i];
      if (one.kind != ATOLL_SEND && one.kind != ATOLL_RECV)
        throw BadArgument{"messages", "has a kind other than ATOLL_SEND and ATOLL_RECV"};
      group.push_back({one.kind == ATOLL_SEND ? SendRecv::Kind::send : SendRecv::Kind::recv,
                       {one.data, one.count, static_cast<atoll::DType>(one.dtype)},
                       one.peer,
                       one.tag});
    }
    return call.comm.group(group, call.stream);
  });
}
atoll_status atoll_barrier(atoll_communicator* comm, atoll_stream* stream, atoll_work** work) {
  return enqueue(comm, ATOLL_U8, stream, work,
                 [&](const Call& call) { return call.comm.barrier(call.stream); });
}
