// Writes a rank's file of a checkpoint while training goes on.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/device.hpp"
#include "checkpoint/shards.hpp"
#include "fsdp/setup.hpp"

namespace atoll_v1::atoll::fsdp {

// The flat tensors of one unit, each with its name in the file, in the order of the file.
struct UnitTensors {
  std::size_t unit = 0;
  std::vector<std::pair<std::string, View>> tensors{};
};

// A thread reads the tensors unit by unit from the memory that the optimizer updates, and writes
// them. If the optimizer would update a unit that is not yet written, the unit is copied first, and
// the thread writes the copy. So the file has the values of the time when the object was made.
// Copies need CPU memory; if all of it is in use, the update waits until the thread has
// written enough.
//
// On the CPU a task of the stream decides just before the update whether to copy. A GPU copies in
// stream order what the CPU has enqueued, often a step ahead, so there before_update() decides.
// The thread still reads the memory of a unit whose copy is enqueued, until the copy has been made.
class LiveSave final : public LiveReader {
 public:
  struct Limits {
    std::uint64_t most_copied = 0;  // maximum bytes of all copies together
    bool decides_early = false;     // true if before_update() decides whether to copy, as for GPUs
  };

  // Reads `tensors` after the work that `stream` waits for. The memory of the tensors must outlive
  // this object.
  LiveSave(std::filesystem::path folder, std::vector<UnitTensors> tensors, ShardIdentity identity,
           const Device& device, Stream stream, Limits limits);
  LiveSave(const LiveSave&) = delete;
  LiveSave& operator=(const LiveSave&) = delete;
  // Stops the thread. If the file is not complete, it stays incomplete.
  ~LiveSave() override;

  // Call before work that changes the unit is enqueued on `stream`. Blocks only if
  // Limits::decides_early.
  void before_update(std::size_t unit, Stream& stream) override;
  bool is_over() const;
  // Seconds for which the streams of updates waited for the thread or copied units, so far.
  double stalled_seconds() const;
  // Blocks until the file is written and synced. Throws the thread's error.
  void wait() override;

 private:
  struct Part : UnitTensors {
    std::uint64_t bytes = 0;
    enum class State {
      live,    // the thread reads the memory that the optimizer updates
      copied,  // the thread reads `copy`, once `ready` has happened
      written
    } state = State::live;
    Buffer copy;
    Stamp copy_begin, copy_end;
    Event ready;  // event before the update, and after the copy if there is one
  };
  // A wait of before_update(). It stalls the stream from the time at which the stream has nothing
  // else to do.
  struct Wait {
    Stamp idle;
    std::int64_t end_ns = 0;
  };

  void copy_early(Part& part, Stream& stream);
  void copy_now(Part& part);
  // Blocks until the part may be copied. Returns false if it need not be.
  bool wait_for_room(std::unique_lock<std::mutex>& lock, const Part& part);
  void run() noexcept;
  void write_all();
  void write_part(SafetensorsWriter& writer, Part& part);
  // Returns false, after the part has been written, if there is no memory for a copy.
  bool allocate_copy(std::unique_lock<std::mutex>& lock, Part& part);
  void free_copies();
  // read_live() reads `size` bytes of a tensor. It returns false if the copy must be read instead.
  void read(const std::byte* from, std::vector<std::byte>& bytes);
  bool read_live(const Part& part, const std::byte* from, std::uint64_t size,
                 std::vector<std::byte>& bytes);
  void finish_part(Part& part);
  Part* find(std::size_t unit);

  std::filesystem::path folder_;
  ShardIdentity identity_;
  Stream stream_;
  Device device_;
  Limits limits_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<Part> parts_;
  std::uint64_t copied_ = 0;  // bytes of all copies
  double stalled_s_ = 0;      // seconds for which tasks of streams waited or copied
  std::vector<Wait> waits_;
  bool over_ = false;
  bool stopping_ = false;
  std::exception_ptr problem_;
  std::jthread thread_;
};

}  // namespace atoll_v1::atoll::fsdp
