// The few functions of Python's stable ABI that the runner calls, looked up in whatever libpython a task's interpreter
// has: so the runner is built without Python, and one runner serves every Python 3.8 or later.
#pragma once

#include <cstdint>
#include <string>

#include "freeride/base/result.hpp"

// As Python.h names them; opaque here.
struct _object;  // NOLINT(bugprone-reserved-identifier)
using PyObject = _object;

namespace freeride::runner {

/// Python.h's PyMethodDef, whose layout is part of the stable ABI.
struct PyMethod {
  const char* name;
  PyObject* (*function)(PyObject* self, PyObject* arguments);
  int flags;
  const char* doc;
};

/// Filled in by load_python_api(). All but the initialisation: with the interpreter's lock, which the main thread keeps
/// from then on.
struct PythonApi {
  void (*Py_InitializeEx)(int);
  PyObject* (*PyImport_ImportModule)(const char*);
  PyObject* (*PyImport_AddModule)(const char*);  // borrowed
  PyObject* (*PyModule_GetDict)(PyObject*);      // borrowed
  PyObject* (*Py_CompileString)(const char*, const char*, int);
  PyObject* (*PyEval_EvalCode)(PyObject*, PyObject*, PyObject*);
  PyObject* (*PyObject_GetAttrString)(PyObject*, const char*);
  PyObject* (*PyObject_CallObject)(PyObject*, PyObject*);
  PyObject* (*PyCFunction_NewEx)(PyMethod*, PyObject*, PyObject*);
  PyObject* (*PyDict_New)();
  int (*PyDict_SetItemString)(PyObject*, const char*, PyObject*);
  PyObject* (*PyTuple_New)(intptr_t);
  int (*PyTuple_SetItem)(PyObject*, intptr_t, PyObject*);  // takes the item over
  PyObject* (*PyTuple_GetItem)(PyObject*, intptr_t);       // borrowed
  intptr_t (*PyTuple_Size)(PyObject*);
  PyObject* (*PyUnicode_FromStringAndSize)(const char*, intptr_t);
  PyObject* (*PyUnicode_AsUTF8String)(PyObject*);
  PyObject* (*PyBytes_FromStringAndSize)(const char*, intptr_t);
  int (*PyBytes_AsStringAndSize)(PyObject*, char**, intptr_t*);
  PyObject* (*PyLong_FromLong)(long);
  long (*PyLong_AsLong)(PyObject*);
  double (*PyFloat_AsDouble)(PyObject*);
  int (*PyObject_IsTrue)(PyObject*);
  PyObject* (*PyErr_Occurred)();
  void (*PyErr_Print)();
  void (*PyErr_Clear)();
  void* (*PyEval_SaveThread)();
  void (*PyEval_RestoreThread)(void*);
  int (*PyGILState_Ensure)();
  void (*PyGILState_Release)(int);
  void (*Py_IncRef)(PyObject*);
  void (*Py_DecRef)(PyObject*);
  PyObject* (*PyMarshal_ReadObjectFromString)(const char*, intptr_t);  // may be null
  long (*PyImport_GetMagicNumber)();                                   // where that one is there
};

/// Opens `library`, with its symbols visible for the extension modules to come, looks the functions up and starts the
/// interpreter as if `executable` had been started, so with that one's packages. Once a process; main thread. Errors:
/// kInvalidArgument: it cannot be opened, or is no libpython.
Result<const PythonApi*> load_python_api(const std::string& library, const std::string& executable);

}  // namespace freeride::runner
