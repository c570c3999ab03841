// plugin-api/python/freeride_plugin.py, which travels inside the runner. Generated when it is built.
#pragma once

#include <cstddef>

namespace freeride::runner {

/// The text.
extern const char* const kPythonSdk;

/// What the Python that built the runner compiles it to, for marshal. Of use only in an interpreter whose
/// PyImport_GetMagicNumber() is kPythonSdkMagic. Size and magic are 0 where there was no Python.
extern const long kPythonSdkMagic;
extern const size_t kPythonSdkBytecodeSize;
extern const unsigned char kPythonSdkBytecode[];

}  // namespace freeride::runner
