// Addresses of API objects, and access to their common fields.
#ifndef SLUICE_OPERATOR_KUBE_OBJECT_H_
#define SLUICE_OPERATOR_KUBE_OBJECT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice::kube {

using Json = nlohmann::json;

// A type of object as the API server addresses it. `group` is empty for the core group.
struct ResourceType {
  std::string group;
  std::string version;
  std::string resource;  // plural, as in the path: "pods"
  std::string kind;
  bool namespaced = true;

  // "v1", "apps/v1": the apiVersion of the objects.
  std::string ApiVersion() const;
  // "apps/v1/deployments": a unique string for each type.
  std::string Name() const;
};

// Identifies an object of a type; `ns` is empty for cluster-scoped objects.
struct ObjectKey {
  std::string ns;
  std::string name;

  // "ns/name", or "name".
  std::string ToString() const;
  friend bool operator==(const ObjectKey& a, const ObjectKey& b) {
    return a.ns == b.ns && a.name == b.name;
  }
  friend bool operator!=(const ObjectKey& a, const ObjectKey& b) { return !(a == b); }
  friend bool operator<(const ObjectKey& a, const ObjectKey& b) {
    return a.ns != b.ns ? a.ns < b.ns : a.name < b.name;
  }
  template <typename H>
  friend H AbslHashValue(H h, const ObjectKey& key) {
    return H::combine(std::move(h), key.ns, key.name);
  }
};

// "/api/v1/namespaces/ns/pods/name/status": empty parts are left out. Names are percent-encoded, so
// no name can change which object or subresource is meant.
std::string ResourcePath(const ResourceType& type, const ObjectKey& key,
                         absl::string_view subresource = "");

// These never fail, because objects come from outside: a field that is missing or of another type
// reads as empty (or 0, or false). If `object` is not an object, everything is empty.
//
// The value at a path of keys; null if there is none. Valid as long as `object`.
const Json* Find(const Json& object, std::initializer_list<absl::string_view> path);
std::string GetString(const Json& object, std::initializer_list<absl::string_view> path);
int64_t GetInt(const Json& object, std::initializer_list<absl::string_view> path);
// The list at the path; an empty one if there is none.
const Json& GetList(const Json& object, std::initializer_list<absl::string_view> path);
// The first item of that list whose `field` is `value`; null if there is none.
const Json* FindItem(const Json& object, std::initializer_list<absl::string_view> path,
                     absl::string_view field, absl::string_view value);

// ---- fields that every object has
ObjectKey KeyOf(const Json& object);
std::string UidOf(const Json& object);
std::string ResourceVersionOf(const Json& object);
bool IsBeingDeleted(const Json& object);
// The uid of the owner that is marked as controller; empty if there is none.
std::string ControllerUidOf(const Json& object);

// "2006-01-02T15:04:05Z" and "2006-01-02T15:04:05.000000Z": metav1.Time and metav1.MicroTime.
std::string EncodeTime(absl::Time time);
std::string EncodeMicroTime(absl::Time time);
// Parses either format; infinite past if the text is not a time.
absl::Time DecodeTime(absl::string_view text);

// Percent-encodes all but unreserved characters (RFC 3986), and decodes.
std::string PercentEncode(absl::string_view text);
std::string PercentDecode(absl::string_view text);

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_OBJECT_H_
