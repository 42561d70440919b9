#pragma once
/// program.hpp: finds the program to run, as the shell would.

#include <string>

namespace ddp::start {

/// `name` itself where it holds a slash, else the first that can be run on `search_path` ("a:b:c").
/// Errors: ConfigError in one line: not there, a folder, or without run permission.
std::string find_program(const std::string& name, const std::string& search_path);

}  // namespace ddp::start
