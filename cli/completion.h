// Shell completion of `sluice`, generated from the command tree, so that it has every command and
// flag.
#ifndef SLUICE_CLI_COMPLETION_H_
#define SLUICE_CLI_COMPLETION_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sluice::cli {

// The kinds of values of a flag or an argument.
enum class Value {
  kNone,    // a flag without a value
  kAny,     // nothing can be proposed: a number, a name
  kChoice,  // one of a few words
  kFile,
  kJob,        // a job of this directory's .sluice
  kJobOrFile,  // a job, or a checkpoint's directory
};

// A flag, as the shell proposes it.
struct FlagCompletion {
  std::vector<std::string> names;  // "-o", "--output"
  std::string description;         // one line
  Value value = Value::kNone;
  std::vector<std::string> choices;
};

// A command, as the shell proposes it.
struct CommandCompletion {
  std::string name;
  std::string description;  // one line
  std::vector<FlagCompletion> flags;
  Value argument = Value::kNone;
  std::vector<std::string> choices;  // of the argument
};

// The commands of `app`, in order.
std::vector<CommandCompletion> CommandsOf(const CLI::App& app);

// A script for the shell to load.
std::string BashCompletion(const std::vector<CommandCompletion>& commands);
std::string ZshCompletion(const std::vector<CommandCompletion>& commands);
std::string FishCompletion(const std::vector<CommandCompletion>& commands);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMPLETION_H_
