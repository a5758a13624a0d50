#include "operator/reconciler/objects.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "operator/policy/process_arguments.h"
#include "operator/reconciler/job_tls.h"
#include "operator/reconciler/names.h"
#include "operator/reconciler/owned.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/io/page_server.h"
#include "services/common/text/web_address.h"
#include "services/manifest/job_file.h"
#include "services/protocol/job_name.h"
#include "services/protocol/kernels.h"

namespace sluice::reconciler {
namespace {

using kube::Json;

// ---- the container

constexpr char kCacheVariable[] = "SLUICE_CACHE";
constexpr char kCacheDirectory[] = "/tmp/sluice-cache";

// CPUs of the template's container, rounded up; 0 if it sets none.
int Cpus(const Json& container) {
  for (const char* kind : {"limits", "requests"}) {
    const Json* value = kube::Find(container, {"resources", kind, "cpu"});
    if (value == nullptr) continue;

    double cpus = 0;
    if (value->is_number()) {
      cpus = value->get<double>();
    } else if (value->is_string()) {
      const std::string text = value->get<std::string>();
      cpus = std::strtod(text.c_str(), nullptr) * (absl::EndsWith(text, "m") ? 1e-3 : 1);
    }

    if (cpus > 0 && cpus < 1024) return std::max(1, static_cast<int>(cpus + 0.999));
  }
  return 0;
}

// After SIGTERM, a process has this long to end its step or hand it over, and to save a checkpoint
// (the coordinator) or have it saved (a shard).
int GraceSeconds(const ObservedJob& job, v1::Role role) {
  if (role == v1::WORKER) return 15;
  const double checkpoint = job.job.spec.timeouts().suspend_checkpoint();
  return 10 + static_cast<int>(std::clamp(checkpoint, 1.0, 3600.0));
}

int WorkerThreads(const ObservedJob& job, const Json& container) {
  const int fixed = FixedThreads(job.job.spec.training());
  return fixed != 0 ? fixed : Cpus(container);
}

Json Arguments(const ObservedJob& job, const PodDefaults& defaults, const policy::Replica& replica,
               const Json& container) {
  policy::ProcessArguments process;
  process.job_file = absl::StrCat(kConfigDirectory, "/", kJobFile);
  process.storage = job.job.spec.checkpoint().directory();
  process.job = FullJobName(job.key.ns, job.key.name, job.uid);
  process.coordinator = CoordinatorAddress(job.key);
  process.threads = WorkerThreads(job, container);

  if (replica.role == v1::COORDINATOR) {
    process.listen = absl::StrCat("0.0.0.0:", kCoordinatorPort);
  } else if (replica.role == v1::SHARD) {
    process.listen = absl::StrCat("0.0.0.0:", kShardPort);
    process.advertise = "$(POD_IP)";
    process.threads = std::max(1, Cpus(container));
  }

  Json arguments = policy::ArgumentsOf(replica, process);
  const auto add = [&](const char* flag, const std::string& value) {
    arguments.push_back(absl::StrCat(flag, "=", value));
  };

  if (replica.role == v1::COORDINATOR) {
    add("--termination-file", "/dev/termination-log");
  } else {
    add("--grace", absl::StrCat(GraceSeconds(job, replica.role) - 5));
  }
  if (job.tls) {
    add("--tls-directory", kTlsDirectory);
  } else {
    arguments.push_back("--insecure");
  }

  add("--metrics-address", absl::StrCat("[::]:", kMetricsPort));
  add("--log-format", defaults.log_format);
  return arguments;
}

Json Variable(const char* name, std::string value) {
  return {{"name", name}, {"value", std::move(value)}};
}
Json FieldVariable(const char* name, const char* path) {
  return {{"name", name}, {"valueFrom", {{"fieldRef", {{"fieldPath", path}}}}}};
}

// The process knows the period and ends between two probes: a kubelet reports each probe that fails
// as a Warning event, also while it has not noticed yet that the process has ended.
Json Probe(const char* path, int period, int timeout, int failures) {
  return {{"httpGet", {{"path", absl::StrCat(path, "?period=", period)}, {"port", "metrics"}}},
          {"periodSeconds", period},
          {"timeoutSeconds", timeout},
          {"failureThreshold", failures}};
}

// The process answers when it becomes ready (services/common/io/page_server.h).
Json ReadinessProbe() { return Probe("/readyz", 10, PageServer::kReadyWaitSeconds + 10, 1); }

// A process that answers no probe for this long is frozen, and does not handle SIGTERM either.
Json KillingProbe(int period, int failures) {
  Json probe = Probe("/healthz", period, 5, failures);
  probe["terminationGracePeriodSeconds"] = 5;
  return probe;
}

// For a starting process: it answers probes before it registers.
Json StartupProbe(const ObservedJob& job) {
  constexpr int kPeriod = 5;
  const double seconds = absl::ToDoubleSeconds(policy::PlanOf(job.job.spec).start_timeout);
  Json probe = KillingProbe(kPeriod, std::max(1, static_cast<int>(std::ceil(seconds / kPeriod))));
  probe["initialDelaySeconds"] = 5;  // on a busy machine, a program loads its libraries for seconds
  return probe;
}

// /healthz answers while the process handles its events, however long a step takes. On a busy
// machine three failures in a row mean that the process is as good as frozen.
Json LivenessProbe(const ObservedJob& job) {
  constexpr int kFailures = 3;
  const double period = std::ceil(2 * job.job.spec.timeouts().heartbeat_timeout());
  return KillingProbe(static_cast<int>(std::clamp(period, 10.0, 120.0)), kFailures);
}

// Whether workers download data.
bool HasAddresses(const v1::DataSpec& data) {
  return IsWebAddress(data.source().path()) || IsWebAddress(data.source().labels()) ||
         IsWebAddress(data.text().vocabulary()) ||
         IsWebAddress(data.evaluation().source().path()) ||
         IsWebAddress(data.evaluation().source().labels());
}

bool HasVariable(const Json& container, absl::string_view name) {
  return kube::FindItem(container, {"env"}, "name", name) != nullptr;
}

// `custom`: the user's own program, which need not serve metrics; if it does, the template names
// the port.
Json Ports(v1::Role role, bool custom) {
  Json ports = Json::array();

  const auto add = [&](const char* name, int port) {
    ports.push_back({{"name", name}, {"containerPort", port}, {"protocol", "TCP"}});
  };

  if (role == v1::COORDINATOR) add("control", kCoordinatorPort);
  if (role == v1::SHARD) add("data", kShardPort);
  if (!custom) add("metrics", kMetricsPort);
  return ports;
}

void AddMounts(const ObservedJob& job, const policy::Replica& replica, Json* container,
               Json* volumes) {
  Json& mounts = (*container)["volumeMounts"];
  mounts = Json::array({{{"name", "sluice-tmp"}, {"mountPath", "/tmp"}}});
  volumes->push_back({{"name", "sluice-tmp"}, {"emptyDir", Json::object()}});

  if (replica.role == v1::COORDINATOR) {
    mounts.push_back({{"name", "sluice-job"}, {"mountPath", kConfigDirectory}, {"readOnly", true}});
    volumes->push_back({{"name", "sluice-job"}, {"configMap", {{"name", job.key.name}}}});
  }

  if (job.tls) {
    mounts.push_back({{"name", "sluice-tls"}, {"mountPath", kTlsDirectory}, {"readOnly", true}});
    volumes->push_back(TlsVolume("sluice-tls", job.key.name, replica));
  }

  const ClaimMount& checkpoints = job.checkpoints;
  if (replica.role != v1::WORKER && !checkpoints.claim.empty()) {
    mounts.push_back({{"name", "sluice-checkpoints"},
                      {"mountPath", checkpoints.mount_path},
                      {"subPath", checkpoints.sub_path}});
    volumes->push_back({{"name", "sluice-checkpoints"},
                        {"persistentVolumeClaim", {{"claimName", checkpoints.claim}}}});
  }

  if (replica.role == v1::WORKER && !job.data.claim.empty()) {
    mounts.push_back(
        {{"name", "sluice-data"}, {"mountPath", job.data.mount_path}, {"readOnly", true}});
    volumes->push_back(
        {{"name", "sluice-data"},
         {"persistentVolumeClaim", {{"claimName", job.data.claim}, {"readOnly", true}}}});
  }
}

// `theirs` is the template's container of the same name.
Json MakeContainer(const ObservedJob& job, const PodDefaults& defaults, const PodImages& images,
                   const policy::Replica& replica, const Json& theirs, Json* volumes) {
  const bool custom = replica.role == v1::WORKER && job.job.spec.worker().command_size() > 0;
  Json container = {{"name", absl::StrCat(RoleName(replica.role))},
                    {"ports", Ports(replica.role, custom)},
                    {"terminationMessagePolicy", "FallbackToLogsOnError"},
                    {"securityContext",
                     {{"allowPrivilegeEscalation", false},
                      {"readOnlyRootFilesystem", true},
                      {"runAsNonRoot", true},
                      {"capabilities", {{"drop", {"ALL"}}}},
                      {"seccompProfile", {{"type", "RuntimeDefault"}}}}}};

  const bool computes = replica.role == v1::SHARD && job.NeedsWorkerImage(replica.role);
  container["image"] = job.NeedsWorkerImage(replica.role) ? images.worker : images.server;
  container["env"] = Json::array({FieldVariable("POD_IP", "status.podIP")});

  if (custom) {
    container["command"] = Json::array();
    for (const std::string& part : job.job.spec.worker().command()) {
      container["command"].push_back(part);
    }

    const int threads = std::max(1, WorkerThreads(job, theirs));
    Json& env = container["env"];
    env.push_back(Variable("SLUICE_COORDINATOR", CoordinatorAddress(job.key)));
    env.push_back(Variable("SLUICE_JOB", FullJobName(job.key.ns, job.key.name, job.uid)));
    env.push_back(Variable("SLUICE_WORKER_INDEX", absl::StrCat(replica.index)));
    env.push_back(Variable("SLUICE_THREADS", absl::StrCat(threads)));
    env.push_back(Variable("PYTHONUNBUFFERED", "1"));
    for (const auto& [name, value] : ProgramVariables(job.job.spec.training(), threads)) {
      env.push_back(Variable(name.c_str(), value));
    }
    if (job.tls) env.push_back(Variable("SLUICE_TLS_DIRECTORY", kTlsDirectory));
  } else {
    container["command"] = {
        absl::StrCat("/usr/bin/sluice-", RoleName(replica.role), computes ? "-torch" : "")};
    container["args"] = Arguments(job, defaults, replica, theirs);
    // The root file system of a pod is read-only.
    if (replica.role == v1::WORKER && HasAddresses(job.job.spec.data()) &&
        !HasVariable(theirs, kCacheVariable)) {
      container["env"].push_back(Variable(kCacheVariable, kCacheDirectory));
    }
    container["readinessProbe"] = ReadinessProbe();
    container["startupProbe"] = StartupProbe(job);
    container["livenessProbe"] = LivenessProbe(job);
  }

  AddMounts(job, replica, &container, volumes);
  return container;
}

// ---- merging a template

// Appends the items of `extra` whose `key` is not in `base`.
void AppendMissing(const Json& extra, const char* key, Json* base) {
  if (!extra.is_array()) return;
  if (!base->is_array()) *base = Json::array();

  for (const Json& item : extra) {
    const std::string name = kube::GetString(item, {key});
    const bool known = !name.empty() && std::any_of(base->begin(), base->end(), [&](const Json& b) {
      return kube::GetString(b, {key}) == name;
    });

    if (!known) base->push_back(item);
  }
}

Json MergeContainer(Json ours, const Json& theirs) {
  for (auto it = theirs.begin(); theirs.is_object() && it != theirs.end(); ++it) {
    const std::string& field = it.key();
    if (field == "name") continue;
    if (field == "env" || field == "ports") {
      AppendMissing(it.value(), "name", &ours[field]);
    } else if (field == "volumeMounts") {
      AppendMissing(it.value(), "mountPath", &ours[field]);
    } else if (field == "args" && it.value().is_array() && ours.contains("args")) {
      for (const Json& argument : it.value()) ours["args"].push_back(argument);
    } else if (it.value().is_object() && ours.contains(field)) {
      ours[field].merge_patch(it.value());
    } else {
      ours[field] = it.value();
    }
  }
  return ours;
}

bool IsOurs(const std::string& field) {
  return field == "containers" || field == "restartPolicy" || field == "hostname" ||
         field == "subdomain";
}

Json MergeSpec(Json ours, const Json& theirs, const std::string& container_name) {
  for (auto it = theirs.begin(); theirs.is_object() && it != theirs.end(); ++it) {
    const std::string& field = it.key();
    if (IsOurs(field)) continue;
    if (field == "volumes") {
      AppendMissing(it.value(), "name", &ours[field]);
    } else if (field == "tolerations" && it.value().is_array()) {
      for (const Json& toleration : it.value()) ours[field].push_back(toleration);
    } else if (it.value().is_object() && ours.contains(field)) {
      ours[field].merge_patch(it.value());
    } else {
      ours[field] = it.value();
    }
  }

  for (const Json& container : kube::GetList(theirs, {"containers"})) {
    if (kube::GetString(container, {"name"}) != container_name) {
      ours["containers"].push_back(container);
    }
  }
  return ours;
}

Json TemplateContainer(const Json& pod_template, absl::string_view name) {
  const Json* found = kube::FindItem(pod_template, {"spec", "containers"}, "name", name);
  return found == nullptr ? Json() : *found;
}

void MergeMetadata(const ObservedJob& job, const Json& pod_template, Json* metadata) {
  const auto add = [&](const char* field, const Json* extra, const char* prefix) {
    if (extra == nullptr || !extra->is_object()) return;
    for (auto it = extra->begin(); it != extra->end(); ++it) {
      Json& target = (*metadata)[field];
      if (!target.contains(it.key()) && absl::StartsWith(it.key(), prefix)) {
        target[it.key()] = it.value();
      }
    }
  };

  add("labels", kube::Find(pod_template, {"metadata", "labels"}), "");
  add("annotations", kube::Find(pod_template, {"metadata", "annotations"}), "");

  // Kueue admits plain pods by their labels; users set these once, on the job.
  const Json labels = job.job.labels;
  const Json annotations = job.job.annotations;
  add("labels", &labels, "kueue.x-k8s.io/");
  add("annotations", &annotations, "kueue.x-k8s.io/");
}

Json Tolerations(const ObservedJob& job) {
  Json tolerations = Json::array();
  for (const char* taint : {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}) {
    tolerations.push_back({{"key", taint},
                           {"operator", "Exists"},
                           {"effect", "NoExecute"},
                           {"tolerationSeconds", job.toleration_seconds}});
  }
  return tolerations;
}

// ---- the rest

Json MakeServices(const ObservedJob& job, bool headless) {
  Json service = MakeOwned(
      Services(), job,
      headless ? HeadlessServiceName(job.key.name) : CoordinatorServiceName(job.key.name));
  Json& spec = service["spec"];
  spec["selector"] = {{kJobLabel, job.key.name}};

  // Processes resolve each other's names before they are ready.
  spec["publishNotReadyAddresses"] = true;

  const auto port = [](const char* name, int number) {
    return Json{{"name", name}, {"port", number}, {"targetPort", number}, {"protocol", "TCP"}};
  };

  if (headless) {
    // No process connects to a worker, and for each pod that becomes ready Kubernetes rewrites all
    // of its Service's Endpoints and EndpointSlices, which is expensive with a hundred pods.
    spec["selector"][kRoleLabel] = absl::StrCat(RoleName(v1::SHARD));
    spec["clusterIP"] = "None";
    spec["ports"] = Json::array({port("metrics", kMetricsPort)});
  } else {
    spec["selector"][kRoleLabel] = absl::StrCat(RoleName(v1::COORDINATOR));
    spec["ports"] = Json::array({port("control", kCoordinatorPort)});
  }
  return service;
}

// A longer annotation is omitted; the annotations of a pod may have 256 KiB in total.
constexpr size_t kMaxJobText = 64 << 10;

Json MakeConfigMap(const ObservedJob& job, uint32_t shards, const UpdateMode& mode) {
  v1::JobSpec spec = job.job.spec;
  spec.mutable_parameter_server()->set_replicas(shards);
  // A coordinator that replaces another one within the activation must read the same values.
  SetMode(mode, spec.mutable_training());
  Json map = MakeOwned(ConfigMaps(), job, job.key.name);
  map["data"] = {{kJobFile, api::JobFileText(spec)}};
  return map;
}

Json MakeNetworkPolicy(const ObservedJob& job) {
  Json policy = MakeOwned(NetworkPolicies(), job, job.key.name);
  const Json own = {{"podSelector", {{"matchLabels", {{kJobLabel, job.key.name}}}}}};
  const Json the_operator = {
      {"namespaceSelector", Json::object()},
      {"podSelector", {{"matchLabels", {{"app.kubernetes.io/name", "sluice-operator"}}}}}};

  const auto port = [](int number) {
    return Json::array({{{"port", number}, {"protocol", "TCP"}}});
  };

  policy["spec"] = {
      {"podSelector", {{"matchLabels", {{kJobLabel, job.key.name}}}}},
      {"policyTypes", {"Ingress"}},
      {"ingress",
       Json::array({{{"from", Json::array({own})}},
                    {{"from", Json::array({the_operator})}, {"ports", port(kCoordinatorPort)}},
                    {{"ports", port(kMetricsPort)}}})}};
  return policy;
}

Json SecurityContext(const PodDefaults& defaults) {
  Json context = {{"runAsNonRoot", true},
                  {"fsGroupChangePolicy", "OnRootMismatch"},
                  {"seccompProfile", {{"type", "RuntimeDefault"}}}};
  if (defaults.run_as.has_value()) {
    for (const char* field : {"runAsUser", "runAsGroup", "fsGroup"}) {
      context[field] = *defaults.run_as;
    }
  }
  return context;
}

}  // namespace

std::string TemplateHash(const Json& pod) {
  return kube::GetString(pod, {"metadata", "annotations", kTemplateHash});
}

PodImages ImagesOf(const ObservedJob& job, const PodDefaults& defaults) {
  if (!job.job.image.empty()) return {job.job.image, job.job.image};
  return {defaults.server_image, defaults.worker_image};
}

Json MakePod(const ObservedJob& job, const PodDefaults& defaults, const PodImages& images,
             const policy::Replica& replica) {
  const Json& pod_template = job.TemplateOf(replica.role);
  const std::string role(RoleName(replica.role));

  const std::string name = PodName(job.key.name, replica);
  Json pod = MakeOwned(Pods(), job, name);

  Json& labels = pod["metadata"]["labels"];
  labels["app.kubernetes.io/component"] = role;
  labels[kRoleLabel] = role;
  labels[kIndexLabel] = absl::StrCat(replica.index);
  MergeMetadata(job, pod_template, &pod["metadata"]);

  Json volumes = Json::array();
  const Json theirs = TemplateContainer(pod_template, role);
  const Json container =
      MergeContainer(MakeContainer(job, defaults, images, replica, theirs, &volumes), theirs);
  Json spec = {{"restartPolicy", "Never"},
               {"hostname", name},
               {"subdomain", HeadlessServiceName(job.key.name)},
               {"automountServiceAccountToken", false},
               {"enableServiceLinks", false},
               {"terminationGracePeriodSeconds", GraceSeconds(job, replica.role)},
               {"tolerations", Tolerations(job)},
               {"securityContext", SecurityContext(defaults)},
               {"containers", Json::array({container})},
               {"volumes", std::move(volumes)}};

  const Json* their_spec = kube::Find(pod_template, {"spec"});
  pod["spec"] = MergeSpec(std::move(spec), their_spec == nullptr ? Json() : *their_spec, role);
  pod["metadata"]["annotations"][kTemplateHash] =
      absl::StrFormat("%08x", Crc32c(pod["spec"].dump()));

  if (replica.role == v1::COORDINATOR) {
    std::string text = api::JobFileText(job.job.spec, /*indent=*/-1);
    if (text.size() <= kMaxJobText) {
      pod["metadata"]["annotations"][kStartedWith] = std::move(text);
    }
  }
  return pod;
}

std::vector<OwnedObject> MakeObjects(const ObservedJob& job, uint32_t shards,
                                     const UpdateMode& mode) {
  std::vector<OwnedObject> objects = {{&Services(), MakeServices(job, /*headless=*/false)},
                                      {&Services(), MakeServices(job, /*headless=*/true)},
                                      {&ConfigMaps(), MakeConfigMap(job, shards, mode)}};
  if (job.network_policy) objects.push_back({&NetworkPolicies(), MakeNetworkPolicy(job)});
  return objects;
}

OwnedObject MakeDisruptionBudget(const ObservedJob& job, uint32_t shards) {
  Json budget = MakeOwned(DisruptionBudgets(), job, job.key.name);
  // A process that is not ready does not block a drain: it may become ready on another node.
  budget["spec"] = {
      {"minAvailable", shards},
      {"unhealthyPodEvictionPolicy", "AlwaysAllow"},
      {"selector",
       {{"matchLabels", {{kJobLabel, job.key.name}}},
        {"matchExpressions",
         Json::array(
             {{{"key", kRoleLabel}, {"operator", "In"}, {"values", {"coordinator", "ps"}}}})}}}};
  return {&DisruptionBudgets(), std::move(budget)};
}

bool Covers(const Json& live, const Json& wanted) {
  if (wanted.is_object()) {
    if (!live.is_object()) return wanted.empty() && live.is_null();
    return std::all_of(wanted.items().begin(), wanted.items().end(), [&](const auto& entry) {
      const auto found = live.find(entry.key());
      return found != live.end() ? Covers(*found, entry.value()) : Covers(Json(), entry.value());
    });
  }

  if (wanted.is_array()) {
    return live.is_array() && live.size() == wanted.size() &&
           std::equal(live.begin(), live.end(), wanted.begin(), Covers);
  }

  return live == wanted;
}

}  // namespace sluice::reconciler
