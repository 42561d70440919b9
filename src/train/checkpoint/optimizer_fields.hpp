#pragma once
/// optimizer_fields.hpp: what torch::optim's optimizers know, field by field, under the names that Python's use.
///
/// Each list serves both directions: a visitor writes the fields or reads them. What stands for each element of a
/// parameter says whether the optimizer needs it once it has made a step.

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace ddp::checkpoint {

// Options that Python's optimizers of these names have and C++'s do not: implementations to choose from, which Python
// chooses itself where they are None, and variants, which C++ has only as given here.
template <class Visitor>
void visit_implementations(Visitor& visit, bool has_fused, bool has_capturable) {
  visit.constant("maximize", false);
  visit.choice("foreach", {});
  visit.choice("differentiable", false);
  if (has_fused) visit.choice("fused", {});
  if (has_capturable) visit.choice("capturable", false);
}

template <class Visitor>
void visit_fields(torch::optim::SGDOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
  visit_implementations(visit, /*has_fused=*/true, /*has_capturable=*/false);
}
template <class Visitor>
void visit_fields(torch::optim::SGDParamState& state, torch::optim::SGDOptions&, Visitor& visit) {
  visit.of_parameter("momentum_buffer", state.momentum_buffer(), true);
}

template <class Options, class Visitor>
void visit_adam_options(Options& options, Visitor& visit, bool decays_apart) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
  visit.constant("decoupled_weight_decay", decays_apart);
  visit_implementations(visit, /*has_fused=*/true, /*has_capturable=*/true);
}
template <class State, class Visitor>
void visit_adam_state(State& state, bool amsgrad, Visitor& visit) {
  visit.steps("step", state.step());
  visit.of_parameter("exp_avg", state.exp_avg(), true);
  visit.of_parameter("exp_avg_sq", state.exp_avg_sq(), true);
  visit.of_parameter("max_exp_avg_sq", state.max_exp_avg_sq(), amsgrad);
}
template <class Visitor>
void visit_fields(torch::optim::AdamOptions& options, Visitor& visit) {
  visit_adam_options(options, visit, /*decays_apart=*/false);
}
template <class Visitor>
void visit_fields(torch::optim::AdamParamState& state, torch::optim::AdamOptions& options, Visitor& visit) {
  visit_adam_state(state, options.amsgrad(), visit);
}
template <class Visitor>
void visit_fields(torch::optim::AdamWOptions& options, Visitor& visit) {
  visit_adam_options(options, visit, /*decays_apart=*/true);
}
template <class Visitor>
void visit_fields(torch::optim::AdamWParamState& state, torch::optim::AdamWOptions& options, Visitor& visit) {
  visit_adam_state(state, options.amsgrad(), visit);
}

template <class Visitor>
void visit_fields(torch::optim::RMSpropOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("alpha", options.alpha());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("momentum", options.momentum());
  visit("centered", options.centered());
  visit_implementations(visit, /*has_fused=*/false, /*has_capturable=*/true);
}
template <class Visitor>
void visit_fields(torch::optim::RMSpropParamState& state, torch::optim::RMSpropOptions& options, Visitor& visit) {
  visit.steps("step", state.step());
  visit.of_parameter("square_avg", state.square_avg(), true);
  visit.of_parameter("momentum_buffer", state.momentum_buffer(), options.momentum() > 0);
  visit.of_parameter("grad_avg", state.grad_avg(), options.centered());
}

template <class Visitor>
void visit_fields(torch::optim::AdagradOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("lr_decay", options.lr_decay());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("initial_accumulator_value", options.initial_accumulator_value());
  visit_implementations(visit, /*has_fused=*/true, /*has_capturable=*/false);
}
template <class Visitor>
void visit_fields(torch::optim::AdagradParamState& state, torch::optim::AdagradOptions&, Visitor& visit) {
  visit.steps("step", state.step());
  visit.of_parameter("sum", state.sum(), true);
}

template <class Visitor>
void visit_fields(torch::optim::LBFGSOptions& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("max_iter", options.max_iter());
  visit("max_eval", options.max_eval());
  visit("tolerance_grad", options.tolerance_grad());
  visit("tolerance_change", options.tolerance_change());
  visit("history_size", options.history_size());
  visit("line_search_fn", options.line_search_fn());
}
template <class Visitor>
void visit_fields(torch::optim::LBFGSParamState& state, torch::optim::LBFGSOptions&, Visitor& visit) {
  visit("func_evals", state.func_evals());
  visit("n_iter", state.n_iter());
  visit("t", state.t());
  visit("prev_loss", state.prev_loss());
  visit("d", state.d());
  visit("H_diag", state.H_diag());
  visit("prev_flat_grad", state.prev_flat_grad());
  visit("old_dirs", state.old_dirs());
  visit("old_stps", state.old_stps());
  visit("ro", state.ro());
  visit("al", state.al());
}

}  // namespace ddp::checkpoint
