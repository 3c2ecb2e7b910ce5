// Operations in which ranks exchange different data: all_to_all and messages.
#include <numeric>
#include <utility>

#include "backend.hpp"
#include "place.hpp"

namespace atoll_torch {
namespace {

using c10d::OpType;

// Returns the elements that belong to each rank: rows of the first dimension, in equal parts if
// there are no splits.
std::vector<uint64_t> counts_of(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                int ranks) {
  const uint64_t all = moved(tensor).count;
  if (splits.empty()) {
    TORCH_CHECK(tensor.dim() > 0 && tensor.size(0) % ranks == 0,
                "atoll: the first dimension of a tensor of all_to_all must be a multiple of ",
                ranks);
    return std::vector<uint64_t>(static_cast<std::size_t>(ranks),
                                 all / static_cast<uint64_t>(ranks));
  }
  TORCH_CHECK(splits.size() == static_cast<std::size_t>(ranks), "atoll: ", splits.size(),
              " splits for ", ranks, " ranks");
  const int64_t rows = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  TORCH_CHECK(rows == tensor.size(0), "atoll: the splits add up to ", rows, " rows of ",
              tensor.size(0));
  std::vector<uint64_t> counts;
  for (const int64_t split : splits)
    counts.push_back(rows == 0 ? 0
                               : all / static_cast<uint64_t>(rows) * static_cast<uint64_t>(split));
  return counts;
}

}  // namespace

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits,
                                        const c10d::AllToAllOptions& options) {
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "atoll: all_to_all of ",
              input.scalar_type(), " into ", output.scalar_type());
  const std::vector<uint64_t> sent = counts_of(input, input_splits, size_);
  const std::vector<uint64_t> received = counts_of(output, output_splits, size_);
  const bool even = input_splits.empty() && output_splits.empty();
  TORCH_CHECK(!even || sent[0] == received[0], "atoll: all_to_all of ", input.numel(),
              " elements into ", output.numel());
  at::Tensor src = input.contiguous();
  const at::Tensor dst =
      output.is_contiguous() ? output : at::empty(output.sizes(), output.options());
  if (overlap(src, dst)) src = src.clone();
  Work::Call one = call(OpType::ALLTOALL_BASE, "atoll:all_to_all", {src, dst}, {output});
  if (!dst.is_same(output)) one.finish = [=, to = output] { to.copy_(dst); };
  return run(std::move(one), output, options.timeout, [&](const Place& place, Work& work) {
    const int32_t dtype = moved(src).dtype;
    work.add(even ? make<atoll_work>(atoll_all_to_all, place.comm, src.const_data_ptr(),
                                     dst.data_ptr(), sent[0], dtype, place.stream)
                  : make<atoll_work>(atoll_all_to_all_v, place.comm, src.const_data_ptr(),
                                     sent.data(), dst.data_ptr(), received.data(), dtype,
                                     place.stream));
  });
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs,
                                   const c10d::AllToAllOptions& options) {
  TORCH_CHECK(outputs.size() == static_cast<std::size_t>(size_) && inputs.size() == outputs.size(),
              "atoll: all_to_all needs one input and one output for each of the ", size_, " ranks");
  Packed src = pack(inputs, true);
  const Packed dst = pack(outputs, false);
  if (overlap(src.flat, dst.flat)) src.flat = src.flat.clone();
  Work::Call one = call(OpType::ALLTOALL, "atoll:all_to_all", {src.flat, dst.flat}, outputs);
  one.inputs.insert(one.inputs.end(), inputs.begin(), inputs.end());
  if (dst.is_copy) one.finish = [=] { unpack(dst.flat, outputs); };
  return run(std::move(one), inputs[0], options.timeout, [&](const Place& place, Work& work) {
    work.add(make<atoll_work>(atoll_all_to_all_v, place.comm, src.flat.const_data_ptr(),
                              src.counts.data(), dst.flat.data_ptr(), dst.counts.data(),
                              moved(src.flat).dtype, place.stream));
  });
}

// Enqueues a message of CPU memory. Messages with the same direction, peer and tag share a stream,
// which keeps their order. Other messages have other streams, so that they do not wait for these.
void Backend::enqueue_message(const atoll_message& message, const std::shared_ptr<Channel>& channel,
                              Work& work) {
  atoll_communicator* comm = channel->messages(limit(std::chrono::milliseconds(-1)));
  const auto stream = Channel::message_stream(channel, {message.kind, message.peer, message.tag});
  work.keep(stream);
  work.add_parallel(
      message.kind == ATOLL_SEND
          ? make<atoll_work>(atoll_send, comm, static_cast<const void*>(message.data),
                             message.count, message.dtype, message.peer, message.tag, stream->get())
          : make<atoll_work>(atoll_recv, comm, message.data, message.count, message.dtype,
                             message.peer, message.tag, stream->get()));
}

