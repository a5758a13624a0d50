#ifndef SLUICE_OPERATOR_KUBE_FAKE_TESTING_H_
#define SLUICE_OPERATOR_KUBE_FAKE_TESTING_H_

#include <string>

#include "operator/kube/fake/object_store.h"
#include "operator/kube/object.h"

namespace sluice::kube {

inline ResourceType ConfigMaps() { return {"", "v1", "configmaps", "ConfigMap", true}; }
inline ResourceType Pods() { return {"", "v1", "pods", "Pod", true}; }
inline ResourceType Leases() { return {"coordination.k8s.io", "v1", "leases", "Lease", true}; }
inline ResourceType EventType() { return {"events.k8s.io", "v1", "events", "Event", true}; }
// A custom resource with /status and /scale.
inline ResourceType Widgets() { return {"example.com", "v1", "widgets", "Widget", true}; }

// Registers all of them with the behaviour of the real types; `server` has RegisterType.
template <typename Server>
void RegisterTestTypes(Server* server) {
  FakeType pods{Pods(), true, "", "", true};
  FakeType widgets{Widgets(), true, "/spec/replicas", "/status/replicas", false};
  server->RegisterType(FakeType{ConfigMaps(), false, "", "", false});
  server->RegisterType(pods);
  server->RegisterType(FakeType{Leases(), false, "", "", false});
  server->RegisterType(FakeType{EventType(), false, "", "", false});
  server->RegisterType(widgets);
}

inline Json Named(const std::string& name) { return {{"metadata", {{"name", name}}}}; }

inline Json Labelled(const std::string& name, const std::string& label, const std::string& value) {
  return {{"metadata", {{"name", name}, {"labels", {{label, value}}}}}};
}

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_FAKE_TESTING_H_
