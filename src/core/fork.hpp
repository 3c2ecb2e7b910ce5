// Keeps the sockets of a rank out of forked children. A child that shares a socket would keep the
// connection open after the rank has died, so that the other ranks would not notice the death.
#pragma once

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll::net {

// From now on, fork() replaces this socket in the child by /dev/null. The descriptor stays in use
// there, because objects that the child has copied may close it.
void keep_from_children(int socket) noexcept;
// Ends that, before the descriptor is closed. Any descriptor may be passed.
void forget_descriptor(int descriptor) noexcept;

}  // namespace atoll_v1::atoll::net
