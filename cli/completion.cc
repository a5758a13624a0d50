#include "cli/completion.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace sluice::cli {
namespace {

// How bash and zsh find the names of jobs.
constexpr char kJobs[] = "$(command ls .sluice 2>/dev/null)";

std::string FirstLine(const std::string& text) {
  return std::string(absl::string_view(text).substr(0, text.find('\n')));
}

// "TEXT:{a,b}" of CLI11's IsMember.
std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{');
  const size_t end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return absl::StrSplit(type.substr(begin + 1, end - begin - 1), ',');
}

Value ValueOf(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return Value::kNone;

  if (!ChoicesOf(option).empty()) return Value::kChoice;
  if (option.get_positional()) {
    const std::string name = option.get_name(/*positional=*/true);
    if (absl::StrContains(name, "NAME")) return Value::kJob;
    if (absl::StrContains(name, "TARGET") || absl::StrContains(name, "SOURCE")) {
      return Value::kJobOrFile;
    }
    return absl::StrContains(name, "FILE") ? Value::kFile : Value::kAny;
  }

  // Names in a cluster are not completed.
  if (option.check_lname("namespace") || option.check_lname("context")) return Value::kAny;
  // Numbers have their own type; a text is usually a path.
  return absl::StartsWith(option.get_type_name(), "TEXT") ? Value::kFile : Value::kAny;
}

FlagCompletion FlagOf(const CLI::Option& option) {
  FlagCompletion flag;
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  flag.description = FirstLine(option.get_description());
  flag.value = ValueOf(option);
  flag.choices = ChoicesOf(option);
  return flag;
}

std::string Words(const std::vector<CommandCompletion>& commands) {
  return absl::StrJoin(commands, " ", [](std::string* out, const CommandCompletion& command) {
    absl::StrAppend(out, command.name);
  });
}

std::string SingleQuoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// ---- bash

// Shell statements that propose the possible values; empty: none.
std::string BashProposal(Value value, const std::vector<std::string>& choices) {
  const auto words = [](const std::string& list, const char* more) {
    return absl::StrCat("mapfile -t COMPREPLY < <(compgen ", more, "-W \"", list,
                        "\" -- \"$current\")");
  };

  switch (value) {
    case Value::kChoice:
      return words(absl::StrJoin(choices, " "), "");
    case Value::kFile:
      return "mapfile -t COMPREPLY < <(compgen -f -- \"$current\")";
    case Value::kJob:
      return words(kJobs, "");
    case Value::kJobOrFile:
      return words(kJobs, "-f ");
    default:
      return ":";
  }
}

std::string BashFlags(const CommandCompletion& command) {
  std::string text;
  for (const FlagCompletion& flag : command.flags) {
    if (flag.value == Value::kNone) continue;
    absl::StrAppend(&text, "        ", absl::StrJoin(flag.names, "|"), ") ",
                    BashProposal(flag.value, flag.choices), "; return ;;\n");
  }
  if (text.empty()) return text;
  return absl::StrCat("      case \"$previous\" in\n", text, "      esac\n");
}

std::string BashCommand(const CommandCompletion& command) {
  std::vector<std::string> names;
  for (const FlagCompletion& flag : command.flags) {
    names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  return absl::StrCat("    ", command.name, ")\n", BashFlags(command),
                      "      if [[ $current == -* ]]; then\n        ",
                      BashProposal(Value::kChoice, names), "\n      else\n        ",
                      BashProposal(command.argument, command.choices), "\n      fi ;;\n");
}

// ---- zsh

std::string ZshText(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}, {"\"", "\\\""}});
}

std::string ZshValue(Value value, const std::vector<std::string>& choices) {
  switch (value) {
    case Value::kNone:
      return "";
    case Value::kAny:
      return ":value: ";
    case Value::kChoice:
      return absl::StrCat(":value:(", absl::StrJoin(choices, " "), ")");
    case Value::kFile:
      return ":file:_files";
    case Value::kJob:
      return ":job:_sluice_jobs";
    case Value::kJobOrFile:
      return ":job or directory:_sluice_jobs_or_files";
  }
  return "";
}

std::string ZshCommand(const CommandCompletion& command) {
  std::string text = absl::StrCat("    ", command.name, ") _arguments");
  for (const FlagCompletion& flag : command.flags) {
    for (const std::string& name : flag.names) {
      absl::StrAppend(&text, " \\\n      '", name, "[", ZshText(flag.description), "]",
                      ZshValue(flag.value, flag.choices), "'");
    }
  }

  if (command.argument != Value::kNone) {
    absl::StrAppend(&text, " \\\n      '*", ZshValue(command.argument, command.choices), "'");
  }
  return absl::StrCat(text, " ;;\n");
}

