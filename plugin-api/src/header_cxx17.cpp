// plugin.hpp as C++17 reads it, with every kind of parameter instantiated.
#include "freeride/plugin.hpp"
#include "layout.h"

namespace {
class Everything : public freeride::SideTask {
  freeride::Param<bool> flag_{this, "flag", true, "a flag"};
  freeride::Param<int> small_{this, "small", -1, "an int", {-5, 5}};
  freeride::Param<std::uint64_t> large_{this, "large", 1, "an uint64"};
  freeride::Param<double> share_{this, "share", 0.85, "a double", {0, 1}};
  freeride::Param<std::string> word_{this, "word", "a", "a word", {"a", "b"}};
  freeride::Step RunNextStep() override { return flag_ ? freeride::Step::kMore : freeride::Step::kFinished; }
};
}  // namespace

extern "C" size_t freeride_test_plugin_bytes_cxx17() {
  static const auto* const table = freeride::PluginGlue::make_table<Everything>("Everything", {});
  return table->struct_size;
}
