// Answers of an API server, and kubeconfig files.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "operator/kube/cancellation.h"
#include "operator/kube/client.h"
#include "operator/kube/config.h"
#include "operator/kube/fake/selector.h"
#include "operator/kube/http.h"
#include "operator/kube/http_client.h"
#include "operator/kube/object.h"
#include "operator/kube/watch.h"
#include "operator/reconciler/pod_status.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/manifest/codec.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/status_check.h"

namespace sluice::fuzz {
namespace {

using kube::Json;

// ---------------------------------------------------------------- kubeconfig

bool RunKubeconfig(absl::string_view input) {
  bool accepted = kube::ParseKubeconfig(input, "/home", "").ok();
  for (const char* context : {"", "here"}) {
    const absl::StatusOr<kube::ClientConfig> config = kube::ParseKubeconfigs(
        {{std::string(input), "/home"}, {"{}", "/"}}, context, kube::Plugins::kRead);
    if (!CheckedOk(config.status())) continue;
    accepted = true;
    SLUICE_CHECK(!config->server.empty() && config->server.back() != '/',
                 "a server has an address without a slash at its end");
  }
  return accepted;
}

// ---------------------------------------------------------------- watches

struct Watched {
  absl::Status status;
  std::vector<std::string> events;
};

Watched Watch(absl::string_view body, size_t piece) {
  Watched watched;
  kube::WatchParser parser(
      [&](kube::WatchEvent event) {
        (void)kube::EndsInitialEvents(event);
        watched.events.push_back(absl::StrCat(static_cast<int>(event.type), event.object.dump()));
        return absl::OkStatus();
      },
      /*max_line=*/2048);
  for (size_t at = 0; at < body.size() && watched.status.ok(); at += piece) {
    watched.status = parser.Feed(body.substr(at, piece));
  }
  if (watched.status.ok()) watched.status = parser.Finish();
  return watched;
}

bool RunWatch(absl::string_view input) {
  const Watched whole = Watch(input, input.size() + 1);
  const Watched pieces = Watch(input, 1 + input.size() % 31);
  SLUICE_CHECK(whole.events == pieces.events, "events do not depend on how their bytes arrive");
  SLUICE_CHECK(whole.status.code() == pieces.status.code(), "nor does the status");
  return CheckedOk(whole.status) && !whole.events.empty();
}

// ---------------------------------------------------------------- answers

// Gives every request the same answer.
class OneAnswer final : public kube::HttpTransport {
 public:
  explicit OneAnswer(kube::HttpResponse answer) : answer_(std::move(answer)) {}

  absl::StatusOr<kube::HttpResponse> Do(const kube::HttpRequest&) override { return answer_; }

  absl::StatusOr<kube::HttpResponse> Stream(const kube::HttpRequest&, const BodySink& sink,
                                            kube::Cancellation*) override {
    if (answer_.code != 200) return answer_;
    RETURN_IF_ERROR(sink(answer_.body));
    return kube::HttpResponse{200, answer_.headers, ""};
  }

