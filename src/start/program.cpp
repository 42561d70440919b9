#include "start/program.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "ddp/error.hpp"

namespace ddp::start {
namespace {

enum class Kind { program, missing, folder, no_permission };

Kind kind_of(const std::string& path) {
  struct stat found{};
  if (::stat(path.c_str(), &found) != 0) return errno == EACCES ? Kind::no_permission : Kind::missing;
  if (S_ISDIR(found.st_mode)) return Kind::folder;
  return ::access(path.c_str(), X_OK) == 0 ? Kind::program : Kind::no_permission;
}

/// For a file that the system does not run.
std::string remedy_for(const std::string& path) {
  if (path.ends_with(".py")) return "ddprun starts programs and no Python by itself: python3 " + path;
  return "chmod +x " + path;
}

ConfigError wrong(const std::string& what, const std::string& remedy) { return {Origin{}, "ddprun", what, remedy}; }

std::string check(const std::string& path) {
  switch (kind_of(path)) {
    case Kind::program:
      return path;
    case Kind::missing:
      throw wrong("there is no file " + path, "check the path");
    case Kind::folder:
      throw wrong(path + " is a folder", "name a program");
    case Kind::no_permission:
      throw wrong(path + " has no run permission", remedy_for(path));
  }
  return path;
}

}  // namespace

std::string find_program(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) return check(name);
  if (name.empty()) throw wrong("the program's name is empty", "see ddprun --help");
  std::istringstream folders(search_path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (kind_of(path) == Kind::program) return path;
  }
  const auto here = kind_of("./" + name);
  throw wrong("no program " + name + " on the PATH", here == Kind::missing   ? "check the name"
                                                     : here == Kind::program ? "did you mean ./" + name + "?"
                                                                             : remedy_for(name));
}

}  // namespace ddp::start
