// Collectives over one axis of a mesh, on one backend.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/device.hpp"
#include "atoll/mesh.hpp"

namespace atoll_v1::atoll {

// An operation under way. Its buffers must stay alive until it is complete. Dropping a Work does
// not cancel it.
class Work {
 public:
  Work() = default;  // complete
  // Makes `stream` wait; the host runs on. Throws the operation's failure, if it is known by now.
  void wait(Stream& stream) const;
  // Blocks the host until the operation is complete. Throws its failure.
  void synchronize() const;
  bool done() const;
  // A collective over one rank: a copy on `stream`, or nothing when src and dst are the same.
  static Work local_copy(ConstView src, View dst, Stream& stream);

  struct State;  // src/comm/communicator_impl.hpp

 private:
  friend class Communicator;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

struct CommunicatorOptions {
  std::string name{};     // for messages and traces; default: the axis' name
  std::string backend{};  // default: config().backend, else the best that probes on all ranks
  Device device = Device::host();
};

// Every collective is enqueued on the stream given to it and returns at once; all ranks of the axis
// call the same operations of one communicator in the same order with the same counts, dtypes and
// ops. Operations of one communicator run in the order of their calls, whatever stream they are on.
// Counts of 0 are fine.
//
// Sums: bf16 and f16 accumulate in f32 and round once. The order is an adjacent-pair tree over the
// ranks ((0 + 1) + (2 + 3)) + ..., the same for every count and element, on every backend that can
// order its sums; where one cannot (capability says so) core builds the sum from all_to_all, local
// sums and all_gather for the 16-bit types, and leaves the order of the others to the backend.
//
// Errors: wrong arguments throw Error(invalid_argument) here. A failure of the operation is kept in
// its Work, and fails the World: every communicator of every rank aborts, every wait ends.
class Communicator {
 public:
  // Collective over the axis; communicators that share a rank open in one order on all ranks. Ranks
  // exchange which backends probe and take the best common one; Error(unsupported) says what each
  // rank lacks.
  static Communicator open(const Axis& axis, CommunicatorOptions options = {});
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();  // waits for the operations that were enqueued

  int rank() const noexcept;  // in the axis
  int size() const noexcept;
  std::string_view name() const noexcept;
  std::string_view backend() const noexcept;
  const Device& device() const noexcept;

  // dst[r * n + i] = src of rank r [i], n = src.count. In place: src = dst + rank * n.
  [[nodiscard]] Work all_gather(ConstView src, View dst, Stream& stream);
  // dst[i] = op over ranks of src[rank * n + i], n = dst.count. In place: dst = src + rank * n.
  [[nodiscard]] Work reduce_scatter(ConstView src, View dst, ReduceOp op, Stream& stream);
  // dst[i] = op over ranks of src[i]. In place: src = dst.
  [[nodiscard]] Work all_reduce(ConstView src, View dst, ReduceOp op, Stream& stream);
  // data of `root` on every rank.
  [[nodiscard]] Work broadcast(View data, int root, Stream& stream);
  // dst[r * n + i] = src of rank r [rank * n + i], n = count / size. No overlap.
  [[nodiscard]] Work all_to_all(ConstView src, View dst, Stream& stream);
  // One sided pairs: a send is complete when the data left src, or lies in a buffer of the backend.
  // Two ranks that send to each other put both into one group().
  [[nodiscard]] Work send(ConstView src, int peer, Stream& stream);
  [[nodiscard]] Work recv(View dst, int peer, Stream& stream);
  // Complete when every rank has got here, on its stream.
  [[nodiscard]] Work barrier(Stream& stream);

  // Several sends and receives as one operation, which cannot deadlock among each other.
  struct SendRecv {
    enum class Kind {
      send,
      recv
    } kind;
    View data;  // read only for a send
    int peer;
  };
  [[nodiscard]] Work group(std::span<const SendRecv> operations, Stream& stream);

  struct Impl;  // src/comm/communicator_impl.hpp

 private:
  explicit Communicator(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  // shared with the operations under way
};

// What the loader found: name, file, and why a backend is unusable here (empty when it is usable).
struct BackendInfo {
  std::string name;
  std::string file;
  std::string unusable;
  int preference = 0;
};
// Loads and probes every backend of the plugin path. Not collective.
std::vector<BackendInfo> available_backends(World& world);

}  // namespace atoll_v1::atoll
