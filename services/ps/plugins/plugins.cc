#include "services/ps/plugins/plugins.h"

#include <dlfcn.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "include/sluice/optimizer_plugin.h"
#include "proto/job.pb.h"
#include "services/common/status_macros.h"
#include "services/ps/optimizer/optimizer.h"

namespace sluice {
namespace {

constexpr const char* kDirectories[] = {"/usr/local/lib/sluice", "/usr/lib/sluice"};
constexpr size_t kMaxSlotName = 64;

static_assert(SLUICE_OPTIMIZER_MAX_SLOTS == kMaxSlots,
              "the plugin header promises the same number");

class PluginOptimizer final : public Optimizer {
 public:
  PluginOptimizer(const SluiceOptimizerPlugin* plugin, void* optimizer, std::vector<SlotSpec> slots)
      : plugin_(plugin), optimizer_(optimizer), slots_(std::move(slots)) {}
  ~PluginOptimizer() override { plugin_->destroy(optimizer_); }

  absl::Span<const SlotSpec> slots() const override { return slots_; }

 protected:
  void DoStep(const StepArguments& arguments, const StepRange<float>& range) const override {
    const SluiceOptimizerArguments given = ArgumentsOf(arguments);
    const SluiceOptimizerRangeF32 raw = RawOf<SluiceOptimizerRangeF32>(range);
    plugin_->step_f32(optimizer_, &given, &raw);
  }
  void DoStep(const StepArguments& arguments, const StepRange<double>& range) const override {
    const SluiceOptimizerArguments given = ArgumentsOf(arguments);
    const SluiceOptimizerRangeF64 raw = RawOf<SluiceOptimizerRangeF64>(range);
    plugin_->step_f64(optimizer_, &given, &raw);
  }

 private:
  static SluiceOptimizerArguments ArgumentsOf(const StepArguments& arguments) {
    return {arguments.learning_rate, arguments.count, arguments.gradient_scale};
  }

  template <typename Raw, typename T>
  static Raw RawOf(const StepRange<T>& range) {
    Raw raw = {};
    raw.count = range.parameters.size();
    raw.parameters = range.parameters.data();
    raw.gradient = range.gradient.data();
    raw.parameters_out = range.parameters_out.data();
    for (size_t i = 0; i < kMaxSlots; ++i) {
      raw.slots[i] = range.slots[i].data();
      raw.slots_out[i] = range.slots_out[i].data();
    }
    return raw;
  }

  const SluiceOptimizerPlugin* const plugin_;
  void* const optimizer_;
  const std::vector<SlotSpec> slots_;
};

absl::Status Refusal(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("optimizer.library: ", what));
}

absl::StatusOr<std::string> Find(const std::string& name,
                                 const std::vector<std::string>& directories) {
  if (name.empty() || absl::StrContains(name, '/')) {
    return Refusal(absl::StrCat("`", name, "` is not the name of a library"));
  }
  for (const std::string& directory : directories) {
    std::string path = absl::StrCat(directory, "/lib", name, ".so");
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path;
  }
  return Refusal(absl::StrCat("there is no lib", name, ".so in ", absl::StrJoin(directories, ", "),
                              "; put it there, or name its directory in ", kPluginPathVariable));
}

absl::StatusOr<const SluiceOptimizerPlugin*> Load(const std::string& path) {
  // Never closed: it contains the slots' names, and code that other threads may still run.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Refusal(absl::StrCat("cannot be loaded: ", dlerror()));

  const auto* const plugin =
      static_cast<const SluiceOptimizerPlugin*>(dlsym(library, SLUICE_OPTIMIZER_SYMBOL));
  if (plugin == nullptr) {
    return Refusal(absl::StrCat(path, " exports no `", SLUICE_OPTIMIZER_SYMBOL,
                                "`: it is not a Sluice optimizer"));
  }

  if (plugin->abi != SLUICE_OPTIMIZER_ABI) {
    return Refusal(absl::StrCat(path, " was built against version ", plugin->abi,
                                " of sluice/optimizer_plugin.h, these shards have version ",
                                SLUICE_OPTIMIZER_ABI, "; rebuild it"));
  }
  return plugin;
}

absl::StatusOr<std::vector<SlotSpec>> SlotsOf(const SluiceOptimizerPlugin& plugin,
                                              const void* optimizer, const std::string& path) {
  SluiceOptimizerSlot raw[SLUICE_OPTIMIZER_MAX_SLOTS] = {};
  const size_t count = plugin.slots(optimizer, raw);
  if (count > kMaxSlots) {
    return Refusal(absl::StrCat(path, " has ", count, " slots, the limit is ", kMaxSlots));
  }

  std::vector<SlotSpec> slots;
  std::set<absl::string_view> names;
  for (size_t i = 0; i < count; ++i) {
    const absl::string_view name = raw[i].name == nullptr ? "" : raw[i].name;
    if (name.empty() || name.size() > kMaxSlotName || absl::StrContains(name, '/') ||
        !names.insert(name).second) {
      return Refusal(absl::StrCat(path, ": slot ", i, " has the name `", name,
                                  "`: names must be different, of 1 to ", kMaxSlotName,
                                  " characters, without `/`"));
    }
    slots.push_back({name, raw[i].initial_value});
  }
  return slots;
}

absl::StatusOr<std::unique_ptr<Optimizer>> Open(const v1::OptimizerSpec& spec,
                                                const std::vector<std::string>& directories) {
  ASSIGN_OR_RETURN(std::string path, Find(spec.library(), directories));
  ASSIGN_OR_RETURN(const SluiceOptimizerPlugin* plugin, Load(path));

  std::vector<const char*> names;
  std::vector<double> values;
  for (const auto& [name, value] : spec.parameters()) {
    names.push_back(name.c_str());
    values.push_back(value);
  }

  char error[512] = "";
  void* const optimizer =
      plugin->create(names.data(), values.data(), names.size(), error, sizeof(error));
  if (optimizer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.parameters: ", spec.library(), ": ", error));
  }

  absl::StatusOr<std::vector<SlotSpec>> slots = SlotsOf(*plugin, optimizer, path);
  if (!slots.ok()) {
    plugin->destroy(optimizer);
    return slots.status();
  }
  return std::make_unique<PluginOptimizer>(plugin, optimizer, *std::move(slots));
}

}  // namespace

OptimizerLibraries LibrariesIn(absl::string_view path) {
  std::vector<std::string> directories = absl::StrSplit(path, ':', absl::SkipEmpty());
  for (const char* directory : kDirectories) directories.emplace_back(directory);
  return [directories](const v1::OptimizerSpec& spec) { return Open(spec, directories); };
}

}  // namespace sluice
