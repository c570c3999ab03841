#include "codec_impl.hpp"

namespace freeride::bus {
FREERIDE_BUS_COMMANDS(FREERIDE_INSTANTIATE_CODEC)
}  // namespace freeride::bus