Backend::WorkPtr Backend::message(Work::Call one, int kind, const at::Tensor& tensor, int peer,
                                  int tag) {
  const auto channel = channel_for(tensor.device());
  at::Tensor memory = kind == ATOLL_SEND ? tensor.contiguous() : tensor;
  if (!memory.is_contiguous()) memory = at::empty(tensor.sizes(), tensor.options());
  one.inputs.push_back(memory);
  if (kind == ATOLL_RECV && !memory.is_same(tensor))
    one.finish = [to = tensor, memory]() mutable { to.copy_(memory); };
  const Elements elements = moved(memory);
  const atoll_message message{kind,           peer,           memory.data_ptr(),
                              elements.count, elements.dtype, channel->is_cpu() ? tag : 0};
  if (batch_) {
    batch_->messages.push_back(message);
    batch_->tensors.push_back(memory);
    if (kind == ATOLL_RECV) batch_->received.push_back(tensor);
    if (one.finish) batch_->finish.push_back(one.finish);
    return nullptr;
  }
  auto work = c10::make_intrusive<Work>(std::move(one), channel);
  if (channel->is_cpu()) {
    enqueue_message(message, channel, *work);
  } else {
    atoll_communicator* comm = channel->messages(limit(std::chrono::milliseconds(-1)));
    channel->follow_current_stream();
    work->add(kind == ATOLL_SEND
                  ? make<atoll_work>(atoll_send, comm,
                                     static_cast<const void*>(memory.const_data_ptr()),
                                     elements.count, elements.dtype, peer, 0, channel->stream())
                  : make<atoll_work>(atoll_recv, comm, memory.data_ptr(), elements.count,
                                     elements.dtype, peer, 0, channel->stream()));
  }
  work->start();
  return work;
}

Backend::WorkPtr Backend::send(Tensors& tensors, int peer, int tag) {
  TORCH_CHECK(tensors.size() == 1, "atoll: send of a list of ", tensors.size(), " tensors");
  return message(call(OpType::SEND, "atoll:send", {}, {}), ATOLL_SEND, tensors[0], peer, tag);
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int peer, int tag) {
  TORCH_CHECK(tensors.size() == 1, "atoll: recv of a list of ", tensors.size(), " tensors");
  return message(call(OpType::RECV, "atoll:recv", {}, tensors), ATOLL_RECV, tensors[0], peer, tag);
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  TORCH_CHECK(tensors.size() == 1, "atoll: recv of a list of ", tensors.size(), " tensors");
  return message(call(OpType::RECVANYSOURCE, "atoll:recv", {}, tensors), ATOLL_RECV, tensors[0],
                 ATOLL_ANY, tag);
}

// A call without operations, which is complete.
Backend::WorkPtr Backend::nothing() {
  Work::Call one = call(OpType::COALESCED, "atoll:coalesced", {}, {});
  auto work = c10::make_intrusive<Work>(std::move(one), channel_for(at::Device(at::kCPU)));
  work->start();
  return work;
}

void Backend::startCoalescing() { batch_ = std::make_shared<Batch>(); }

// Messages start here; on a GPU they are one operation. Collectives have started already. Those of
// one group are performed in their order, so the last one stands for all.
Backend::WorkPtr Backend::endCoalescing() {
  TORCH_CHECK(batch_, "atoll: endCoalescing() without startCoalescing()");
  const std::shared_ptr<Batch> batch = std::exchange(batch_, nullptr);
  if (batch->messages.empty()) {
    return batch->works.empty() ? nothing() : batch->works.back();
  }
  const auto channel = channel_for(batch->tensors.front().device());
  Work::Call one = call(OpType::COALESCED, "atoll:send_recv", batch->tensors, batch->received);
  one.finish = [batch] {
    for (const auto& finish : batch->finish) finish();
  };
  auto work = c10::make_intrusive<Work>(std::move(one), channel);
  for (const auto& earlier : batch->works) work->follow(earlier);
  if (channel->is_cpu()) {
    for (const atoll_message& message : batch->messages) enqueue_message(message, channel, *work);
  } else {
    channel->follow_current_stream();
    work->add(make<atoll_work>(atoll_send_recv,
                               channel->messages(limit(std::chrono::milliseconds(-1))),
                               static_cast<const atoll_message*>(batch->messages.data()),
                               batch->messages.size(), channel->stream()));
  }
  work->start();
  return work;
}

}  // namespace atoll_torch
