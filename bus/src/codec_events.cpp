#include "codec_impl.hpp"

namespace freeride::bus {
FREERIDE_BUS_EVENTS(FREERIDE_INSTANTIATE_CODEC)
FREERIDE_INSTANTIATE_CODEC(Envelope)
}  // namespace freeride::bus
