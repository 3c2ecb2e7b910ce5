// Defines the C table of the sim backend.
#include "comm.hpp"
#include "sdk/table.hpp"

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1(
    void) {
  static const atoll_backend table = atoll_sdk::table_of<atoll_sim::Comm>("sim");
  return &table;
}
