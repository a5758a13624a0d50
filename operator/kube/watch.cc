#include "operator/kube/watch.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "operator/kube/api_error.h"
#include "services/common/status_macros.h"
#include "services/common/text/json_text.h"
#include "services/common/text/utf8.h"

namespace sluice::kube {
namespace {

std::optional<WatchEvent::Type> TypeOf(absl::string_view name) {
  if (name == "ADDED") return WatchEvent::Type::kAdded;
  if (name == "MODIFIED") return WatchEvent::Type::kModified;
  if (name == "DELETED") return WatchEvent::Type::kDeleted;
  if (name == "BOOKMARK") return WatchEvent::Type::kBookmark;
  return std::nullopt;
}

}  // namespace

bool EndsInitialEvents(const WatchEvent& event) {
  return event.type == WatchEvent::Type::kBookmark &&
         GetString(event.object, {"metadata", "annotations", "k8s.io/initial-events-end"}) ==
             "true";
}

absl::Status WatchParser::Feed(absl::string_view bytes) {
  while (true) {
    const size_t end = bytes.find('\n');
    const size_t length = end == absl::string_view::npos ? bytes.size() : end;
    if (partial_.size() + length > max_line_) {
      return absl::DataLossError(absl::StrCat("a watch event of more than ", max_line_, " bytes"));
    }

    if (end == absl::string_view::npos) {
      absl::StrAppend(&partial_, bytes);
      return absl::OkStatus();
    }

    absl::Status status;
    if (partial_.empty()) {
      status = Line(bytes.substr(0, end));
    } else {
      absl::StrAppend(&partial_, bytes.substr(0, end));
      status = Line(partial_);
      partial_.clear();
    }

    RETURN_IF_ERROR(status);
    bytes.remove_prefix(end + 1);
  }
}

absl::Status WatchParser::Finish() const {
  if (absl::StripAsciiWhitespace(partial_).empty()) return absl::OkStatus();
  return absl::UnavailableError("the watch broke inside an event");
}

absl::Status WatchParser::Line(absl::string_view line) {
  line = absl::StripAsciiWhitespace(line);
  if (line.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckJsonText(line, kMaxObjectDepth),
                  absl::DataLossError(absl::StrCat("invalid watch event: ", _.message())));

  Json json = Json::parse(line.begin(), line.end(), nullptr, false);
  const Json* object = Find(json, {"object"});
  const std::string type_name = GetString(json, {"type"});
  if (object == nullptr || !object->is_object()) {
    return absl::DataLossError(absl::StrCat("not a watch event: ", TruncateUtf8(line, 128)));
  }

  if (type_name == "ERROR") {
    const int code = static_cast<int>(GetInt(*object, {"code"}));
    return ApiErrorFromResponse(code == 0 ? 500 : code,
                                object->dump(-1, ' ', true, Json::error_handler_t::replace), "")
        .ToStatus();
  }

  const std::optional<WatchEvent::Type> type = TypeOf(type_name);
  if (!type.has_value()) {
    return absl::DataLossError(absl::StrCat("a watch event of unknown type \"", type_name, "\""));
  }
  return sink_(WatchEvent{*type, std::move(json["object"])});
}

}  // namespace sluice::kube
