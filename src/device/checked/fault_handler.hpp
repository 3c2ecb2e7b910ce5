// The handler of SIGSEGV that finds uses of guarded memory. It passes other faults to the handlers
// that the program has installed.
#pragma once

#include <cstdint>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll::checked {

// Reports a use of guarded memory and returns true; returns false for other addresses.
using ReportFault = bool (*)(std::uintptr_t address);

// Installs the handler, and installs it again if the program has replaced it. It calls `report`
// with the address of each fault. If `report` returns true, the process ends by SIGSEGV. Other
// faults go to the handler that was replaced last. If that handler passes the fault back, it goes
// to the handler that was replaced before, and at last to the default action, so the chain ends.
// Callers must not call this function at the same time. All calls pass the same function.
void install_fault_handler(ReportFault report);

}  // namespace atoll_v1::atoll::checked
