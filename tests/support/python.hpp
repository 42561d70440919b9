#pragma once
/// python.hpp: what Python makes of a file, as a reader that shares nothing with the writer. PYTHON is its path.

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace ddp::testing {

/// What it prints of `expression`, in which `d` is the JSON in the file.
inline std::string of_json(const std::string& file, const std::string& expression) {
  ::setenv("DDP_TEST_FILE", file.c_str(), 1);
  ::setenv("DDP_TEST_EXPRESSION", expression.c_str(), 1);
  const std::string program =
      "import json, os, sys; sys.stdout.reconfigure(encoding=\"utf-8\"); "
      "d = json.load(open(os.environ[\"DDP_TEST_FILE\"], encoding=\"utf-8\")); "
      "print(eval(os.environ[\"DDP_TEST_EXPRESSION\"]), end=\"\")";
  std::FILE* const output = ::popen(("'" PYTHON "' -c '" + program + "' 2>&1").c_str(), "r");
  if (output == nullptr) throw std::runtime_error("popen");
  std::string text;
  for (int byte = std::fgetc(output); byte != EOF; byte = std::fgetc(output)) text += static_cast<char>(byte);
  return ::pclose(output) == 0 ? text : "Python failed: " + text;
}

}  // namespace ddp::testing
