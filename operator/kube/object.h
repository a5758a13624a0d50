// Addressing of API objects, and reading of their common fields.
#ifndef SLUICE_OPERATOR_KUBE_OBJECT_H_
#define SLUICE_OPERATOR_KUBE_OBJECT_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice::kube {

using Json = nlohmann::json;

// One kind of object as the API server addresses it. `group` is empty for the core group.
struct ResourceType {
  std::string group;
  std::string version;
  std::string resource;  // plural, as in the path: "pods"
  std::string kind;
  bool namespaced = true;

  // "v1", "apps/v1": what stands in an object's apiVersion.
  std::string ApiVersion() const;
  // "apps/v1/deployments": one string per type.
  std::string Name() const;
};

// Which object of a type; `ns` is empty for objects of the cluster.
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

// "/api/v1/namespaces/ns/pods/name/status": parts that are empty are left out. Names are
// percent-encoded, so that no name can change which object or subresource is meant.
std::string ResourcePath(const ResourceType& type, const ObjectKey& key,
                         absl::string_view subresource = "");

// These never fail: a field that is missing or of another type reads as empty (or 0, or false), for
// objects come from outside. `object` is not an object: all is empty.
//
// The value at a path of keys; null where there is none. Lives as long as `object`.
const Json* Find(const Json& object, std::initializer_list<absl::string_view> path);
std::string GetString(const Json& object, std::initializer_list<absl::string_view> path);
int64_t GetInt(const Json& object, std::initializer_list<absl::string_view> path);

ObjectKey KeyOf(const Json& object);
std::string UidOf(const Json& object);
std::string ResourceVersionOf(const Json& object);
std::map<std::string, std::string> LabelsOf(const Json& object);
bool IsBeingDeleted(const Json& object);
// The uid of the owner that is marked as controller; empty without one.
std::string ControllerUidOf(const Json& object);

// "2006-01-02T15:04:05Z" and "2006-01-02T15:04:05.000000Z": metav1.Time and metav1.MicroTime.
std::string EncodeTime(absl::Time time);
std::string EncodeMicroTime(absl::Time time);
// Either of them; infinite past when the text is not a time.
absl::Time DecodeTime(absl::string_view text);

// `text` with all but unreserved characters percent-encoded (RFC 3986), and back.
std::string PercentEncode(absl::string_view text);
std::string PercentDecode(absl::string_view text);

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_OBJECT_H_
