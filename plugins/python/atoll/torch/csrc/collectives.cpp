// The collectives of the backend.
#include <utility>

#include "backend.hpp"
#include "place.hpp"

namespace atoll_torch {
namespace {

using c10d::OpType;

at::Tensor& only(std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "atoll: a list of one tensor was expected, not of ",
              tensors.size());
  return tensors.front();
}

// Returns memory that the operation may read. It is dense and does not overlap `dst`, except that
// it may be the part of `dst` at `offset` bytes, where an operation in place has its source.
at::Tensor source(const at::Tensor& tensor, const at::Tensor& dst, int64_t offset) {
  at::Tensor src = tensor.contiguous();
  const auto* in_place = static_cast<const char*>(dst.const_data_ptr()) + offset;
  if (overlap(src, dst) && src.const_data_ptr() != in_place) return src.clone();
  return src;
}

// Where an operation writes, and how the result gets into the caller's tensor.
struct Target {
  explicit Target(const at::Tensor& caller)
      : tensor(caller),
        memory(caller.is_contiguous() ? caller : at::empty(caller.sizes(), caller.options())) {}
  std::function<void()> finish() const {
    if (memory.is_same(tensor)) return nullptr;
    return [to = tensor, from = memory]() mutable { to.copy_(from); };
  }
  at::Tensor tensor, memory;
};

void require_type(const char* what, const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(from.scalar_type() == to.scalar_type(), "atoll: ", what, " of ", from.scalar_type(),
              " into ", to.scalar_type());
}

// Checks the list of a rank that gives or gets one tensor for each rank of the group.
void require_list(const char* what, const std::vector<at::Tensor>& list, int size, int rank,
                  const at::Tensor& own) {
  TORCH_CHECK(list.size() == static_cast<std::size_t>(size), "atoll: ", what, " needs a list of ",
              size, " tensors, not of ", list.size());
  const at::Tensor& same = list[static_cast<std::size_t>(rank)];
  TORCH_CHECK(same.numel() == own.numel(), "atoll: ", what, ": the tensor of rank ", rank,
              " in the list has ", same.numel(), " elements, but its own has ", own.numel());
  require_type(what, own, same);
}

int64_t part(const at::Tensor& tensor, int rank) {
  return static_cast<int64_t>(tensor.nbytes()) * rank;
}

}  // namespace

void Backend::reduce_all(const at::Tensor& tensor, const c10d::ReduceOp& op, const Place& place,
                         Work& work) {
  const Elements elements = reduced(tensor, op);
  const Reduction reduction = reduction_of(op);
  void* data = tensor.data_ptr();
  work.add(reduction.factor
               ? make<atoll_work>(atoll_all_reduce_scaled, place.comm, data, data, elements.count,
                                  elements.dtype, reduction.op, *reduction.factor, place.stream)
               : make<atoll_work>(atoll_all_reduce, place.comm, data, data, elements.count,
                                  elements.dtype, reduction.op, place.stream));
}

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor tensor = only(tensors);
  const at::Tensor memory = dense(tensor);
  Work::Call one = call(OpType::BROADCAST, "atoll:broadcast", {memory}, {tensor});
  if (!memory.is_same(tensor)) one.finish = [=] { tensor.copy_(memory); };
  return run(std::move(one), tensor, options.timeout, [&](const Place& place, Work& work) {
    const Elements elements = moved(memory);
    work.add(make<atoll_work>(atoll_broadcast, place.comm, memory.data_ptr(), elements.count,
                              elements.dtype, static_cast<int32_t>(options.rootRank),
                              place.stream));
  });
}

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor tensor = only(tensors);
  const at::Tensor memory = dense(tensor);
  Work::Call one = call(OpType::ALLREDUCE, "atoll:all_reduce", {memory}, {tensor});
  if (!memory.is_same(tensor)) one.finish = [=] { tensor.copy_(memory); };
  return run(std::move(one), tensor, options.timeout, [&](const Place& place, Work& work) {
    reduce_all(memory, options.reduceOp, place, work);
  });
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors,
                                              const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK(!tensors.empty(), "atoll: an empty list of tensors");
  Tensors memory;
  for (const at::Tensor& tensor : tensors) {
    memory.push_back(dense(tensor));
    reduced(memory.back(), options.reduceOp);  // refuses a wrong type before anything starts
  }
  Work::Call one = call(OpType::ALLREDUCE_COALESCED, "atoll:all_reduce", memory, tensors);
  one.finish = [tensors, memory]() mutable {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (!memory[i].is_same(tensors[i])) tensors[i].copy_(memory[i]);
  };
  return run(std::move(one), tensors.front(), options.timeout, [&](const Place& place, Work& work) {
    for (const at::Tensor& tensor : memory) reduce_all(tensor, options.reduceOp, place, work);
  });
}

Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor tensor = only(tensors);
  const at::Tensor memory = dense(tensor);
  const Reduction reduction = reduction_of(options.reduceOp);
  if (reduction.factor) {
    // atoll scales all_reduce and reduce_scatter only, so the other ranks get a copy as well.
    const at::Tensor copy = memory.clone();
    Work::Call one = call(OpType::REDUCE, "atoll:reduce", {copy}, {tensor});
    if (rank_ == options.rootRank) one.finish = [=] { tensor.copy_(copy); };
    return run(std::move(one), tensor, options.timeout, [&](const Place& place, Work& work) {
      reduce_all(copy, options.reduceOp, place, work);
    });
  }
  Work::Call one = call(OpType::REDUCE, "atoll:reduce", {memory}, {tensor});
  if (!memory.is_same(tensor) && rank_ == options.rootRank)
    one.finish = [=] { tensor.copy_(memory); };
  return run(std::move(one), tensor, options.timeout, [&](const Place& place, Work& work) {
    const Elements elements = reduced(memory, options.reduceOp);
    void* data = memory.data_ptr();
    work.add(make<atoll_work>(
        atoll_reduce, place.comm, data, rank_ == options.rootRank ? data : nullptr, elements.count,
        elements.dtype, reduction.op, static_cast<int32_t>(options.rootRank), place.stream));
  });
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& options) {
  TORCH_CHECK(output.numel() == input.numel() * size_, "atoll: all_gather of ", input.numel(),
              " elements on ", size_, " ranks into ", output.numel());
  require_type("all_gather", input, output);
  const Target target(output);
  const at::Tensor src = source(input, target.memory, part(input, rank_));
  Work::Call one = call(OpType::_ALLGATHER_BASE, "atoll:all_gather", {src}, {output});
  one.finish = target.finish();
  return run(std::move(one), output, options.timeout, [&](const Place& place, Work& work) {
    const Elements elements = moved(src);
    work.add(make<atoll_work>(atoll_all_gather, place.comm, src.const_data_ptr(),
                              target.memory.data_ptr(), elements.count, elements.dtype,
                              place.stream));
  });
}

