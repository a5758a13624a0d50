// Rows of the table for cluster-only fields.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/manifest/field_builder.h"

namespace sluice::api {
namespace {

constexpr char kVolume[] =
    R"({"spec":{"data":{"source":{"path":"/data","volume":{"claimName":"datasets"}}}}})";
constexpr char kClaim[] =
    R"({"spec":{"checkpoint":{"storage":{"type":"PersistentVolumeClaim","claimName":"checkpoints"}}}})";

// Names of most Kubernetes objects: DNS labels with dots between them.
bool IsDnsSubdomain(absl::string_view text) {
  const auto alphanumeric = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); };
  char before = '.';
  for (const char c : text) {
    if (!alphanumeric(c) && c != '-' && c != '.') return false;
    if ((c == '-' || c == '.') && before == '.') return false;
    if (c == '.' && before == '-') return false;
    before = c;
  }
  return !text.empty() && alphanumeric(text.back());
}
constexpr char kDnsSubdomain[] =
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
constexpr char kDnsSubdomainMessage[] =
    "must be lower-case letters, digits, `-` and `.`, with a letter or digit at both ends";

// A directory at which a pod can mount a volume.
bool IsMountPath(absl::string_view text) {
  return text.size() > 1 && text[0] == '/' && text.back() != '/' && !absl::StrContains(text, ':');
}

// A relative directory without `..`.
bool IsSubPath(absl::string_view text) {
  if (absl::StartsWith(text, "/")) return false;
  for (absl::string_view part : absl::StrSplit(text, '/')) {
    if (part == "..") return false;
    const auto allowed = [](char c) {
      return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
    };
    if (!std::all_of(part.begin(), part.end(), allowed)) return false;
  }
  return true;
}
// The same as a regular expression: names other than `..`, each followed by slashes, which the last
// name may omit.
std::string SubPathRegex() {
  constexpr char kName[] = "([.]?[A-Za-z0-9_-][A-Za-z0-9._-]*|[.]|[.][.][A-Za-z0-9._-]+)";
  return absl::StrCat("^(", kName, "/+)*", kName, "?$");
}

template <typename... Attributes>
Field Claim(const std::string& path, const std::string& description,
            const Attributes&... attributes) {
  return String(path, description, Size(1, 253),
                Pattern(kDnsSubdomain, IsDnsSubdomain, kDnsSubdomainMessage), attributes...);
}

}  // namespace

void AddPodTemplate(const std::string& role, absl::string_view container, const FieldAdder& add) {
  const std::string path = role + ".template";
  add(Object(path,
             "Additions to the pods that Sluice makes: resources, node selection, volumes, a "
             "service account. A change applies to pods that are created after it.",
             ClusterOnly()));
  add(Object(path + ".metadata", "Labels and annotations of the pods."));
  for (const bool labels : {true, false}) {
    const std::string map = path + (labels ? ".metadata.labels" : ".metadata.annotations");
    add(Map(map, labels ? "Labels, in addition to Sluice's own." : "Annotations.", Size(0, 64),
            Good(labels ? "{team: vision}" : "{note: first}"), Bad("[a]", "must be a map")));
    add(String(map + "{}", labels ? "Value of a label." : "Value of an annotation.",
               Size(0, labels ? 63 : 65536)));
  }
  add(Object(path + ".spec",
             absl::StrCat("Any fields of a PodSpec (`kubectl explain pod.spec`). In `containers`, "
                          "the container named `",
                          container,
                          "` is Sluice's: its resources, variables, mounts and the like are added "
                          "to that container. All other containers run in addition. The API server "
                          "validates this when a pod is created."),
             Open()));
}

void AddCoordinator(const FieldAdder& add) {
  add(Object("spec.coordinator", "The coordinator. A job has one.", ClusterOnly()));
  AddPodTemplate("spec.coordinator", "coordinator", add);
}

void AddDataVolume(const FieldAdder& add) {
  const std::string path = "spec.data.source.volume";
  add(Object(path,
             "A claim that contains the data. Workers mount it read-only. Under `sluice run`, "
             "`path` is a path on the machine.",
             ClusterOnly()));
  add(Claim(path + ".claimName", "A PersistentVolumeClaim of the job's namespace.", Required(),
            Context(kVolume), Good("datasets"), Bad("My_Data", "must be lower-case letters")));
  add(String(
      path + ".mountPath", "The directory at which it is mounted. `path` is in this directory.",
      Default(R"("/data")"), Size(2, 4096),
      Pattern("^/[^:]*[^:/]$", IsMountPath,
              "must be an absolute path without `:`, and without `/` at its end"),
      Context(
          R"({"spec":{"data":{"source":{"path":"/data/mnist/train","volume":{"claimName":"d"}}}}})"),
      Good("/data/mnist"), Bad("data", "must be an absolute path")));
}

void AddCheckpointClaim(const FieldAdder& add) {
  const std::string path = "spec.checkpoint.storage";
  add(Claim(path + ".claimName",
            "PersistentVolumeClaim: the claim. It must be ReadWriteMany unless all of the job's "
            "pods are on one node.",
            ClusterOnly(), Context(kClaim), Good("checkpoints"),
            Bad("Checkpoints", "must be lower-case letters")));
  add(String(
      path + ".subPath",
      "PersistentVolumeClaim: the directory in the claim. It is created if it is missing.",
      ClusterOnly(), Implied("`<namespace>/<name>`"), Size(1, 1024),
      Pattern(
          SubPathRegex(), IsSubPath,
          "must be a relative path of letters, digits, `-`, `_` and `.`, without a directory `..`"),
      Context(kClaim), Good("team-a/mnist"), Good("team-a/v1..2/.hidden/"),
      Bad("/team-a", "must be a relative path"), Bad("..", "without a directory `..`"),
      Bad("team-a/../team-b", "without a directory `..`"),
      Bad("team a", "must be a relative path")));
}

