// Optimizers from shared libraries (include/sluice/optimizer_plugin.h), for the programs that open
// them. The shard's core gets them as a function and opens no file itself.
// The reasons for an interface in plain C are in docs/decisions/optimizer-plugins.md.
#ifndef SLUICE_SERVICES_PS_PLUGINS_PLUGINS_H_
#define SLUICE_SERVICES_PS_PLUGINS_PLUGINS_H_

#include "absl/strings/string_view.h"
#include "services/ps/optimizer/optimizer.h"

namespace sluice {

// The environment variable with the directories in which libraries are looked for first.
inline constexpr char kPluginPathVariable[] = "SLUICE_PLUGIN_PATH";

// Finds lib<library>.so in the directories of `path` (the variable's value: separated by colons;
// may be empty), then in /usr/local/lib/sluice and /usr/lib/sluice. A library is never closed.
// INVALID_ARGUMENT says what is wrong with the library or with its parameters. The library's code
// runs in this process, with its rights.
OptimizerLibraries LibrariesIn(absl::string_view path);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PS_PLUGINS_PLUGINS_H_
