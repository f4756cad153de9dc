// What is plain: a thread on which nothing but eager autograd sees the ops, and a tensor that has nothing special.
#pragma once

#include <torch/csrc/autograd/forward_grad.h>

#include <ATen/EmptyTensor.h>
#include <ATen/FuncTorchTLS.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace pullback {

// Whether a transform of torch.func is running; it says so by an exception.
inline bool in_functorch() {
  const auto& state = at::functorch::functorchTLSAccessor();
  if (!state) return false;
  try {
    state->checkSupportsCppAutogradFunction();
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}

// The key of named tensors, where PyTorch still has it: what it does with them sets it aside, for others too. A tensor
// that has names has the key itself, and so is not plain.
template <class Key>
constexpr c10::DispatchKeySet names_of(decltype(Key::Named)*) {
  return c10::DispatchKeySet(Key::Named);
}
template <class Key>
constexpr c10::DispatchKeySet names_of(...) {
  return c10::DispatchKeySet();
}

// Whether nothing but eager autograd sees the ops of this thread: `_torch.is_plain_eager`. Modes, transforms, autocast,
// inference mode and jit tracing also change the keys of the thread, so that whatever else does is refused too.
inline bool is_plain_eager() {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  const auto names = names_of<c10::DispatchKey>(nullptr);
  return local.included_ == c10::default_included_set && local.excluded_ - names == c10::default_excluded_set - names &&
      c10::impl::TorchDispatchModeTLS::stack_len() == 0 && at::impl::PythonTorchFunctionTLS::stack_len() == 0 &&
      !in_functorch() && !torch::autograd::ForwardADLevel::try_get_by_idx(0);
}

// The keys of a plain tensor on the CPU: not those of a subclass, of one that is nested, sparse, fake, batched, made in
// inference mode, or that waits to be conjugated or negated.
inline c10::DispatchKeySet plain_keys() {
  static const c10::DispatchKeySet keys = [] {
    c10::InferenceMode outside(false);
    return at::detail::empty_cpu({0}, at::kFloat).key_set();
  }();
  return keys;
}

}  // namespace pullback
