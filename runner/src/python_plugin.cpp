#include "python_plugin.hpp"

#include <cstdio>
#include <initializer_list>
#include <utility>
#include <vector>

#include "freeride/base/python_env.hpp"
#include "python_api.hpp"
#include "python_sdk.hpp"

namespace freeride::runner {

namespace {

constexpr int kVarargs = 1;      // METH_VARARGS
constexpr int kFileInput = 257;  // Py_file_input

const PythonApi* py = nullptr;
PyObject* driver = nullptr;               // of the one task's file
const freeride_host* the_host = nullptr;  // from create() on

// The imperative interface: the workload's thread has the lock while it executes, this one only within a call.
bool shared = false;
void* main_thread = nullptr;  // this thread's state, while it has let the lock go

/// The interpreter's lock for one call on the main thread.
class Lock {
 public:
  Lock() {
    if (shared) py->PyEval_RestoreThread(main_thread);
  }
  ~Lock() {
    if (shared) main_thread = py->PyEval_SaveThread();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

/// A reference that is given back at the end.
class Ref {
 public:
  explicit Ref(PyObject* object = nullptr) : object_(object) {}
  ~Ref() {
    if (object_ != nullptr) py->Py_DecRef(object_);
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

PyObject* text(const std::string& value) {
  return py->PyUnicode_FromStringAndSize(value.data(), static_cast<intptr_t>(value.size()));
}

// A str as UTF-8; anything else as "".
std::string text_of(PyObject* object) {
  const Ref bytes(object == nullptr ? nullptr : py->PyUnicode_AsUTF8String(object));
  char* data = nullptr;
  intptr_t size = 0;
  if (!bytes || py->PyBytes_AsStringAndSize(bytes.get(), &data, &size) != 0) {
    py->PyErr_Clear();
    return "";
  }
  return std::string(data, static_cast<size_t>(size));
}

// Takes the items over.
PyObject* tuple(std::initializer_list<PyObject*> items) {
  PyObject* made = py->PyTuple_New(static_cast<intptr_t>(items.size()));
  intptr_t at = 0;
  for (PyObject* item : items) py->PyTuple_SetItem(made, at++, item);
  return made;
}

PyObject* none() {
  static PyObject* const value = [] {
    const Ref builtins(py->PyImport_ImportModule("builtins"));
    return py->PyObject_GetAttrString(builtins.get(), "None");
  }();
  py->Py_IncRef(value);
  return value;
}

// driver.name(*arguments); takes the arguments over.
PyObject* call(PyObject* object, const char* name, PyObject* arguments) {
  const Ref given(arguments);
  const Ref function(py->PyObject_GetAttrString(object, name));
  return function ? py->PyObject_CallObject(function.get(), given.get()) : nullptr;
}

void fail(const char* what) {
  if (the_host != nullptr) the_host->fail(the_host->context, what);
}

// The status that a driver's method returned. The driver lets no exception out: one that comes anyway is our bug, or
// memory has run out.
freeride_status status_of(const Ref& answer) {
  if (answer) {
    const long status = py->PyLong_AsLong(answer.get());
    if (py->PyErr_Occurred() == nullptr) return static_cast<freeride_status>(status);
  }
  py->PyErr_Print();
  fail("the interpreter failed; the log says how");
  return FREERIDE_ERROR;
}

// ---- what the task may call

PyObject* host_log(PyObject*, PyObject* arguments) {
  const std::string line = text_of(py->PyTuple_GetItem(arguments, 1));
  const long level = py->PyLong_AsLong(py->PyTuple_GetItem(arguments, 0));
  if (the_host != nullptr) {
    the_host->log(the_host->context, static_cast<int32_t>(level), line.c_str());
  } else {
    fprintf(stderr, "%s\n", line.c_str());  // while the file is loaded
  }
  return none();
}

PyObject* host_metric(PyObject*, PyObject* arguments) {
  const std::string name = text_of(py->PyTuple_GetItem(arguments, 0));
  const double value = py->PyFloat_AsDouble(py->PyTuple_GetItem(arguments, 1));
  if (the_host != nullptr) the_host->metric(the_host->context, name.c_str(), value);
  return none();
}

PyObject* host_fail(PyObject*, PyObject* arguments) {
  fail(text_of(py->PyTuple_GetItem(arguments, 0)).c_str());
  return none();
}

/// A call of the host's that may wait. The interpreter's lock is kept meanwhile, so that threads written in Python
/// wait, too; but for a workload, whose task is also called by the main thread.
class Unlocked {
 public:
  Unlocked() { release(); }
  ~Unlocked() { take(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  void release() { state_ = shared ? py->PyEval_SaveThread() : nullptr; }
  void take() {
    if (state_ != nullptr) py->PyEval_RestoreThread(std::exchange(state_, nullptr));
  }

 private:
  void* state_ = nullptr;
};

template <class Extension>
const Extension* find_extension(const char* name) {
  return the_host == nullptr ? nullptr : static_cast<const Extension*>(the_host->extension(the_host->context, name));
}

PyObject* host_yield_point(PyObject*, PyObject*) {
  const auto* extension = find_extension<freeride_yield>(FREERIDE_EXTENSION_YIELD);
  if (extension == nullptr) return py->PyLong_FromLong(FREERIDE_OK);
  freeride_status status = FREERIDE_OK;
  {
    const Unlocked unlocked;
    status = extension->yield_point(the_host->context);
  }
  return py->PyLong_FromLong(status);
}

// With the queue's wait(all), which is called back. What that raises goes on from here.
PyObject* host_yield_queued(PyObject*, PyObject* arguments) {
  const auto* extension = find_extension<freeride_yield>(FREERIDE_EXTENSION_YIELD);
  if (extension == nullptr) return py->PyLong_FromLong(FREERIDE_OK);
  struct Call {
    PyObject* wait;
    Unlocked unlocked;
    bool raised = false;
  };
  freeride_status status = FREERIDE_OK;
  bool raised = false;
  {
    Call call{py->PyTuple_GetItem(arguments, 0), {}};
    status = extension->yield_queued(
        the_host->context,
        [](void* argument, int32_t all) -> freeride_status {
          auto& made = *static_cast<Call*>(argument);
          made.unlocked.take();
          {
            const Ref given(tuple({py->PyLong_FromLong(all)}));
            const Ref done(py->PyObject_CallObject(made.wait, given.get()));
            made.raised = !done;
          }
          made.unlocked.release();
          return made.raised ? FREERIDE_ERROR : FREERIDE_OK;
        },
        &call);
    raised = call.raised;
  }
  return raised ? nullptr : py->PyLong_FromLong(status);
}

PyObject* host_pass_gate(PyObject*, PyObject*) {
  const auto* extension = find_extension<freeride_gate>(FREERIDE_EXTENSION_IMPERATIVE);
  if (extension == nullptr) return py->PyLong_FromLong(FREERIDE_OK);
  freeride_status status = FREERIDE_OK;
  {
    const Unlocked unlocked;
    status = extension->pass(the_host->context);
  }
  return py->PyLong_FromLong(status);
}

PyObject* make_host() {
  static PyMethod methods[] = {{"log", &host_log, kVarargs, nullptr},
                               {"metric", &host_metric, kVarargs, nullptr},
                               {"fail", &host_fail, kVarargs, nullptr},
                               {"yield_point", &host_yield_point, kVarargs, nullptr},
                               {"yield_queued", &host_yield_queued, kVarargs, nullptr},
                               {"pass_gate", &host_pass_gate, kVarargs, nullptr}};
  PyObject* host = py->PyDict_New();
  for (PyMethod& method : methods) {
    const Ref function(py->PyCFunction_NewEx(&method, nullptr, nullptr));
    py->PyDict_SetItemString(host, method.name, function.get());
  }
  return host;
}

// ---- the table's functions; the task's pointer is the driver

freeride_status create(const freeride_host* host, const freeride_task_info* info, void** task) {
  the_host = host;
  const Lock lock;
  std::vector<std::pair<std::string, std::string>> params;
  for (uint32_t i = 0; i < info->param_count; ++i) {
    if (std::string(info->params[i].key) != kPythonParam)
      params.emplace_back(info->params[i].key, info->params[i].value);
  }
  PyObject* list = py->PyTuple_New(static_cast<intptr_t>(params.size()));
  for (size_t i = 0; i < params.size(); ++i)
    py->PyTuple_SetItem(list, static_cast<intptr_t>(i), tuple({text(params[i].first), text(params[i].second)}));
  const freeride_status status = status_of(
      Ref(call(driver, "create", tuple({text(info->name), text(info->device), text(info->scratch_dir), list}))));
  *task = driver;
  return status;
}

template <const char* name>
freeride_status method(void* task) {
  const Lock lock;
  static PyObject* const function = py->PyObject_GetAttrString(static_cast<PyObject*>(task), name);
  return status_of(Ref(py->PyObject_CallObject(function, nullptr)));
}

// In the place of a method that the class does not have. It need not wait for the interpreter's lock, which a library's
// long call in the workload's thread may hold: the process is stopped in its middle and goes on in the next bubble.
freeride_status nothing(void*) {
  return FREERIDE_OK;
}

constexpr char kInit[] = "init", kStart[] = "start", kStep[] = "step", kPause[] = "pause", kStop[] = "stop";

freeride_status save(void* task, const freeride_state_sink* sink) {
  const Lock lock;
  const Ref state(call(static_cast<PyObject*>(task), "save", tuple({})));
  char* data = nullptr;
  intptr_t size = 0;
  if (state && py->PyBytes_AsStringAndSize(state.get(), &data, &size) == 0)
    return sink->write(sink->context, data, static_cast<uint64_t>(size));
  py->PyErr_Clear();
  return status_of(state);
}

freeride_status restore(void* task, uint32_t version, const void* data, uint64_t size) {
  const Lock lock;
  PyObject* state = py->PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<intptr_t>(size));
  return status_of(Ref(call(static_cast<PyObject*>(task), "restore", tuple({py->PyLong_FromLong(version), state}))));
}

/// What the table points to; made once, never freed.
struct Module {
  freeride_plugin table{};
  freeride_state state{};
  std::string name, version, summary;
  std::vector<std::string> texts;
  std::vector<freeride_param_spec> specs;
};
Module* the_module = nullptr;

// On the workload's thread, both. Its state in the interpreter is made by the first and never given back: what the task
// keeps for the thread (threading.local) is there for the second.
freeride_status prepare(void* task) {
  py->PyGILState_Ensure();
  const freeride_status status = status_of(Ref(call(static_cast<PyObject*>(task), "prepare", tuple({}))));
  py->PyEval_SaveThread();
  return status;
}

freeride_status workload(void* task) {
  const int state = py->PyGILState_Ensure();
  const freeride_status status = status_of(Ref(call(static_cast<PyObject*>(task), "workload", tuple({}))));
  py->PyGILState_Release(state);
  return status;
}

constexpr freeride_imperative kImperative{sizeof(freeride_imperative), 0, &workload, &prepare};

const void* extension(const char* name) {
  const std::string wanted = name;
  if (wanted == FREERIDE_EXTENSION_STATE) return the_module->state.save != nullptr ? &the_module->state : nullptr;
  if (wanted != FREERIDE_EXTENSION_IMPERATIVE) return nullptr;
  // Asked for by whoever is going to use it: from now on the lock is shared.
  if (!std::exchange(shared, true)) main_thread = py->PyEval_SaveThread();
  return &kImperative;
}

// The SDK's code, for PyEval_EvalCode(); null, with an exception set, when this Python is too old for it.
PyObject* sdk_code() {
  if (py->PyMarshal_ReadObjectFromString != nullptr && py->PyImport_GetMagicNumber() == kPythonSdkMagic) {
    PyObject* code = py->PyMarshal_ReadObjectFromString(reinterpret_cast<const char*>(kPythonSdkBytecode),
                                                        static_cast<intptr_t>(kPythonSdkBytecodeSize));
    if (code != nullptr) return code;
    py->PyErr_Clear();
  }
  return py->Py_CompileString(kPythonSdk, "freeride_plugin.py", kFileInput);
}

// From what _Driver.open() answered.
Module* make_module(PyObject* described, const std::string& python) {
  auto* module = new Module;  // NOLINT(cppcoreguidelines-owning-memory): until the process ends
  const auto item = [](PyObject* from, intptr_t at) { return py->PyTuple_GetItem(from, at); };
  module->name = text_of(item(described, 0));
  module->version = text_of(item(described, 1));
  module->summary = text_of(item(described, 2));
  module->texts = {kPythonParam, python, "the interpreter: a path on the worker's host"};
  PyObject* params = item(described, 3);
  for (intptr_t i = 0; i < py->PyTuple_Size(params); ++i) {
    for (intptr_t part = 0; part < 3; ++part) module->texts.push_back(text_of(item(item(params, i), part)));
  }
  for (size_t i = 0; i < module->texts.size(); i += 3)
    module->specs.push_back({module->texts[i].c_str(), module->texts[i + 1].c_str(), module->texts[i + 2].c_str()});
  if (py->PyObject_IsTrue(item(described, 4)) == 1)
    module->state = {sizeof(freeride_state), static_cast<uint32_t>(py->PyLong_AsLong(item(described, 5))), &save,
                     &restore};
  auto& table = module->table;
  table.struct_size = sizeof(freeride_plugin);
  table.abi_version = FREERIDE_ABI_VERSION;
  table.name = module->name.c_str();
  table.version = module->version.c_str();
  table.summary = module->summary.c_str();
  table.params = module->specs.data();
  table.param_count = static_cast<uint32_t>(module->specs.size());
  table.create = &create;
  table.init = &method<kInit>;
  table.start = py->PyObject_IsTrue(item(described, 6)) == 1 ? &method<kStart> : &nothing;
  table.run_next_step = &method<kStep>;
  table.pause = py->PyObject_IsTrue(item(described, 7)) == 1 ? &method<kPause> : &nothing;
  table.stop = &method<kStop>;
  table.destroy = [](void*) {};  // with the process: an interpreter's end can wait for threads for ever
  table.extension = &extension;
  return module;
}

}  // namespace

Result<const freeride_plugin*> open_python_plugin(const std::string& path, const std::string& python) {
  auto environment = find_python(python);
  if (!environment.ok()) return environment.error();
  auto api = load_python_api(environment->library.string(), environment->executable.string());
  if (!api.ok()) return api.error();
  py = *api;

  // The SDK is the runner's own copy, under the name that the user's file imports.
  PyObject* sdk = py->PyImport_AddModule("freeride_plugin");
  PyObject* names = py->PyModule_GetDict(sdk);
  const Ref builtins(py->PyImport_ImportModule("builtins"));
  py->PyDict_SetItemString(names, "__builtins__", builtins.get());
  const Ref code(sdk_code());
  const Ref done(code ? py->PyEval_EvalCode(code.get(), names, names) : nullptr);
  if (!done) {
    py->PyErr_Print();
    return Error{Code::kInvalidArgument, "Python " + environment->version + " cannot run freeride_plugin.py",
                 "name a Python 3.8 or later with --python"};
  }
  driver = call(sdk, "_Driver", tuple({make_host(), text(path)}));
  const Ref described(driver == nullptr ? nullptr : call(driver, "open", tuple({})));
  if (!described) {
    py->PyErr_Print();
    return Error{Code::kInternal, "the interpreter failed while it loaded the task", ""};
  }
  if (py->PyObject_IsTrue(described.get()) != 1) {
    const Ref error(py->PyObject_GetAttrString(driver, "error"));
    return Error{Code::kInvalidArgument, "the Python file cannot be loaded: " + text_of(error.get()),
                 "the log has the traceback"};
  }
  the_module = make_module(described.get(), python);
  return &the_module->table;
}

}  // namespace freeride::runner
