#include "operator/kube/object.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::kube {

std::string ResourceType::ApiVersion() const {
  return group.empty() ? version : absl::StrCat(group, "/", version);
}

std::string ResourceType::Name() const { return absl::StrCat(ApiVersion(), "/", resource); }

std::string ObjectKey::ToString() const { return ns.empty() ? name : absl::StrCat(ns, "/", name); }

std::string ResourcePath(const ResourceType& type, const ObjectKey& key,
                         absl::string_view subresource) {
  std::string path = absl::StrCat(type.group.empty() ? "/api/" : "/apis/", type.ApiVersion());
  if (type.namespaced && !key.ns.empty()) {
    absl::StrAppend(&path, "/namespaces/", PercentEncode(key.ns));
  }
  absl::StrAppend(&path, "/", type.resource);
  if (!key.name.empty()) absl::StrAppend(&path, "/", PercentEncode(key.name));
  if (!subresource.empty()) absl::StrAppend(&path, "/", subresource);
  return path;
}

const Json* Find(const Json& object, std::initializer_list<absl::string_view> path) {
  const Json* at = &object;
  for (absl::string_view key : path) {
    if (!at->is_object()) return nullptr;
    const auto found = at->find(std::string(key));
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at;
}

std::string GetString(const Json& object, std::initializer_list<absl::string_view> path) {
  const Json* value = Find(object, path);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

int64_t GetInt(const Json& object, std::initializer_list<absl::string_view> path) {
  const Json* value = Find(object, path);
  return value != nullptr && value->is_number_integer() ? value->get<int64_t>() : 0;
}

const Json& GetList(const Json& object, std::initializer_list<absl::string_view> path) {
  static const auto* const empty = new Json(Json::array());
  const Json* found = Find(object, path);
  return found != nullptr && found->is_array() ? *found : *empty;
}

const Json* FindItem(const Json& object, std::initializer_list<absl::string_view> path,
                     absl::string_view field, absl::string_view value) {
  for (const Json& item : GetList(object, path)) {
    if (GetString(item, {field}) == value) return &item;
  }
  return nullptr;
}

ObjectKey KeyOf(const Json& object) {
  return {GetString(object, {"metadata", "namespace"}), GetString(object, {"metadata", "name"})};
}

std::string UidOf(const Json& object) { return GetString(object, {"metadata", "uid"}); }

std::string ResourceVersionOf(const Json& object) {
  return GetString(object, {"metadata", "resourceVersion"});
}

bool IsBeingDeleted(const Json& object) {
  return !GetString(object, {"metadata", "deletionTimestamp"}).empty();
}

std::string ControllerUidOf(const Json& object) {
  for (const Json& owner : GetList(object, {"metadata", "ownerReferences"})) {
    const Json* controller = Find(owner, {"controller"});
    if (controller != nullptr && controller->is_boolean() && controller->get<bool>()) {
      return GetString(owner, {"uid"});
    }
  }
  return "";
}

std::string EncodeTime(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%SZ", time, absl::UTCTimeZone());
}

std::string EncodeMicroTime(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ", time, absl::UTCTimeZone());
}

absl::Time DecodeTime(absl::string_view text) {
  absl::Time time;
  std::string error;
  return absl::ParseTime(absl::RFC3339_full, text, &time, &error) ? time : absl::InfinitePast();
}

std::string PercentEncode(absl::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_' ||
        c == '~') {
      encoded += c;
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", static_cast<unsigned char>(c));
    }
  }

  // A path segment of only dots would be removed as a relative path.
  if (encoded == "." || encoded == "..") return encoded == "." ? "%2E" : "%2E%2E";
  return encoded;
}

std::string PercentDecode(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      decoded += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    } else {
      decoded += text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

}  // namespace sluice::kube
