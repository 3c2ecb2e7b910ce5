#include "rows.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  return train_fuzz::load_rows(train::load_alpaca_json, bytes, size);
}
