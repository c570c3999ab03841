// Where no Python is there to compile the SDK when the runner is built.
#include "python_sdk.hpp"

namespace freeride::runner {

const long kPythonSdkMagic = 0;
const size_t kPythonSdkBytecodeSize = 0;
const unsigned char kPythonSdkBytecode[] = {0};

}  // namespace freeride::runner
