// The module `_node`: tables of the plans of an op that run in C++, from the look at the arguments to the results.
// Who makes them: pullback/node/calls.py.
//
// PyTorch's C++ is not a stable interface. That this compiles is the check of most of what it relies on; the rest is:
// - a thread on which nothing sees the ops has the keys c10::default_included_set and default_excluded_set, and nothing
//   on the stacks of TorchDispatchModeTLS and PythonTorchFunctionTLS;
// - FuncTorchTLSBase::checkSupportsCppAutogradFunction throws where a transform of torch.func runs;
// - ForwardADLevel::try_get_by_idx(0) is there where a forward-mode level is open;
// - a plain tensor on the CPU has the keys of an empty one, and no other tensor has;
// - SavedVariable checks versions, calls hooks, and throws once it is reset; the engine checks what a node returns;
// - compiled autograd calls compiled_args and apply_with_saved, with an AutogradCompilerInstance whose method
//   `proxy_call(function, args, results)` records a call.
// A test in tests/node/test_calls.py stands for each of these.
#include "node.h"
#include "reads.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_cpp_function.h>

#include <atomic>

using namespace pullback;

namespace {

struct Table {
  PyObject_HEAD
  PyObject* held;  // what `reads` borrows from
  Reads reads;
  std::vector<std::shared_ptr<const Plan>> plans;
};

std::vector<int64_t> longs(PyObject* tuple) {
  std::vector<int64_t> found(PyTuple_GET_SIZE(tuple));
  for (size_t i = 0; i < found.size(); ++i) found[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
  return found;
}

at::ScalarType dtype_of(PyObject* object) {
  TORCH_CHECK(THPDtype_Check(object), "a dtype");
  return reinterpret_cast<THPDtype*>(object)->scalar_type;
}

std::vector<at::ScalarType> dtypes_of(PyObject* tuple) {
  std::vector<at::ScalarType> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) found.push_back(dtype_of(PyTuple_GET_ITEM(tuple, i)));
  return found;
}

// (address or name of an op, positions of what it reads, of what it writes, dtypes of these, cotangents that they may be written over)
Kernel kernel_of(PyObject* tuple) {
  Kernel kernel;
  PyObject* what = PyTuple_GET_ITEM(tuple, 0);
  if (PyUnicode_Check(what)) {
    const std::string name = PyUnicode_AsUTF8(what), overload = name.find('.') == name.npos ? "" : name.substr(name.find('.') + 1);
    kernel.op = c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, name.find('.')).c_str(), overload.c_str());
  } else {
    kernel.run = PyLong_AsVoidPtr(what);
  }
  kernel.reads = longs(PyTuple_GET_ITEM(tuple, 1));
  kernel.writes = longs(PyTuple_GET_ITEM(tuple, 2));
  kernel.dtypes = dtypes_of(PyTuple_GET_ITEM(tuple, 3));
  kernel.over = longs(PyTuple_GET_ITEM(tuple, 4));
  TORCH_CHECK((kernel.run || kernel.op) && kernel.reads.size() + kernel.writes.size() <= kMostPointers, "a kernel of few tensors");
  return kernel;
}

// add(name, sizes, strides, arguments, outputs, alone, forward, backward, in_python): an argument is (dtype, whether it
// requires grad) or (value,), an output (dtype, whether it has a gradient).
PyObject* add(PyObject* self, PyObject* args) {
  HANDLE_TH_ERRORS
  const char* name = nullptr;
  PyObject *sizes, *strides, *arguments, *outputs, *forward, *backward, *in_python;
  int alone = 0;
  PyTypeObject* tuple = &PyTuple_Type;
  if (!PyArg_ParseTuple(args, "sO!O!O!O!pO!O!O", &name, tuple, &sizes, tuple, &strides, tuple, &arguments, tuple,
                        &outputs, &alone, tuple, &forward, tuple, &backward, &in_python)) {
    return nullptr;
  }
  static std::atomic<int64_t> ids{0};
  PyObject* held = PyTuple_Pack(2, in_python, arguments);
  if (!held) return nullptr;
  auto plan = std::make_shared<Plan>(Plan{name, ids++, longs(sizes), longs(strides), 1, 1, {}, {}, {}, {}, {}, alone != 0,
      kernel_of(forward), kernel_of(backward), c10::SafePyObject(held, getPyInterpreter()), in_python});
  for (size_t i = 0; i < plan->sizes.size(); ++i) {
    plan->numel *= plan->sizes[i];
    plan->extent += (plan->sizes[i] - 1) * plan->strides[i];
  }
  if (!plan->numel) plan->extent = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
    PyObject* argument = PyTuple_GET_ITEM(arguments, i);
    if (PyTuple_GET_SIZE(argument) == 1) {
      plan->arguments.push_back({PyTuple_GET_ITEM(argument, 0), at::ScalarType::Undefined, false});
      continue;
    }
    const bool needs = PyTuple_GET_ITEM(argument, 1) == Py_True;
    plan->inputs.push_back(dtype_of(PyTuple_GET_ITEM(argument, 0)));
    plan->needs.push_back(needs);
    plan->arguments.push_back({nullptr, plan->inputs.back(), needs});
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i) {
    plan->outputs.push_back(dtype_of(PyTuple_GET_ITEM(PyTuple_GET_ITEM(outputs, i), 0)));
    plan->connected.push_back(PyTuple_GET_ITEM(PyTuple_GET_ITEM(outputs, i), 1) == Py_True);
  }
  if (PyErr_Occurred()) return nullptr;
  reinterpret_cast<Table*>(self)->plans.push_back(std::move(plan));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// call(args): what the op returns, or NotImplemented where it has to be run in Python.
