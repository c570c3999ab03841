#include "python_api.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cwchar>

namespace freeride::runner {
namespace {

template <class Function>
bool look_up(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) missing = name;
  return function != nullptr;
}

Error broken(const std::string& what) {
  return Error{Code::kInvalidArgument, what, "name a Python 3.8 or later with --python"};
}

// The interpreter as `executable`. Python 3.14 has opaque functions for it; those before have a setter that it drops.
bool initialize(void* library, const PythonApi& api, const std::string& executable) {
  const auto create = reinterpret_cast<void* (*)()>(dlsym(library, "PyInitConfig_Create"));
  if (create != nullptr) {
    const auto set_text =
        reinterpret_cast<int (*)(void*, const char*, const char*)>(dlsym(library, "PyInitConfig_SetStr"));
    const auto set_number =
        reinterpret_cast<int (*)(void*, const char*, int64_t)>(dlsym(library, "PyInitConfig_SetInt"));
    const auto start = reinterpret_cast<int (*)(void*)>(dlsym(library, "Py_InitializeFromInitConfig"));
    void* config = set_text != nullptr && set_number != nullptr && start != nullptr ? create() : nullptr;
    return config != nullptr && set_text(config, "program_name", executable.c_str()) == 0 &&
           set_number(config, "install_signal_handlers", 0) == 0 && start(config) == 0;
  }
  const auto set_name = reinterpret_cast<void (*)(const wchar_t*)>(dlsym(library, "Py_SetProgramName"));
  const auto decode = reinterpret_cast<wchar_t* (*)(const char*, size_t*)>(dlsym(library, "Py_DecodeLocale"));
  wchar_t* name = set_name != nullptr && decode != nullptr ? decode(executable.c_str(), nullptr) : nullptr;
  if (name == nullptr) return false;
  set_name(name);  // keeps the pointer
  api.Py_InitializeEx(0);
  return true;
}

}  // namespace

Result<const PythonApi*> load_python_api(const std::string& library, const std::string& executable) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* text = dlerror();
    return broken("cannot open " + library + ": " + (text != nullptr ? text : "no reason given"));
  }
  static PythonApi api{};
  std::string missing;
#define FREERIDE_LOOK_UP(name) look_up(handle, #name, api.name, missing)
  const bool complete =
      FREERIDE_LOOK_UP(Py_InitializeEx) && FREERIDE_LOOK_UP(PyImport_ImportModule) &&
      FREERIDE_LOOK_UP(PyImport_AddModule) && FREERIDE_LOOK_UP(PyModule_GetDict) &&
      FREERIDE_LOOK_UP(Py_CompileString) && FREERIDE_LOOK_UP(PyEval_EvalCode) &&
      FREERIDE_LOOK_UP(PyObject_GetAttrString) && FREERIDE_LOOK_UP(PyObject_CallObject) &&
      FREERIDE_LOOK_UP(PyCFunction_NewEx) && FREERIDE_LOOK_UP(PyDict_New) && FREERIDE_LOOK_UP(PyDict_SetItemString) &&
      FREERIDE_LOOK_UP(PyTuple_New) && FREERIDE_LOOK_UP(PyTuple_SetItem) && FREERIDE_LOOK_UP(PyTuple_GetItem) &&
      FREERIDE_LOOK_UP(PyTuple_Size) && FREERIDE_LOOK_UP(PyUnicode_FromStringAndSize) &&
      FREERIDE_LOOK_UP(PyUnicode_AsUTF8String) && FREERIDE_LOOK_UP(PyBytes_FromStringAndSize) &&
      FREERIDE_LOOK_UP(PyBytes_AsStringAndSize) && FREERIDE_LOOK_UP(PyLong_FromLong) &&
      FREERIDE_LOOK_UP(PyLong_AsLong) && FREERIDE_LOOK_UP(PyFloat_AsDouble) && FREERIDE_LOOK_UP(PyObject_IsTrue) &&
      FREERIDE_LOOK_UP(PyErr_Occurred) && FREERIDE_LOOK_UP(PyErr_Print) && FREERIDE_LOOK_UP(PyErr_Clear) &&
      FREERIDE_LOOK_UP(PyEval_SaveThread) && FREERIDE_LOOK_UP(PyEval_RestoreThread) &&
      FREERIDE_LOOK_UP(PyGILState_Ensure) && FREERIDE_LOOK_UP(PyGILState_Release) && FREERIDE_LOOK_UP(Py_IncRef) &&
      FREERIDE_LOOK_UP(Py_DecRef);
  if (!complete) return broken(library + " has no " + missing);
  // Not of the stable ABI, and not needed.
  if (!FREERIDE_LOOK_UP(PyImport_GetMagicNumber) || !FREERIDE_LOOK_UP(PyMarshal_ReadObjectFromString))
    api.PyMarshal_ReadObjectFromString = nullptr;
#undef FREERIDE_LOOK_UP
  setenv("PYTHONDONTWRITEBYTECODE", "1", 0);  // NOLINT(concurrency-mt-unsafe): there is one thread
  if (!initialize(handle, api, executable)) return broken("cannot start Python as " + executable);
  return &api;
}

}  // namespace freeride::runner
