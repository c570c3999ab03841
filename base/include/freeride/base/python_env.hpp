// A Python interpreter and what belongs to it, found by looking at files. Nothing of it is run, because whoever names
// it need not be whoever looks.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride {

/// Where a side task in Python runs when nobody names another.
constexpr const char* kDefaultPython = "/usr/bin/python3";

/// The parameter of every side task in Python that names another.
constexpr const char* kPythonParam = "python";

struct PythonEnvironment {
  /// What the interpreter is started as, and so finds its packages by: links are followed, but for a virtual
  /// environment's, whose place is what matters.
  std::filesystem::path executable;
  std::string version;            ///< "3.11"
  std::filesystem::path library;  ///< its shared library, libpython3.11.so.1.0
  std::filesystem::path torch;    ///< folder of its PyTorch's libraries; empty: it has none
  /// Files and folders that it reads beyond the system's libraries (/usr/lib, /usr/local/lib).
  std::vector<std::filesystem::path> paths;
};

/// The environment of the interpreter at `executable`: a virtual environment's, conda's, the system's or any other with
/// the usual layout (bin/python3, lib/python3.X/os.py). Any thread; blocks on the file system. Errors: kInvalidArgument
/// (not an absolute path, no such layout), kNotFound (no such file, no shared library: says how to get one).
Result<PythonEnvironment> find_python(const std::string& executable);

}  // namespace freeride
