// The C library declares a function `long long atoll(const char*)` in the global namespace, so no
// namespace of that name can stand there. atoll's lies in `atoll_v1`, a using-directive makes
// `atoll::World` found (a name before `::` is never a function), and `std::atoll` and `::atoll`
// still call the function. Write `atoll::World`, not `::atoll::World`; library code opens
// `namespace atoll_v1::atoll {`.
#pragma once

namespace atoll_v1::atoll {}
using namespace atoll_v1;  // NOLINT(google-global-names-in-headers): see above
