// The autograd node of a call, as the Function in pullback/kernel_function.py is in Python.
#pragma once

#include "plan.h"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <memory>

namespace pullback {

struct Node : public torch::autograd::Node {
  std::shared_ptr<const Plan> plan;
  std::vector<torch::autograd::SavedVariable> saved;  // every input: what autograd records is computed from them

  Node(std::shared_ptr<const Plan> plan, const variable_list& xs, torch::autograd::edge_list&& edges)
      : torch::autograd::Node(std::move(edges)), plan(std::move(plan)) {
    saved.reserve(xs.size());
    for (const auto& x : xs) saved.emplace_back(x, /*is_output=*/false);
  }

  std::string name() const override {
    return plan->name + "Backward";
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& x : saved) x.reset_data();
  }

  variable_list apply(variable_list&& gs) override {
    return plan->gradients(unpacked(), gs);
  }

  // Compiled autograd records a call of what is run in Python, which Dynamo then traces. It relies on
  // `AutogradCompilerInstance.proxy_call`.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    args.collect(plan->id);
    args.collect(saved, /*is_output=*/false);
  }

  variable_list apply_with_saved(const variable_list& gs, torch::dynamo::autograd::SwapSavedVariables& swap) override {
    swap.before(saved);
    const variable_list xs = unpacked();
    swap.after(saved);
    return plan->recorded(swap.get_py_compiler(), xs, gs);
  }

 private:
  variable_list unpacked() {
    std::lock_guard<std::mutex> lock(mutex_);
    variable_list xs;
    xs.reserve(saved.size());
    for (const auto& x : saved) xs.push_back(x.unpack());
    return xs;
  }
};

using NodePtr = decltype(torch::autograd::Edge::function);  // shared or intrusive, as PyTorch has it

template <typename P, typename... A>  // of P, so that the branch for the other one need not compile
P new_node(A&&... arguments) {
  if constexpr (std::is_same_v<P, std::shared_ptr<torch::autograd::Node>>) {
    return P(new Node(std::forward<A>(arguments)...), [](auto* node) { deleteNode(node); });
  } else {
    return P::unsafe_steal_from_new(new Node(std::forward<A>(arguments)...));
  }
}

// One call, with its node. In the order of a Function: first the kernel, then what is saved, which may call hooks.
inline variable_list run(const std::shared_ptr<const Plan>& plan, const variable_list& xs) {
  variable_list ys;
  {
    pybind11::gil_scoped_release no_gil;
    RECORD_FUNCTION(plan->name, std::vector<c10::IValue>(xs.begin(), xs.end()), at::sequence_number::peek());
    ys = plan->values(xs);
  }
  torch::autograd::edge_list edges;
  edges.reserve(xs.size());
  for (const auto& x : xs) {
    edges.push_back(x.requires_grad() ? torch::autograd::impl::gradient_edge(x) : torch::autograd::Edge());
  }
  const NodePtr node = new_node<NodePtr>(plan, xs, std::move(edges));
  for (size_t i = 0; i < ys.size(); ++i) {
    if (plan->connected[i]) {
      torch::autograd::set_history(ys[i], node);
    } else {
      node->add_input_metadata(ys[i]);
    }
  }
  return ys;
}

}  // namespace pullback
