// What the formulas of an op read from around them: `Captures.unchanged` of pullback/graph/captures.py, in C++.
#pragma once

#include <torch/csrc/python_headers.h>

#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include <vector>

namespace pullback {

// All pointers are borrowed from one tuple, which the owner of the `Reads` holds.
struct Reads {
  struct Watched {
    PyObject *holder, *name, *value;  // `value` is null for a name that was not there
  };
  struct Code {
    PyObject *function, *code, *defaults, *keywords;
  };
  std::vector<Watched> watched;
  std::vector<Code> codes;
  c10::ScalarType dtype;
  PyObject* methods = nullptr;
  Py_ssize_t n_methods = 0;

  bool unchanged() const {
    for (const auto& w : watched) {
      if (now(w) != w.value) return false;
    }
    for (const auto& c : codes) {
      if (PyFunction_GetCode(c.function) != c.code) return false;
      if (or_none(PyFunction_GetDefaults(c.function)) != c.defaults) return false;
      if (!holds_same(or_none(PyFunction_GetKwDefaults(c.function)), c.keywords)) return false;
    }
    return c10::typeMetaToScalarType(c10::get_default_dtype()) == dtype && PyObject_Size(methods) == n_methods;
  }

 private:
  static PyObject* or_none(PyObject* object) {
    return object ? object : Py_None;
  }

  // Whether keyword defaults are the same objects: those that are equal may differ, as 0.0 and -0.0, or 1 and True.
  static bool holds_same(PyObject* now, PyObject* then) {
    if (now == then) return true;
    if (!PyDict_Check(now) || !PyDict_Check(then) || PyDict_GET_SIZE(now) != PyDict_GET_SIZE(then)) return false;
    PyObject *name, *value;
    for (Py_ssize_t i = 0; PyDict_Next(then, &i, &name, &value);) {
      if (PyDict_GetItem(now, name) != value) return false;  // which raises nothing
    }
    return true;
  }

  // Of a dictionary, a cell, or the view of a class's dictionary, which keeps the value alive as the others do.
  static PyObject* now(const Watched& w) {
    PyObject* found = nullptr;
    if (PyDict_Check(w.holder)) {
      found = PyDict_GetItemWithError(w.holder, w.name);
    } else if (PyCell_Check(w.holder)) {
      found = PyCell_GET(w.holder);
    } else {
      found = PyObject_GetItem(w.holder, w.name);
      Py_XDECREF(found);
    }
    if (PyErr_Occurred()) PyErr_Clear();
    return found;
  }
};

}  // namespace pullback
