// One kind of call: its two kernels, of which the first may be an op, and what arguments and cotangents have to be like for them.
#pragma once

#include "plain.h"

#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/SafePyObject.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace pullback {

using torch::autograd::variable_list;

constexpr size_t kMostPointers = 16;

// A compiled function `run`, or an op of PyTorch's, and which tensors go in and come out where. What it reads is an input, or, from n_inputs
// on, a cotangent; what it writes is an output or the gradient of an input.
struct Kernel {
  void* run = nullptr;
  std::optional<c10::OperatorHandle> op;
  std::vector<int64_t> reads, writes;
  std::vector<at::ScalarType> dtypes;  // of what it writes
  std::vector<int64_t> over;           // for each of these the cotangent that it may be written over, or -1

  void operator()(void* const* pointers, const int64_t* steps, int64_t n) const {
    static const auto callers = callers_of(std::make_index_sequence<kMostPointers + 1>{});
    callers[reads.size() + writes.size()](run, pointers, steps, n);
  }

 private:
  using Caller = void (*)(void*, void* const*, const int64_t*, int64_t);

  template <size_t... I>
  static void call(void* run, void* const* p, const int64_t* steps, int64_t n, std::index_sequence<I...>) {
    using Run = void (*)(decltype((void)I, (void*)nullptr)..., const int64_t*, int64_t, int64_t);
    reinterpret_cast<Run>(run)(p[I]..., steps, 1, n);
  }

  template <size_t N>
  static void caller(void* run, void* const* p, const int64_t* steps, int64_t n) {
    call(run, p, steps, n, std::make_index_sequence<N>{});
  }

  template <size_t... N>
  static std::array<Caller, sizeof...(N)> callers_of(std::index_sequence<N...>) {
    return {&caller<N>...};
  }
};

struct Argument {
  PyObject* value;  // of what is no tensor; null for a tensor
  at::ScalarType dtype;
  bool requires_grad;
};

// A plan outlives the table it is in where a graph still holds a node of it. Nodes die without the GIL, hence the
// SafePyObject; other objects are borrowed from it.
struct Plan {
  std::string name;
  int64_t id;  // for the cache of compiled autograd: never given twice
  std::vector<int64_t> sizes, strides;  // of all tensors
  int64_t numel, extent;  // elements, and places from the first to the last in memory
  std::vector<Argument> arguments;
  std::vector<at::ScalarType> inputs, outputs;  // dtypes of the tensors
  std::vector<bool> needs, connected;  // of the inputs, whether they get a gradient; of the outputs, whether they have one
  bool alone;  // whether the result is one tensor, not a tuple
  Kernel forward, backward;
  c10::SafePyObject held;  // (gradients in Python, values of arguments…)
  PyObject* in_python;

  // Whether a call is of this kind; see `key_of` in pullback/call.py.
  bool fits(PyObject* args) const {
    if (static_cast<size_t>(PyTuple_GET_SIZE(args)) != arguments.size()) return false;
    for (size_t i = 0; i < arguments.size(); ++i) {
      PyObject* given = PyTuple_GET_ITEM(args, i);
      const Argument& a = arguments[i];
      if (a.value) {
        if (!same_value(given, a.value)) return false;
        continue;
      }
      if (!THPVariable_CheckExact(given)) return false;
      const at::Tensor& x = THPVariable_Unpack(given);
      if (x.requires_grad() != a.requires_grad || !lies(x, a.dtype) || has_attributes(given)) return false;
      for (size_t j = 0; j < i; ++j) {
        if (PyTuple_GET_ITEM(args, j) == given) return false;  // a formula may ask whether two arguments are one
      }
    }
    return true;
  }

  variable_list values(const variable_list& xs) const {
    if (forward.op) return {called(*forward.op, xs)};
    void* pointers[kMostPointers];
    size_t k = 0;
    for (const auto i : forward.reads) pointers[k++] = const_cast<void*>(xs[i].const_data_ptr());
    variable_list ys = made(forward, outputs.size(), pointers + k);
    forward(pointers, nullptr, numel);
    return ys;
  }

