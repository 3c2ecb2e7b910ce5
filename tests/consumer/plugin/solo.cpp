// An example of a third-party backend. `solo` supports communicators of one rank only, in which
// every collective is a copy.
#include <cstring>
#include <sdk/backend.hpp>

namespace {

class Solo {
 public:
  static constexpr std::int32_t memory_kind = ATOLL_MEMORY_CPU;

  static std::int32_t probe(const atoll_group& world) {
    if (world.world_size == 1) return 1;
    throw atoll_sdk::Error(ATOLL_UNSUPPORTED, "solo supports one rank only");
  }
  static std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                                 std::int32_t memory) {
    return memory == ATOLL_MEMORY_CPU && atoll_sdk::is_known(kind, dtype, op) ? 1 : 0;
  }
  static std::unique_ptr<Solo> open(const atoll_core& core, const atoll_group& group) {
    core.log(core.ctx, ATOLL_LOG_DEBUG, group.name);
    return std::make_unique<Solo>();
  }

  void submit(std::span<atoll_operation* const> operations) {
    for (const auto* operation : operations) {
      if (operation->factor != 1.0) {
        throw atoll_sdk::Error(ATOLL_UNSUPPORTED,
                               atoll_sdk::describe(*operation) + ": solo supports no factors");
      }
      const std::size_t bytes = operation->count * atoll_sdk::dtype_size(operation->dtype);
      if (operation->src != nullptr && operation->dst != nullptr) {
        std::memmove(operation->dst, operation->src, bytes);
      }
    }
  }
  void abort() noexcept {}
  int rank() const noexcept { return 0; }
  int size() const noexcept { return 1; }
};

constexpr atoll_backend table = atoll_sdk::table_of<Solo>("solo");

}  // namespace

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1() {
  return &table;
}