Backend::WorkPtr Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& options) {
  const at::Tensor input = only(inputs);
  TORCH_CHECK(outputs.size() == 1 && outputs[0].size() == static_cast<std::size_t>(size_),
              "atoll: all_gather needs one output for each of the ", size_, " ranks");
  require_list("all_gather", outputs[0], size_, rank_, input);
  const Packed packed = pack(outputs[0], false);
  const std::size_t own = static_cast<std::size_t>(rank_);
  int64_t offset = 0;
  for (std::size_t i = 0; i < own; ++i) offset += static_cast<int64_t>(outputs[0][i].nbytes());
  const at::Tensor src = source(input, packed.flat, offset);
  Work::Call one = call(OpType::ALLGATHER, "atoll:all_gather", {src, packed.flat}, outputs[0]);
  if (packed.is_copy) one.finish = [packed, to = outputs[0]] { unpack(packed.flat, to); };
  return run(std::move(one), input, options.timeout, [&](const Place& place, Work& work) {
    const Elements elements = moved(src);
    work.add(packed.even ? make<atoll_work>(atoll_all_gather, place.comm, src.const_data_ptr(),
                                            packed.flat.data_ptr(), elements.count, elements.dtype,
                                            place.stream)
                         : make<atoll_work>(atoll_all_gather_v, place.comm, src.const_data_ptr(),
                                            packed.flat.data_ptr(), packed.counts.data(),
                                            elements.dtype, place.stream));
  });
}

Backend::WorkPtr Backend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  // outputs[rank][i] receives inputs[i] of the rank.
  TORCH_CHECK(outputs.size() == static_cast<std::size_t>(size_),
              "atoll: all_gather needs one list for each of the ", size_, " ranks");
  WorkPtr last;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Tensors> lists(1);
    for (const Tensors& list : outputs) lists[0].push_back(list.at(i));
    Tensors input{inputs[i]};
    last = allgather(lists, input, options);
  }
  return last;
}

// The collectives of a group are performed in their order, so the last one stands for all.
Backend::WorkPtr Backend::coalesced(std::size_t count,
                                    const std::function<WorkPtr(std::size_t)>& enqueue) {
  WorkPtr last;
  for (std::size_t i = 0; i < count; ++i) last = enqueue(i);
  return last ? last : nothing();
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  return coalesced(inputs.size(), [&](std::size_t i) {
    return _allgather_base(outputs.at(i), inputs[i], options);
  });
}

