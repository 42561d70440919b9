#pragma once
/// options.hpp: a benchmark's command line: `--name value` and `--name` alone.

#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ddp::benchmarks {

class Options {
 public:
  /// Errors: std::invalid_argument names what is not among `known`.
  Options(int count, char** arguments, const std::set<std::string>& known) {
    for (int i = 1; i < count; ++i) {
      const std::string_view argument = arguments[i];
      const std::string name(argument.substr(argument.find_first_not_of('-') == 2 ? 2 : 0));
      if (!known.contains(name)) throw std::invalid_argument("unknown argument " + std::string(argument));
      const bool has_value = i + 1 < count && !std::string_view(arguments[i + 1]).starts_with("--");
      values_[name] = has_value ? arguments[++i] : "";
    }
  }

  bool has(const std::string& name) const { return values_.contains(name); }
  std::string text(const std::string& name, std::string otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? std::move(otherwise) : found->second;
  }
  double number(const std::string& name, double otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : std::stod(found->second);
  }
  int count(const std::string& name, int otherwise) const { return static_cast<int>(number(name, otherwise)); }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace ddp::benchmarks
