// An API server in memory with many training jobs, for benchmarks and tests of the operator's
// program.
//
//   populated_api_server JOBS PODS [ADDRESS]
//
// JOBS jobs share PODS pods, which all have the address. It prints its URL when all objects exist,
// and ends when its standard input ends.
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "operator/kube/fake/fake_api_server.h"
#include "operator/kube/fake/http_front.h"
#include "operator/kube/fake/testing.h"
#include "operator/kube/http_client.h"
#include "operator/reconciler/names.h"
#include "operator/testing/fake_cluster.h"
#include "services/common/check.h"
#include "services/common/time/clock.h"

namespace sluice {
namespace {

using kube::FakeApiServer;
using kube::FakeType;
using kube::Json;

constexpr char kPrototype[] = "prototype";
// No process listens there: the operator must not contact other processes.
constexpr char kNoAddress[] = "127.0.0.1";
// A pod in a real cluster has 9 KB: defaults of the API server, volumes, tolerations, the status
// from its kubelet. Pods in the fake have 3 KB.
constexpr int kVariables = 60;

struct Kind {
  const kube::ResourceType* type;
  bool has_status;
};
std::vector<Kind> Kinds() {
  return {{&reconciler::Services(), false},        {&reconciler::ConfigMaps(), false},
          {&reconciler::Secrets(), false},         {&reconciler::DisruptionBudgets(), false},
          {&reconciler::NetworkPolicies(), false}, {&reconciler::Pods(), true}};
}

kube::HttpClient::Options ClientOptions() {
  kube::HttpClient::Options options;
  options.sleep = [](absl::Duration) {};
  return options;
}

// A training job with all the objects that it owns.
class Prototype {
 public:
  Prototype(int workers, const std::string& address) : admin_(&cluster_.server, ClientOptions()) {
    // The certificates are for the name of the prototype job. The copies do not use them, so the
    // operator does not issue new ones; the caches still hold them.
    const Json spec = {{"worker", {{"replicas", workers}}}, {"tls", "Enabled"}};
    SLUICE_CHECK(cluster_.Train(kPrototype, {{"spec", spec}}), "the prototype does not train");
    cluster_.PatchJob(kPrototype, {{"spec", {{"tls", "Disabled"}}}});
    SLUICE_CHECK(cluster_.Settle(), "the prototype does not rest");
    job_ = cluster_.GetJob(kPrototype);
    for (const Kind& kind : Kinds()) {
      kube::ListOptions list;
      list.ns = "ns";
      auto page = admin_.List(*kind.type, list);
      SLUICE_CHECK(page.ok(), page.status().ToString().c_str());
      for (Json& object : page->items) {
        if (kind.type == &reconciler::Pods()) {
          Enlarge(&object);
          object["status"]["podIP"] = address;
        }
        owned_.emplace_back(kind, object.dump());
      }
    }
  }

  void CopyTo(kube::Client* admin, const std::string& name) const {
    Json job = Json::parse(Renamed(job_.dump(), name));
    Forget(&job);
    auto made = admin->Create(reconciler::TrainingJobs(), "ns", job, {});
    SLUICE_CHECK(made.ok(), made.status().ToString().c_str());
    SetStatus(admin, reconciler::TrainingJobs(), name, job["status"]);
    for (const auto& [kind, text] : owned_) {
      Json object = Json::parse(
          absl::StrReplaceAll(Renamed(text, name), {{kube::UidOf(job_), kube::UidOf(*made)}}));
      Forget(&object);
      const auto copy = admin->Create(*kind.type, "ns", object, {});
      SLUICE_CHECK(copy.ok(), copy.status().ToString().c_str());
      if (kind.has_status) {
        SetStatus(admin, *kind.type, kube::KeyOf(object).name, object["status"]);
      }
    }
  }

 private:
  static void Enlarge(Json* pod) {
    Json& variables = (*pod)["spec"]["containers"][0]["env"];
    for (int i = 0; i < kVariables; ++i) {
      variables.push_back({{"name", absl::StrFormat("SOME_VARIABLE_OF_THE_TEMPLATE_%02d", i)},
                           {"value", "a value of about this length"}});
    }
  }
  static void Forget(Json* object) {
    for (const char* field : {"uid", "resourceVersion", "generation", "creationTimestamp"}) {
      (*object)["metadata"].erase(field);
    }
  }
  static std::string Renamed(const std::string& text, const std::string& name) {
    return absl::StrReplaceAll(text, {{kPrototype, name}});
  }
  static void SetStatus(kube::Client* admin, const kube::ResourceType& type,
                        const std::string& name, const Json& status) {
    kube::WriteOptions options;
    options.subresource = kube::Subresource::kStatus;
    const auto made =
        admin->Patch(type, {"ns", name}, kube::PatchKind::kMerge, {{"status", status}}, options);
    SLUICE_CHECK(made.ok(), made.status().ToString().c_str());
  }

  FakeCluster cluster_;
  kube::HttpClient admin_;
  Json job_;
  std::vector<std::pair<Kind, std::string>> owned_;
};

int Serve(int jobs, int pods, const std::string& address) {
  const RealClock clock;
  FakeApiServer::Options options;
  options.end_watches_when_drained = false;
  FakeApiServer server(&clock, options);
  server.RegisterType(FakeType{reconciler::TrainingJobs(), true, "/spec/worker/replicas",
                               "/status/worker/replicas", false});
  for (const Kind& kind : Kinds()) {
    server.RegisterType(FakeType{*kind.type, kind.has_status, "", "", kind.has_status});
  }
  server.RegisterType(FakeType{kube::Leases(), false, "", "", false});
  server.RegisterType(FakeType{kube::EventType(), false, "", "", false});
  {
    kube::HttpClient admin(&server, ClientOptions());
    const Prototype prototype(pods / jobs - 2,
                              address);  // in addition to a coordinator and a shard
    for (int i = 0; i < jobs; ++i) prototype.CopyTo(&admin, absl::StrFormat("job-%05d", i));
  }
  kube::HttpFront::Options front_options;
  front_options.threads = 64;  // two operators, with seven watches each
  const auto front = kube::HttpFront::Start(&server, front_options);
  SLUICE_CHECK(front.ok(), front.status().ToString().c_str());
  std::cout << (*front)->url() << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  int jobs = 0, pods = 0;
  if (argc < 3 || argc > 4 || !absl::SimpleAtoi(argv[1], &jobs) ||
      !absl::SimpleAtoi(argv[2], &pods) || jobs < 1 || pods < 3 * jobs) {
    std::cerr << "usage: populated_api_server JOBS PODS [ADDRESS], at least three pods a job\n";
    return EXIT_FAILURE;
  }
  return sluice::Serve(jobs, pods, argc == 4 ? argv[3] : sluice::kNoAddress);
}
