// Users' input (manifests, addresses, certificates), and Sluice's own files about jobs.
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/common/job_result.h"
#include "cli/local/job_directory.h"
#include "cli/plan/plan.h"
#include "operator/policy/reason_from_log.h"
#include "proto/describe.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/common/check.h"
#include "services/common/io/fake_file_system.h"
#include "services/common/io/file_util.h"
#include "services/common/text/utf8.h"
#include "services/common/text/web_address.h"
#include "services/common/tls/certificates.h"
#include "services/manifest/codec.h"
#include "services/manifest/job_file.h"
#include "services/manifest/manifest.h"
#include "services/manifest/print/print.h"
#include "services/manifest/training_job.h"
#include "services/manifest/yaml_document.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"
#include "services/transport/endpoint.h"
#include "services/transport/security/identity.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/status_check.h"

namespace sluice::fuzz {
namespace {

// ---------------------------------------------------------------- manifests

bool RunYaml(absl::string_view input) {
  const api::YamlDocument document = api::YamlDocument::Parse(input);
  for (const api::YamlValue& root : document.roots) {
    (void)root.json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    (void)document.tokens.Find(root.token, "metadata");
  }
  for (const api::Problem& problem : document.problems) (void)problem.ToString("job.yaml");
  return document.problems.empty() && !document.roots.empty();
}

bool RunManifest(absl::string_view input) {
  const api::ParsedManifest manifest = api::ParseManifest(input, "/data");
  SLUICE_CHECK(manifest.problems.size() <= api::kMaxProblems, "problems are bounded");
  for (const api::Problem& problem : manifest.problems) {
    SLUICE_CHECK(!problem.message.empty(), "a problem has a text");
    SLUICE_CHECK(IsUtf8(problem.ToString("job.yaml")), "the text is UTF-8");
  }
  if (!manifest.ok()) return false;
  const nlohmann::json object = api::ToJson(manifest.job);
  SLUICE_CHECK(api::ToJson(api::FromJson(object)) == object,
               "a job survives a round trip through JSON");
  (void)api::ClusterFields(manifest.job);
  const api::ParsedManifest again = api::ParseManifest(api::ToManifestYaml(manifest.job), {});
  SLUICE_CHECK(again.ok(), "a printed manifest is valid");
  SLUICE_CHECK(api::ToJson(again.job) == object, "a job survives a round trip through YAML");
  return true;
}

std::vector<api::TrainingJob> SomeJobs() {
  std::vector<api::TrainingJob> jobs;
  for (const auto& [model, data] : std::vector<std::pair<const char*, const char*>>{
           {"mnist-net", "synthetic"}, {"lstm-lm", "text.txt"}, {"linear", "table.csv"}}) {
    const absl::StatusOr<std::string> text =
        api::ManifestTemplate({.name = "job", .model = model, .data = data, .label_column = "y"});
    SLUICE_CHECK(text.ok(), "the template exists");
    jobs.push_back(api::ParseManifest(*text, {}).job);
  }
  return jobs;
}

std::vector<std::string> ManifestSeeds() {
  std::vector<std::string> seeds = {
      *api::ManifestTemplate({.name = "job", .model = "mnist-net", .data = "synthetic"})};
  for (const api::TrainingJob& job : SomeJobs()) seeds.push_back(api::ToManifestYaml(job));
  return seeds;
}

std::vector<std::string> JobObjectSeeds() {
  std::vector<std::string> seeds;
  for (const api::TrainingJob& job : SomeJobs()) seeds.push_back(api::ToJson(job).dump());
  return seeds;
}

std::vector<std::string> JobSpecSeeds() {
  std::vector<std::string> seeds;
  for (const api::TrainingJob& job : SomeJobs()) seeds.push_back(api::JobFileText(job.spec));
  return seeds;
}

// An object of an API server, which may have been checked by an older version.
bool RunJobObject(absl::string_view input) {
  const nlohmann::json object = nlohmann::json::parse(input.begin(), input.end(), nullptr, false);
  if (object.is_discarded()) return false;
  const api::TrainingJob job = api::FromJson(object);
  const nlohmann::json printed = api::ToJson(job);
  // A JSON parser refuses text that is not UTF-8, so this cannot throw.
  (void)printed.dump();
  (void)api::ClusterFields(job);
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(job.spec, &json).ok();
  return object.is_object() && object.contains("spec");
}

// job.json, as sluice-coordinator --job and sluice-worker describe read it.
bool RunJobSpec(absl::string_view input) {
  const absl::StatusOr<api::JobFile> file = api::ParseJobFile(input);
  if (!file.ok()) return false;
  SLUICE_CHECK(api::ParseJobFile(api::JobFileText(file->job)).ok(),
               "a job that was written can be read");
  return true;
}

// A description, which `sluice-worker describe` writes and `sluice plan` reads.
bool RunDescription(absl::string_view input) {
  v1::Description description;
  if (!description.ParseFromArray(input.data(), static_cast<int>(input.size()))) return false;
  uint64_t total = 0;
  for (const v1::TensorSpec& tensor : description.ready().table().tensors()) {
    if (!ValidateTable(description.ready().table()).ok()) return false;
    total += ElementCount(tensor) * ElementBytes(tensor.dtype());
  }
  // A plan of a large model has many blocks, which is not a finding.
  if (total > uint64_t{64} << 20) return false;
  v1::JobSpec job;
  job.mutable_training()->set_global_batch_size(64);
  job.mutable_optimizer()->set_learning_rate(0.1);
  job.mutable_parameter_server()->set_replicas(2);
  job.mutable_parameter_server()->set_partitions(8);
  job.mutable_worker()->set_replicas(3);
  job.mutable_training()->set_mode(v1::SYNCHRONOUS);
  std::vector<cli::StageTraffic> stages;
  for (const v1::Description::Stage& stage : description.stages()) {
    stages.push_back({stage.input_bytes(), stage.output_bytes()});
  }
  const absl::StatusOr<std::vector<cli::RowTraffic>> rows = cli::RowTrafficOf(job, description);
  if (!rows.ok()) return false;
  const absl::StatusOr<cli::Plan> plan =
      cli::MakePlan(job, description.ready().table(), stages, *rows);
  if (!plan.ok()) return false;
  (void)cli::PlanLines(*plan, 1e9);
  (void)cli::PlanJson(*plan, 1e9);
  return true;
}

std::vector<std::string> DescriptionSeeds() {
  v1::Description description;
  v1::TensorSpec& tensor = *description.mutable_ready()->mutable_table()->add_tensors();
  tensor.set_name("embedding.weight");
  tensor.add_shape(100);
  tensor.add_shape(8);
  tensor.set_dtype(v1::FLOAT32);
  v1::Description::RowTable& table = *description.add_row_tables();
  table.set_pulled(true);
  table.add_rows(10);
  table.add_rows(5);
  std::vector<std::string> seeds = {description.SerializeAsString()};
  table.set_random_tokens(20);
  seeds.push_back(description.SerializeAsString());
  return seeds;
}

bool RunBandwidth(absl::string_view input) {
  const absl::StatusOr<double> bandwidth = cli::ParseBandwidth(input);
  SLUICE_CHECK(!bandwidth.ok() || (*bandwidth > 0 && std::isfinite(*bandwidth)),
               "a bandwidth is a number");
  return bandwidth.ok();
}

// ---------------------------------------------------------------- a job's own directory

// job.json, then result.json, each preceded by its length (2 bytes).
bool RunJobDirectory(absl::string_view input) {
  ByteSource bytes(input);
  FakeFileSystem disk;
  const local::JobDirectory directory(&disk, "/state", "mnist");
  (void)disk.CreateDirectories(directory.path());
  for (const char* name : {"job.json", "result.json"}) {
    (void)AtomicWriteFile(&disk, JoinPath(directory.path(), name), absl::Cord(bytes.Piece()),
                          "fuzz");
  }
  const bool job = CheckedOk(directory.ReadJob().status());
  const absl::StatusOr<cli::JobResult> result = directory.ReadResult();
  if (!CheckedOk(result.status())) return false;
  local::JobDirectory again(&disk, "/state", "mnist");
  SLUICE_CHECK(again.WriteResult(*result).ok(), "a result that was read can be written");
  return job;
}

std::string Behind(const std::string& piece) {
  return absl::StrCat(
      std::string{static_cast<char>(piece.size()), static_cast<char>(piece.size() >> 8)}, piece);
}

std::vector<std::string> JobDirectorySeeds() {
  FakeFileSystem disk;
  local::JobDirectory directory(&disk, "/state", "mnist");
  (void)disk.CreateDirectories(directory.path());
  api::TrainingJob job;
  job.spec.set_name("mnist");
  job.spec.set_namespace_("default");
  job.spec.set_uid("1");
  SLUICE_CHECK(directory.WriteJob(job).ok(), "a fake disk can be written");
  cli::JobResult result;
  result.outcome.reason = "training is complete";
  result.ended = absl::FromUnixSeconds(1'767'225'600);
  result.progress.set_step(10);
  result.progress.mutable_last_evaluation();
  SLUICE_CHECK(directory.WriteResult(result).ok(), "a fake disk can be written");
  std::string seed;
  for (const char* name : {"job.json", "result.json"}) {
    seed += Behind(*disk.Read(JoinPath(directory.path(), name), 1 << 16));
  }
  return {seed};
}

// The last lines of a process's log.
bool RunReasonFromLog(absl::string_view input) {
  std::vector<std::string> lines;
  while (!input.empty()) {
    const size_t end = std::min(input.find('\n'), input.size());
    lines.emplace_back(input.substr(0, end));
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  const std::string words = policy::ReasonFromLog(lines);
  SLUICE_CHECK(IsUtf8(words), "messages can hold the reason");
  return !words.empty();
}

// ---------------------------------------------------------------- addresses and identities

bool RunAddress(absl::string_view input) {
  const bool marked = IsWebAddress(input);
  const absl::StatusOr<WebAddress> web = ParseWebAddress(input);
  if (web.ok()) {
    SLUICE_CHECK(marked, "a parsed address is recognized as an address");
    SLUICE_CHECK(web->sha256.size() == 64, "a checksum is complete");
    SLUICE_CHECK(!web->file_name.empty() && web->file_name != "." && web->file_name != ".." &&
                     web->file_name.find('/') == std::string::npos,
                 "a file name stays in its directory");
  }
  const std::string text(input);
  const bool coordinator = ResolveCoordinator(input, nullptr, nullptr).ok();
  (void)ResolveCoordinator("", text.c_str(), "29500").ok();
  (void)ResolveCoordinator("", "localhost", text.c_str()).ok();
  const bool listen = ResolveListenAddress(input, nullptr, nullptr).ok();
  (void)HostOfEndpoint(input);
  const absl::StatusOr<security::PeerIdentity> identity = security::ParseUri(input);
  if (identity.ok()) {
    const absl::StatusOr<security::PeerIdentity> again =
        security::ParseUri(security::UriOf(*identity));
    SLUICE_CHECK(again.ok() && again->ToString() == identity->ToString(),
                 "identities survive a round trip");
  }
  return web.ok() || coordinator || listen || identity.ok();
}

bool RunCertificate(absl::string_view input) {
  const absl::StatusOr<tls::Certificate> certificate = tls::ReadCertificate(input);
  const absl::StatusOr<std::vector<std::string>> bundle = tls::SplitBundle(input);
  SLUICE_CHECK(!bundle.ok() || !bundle->empty(), "a bundle has certificates");
  (void)tls::CheckKey({std::string(input), std::string(input)});
  (void)tls::CheckTrusted(input, input, absl::FromUnixSeconds(1'800'000'000));
  if (!certificate.ok()) return false;
  (void)security::IdentityOf(*certificate).ok();
  return true;
}

std::vector<std::string> CertificateSeeds() {
  const tls::Validity validity = {absl::FromUnixSeconds(1'700'000'000),
                                  absl::FromUnixSeconds(1'900'000'000)};
  const tls::KeyPair authority = *tls::MakeAuthority("job", validity);
  const tls::KeyPair worker =
      *tls::Issue(authority, security::SubjectOf({"default/mnist", v1::WORKER, 3}), validity);
  return {authority.certificate, worker.certificate,
          absl::StrCat(worker.certificate, worker.private_key, authority.certificate)};
}

}  // namespace

std::vector<FuzzTarget> JobTargets() {
  return {
      {"yaml", RunYaml, nullptr, 4096, "services/manifest/yaml_document.cc"},
      {"manifest", RunManifest, ManifestSeeds, 8192,
       "services/manifest/manifest.cc services/manifest/validate.cc "
       "services/manifest/validations.cc "
       "services/manifest/expression.cc services/manifest/codec.cc services/manifest/suggest.cc "
       "services/manifest/print/manifest_yaml.cc "
       "services/manifest/print/yaml_writer.cc"},
      {"job_object", RunJobObject, JobObjectSeeds, 8192, "services/manifest/codec.cc"},
      {"job_spec", RunJobSpec, JobSpecSeeds, 4096, ""},
      {"description", RunDescription, DescriptionSeeds, 2048, "cli/plan/plan.cc"},
      {"bandwidth", RunBandwidth, nullptr, 64, "cli/plan/plan.cc"},
      {"job_directory", RunJobDirectory, JobDirectorySeeds, 4096, "cli/local/job_directory.cc"},
      {"reason_from_log", RunReasonFromLog, nullptr, 2048, "operator/policy/reason_from_log.cc"},
      {"address", RunAddress, nullptr, 512,
       "services/common/text/web_address.cc services/transport/endpoint.cc "
       "services/transport/security/identity.cc"},
      {"certificate", RunCertificate, CertificateSeeds, 4096,
       "services/common/tls/certificates.cc services/transport/security/identity.cc"},
  };
}

}  // namespace sluice::fuzz