PyObject* call(PyObject* self, PyObject* args) {
  HANDLE_TH_ERRORS
  const auto* table = reinterpret_cast<Table*>(self);
  if (!at::GradMode::is_enabled() || !is_plain_eager() || torch::autograd::AnomalyMode::is_enabled()) {
    Py_RETURN_NOTIMPLEMENTED;
  }
  std::shared_ptr<const Plan> plan;
  for (const auto& p : table->plans) {
    if (p->fits(args)) {
      plan = p;
      break;
    }
  }
  if (!plan || !table->reads.unchanged()) Py_RETURN_NOTIMPLEMENTED;
  variable_list xs;
  xs.reserve(plan->inputs.size());
  for (size_t i = 0; i < plan->arguments.size(); ++i) {
    if (!plan->arguments[i].value) xs.push_back(THPVariable_Unpack(PyTuple_GET_ITEM(args, i)));
  }
  variable_list ys = run(plan, xs);
  if (plan->alone) return THPVariable_Wrap(std::move(ys[0]));
  return Plan::tuple_of(ys);
  END_HANDLE_TH_ERRORS
}

// Table(watched, codes, dtype, methods, n_methods): of a `Reads`; see pullback/node/calls.py.
PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *watched, *codes, *dtype, *methods;
  Py_ssize_t n_methods = 0;
  if (!PyArg_ParseTuple(args, "O!O!OOn", &PyTuple_Type, &watched, &PyTuple_Type, &codes, &dtype, &methods, &n_methods)) {
    return nullptr;
  }
  Reads reads;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(watched); ++i) {
    PyObject* w = PyTuple_GET_ITEM(watched, i);
    PyObject* value = PyTuple_GET_SIZE(w) == 3 ? PyTuple_GET_ITEM(w, 2) : nullptr;
    reads.watched.push_back({PyTuple_GET_ITEM(w, 0), PyTuple_GET_ITEM(w, 1), value});
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(codes); ++i) {
    PyObject* c = PyTuple_GET_ITEM(codes, i);
    TORCH_CHECK(PyFunction_Check(PyTuple_GET_ITEM(c, 0)), "a function");
    reads.codes.push_back(
        {PyTuple_GET_ITEM(c, 0), PyTuple_GET_ITEM(c, 1), PyTuple_GET_ITEM(c, 2), PyTuple_GET_ITEM(c, 3)});
  }
  reads.dtype = dtype_of(dtype);
  reads.methods = methods;
  reads.n_methods = n_methods;
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  auto* table = reinterpret_cast<Table*>(self);
  new (&table->reads) Reads(std::move(reads));
  new (&table->plans) std::vector<std::shared_ptr<const Plan>>();
  table->held = Py_NewRef(args);
  return self;
  END_HANDLE_TH_ERRORS
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  auto* table = reinterpret_cast<Table*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(table->held);
  for (const auto& plan : table->plans) {
    if (plan.use_count() == 1) Py_VISIT(plan->held.ptr(getPyInterpreter()));  // else a node, which is not seen, has it
  }
  return 0;
}

int clear(PyObject* self) {
  auto* table = reinterpret_cast<Table*>(self);
  table->reads = Reads();  // nothing is borrowed from what goes; a table without plans is not asked for it
  const auto plans = std::move(table->plans);
  table->plans.clear();
  Py_CLEAR(table->held);
  return 0;
}

void dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear(self);
  auto* table = reinterpret_cast<Table*>(self);
  table->reads.~Reads();
  table->plans.~vector();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"add", add, METH_VARARGS, nullptr}, {"call", call, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)}, {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_methods, methods}, {0, nullptr}};

PyType_Spec spec = {"pullback._node.Table", sizeof(Table), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_node", nullptr, -1, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__node() {
  HANDLE_TH_ERRORS
  PyObject* made = PyModule_Create(&module);
  PyObject* table = PyType_FromSpec(&spec);
  if (!made || !table || PyModule_AddObject(made, "Table", table) < 0) return nullptr;
  // the class, in Python, of nodes that are made in C++: it has no name there
  NodePtr empty = new_node<NodePtr>(nullptr, variable_list(), torch::autograd::edge_list());
  THPObjectPtr node(torch::autograd::functionToPyObject(empty));
  if (!node || PyModule_AddObject(made, "Node", Py_NewRef(Py_TYPE(node.get()))) < 0) return nullptr;
  return made;
  END_HANDLE_TH_ERRORS
}