void AddReplicaBounds(const std::string& role, const std::string& processes,
                      const FieldAdder& add) {
  for (const bool least : {true, false}) {
    add(Integer(role + (least ? ".minReplicas" : ".maxReplicas"),
                absl::StrCat(least ? "The minimum number of " : "The maximum number of ", processes,
                             ". A change of `replicas` beyond it, by a user or an autoscaler, is "
                             "refused. Unset: no bound."),
                ClusterOnly(), Min(1), Max(1024), Good(least ? "1" : "16"),
                Bad("0", "at least 1")));
  }
}

namespace {

void AddFailurePolicy(const FieldAdder& add) {
  const std::string path = "spec.failurePolicy";
  add(Object(path, "Exceptions to the usual reaction to the exit of a process.", ClusterOnly()));
  add(List(
      path + ".rules",
      "The first rule that matches the exit of a process applies; if no rule matches, the usual "
      "reaction does. A rule has `exitCodes`, `reasons`, or both, and matches if one of them does.",
      Required(), Size(1, 20),
      Context(R"({"spec":{"failurePolicy":{"rules":[{"action":"Ignore","exitCodes":[7]}]}}})"),
      Good("[{action: FailJob, roles: [worker], exitCodes: [3]}]"),
      Bad("[]", "must have at least 1 item")));
  add(Object(path + ".rules[]", "One rule."));
  add(String(path + ".rules[].action",
             "`FailJob`: the job fails. `Restart`: the process is replaced, and its exit counts "
             "against the limits. `Ignore`: it is replaced, and its exit does not count.",
             Required(), OneOf({"FailJob", "Restart", "Ignore"})));
  add(List(path + ".rules[].roles", "Roles of the processes to which the rule applies. Unset: all.",
           Size(1, 3)));
  add(String(path + ".rules[].roles[]", "One role.", OneOf({"coordinator", "ps", "worker"})));
  add(List(path + ".rules[].exitCodes",
           "Exit codes of processes; for a killed process, 128 plus the signal.", Size(1, 64)));
  add(Integer(path + ".rules[].exitCodes[]", "One code.", Min(1), Max(255)));
  add(List(path + ".rules[].reasons",
           "Reasons, as `status.lastFailures` has them. `Deleted` is not allowed: a pod that is "
           "deleted, or evicted by deletion, is always replaced.",
           Size(1, 16)));
  add(String(path + ".rules[].reasons[]", "One reason.",
             OneOf({"OOMKilled", "Killed", "Error", "StartError", "Refused", "Expelled", "TryAgain",
                    "DataMissing", "BadArguments", "Evicted", "Preempted", "NodeLost",
                    "NodeShutdown", "NodeRefused"})));
}

}  // namespace

void AddClusterLimits(const FieldAdder& add) {
  AddFailurePolicy(add);
  add(Integer("spec.progressDeadlineSeconds",
              "A job that commits no step for this long, while it is not suspended, fails. Unset: "
              "no limit.",
              ClusterOnly(), Min(1), Max(1e9), Good("3600"), Bad("0", "at least 1")));
  add(Integer("spec.ttlSecondsAfterFinished",
              "The job and all its objects are deleted this long after its end. Claims are kept. "
              "Unset: never.",
              ClusterOnly(), Min(0), Max(1e9), Good("86400"), Bad("-1", "at least 0")));
  add(String(
      "spec.cleanPodPolicy",
      "What happens to pods at the end of the job. `Running`: running pods are deleted, finished "
      "pods are kept for their logs. `All`: all pods are deleted. `None`: no pod is deleted.",
      ClusterOnly(), Default(R"("Running")"), OneOf({"Running", "All", "None"}), Good("All"),
      Bad("all", "did you mean `All`?")));
  add(Object("spec.nodeFailure", "What the operator does when a node does not respond.",
             ClusterOnly(), Default("{}")));
  add(Integer("spec.nodeFailure.tolerationSeconds",
              "The pods of the node are deleted, and created again on other nodes, this long after "
              "the node was found not to respond.",
              Default("10"), Min(0), Max(1e6), Good("5"), Bad("-1", "at least 0")));
  add(Integer(
      "spec.nodeFailure.forceDeleteAfterSeconds",
      "A pod of the node that still exists this long after its deletion is due is deleted by "
      "force. 0: never; the pod is then not replaced before the node is back or removed.",
      Default("10"), Min(0), Max(1e6), Good("60"), Bad("-1", "at least 0")));
  add(String("spec.networkPolicy",
             "`Enabled`: only the job's own pods and the operator may connect to the job's pods; "
             "every client may read their metrics. `Disabled`: the operator makes no policy.",
             ClusterOnly(), Default(R"("Enabled")"), OneOf({"Enabled", "Disabled"}),
             Good("Disabled"), Bad("false", "must be a string")));
  add(String(
      "spec.tls",
      "`Enabled`: the job's processes use TLS with each other. The operator makes and "
      "renews a certificate for each role and index. `Disabled`: plain text. While "
      "this is unset, a job that an earlier operator started in plain text keeps plain text.",
      ClusterOnly(), Implied("`Enabled`"), Fixed(), OneOf({"Enabled", "Disabled"}),
      Good("Disabled"), Bad("enabled", "did you mean `Enabled`?")));
  add(String("spec.managedBy",
             "The controller that manages the job. Unset, or `sluice.dev/operator`: Sluice's "
             "operator. With any other value, Sluice's operator ignores the job.",
             ClusterOnly(), Fixed(), Size(1, 63), Good("kueue.x-k8s.io/multikueue")));
}

}  // namespace sluice::api