  // The gradient of each input, none of those that need none: by the kernel, or in Python where autograd records, a mode
  // or a transform sees the ops, some output has no cotangent, or a tensor is not as it was when the kernel was made.
  // A cotangent that nobody else holds becomes a gradient, in its memory.
  variable_list gradients(const variable_list& xs, variable_list& gs) const {
    if (at::GradMode::is_enabled() || !is_plain_eager()) return by_python(xs, gs);
    void* pointers[kMostPointers];
    int64_t steps[2 * kMostPointers] = {};
    bool strided = false;
    size_t k = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (connected[i] && !gs[i].defined()) return by_python(xs, gs);
    }
    for (const auto i : backward.reads) {
      const bool is_input = static_cast<size_t>(i) < inputs.size();
      const at::Tensor& t = is_input ? xs[i] : gs[i - inputs.size()];
      const bool dense = lies(t, is_input ? inputs[i] : outputs[i - inputs.size()]);
      if (!dense && (is_input || !is_one_number(t, outputs[i - inputs.size()]))) return by_python(xs, gs);
      strided |= !dense;
      steps[2 * k + 1] = dense;
      pointers[k++] = const_cast<void*>(t.const_data_ptr());
    }
    variable_list gradients = made(backward, inputs.size(), pointers + k, &gs);
    backward(pointers, strided ? steps : nullptr, numel);
    return gradients;
  }

  variable_list by_python(const variable_list& xs, const variable_list& gs) const {
    pybind11::gil_scoped_acquire gil;
    THPObjectPtr all_xs(tuple_of(xs)), all_gs(tuple_of(gs));
    return listed(PyObject_CallFunctionObjArgs(in_python, all_xs.get(), all_gs.get(), nullptr));
  }

  // The same, not carried out: a call in the graph that an `AutogradCompilerInstance` makes.
  variable_list recorded(PyObject* compiler, const variable_list& xs, const variable_list& gs) const {
    pybind11::gil_scoped_acquire gil;
    THPObjectPtr all_xs(tuple_of(xs)), all_gs(tuple_of(gs));
    THPObjectPtr results(PyTuple_New(inputs.size()));  // it counts them
    THPObjectPtr method(PyUnicode_InternFromString("proxy_call"));
    if (!results || !method) raise();
    for (size_t i = 0; i < inputs.size(); ++i) PyTuple_SET_ITEM(results.get(), i, Py_NewRef(Py_None));
    THPObjectPtr args(PyTuple_Pack(2, all_xs.get(), all_gs.get()));
    if (!args) raise();
    variable_list gradients =
        listed(PyObject_CallMethodObjArgs(compiler, method.get(), in_python, args.get(), results.get(), nullptr));
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!needs[i]) gradients[i].reset();
    }
    return gradients;
  }

  static PyObject* tuple_of(const variable_list& tensors) {
    THPObjectPtr tuple(PyTuple_New(static_cast<Py_ssize_t>(tensors.size())));
    if (!tuple) raise();
    for (size_t i = 0; i < tensors.size(); ++i) PyTuple_SET_ITEM(tuple.get(), i, THPVariable_Wrap(tensors[i]));
    return tuple.release();
  }

 private:
  // An op of some of the inputs, below autograd; what it takes beside tensors has its default.
  at::Tensor called(const c10::OperatorHandle& op, const variable_list& xs) const {
    at::AutoDispatchBelowADInplaceOrView below;
    torch::jit::Stack stack;
    const auto& arguments = op.schema().arguments();
    for (size_t k = 0; k < arguments.size(); ++k) {
      if (k < forward.reads.size()) {
        stack.emplace_back(xs[forward.reads[k]]);
      } else {
        stack.push_back(arguments[k].default_value().value());
      }
    }
    op.callBoxed(stack);
    return stack.at(0).toTensor();
  }

  bool lies(const at::Tensor& t, at::ScalarType dtype) const {
    return t.key_set() == plain_keys() && t.scalar_type() == dtype && t.sizes() == sizes && t.strides() == strides &&
        holds(t, extent);
  }

  // Whether the storage reaches to the last element: `resize_` makes it smaller without a word to its tensors.
  static bool holds(const at::Tensor& t, int64_t extent) {
    return t.storage().nbytes() >= static_cast<size_t>(t.storage_offset() + extent) * t.itemsize();
  }

  // Whether a cotangent is one number, expanded, as that of a sum is: then the kernel takes no steps in it.
  bool is_one_number(const at::Tensor& g, at::ScalarType dtype) const {
    if (g.key_set() != plain_keys() || g.scalar_type() != dtype || g.sizes() != sizes) return false;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] != 1 && g.strides()[i] != 0) return false;
    }
    return holds(g, 1);
  }

  // Whether nothing else refers to a tensor or its memory, which is PyTorch's own: AccumulateGrad asks the first, too.
  bool is_ours(const at::Tensor& g) const {
    return g.use_count() == 1 && g.storage().use_count() == 1 && !g.requires_grad() &&
        g.storage().data_ptr().get_deleter() == c10::GetCPUAllocator()->raw_deleter();
  }

  variable_list made(const Kernel& kernel, size_t n, void** pointers, variable_list* gs = nullptr) const {
    variable_list tensors(n);
    for (size_t k = 0; k < kernel.writes.size(); ++k) {
      at::Tensor& t = tensors[kernel.writes[k]];
      const int64_t i = gs ? kernel.over[k] : -1;
      if (i >= 0 && lies((*gs)[i], kernel.dtypes[k]) && is_ours((*gs)[i])) {
        t = std::move((*gs)[i]);
      } else {
        t = at::Tensor(at::detail::empty_strided_cpu(sizes, strides, kernel.dtypes[k]));
      }
      pointers[k] = t.mutable_data_ptr();
    }
    return tensors;
  }

  // One gradient for each input, of a sequence that is handed over.
  variable_list listed(PyObject* sequence) const {
    THPObjectPtr made(sequence);
    THPObjectPtr items(made ? PySequence_Tuple(made.get()) : nullptr);
    if (!items) raise();
    variable_list gradients(inputs.size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      PyObject* g = PyTuple_GetItem(items.get(), static_cast<Py_ssize_t>(i));
      if (!g) raise();
      if (g != Py_None) gradients[i] = THPVariable_Unpack(g);
    }
    return gradients;
  }

  // Attributes set on a tensor may stand before its own methods: Python looks at them.
  static bool has_attributes(PyObject* tensor) {
    THPObjectPtr attributes(PyObject_GenericGetDict(tensor, nullptr));
    if (!attributes) PyErr_Clear();
    return !attributes || PyDict_GET_SIZE(attributes.get()) != 0;
  }

  // -0.0 is not 0.0, and True is not 1.
  static bool same_value(PyObject* a, PyObject* b) {
    if (Py_TYPE(a) != Py_TYPE(b)) return false;
    if (PyFloat_CheckExact(a)) {
      const double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
      return std::memcmp(&x, &y, sizeof x) == 0;
    }
    const int same = a == b ? 1 : PyObject_RichCompareBool(a, b, Py_EQ);
    if (same < 0) PyErr_Clear();
    return same == 1;
  }

  [[noreturn]] static void raise() {
    python_error error;
    error.persist();
    throw std::move(error);
  }
};

}  // namespace pullback
