// Times of operations by their shapes, measured on a machine, and the Ops that measure them.
//
// A key names an operation and all that its time depends on: "product 512x192x512 f32 ...". Times
// of the operations of a real pass replace the model of simulated devices.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "model/ops.hpp"

namespace train::simulated {

using OpTimes = std::map<std::string, double, std::less<>>;  // seconds by the key of the operation

std::string key_of(const Product& product, bool has_residual);
std::string key_of(const Operation& operation);

// Ops that measure another Ops with a time stamp before and after each operation.
class MeasuredOps : public Ops {
 public:
  // Mean seconds of each operation since the last call. If ranks share cores, a mean includes the
  // time that a process waits for a core; a median would not. Waits for the stream.
  virtual OpTimes take(atoll::Stream& stream) = 0;
};
// `inner` must outlive the result.
std::unique_ptr<MeasuredOps> measure(Ops& inner);

}  // namespace train::simulated