Backend::WorkPtr Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& options) {
  const at::Tensor input = only(inputs).contiguous();
  const bool is_root = rank_ == options.rootRank;
  Packed packed;
  if (is_root) {
    require_list("gather", outputs.at(0), size_, rank_, input);
    packed = pack(outputs.at(0), false);
  }
  TORCH_CHECK(!is_root || packed.even, "atoll: gather of tensors of different sizes");
  Work::Call one = call(OpType::GATHER, "atoll:gather", {input, packed.flat},
                        is_root ? outputs.at(0) : Tensors{});
  if (packed.is_copy) one.finish = [packed, to = outputs.at(0)] { unpack(packed.flat, to); };
  const at::Tensor src = is_root ? source(input, packed.flat, part(input, rank_)) : input;
  one.inputs.push_back(src);
  return run(std::move(one), input, options.timeout, [&](const Place& place, Work& work) {
    const Elements elements = moved(src);
    work.add(make<atoll_work>(
        atoll_gather, place.comm, src.const_data_ptr(), is_root ? packed.flat.data_ptr() : nullptr,
        elements.count, elements.dtype, static_cast<int32_t>(options.rootRank), place.stream));
  });
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                  const c10d::ScatterOptions& options) {
  const Target target(only(outputs));
  const bool is_root = rank_ == options.rootRank;
  Packed packed;
  if (is_root) {
    require_list("scatter", inputs.at(0), size_, rank_, target.tensor);
    packed = pack(inputs.at(0), true);
  }
  TORCH_CHECK(!is_root || packed.even, "atoll: scatter of tensors of different sizes");
  at::Tensor src = packed.flat;
  if (is_root && overlap(src, target.memory)) src = src.clone();
  Work::Call one = call(OpType::SCATTER, "atoll:scatter", {src, target.memory}, {target.tensor});
  if (is_root) one.inputs.insert(one.inputs.end(), inputs[0].begin(), inputs[0].end());
  one.finish = target.finish();
  return run(std::move(one), target.tensor, options.timeout, [&](const Place& place, Work& work) {
    const Elements elements = moved(target.memory);
    work.add(make<atoll_work>(atoll_scatter, place.comm, is_root ? src.const_data_ptr() : nullptr,
                              target.memory.data_ptr(), elements.count, elements.dtype,
                              static_cast<int32_t>(options.rootRank), place.stream));
  });
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(input.numel() == output.numel() * size_, "atoll: reduce_scatter of ", input.numel(),
              " elements on ", size_, " ranks into ", output.numel());
  require_type("reduce_scatter", input, output);
  const Target target(output);
  at::Tensor src = input.contiguous();
  const auto* in_place = static_cast<const char*>(src.const_data_ptr()) + part(output, rank_);
  if (overlap(src, target.memory) && target.memory.const_data_ptr() != in_place) src = src.clone();
  Work::Call one = call(OpType::_REDUCE_SCATTER_BASE, "atoll:reduce_scatter", {src}, {output});
  one.finish = target.finish();
  return run(std::move(one), output, options.timeout, [&](const Place& place, Work& work) {
    const Elements elements = reduced(target.memory, options.reduceOp);
    const Reduction reduction = reduction_of(options.reduceOp);
    void* dst = target.memory.data_ptr();
    work.add(reduction.factor
                 ? make<atoll_work>(atoll_reduce_scatter_scaled, place.comm, src.const_data_ptr(),
                                    dst, elements.count, elements.dtype, reduction.op,
                                    *reduction.factor, place.stream)
                 : make<atoll_work>(atoll_reduce_scatter, place.comm, src.const_data_ptr(), dst,
                                    elements.count, elements.dtype, reduction.op, place.stream));
  });
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  at::Tensor output = only(outputs);
  TORCH_CHECK(inputs.size() == 1 && inputs[0].size() == static_cast<std::size_t>(size_),
              "atoll: reduce_scatter needs one input for each of the ", size_, " ranks");
  require_list("reduce_scatter", inputs[0], size_, rank_, output);
  Packed packed = pack(inputs[0], true);
  if (packed.even) return _reduce_scatter_base(output, packed.flat, options);
  const Reduction reduction = reduction_of(options.reduceOp);
  TORCH_CHECK(!reduction.factor, "atoll: PREMUL_SUM of tensors of different sizes");
  const Target target(output);
  if (overlap(packed.flat, target.memory)) packed.flat = packed.flat.clone();
  Work::Call one = call(OpType::REDUCE_SCATTER, "atoll:reduce_scatter", {packed.flat}, {output});
  one.inputs.insert(one.inputs.end(), inputs[0].begin(), inputs[0].end());
  one.finish = target.finish();
  return run(std::move(one), output, options.timeout, [&](const Place& place, Work& work) {
    const Elements elements = reduced(target.memory, options.reduceOp);
    work.add(make<atoll_work>(atoll_reduce_scatter_v, place.comm, packed.flat.const_data_ptr(),
                              target.memory.data_ptr(), packed.counts.data(), elements.dtype,
                              reduction.op, place.stream));
  });
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return coalesced(inputs.size(), [&](std::size_t i) {
    return _reduce_scatter_base(outputs.at(i), inputs[i], options);
  });
}

}  // namespace atoll_torch
