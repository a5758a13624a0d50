#include "operator/api/manifest.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "operator/api/codec.h"
#include "operator/api/validate.h"
#include "operator/api/yaml_document.h"
#include "services/common/status_macros.h"

namespace sluice::api {
namespace {

// The kind of a document for a message; empty if it has none.
std::string KindOf(const YamlNode& root) {
  const YamlNode::Entry* kind = root.Find("kind");
  if (kind == nullptr || kind->value->kind != YamlNode::Kind::kString) return "";
  return kind->value->text.substr(0, 64);
}

// Finds documents other than one TrainingJob.
std::vector<Problem> CheckDocuments(const std::vector<const YamlNode*>& roots) {
  if (roots.empty()) return {{Place{}, "", "the manifest is empty; `sluice init` writes one"}};
  std::vector<Problem> problems;
  size_t jobs = 0;
  for (const YamlNode* root : roots) {
    const std::string kind = KindOf(*root);
    if (!kind.empty() && kind != kKind) {
      problems.push_back(
          {root->Find("kind")->key_place, "kind",
           absl::StrCat("must be TrainingJob, not ",
                        nlohmann::json(kind).dump(-1, ' ', false,
                                                  nlohmann::json::error_handler_t::replace))});
    } else if (++jobs > 1) {
      problems.push_back(
          {root->place, "", "a second TrainingJob begins here; put it in a separate file"});
    }
  }
  return problems;
}

absl::Status FileError(const std::string& path, const std::error_code& error) {
  const std::string message = absl::StrCat(path, ": ", error.message());
  if (error == std::errc::no_such_file_or_directory) return absl::NotFoundError(message);
  if (error == std::errc::permission_denied) return absl::PermissionDeniedError(message);
  return absl::FailedPreconditionError(message);
}

// The part of `object`, which was made from `node`, that the node contains.
nlohmann::json KeepWritten(const YamlNode& node, const nlohmann::json& object) {
  if (object.is_object() && node.kind == YamlNode::Kind::kMap) {
    nlohmann::json kept = nlohmann::json::object();
    for (const YamlNode::Entry& entry : node.entries) {
      const auto found = object.find(entry.key);
      if (found != object.end()) kept[entry.key] = KeepWritten(*entry.value, *found);
    }
    return kept;
  }
  if (object.is_array() && object.size() == node.items.size()) {
    nlohmann::json kept = nlohmann::json::array();
    for (size_t i = 0; i < object.size(); ++i) {
      kept.push_back(KeepWritten(*node.items[i], object[i]));
    }
    return kept;
  }
  return object;
}

nlohmann::json Written(const YamlNode& root, const nlohmann::json& object) {
  nlohmann::json written = KeepWritten(root, object);
  written.erase("status");
  const auto metadata = written.find("metadata");
  if (metadata == written.end()) return written;
  nlohmann::json own = nlohmann::json::object();
  for (const char* key : {"name", "namespace", "labels", "annotations"}) {
    if (metadata->contains(key)) own[key] = (*metadata)[key];
  }
  *metadata = std::move(own);
  return written;
}

absl::StatusOr<std::string> ReadBounded(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory, not a manifest"));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return FileError(path, std::error_code(errno, std::generic_category()));
  // One byte more than allowed shows that the file is too long.
  std::string text(kMaxManifestBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return FileError(path, std::make_error_code(std::errc::io_error));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace

ParsedManifest ParseManifest(absl::string_view text, const ManifestSource& source) {
  ParsedManifest result;
  if (text.size() > kMaxManifestBytes) {
    result.problems.push_back(
        {Place{}, "", absl::StrCat("a manifest has at most ", kMaxManifestBytes, " bytes")});
    return result;
  }
  const YamlDocument document = YamlDocument::Parse(text);
  result.problems = document.problems();
  if (result.problems.empty()) result.problems = CheckDocuments(document.roots());
  if (result.problems.empty()) {
    ValidatedObject validated = Validate(*document.roots()[0], source.base_directory);
    result.problems = std::move(validated.problems);
    if (result.problems.empty()) {
      result.job = FromJson(validated.object);
      result.written = Written(*document.roots()[0], validated.object);
    }
  }
  if (result.problems.size() > kMaxProblems) result.problems.resize(kMaxProblems);
  return result;
}

namespace {

absl::StatusOr<ParsedManifest> Read(const std::string& path, bool absolute_paths) {
  ASSIGN_OR_RETURN(std::string text, ReadBounded(path));
  ManifestSource source{path, ""};
  if (absolute_paths) {
    std::error_code error;
    source.base_directory = std::filesystem::absolute(path, error).parent_path().string();
    if (error) return FileError(path, error);
  }
  ParsedManifest parsed = ParseManifest(text, source);
  if (parsed.ok()) return parsed;
  const auto format = [&](std::string* out, const Problem& problem) {
    out->append(problem.ToString(path));
  };
  return absl::InvalidArgumentError(absl::StrJoin(parsed.problems, "\n", format));
}

}  // namespace

absl::StatusOr<TrainingJob> ReadManifest(const std::string& path) {
  ASSIGN_OR_RETURN(ParsedManifest parsed, Read(path, true));
  return std::move(parsed.job);
}

absl::StatusOr<TrainingJob> ReadManifest(const std::string& path,
                                         absl::Span<const Override> overrides) {
  ASSIGN_OR_RETURN(ParsedManifest parsed, Read(path, true));
  if (overrides.empty()) return std::move(parsed.job);
  nlohmann::json changed = std::move(parsed.written);
  for (const Override& override : overrides) {
    std::string pointer = absl::StrCat("/", override.field);
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    changed[nlohmann::json::json_pointer(pointer)] = override.value;
  }
  ParsedManifest again = ParseManifest(
      changed.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), {path, ""});
  if (again.ok()) return std::move(again.job);
  const std::string flags =
      absl::StrJoin(overrides, " ",
                    [](std::string* out, const Override& override) { out->append(override.flag); });
  const auto format = [&](std::string* out, const Problem& problem) {
    absl::StrAppend(out, path, ": ", problem.path, ": ", problem.message, " (with ", flags, ")");
  };
  return absl::InvalidArgumentError(absl::StrJoin(again.problems, "\n", format));
}

absl::StatusOr<ParsedManifest> ReadClusterManifest(const std::string& path) {
  return Read(path, false);
}

}  // namespace sluice::api