// ---- fish

std::string FishValue(Value value, const std::vector<std::string>& choices) {
  switch (value) {
    case Value::kChoice:
      return absl::StrCat(" -a ", SingleQuoted(absl::StrJoin(choices, " ")));
    case Value::kFile:
      return " -F";
    case Value::kJob:
      return " -a '(command ls .sluice 2>/dev/null)'";
    case Value::kJobOrFile:
      return " -F -a '(command ls .sluice 2>/dev/null)'";
    default:
      return "";
  }
}

std::string FishFlag(const std::string& condition, const FlagCompletion& flag) {
  std::string text = absl::StrCat("complete -c sluice", condition);
  for (const std::string& name : flag.names) {
    const bool is_long = absl::StartsWith(name, "--");
    absl::StrAppend(&text, is_long ? " -l " : " -s ", name.substr(is_long ? 2 : 1));
  }

  if (flag.value == Value::kFile) {
    absl::StrAppend(&text, " -r -F");
  } else if (flag.value != Value::kNone) {
    absl::StrAppend(&text, " -x", FishValue(flag.value, flag.choices));
  }
  return absl::StrCat(text, " -d ", SingleQuoted(flag.description), "\n");
}

}  // namespace

std::vector<CommandCompletion> CommandsOf(const CLI::App& app) {
  std::vector<CommandCompletion> commands;
  for (const CLI::App* subcommand : app.get_subcommands({})) {
    CommandCompletion& command = commands.emplace_back();
    command.name = subcommand->get_name();
    command.description = FirstLine(subcommand->get_description());

    for (const CLI::Option* option : subcommand->get_options()) {
      if (option->get_positional()) {
        if (command.argument != Value::kNone) continue;  // only the first argument counts
        command.argument = ValueOf(*option);
        command.choices = ChoicesOf(*option);
      } else {
        command.flags.push_back(FlagOf(*option));
      }
    }
  }
  return commands;
}

std::string BashCompletion(const std::vector<CommandCompletion>& commands) {
  std::string text = R"(# Completion of sluice for bash: source <(sluice completion bash)
# shellcheck shell=bash disable=SC2016
_sluice() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command='' i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ ${COMP_WORDS[i]} != -* ]]; then
      command=${COMP_WORDS[i]}
      break
    fi
  done
  case "$command" in
)";

  absl::StrAppend(&text, "    '') ",
                  BashProposal(Value::kChoice, {Words(commands), "--help", "--version"}), " ;;\n");
  for (const CommandCompletion& command : commands) absl::StrAppend(&text, BashCommand(command));
  return absl::StrCat(text, "  esac\n}\ncomplete -o filenames -F _sluice sluice\n");
}

std::string ZshCompletion(const std::vector<CommandCompletion>& commands) {
  std::string text = R"sh(#compdef sluice
# Completion of sluice for zsh: source <(sluice completion zsh), or as _sluice in a directory of $fpath
_sluice_jobs() {
  local -a jobs
  jobs=(${(f)"$(command ls .sluice 2>/dev/null)"})
  compadd -a jobs
}
_sluice_jobs_or_files() {
  _sluice_jobs
  _files
}
_sluice() {
  local -a commands
  commands=(
)sh";

  for (const CommandCompletion& command : commands) {
    absl::StrAppend(&text, "    '", command.name, ":", ZshText(command.description), "'\n");
  }

  absl::StrAppend(&text, R"sh(  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  ((CURRENT--))
  case $command in
)sh");

  for (const CommandCompletion& command : commands) absl::StrAppend(&text, ZshCommand(command));
  return absl::StrCat(text, R"sh(  esac
}
if [[ $funcstack[1] == _sluice ]]; then
  _sluice "$@"
else
  compdef _sluice sluice
fi
)sh");
}

std::string FishCompletion(const std::vector<CommandCompletion>& commands) {
  std::string text =
      "# Completion of sluice for fish: sluice completion fish | source\ncomplete -c sluice -f\n";

  for (const CommandCompletion& command : commands) {
    absl::StrAppend(&text, "complete -c sluice -n __fish_use_subcommand -a ", command.name, " -d ",
                    SingleQuoted(command.description), "\n");
  }

  for (const CommandCompletion& command : commands) {
    const std::string condition =
        absl::StrCat(" -n '__fish_seen_subcommand_from ", command.name, "'");
    for (const FlagCompletion& flag : command.flags) {
      absl::StrAppend(&text, FishFlag(condition, flag));
    }

    if (const std::string value = FishValue(command.argument, command.choices); !value.empty()) {
      absl::StrAppend(&text, "complete -c sluice", condition, value, "\n");
    }
  }
  return text;
}

}  // namespace sluice::cli
