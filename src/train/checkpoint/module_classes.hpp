#pragma once
/// module_classes.hpp: classes of TorchScript for the modules in a file, under names that Python reads as dicts.

#include <map>
#include <string>
#include <vector>

#include "train/checkpoint/pt_file.hpp"

namespace ddp::checkpoint {

/// A class has an attribute for each tensor and submodule; it may have more, which are None then. There are few names
/// for classes: the kinds of module that occur most have one each, the others share the last.
class ModuleClasses {
 public:
  explicit ModuleClasses(const ModuleTree& root);

  struct Class {
    const char* module = nullptr;  ///< Python's module of the name
    const char* name = nullptr;
    std::vector<std::string> attributes;
  };
  const Class& of(const ModuleTree& tree) const;
  /// False for a name with other characters than printable ASCII, quotes or backslashes.
  bool are_plain() const;

  /// Sources of the classes by the module that they are in.
  std::map<std::string, std::string> sources() const;

 private:
  using Kind = std::vector<std::string>;
  static Kind kind_of(const ModuleTree& tree);
  static void count(const ModuleTree& tree, std::map<Kind, std::size_t>& kinds);

  std::vector<Class> classes_;
  std::map<Kind, std::size_t> class_of_;
};

}  // namespace ddp::checkpoint
