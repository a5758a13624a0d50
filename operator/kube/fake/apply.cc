#include "operator/kube/fake/apply.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "operator/kube/api_error.h"

namespace sluice::kube {
namespace {

void Leaves(const Json& value, const Json::json_pointer& at,
            std::map<std::string, const Json*>* leaves) {
  if (!value.is_object() || value.empty()) {
    if (!at.empty()) (*leaves)[at.to_string()] = &value;
    return;
  }
  for (const auto& [key, child] : value.items()) Leaves(child, at / key, leaves);
}

// These fields identify the object; no manager owns them.
bool IsIdentity(const std::string& pointer) {
  return pointer == "/apiVersion" || pointer == "/kind" || pointer == "/metadata/name" ||
         pointer == "/metadata/namespace" || pointer == "/metadata/uid" ||
         pointer == "/metadata/resourceVersion";
}

bool OwnedByOther(const FieldOwners& owners, const std::string& manager, const std::string& pointer,
                  std::string* other) {
  for (const auto& [name, fields] : owners) {
    if (name == manager || fields.count(pointer) == 0) continue;
    *other = name;
    return true;
  }
  return false;
}

// Removes a leaf, and objects that become empty.
void RemoveLeaf(Json::json_pointer at, Json* object) {
  while (!at.empty()) {
    const std::string key = at.back();
    at.pop_back();
    if (!object->contains(at) || !(*object)[at].is_object()) return;
    (*object)[at].erase(key);
    if (!(*object)[at].empty()) return;
  }
}

}  // namespace

absl::Status Apply(const Json& applied, const std::string& manager, bool force, Json* object,
                   FieldOwners* owners) {
  std::map<std::string, const Json*> leaves;
  Leaves(applied, Json::json_pointer(), &leaves);
  Json result = *object;
  std::set<std::string> owned;
  for (const auto& [pointer, value] : leaves) {
    if (IsIdentity(pointer)) continue;
    const Json::json_pointer at(pointer);
    std::string other;
    const bool same = result.contains(at) && result[at] == *value;
    if (!same && !force && OwnedByOther(*owners, manager, pointer, &other)) {
      return ApiError{409, "Conflict", absl::StrCat("conflict with \"", other, "\": ", pointer), {}}
          .ToStatus();
    }
    result[at] = *value;
    owned.insert(pointer);
  }
  for (const std::string& pointer : (*owners)[manager]) {
    std::string other;
    if (owned.count(pointer) != 0 || OwnedByOther(*owners, manager, pointer, &other)) continue;
    RemoveLeaf(Json::json_pointer(pointer), &result);
  }
  if (force) {
    for (auto& [name, fields] : *owners) {
      if (name == manager) continue;
      for (const auto& [pointer, value] : leaves) {
        const Json::json_pointer at(pointer);
        if (!object->contains(at) || (*object)[at] != *value) fields.erase(pointer);
      }
    }
  }
  (*owners)[manager] = std::move(owned);
  *object = std::move(result);
  return absl::OkStatus();
}

}  // namespace sluice::kube
