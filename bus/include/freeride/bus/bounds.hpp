// Bounds: what this process's sockets keep at most.
#pragma once

#include <cstddef>

namespace freeride::bus {

/// What nobody can order more of, however many there are. The defaults do for a host, and for 1,024 workers.
struct Bounds {
  size_t connections = 1024;         ///< of all endpoints together
  size_t network_connections = 256;  ///< of them, over the network; each before anybody knows who it is
  size_t kept_topics = 4096;         ///< last states, in broker and publisher each
  size_t kept_bytes = 32u << 20;     ///< of them
  size_t answers = 8192;             ///< requests of the last minute that a server remembers
  size_t answer_bytes = 32u << 20;   ///< of their answers
};

/// Of this process's descriptors, those that the network leaves to this host where there are many. A process with
/// fewer than this and Bounds::network_connections takes fewer connections over the network.
constexpr size_t kDescriptorsForHost = 1024;

const Bounds& bounds();
/// Once, before anything else of the bus.
void set_bounds(const Bounds& bounds);

}  // namespace freeride::bus
