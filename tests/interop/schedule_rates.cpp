// The C++ side of schedule_parity.py. Reads settings, a line each: a name and its numbers, as in kSchedules, the base
// rate and how many steps. Writes for each the rates of these steps, in hexadecimal digits.

#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "ddp/rate_scheduler.hpp"

namespace {

using ddp::Schedule;
using Numbers = std::vector<double>;

std::int64_t whole(double number) { return static_cast<std::int64_t>(number); }

const std::map<std::string, std::function<Schedule(const Numbers&)>> kSchedules{
    {"cosine", [](const Numbers& n) { return ddp::schedule::cosine(whole(n.at(0)), n.at(1)); }},
    {"linear", [](const Numbers& n) { return ddp::schedule::linear_decay(whole(n.at(0)), n.at(1)); }},
    {"step", [](const Numbers& n) { return ddp::schedule::step_decay(whole(n.at(0)), n.at(1)); }},
    {"multi_step",
     [](const Numbers& n) {
       return ddp::schedule::multi_step({whole(n.at(0)), whole(n.at(1)), whole(n.at(2))}, n.at(3));
     }},
    {"warm_up_cosine",
     [](const Numbers& n) {
       return ddp::schedule::warm_up(whole(n.at(0)), ddp::schedule::cosine(whole(n.at(2)), n.at(3)), n.at(1));
     }},
    {"warm_up_step", [](const Numbers& n) {
       return ddp::schedule::warm_up(whole(n.at(0)), ddp::schedule::step_decay(whole(n.at(2)), n.at(3)), n.at(1));
     }}};

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string name;
    Numbers numbers;
    words >> name;
    for (double number = 0; words >> number;) numbers.push_back(number);
    const auto steps = whole(numbers.back());
    numbers.pop_back();
    torch::optim::SGD optimizer({torch::zeros({1}, torch::requires_grad())}, numbers.back());
    numbers.pop_back();
    ddp::RateScheduler scheduler(optimizer, kSchedules.at(name)(numbers));
    for (std::int64_t step = 0; step < steps; ++step) {
      std::printf("%a ", optimizer.param_groups()[0].options().get_lr());
      scheduler.step();
    }
    std::printf("\n");
  }
}
