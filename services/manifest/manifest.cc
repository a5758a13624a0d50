#include "services/manifest/manifest.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "services/common/status_macros.h"
#include "services/manifest/codec.h"
#include "services/manifest/validate.h"
#include "services/manifest/yaml_document.h"

namespace sluice::api {
namespace {

// The kind of a document for a message; empty if it has none.
std::string KindOf(const nlohmann::json& root) {
  const auto kind = root.find("kind");
  if (kind == root.end() || !kind->is_string()) return "";
  return kind->get_ref<const std::string&>().substr(0, 64);
}

bool IsOfSluice(const nlohmann::json& root) {
  const auto version = root.find("apiVersion");
  return version == root.end() || !version->is_string() ||
         absl::StartsWith(version->get_ref<const std::string&>(), "sluice.dev/");
}

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

struct Documents {
  YamlValue* job = nullptr;
  std::vector<OtherObject> others;
  std::vector<Problem> problems;
};

// Finds the TrainingJob. A file for kubectl may have objects of other kinds beside it.
Documents SortDocuments(YamlDocument* document) {
  Documents documents;
  std::vector<Problem> others;  // what is wrong if there is no job
  for (YamlValue& root : document->roots) {
    const Place place = root.token.place;
    const std::string kind = KindOf(root.json);
    if (kind.empty() || kind == kKind) {
      if (documents.job != nullptr) {
        documents.problems.push_back(
            {place, "", "a second TrainingJob begins here; put it in a separate file"});
      }
      documents.job = &root;
      continue;
    }
    Problem problem = {document->tokens.Find(root.token, "kind").name, "kind",
                       absl::StrCat("must be TrainingJob, not ", Quoted(kind))};
    if (IsOfSluice(root.json)) {
      documents.problems.push_back(std::move(problem));
    } else {
      others.push_back(std::move(problem));
      documents.others.push_back({place, kind});
    }
  }
  if (document->roots.empty()) {
    documents.problems = {{Place{}, "", "the manifest is empty; `sluice init` writes one"}};
  } else if (documents.job == nullptr && documents.problems.empty()) {
    documents.problems = std::move(others);
  }
  return documents;
}

absl::Status FileError(const std::string& path, const std::error_code& error) {
  const std::string message = absl::StrCat(path, ": ", error.message());
  if (error == std::errc::no_such_file_or_directory) return absl::NotFoundError(message);
  if (error == std::errc::permission_denied) return absl::PermissionDeniedError(message);
  return absl::FailedPreconditionError(message);
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

// Checks a valid job again, with the values of the flags.
ValidatedObject ValidateWith(absl::Span<const Override> overrides, nlohmann::json written) {
  for (const Override& override : overrides) {
    const std::string pointer = absl::StrReplaceAll(override.field, {{".", "/"}});
    written[nlohmann::json::json_pointer("/" + pointer)] = override.value;
  }
  ValidatedObject validated = Validate({std::move(written), {}}, {}, "");

  const std::string flags =
      absl::StrJoin(overrides, " ",
                    [](std::string* out, const Override& override) { out->append(override.flag); });
  for (Problem& problem : validated.problems) {
    absl::StrAppend(&problem.message, " (with ", flags, ")");
  }
  return validated;
}

}  // namespace

ParsedManifest ParseManifest(absl::string_view text, const std::string& base_directory,
                             absl::Span<const Override> overrides) {
  ParsedManifest result;
  if (text.size() > kMaxManifestBytes) {
    result.problems.push_back(
        {Place{}, "", absl::StrCat("a manifest has at most ", kMaxManifestBytes, " bytes")});
    return result;
  }
  YamlDocument document = YamlDocument::Parse(text);
  result.problems = std::move(document.problems);
  if (result.problems.empty()) {
    Documents documents = SortDocuments(&document);
    result.problems = std::move(documents.problems);
    result.others = std::move(documents.others);
    if (result.problems.empty()) {
      ValidatedObject validated =
          Validate(std::move(*documents.job), document.tokens, base_directory);
      if (validated.problems.empty() && !overrides.empty()) {
        validated = ValidateWith(overrides, std::move(validated.written));
      }
      result.problems = std::move(validated.problems);
      if (result.problems.empty()) {
        result.written = std::move(validated.written);
        result.job = FromJson(std::move(validated.object));
      }
    }
  }
  if (result.problems.size() > kMaxProblems) result.problems.resize(kMaxProblems);
  return result;
}

namespace {

absl::StatusOr<ParsedManifest> Read(const std::string& path, bool absolute_paths,
                                    absl::Span<const Override> overrides) {
  ASSIGN_OR_RETURN(std::string text, ReadBounded(path));
  std::string base_directory;
  if (absolute_paths) {
    std::error_code error;
    base_directory = std::filesystem::absolute(path, error).parent_path().string();
    if (error) return FileError(path, error);
  }
  ParsedManifest parsed = ParseManifest(text, base_directory, overrides);
  if (parsed.ok() && !absolute_paths) {
    for (const OtherObject& other : parsed.others) {
      parsed.problems.push_back(
          {other.place, "",
           absl::StrCat("sluice applies only the TrainingJob, and a ", other.kind,
                        " begins here; put it in a separate file, and apply that with kubectl")});
    }
  }
  if (parsed.ok()) return parsed;
  const auto format = [&](std::string* out, const Problem& problem) {
    out->append(problem.ToString(path));
  };
  return absl::InvalidArgumentError(absl::StrJoin(parsed.problems, "\n", format));
}

}  // namespace

absl::StatusOr<TrainingJob> ReadManifest(const std::string& path,
                                         absl::Span<const Override> overrides) {
  ASSIGN_OR_RETURN(ParsedManifest parsed, Read(path, /*absolute_paths=*/true, overrides));
  return std::move(parsed.job);
}

absl::StatusOr<ParsedManifest> ReadClusterManifest(const std::string& path) {
  return Read(path, /*absolute_paths=*/false, {});
}

}  // namespace sluice::api