 private:
  const kube::HttpResponse answer_;
};

bool RunAnswer(absl::string_view input) {
  constexpr int kCodes[] = {200, 201, 400, 401, 403, 404, 409, 410, 422, 429, 500, 503, 504, 301};
  ByteSource bytes(input);
  kube::HttpResponse answer;
  answer.code = kCodes[bytes.Below(sizeof kCodes / sizeof *kCodes)];
  if (bytes.Byte() % 2 == 1) {
    answer.headers["retry-after"] = std::string(bytes.Take(bytes.Below(16)));
  }
  answer.body = std::string(bytes.Rest());
  OneAnswer transport(answer);
  kube::HttpClient::Options options;
  options.retry.max_tries = 2;
  options.sleep = [](absl::Duration) {};
  kube::HttpClient client(&transport, options);
  const kube::ResourceType pods = {"", "v1", "pods", "Pod"};
  const absl::StatusOr<Json> object =
      client.Get(pods, {"default", "mnist"}, kube::Subresource::kNone);
  if (object.ok()) (void)object->dump(-1, ' ', false, Json::error_handler_t::replace);
  const absl::StatusOr<kube::ListPage> page = client.List(pods, {});
  if (page.ok()) {
    for (const Json& item : page->items) (void)reconciler::ReadPod(item);
  }
  (void)client.Create(pods, "default", Json::object(), {}).ok();
  (void)client.Delete(pods, {"default", "mnist"}, {}).ok();
  kube::Cancellation cancellation;
  (void)client
      .Watch(
          pods, {}, [](const kube::WatchEvent&) { return absl::OkStatus(); }, &cancellation)
      .ok();
  return CheckedOk(object.status());
}

// ---------------------------------------------------------------- objects

// Any object may be read as any kind: a user can create pods with a job's labels.
bool RunObject(absl::string_view input) {
  Json object = Json::parse(input.begin(), input.end(), nullptr, false);
  if (object.is_discarded()) return false;
  (void)kube::KeyOf(object).ToString();
  (void)kube::UidOf(object);
  (void)kube::ResourceVersionOf(object);
  (void)kube::IsBeingDeleted(object);
  (void)kube::ControllerUidOf(object);
  (void)kube::GetInt(object, {"metadata", "generation"});
  const auto pod = reconciler::ReadPod(object);
  if (pod.has_value()) {
    (void)reconciler::WaitingAt(*pod, absl::FromUnixSeconds(1'800'000'000)).empty();
    (void)reconciler::Observe(*pod);
  }
  Json stripped = object;
  reconciler::StripPod(&stripped);
  SLUICE_CHECK(reconciler::ReadPod(stripped).has_value() == pod.has_value(),
               "a pod without its unread fields is still a pod");
  return object.is_object() && pod.has_value();
}

bool RunSelector(absl::string_view input) {
  const absl::StatusOr<kube::LabelSelector> labels = kube::LabelSelector::Parse(input);
  if (labels.ok()) (void)labels->Matches({{"a", "b"}, {"app", "sluice"}});
  const absl::StatusOr<kube::FieldSelector> fields = kube::FieldSelector::Parse(input);
  if (fields.ok()) (void)fields->Matches(Json{{"metadata", {{"name", "a"}}}});
  SLUICE_CHECK(kube::PercentDecode(kube::PercentEncode(input)) == input,
               "any text survives a round trip");
  (void)kube::PercentDecode(input);
  const absl::Time time = kube::DecodeTime(input);
  if (time > absl::FromUnixSeconds(0) && time < absl::FromUnixSeconds(4'000'000'000)) {
    SLUICE_CHECK(kube::DecodeTime(kube::EncodeMicroTime(time)) ==
                     absl::FromUnixMicros(absl::ToUnixMicros(time)),
                 "times survive a round trip");
  }
  (void)kube::SplitKubeconfigPath(input);
  (void)kube::InClusterConfig(input, "443", "/var/run", input).ok();
  return labels.ok() || fields.ok() || time > absl::InfinitePast();
}

}  // namespace

std::vector<FuzzTarget> KubeTargets() {
  return {
      {"kubeconfig", RunKubeconfig, nullptr, 4096, "operator/kube/config.cc"},
      {"watch", RunWatch, nullptr, 4096, "operator/kube/watch.cc operator/kube/api_error.cc"},
      {"answer", RunAnswer, nullptr, 4096,
       "operator/kube/http_client.cc operator/kube/api_error.cc operator/kube/watch.cc"},
      {"object", RunObject, nullptr, 8192,
       "operator/kube/object.cc operator/reconciler/pod_status.cc"},
      {"selector", RunSelector, nullptr, 512,
       "operator/kube/fake/selector.cc operator/kube/object.cc"},
  };
}

}  // namespace sluice::fuzz
