#include "operator/kube/http_client.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "operator/kube/api_error.h"
#include "services/common/status_macros.h"
#include "services/common/text/json_text.h"

namespace sluice::kube {
namespace {

absl::string_view SubresourcePath(Subresource subresource) {
  switch (subresource) {
    case Subresource::kNone:
      return "";
    case Subresource::kStatus:
      return "status";
    case Subresource::kScale:
      return "scale";
  }
  return "";
}

class Query {
 public:
  Query& Add(absl::string_view key, absl::string_view value) {
    if (!value.empty()) parts_.push_back(absl::StrCat(key, "=", PercentEncode(value)));
    return *this;
  }
  std::string After(const std::string& path) const {
    return parts_.empty() ? path : absl::StrCat(path, "?", absl::StrJoin(parts_, "&"));
  }

 private:
  std::vector<std::string> parts_;
};

Query WriteQuery(const WriteOptions& options) {
  Query query;
  query.Add("fieldManager", options.field_manager);
  if (options.dry_run) query.Add("dryRun", "All");
  if (options.force) query.Add("force", "true");
  // An unknown field is an error; the server must not drop it.
  return query.Add("fieldValidation", "Strict");
}

// Invalid UTF-8 is replaced; an exception must not be thrown.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json WithType(const ResourceType& type, const Json& object) {
  Json typed = object.is_object() ? object : Json::object();
  if (typed.find("apiVersion") == typed.end()) typed["apiVersion"] = type.ApiVersion();
  if (typed.find("kind") == typed.end()) typed["kind"] = type.kind;
  return typed;
}

absl::Status StatusOf(const HttpResponse& response) {
  const auto retry_after = response.headers.find("retry-after");
  return ApiErrorFromResponse(response.code, response.body,
                              retry_after == response.headers.end() ? "" : retry_after->second)
      .ToStatus();
}

bool HasPrecondition(const Json& body) {
  return !ResourceVersionOf(body).empty() || !UidOf(body).empty();
}

}  // namespace

HttpClient::HttpClient(HttpTransport* transport, Options options)
    : transport_(transport), options_(std::move(options)) {}

absl::StatusOr<HttpResponse> HttpClient::Try(const Call& call) {
  if (call.write && options_.write_gate != nullptr) {
    RETURN_IF_ERROR(options_.write_gate->Check());
  }

  const absl::Time start = options_.on_call ? options_.now() : absl::Time();
  absl::StatusOr<HttpResponse> response = transport_->Do(call.request);
  if (options_.on_call) {
    options_.on_call(call.verb, call.type->resource, response.ok() ? response->code : 0,
                     options_.now() - start);
  }

  if (response.ok() && (response->code < 200 || response->code >= 300)) {
    return StatusOf(*response);
  }
  return response;
}

absl::StatusOr<Json> HttpClient::Run(const Call& call) {
  const std::string name =
      absl::StrCat(call.verb, " ", call.type->resource, call.key.ToString().empty() ? "" : " ",
                   call.key.ToString());

  for (int tries = 1;; ++tries) {
    absl::StatusOr<HttpResponse> response = Try(call);
    if (response.ok()) {
      RETURN_IF_ERROR(
          CheckJsonText(response->body, kMaxObjectDepth),
          absl::DataLossError(absl::StrCat(name, ": the API server's answer: ", _.message())));
      Json json = Json::parse(response->body, nullptr, false);
      if (json.is_object()) return json;
      return absl::DataLossError(
          absl::StrCat(name, ": the API server's answer is not a JSON object"));
    }

    const std::optional<absl::Duration> delay =
        RetryDelay(options_.retry, response.status(), call.idempotent, tries);
    if (!delay.has_value()) return Annotate(response.status(), name);
    options_.sleep(*delay);
  }
}

absl::StatusOr<Json> HttpClient::Get(const ResourceType& type, const ObjectKey& key,
                                     Subresource subresource) {
  Call call{"get", &type, key, {}, false, true};
  call.request.method = "GET";
  call.request.target = ResourcePath(type, key, SubresourcePath(subresource));
  call.request.timeout = options_.timeout;
  return Run(call);
}

absl::StatusOr<ListPage> HttpClient::List(const ResourceType& type, const ListOptions& options) {
  Call call{"list", &type, {options.ns, ""}, {}, false, true};

  Query query;
  query.Add("labelSelector", options.label_selector).Add("fieldSelector", options.field_selector);
  if (options.limit > 0) query.Add("limit", absl::StrCat(options.limit));
  query.Add("continue", options.continue_token);

  call.request.method = "GET";
  call.request.target = query.After(ResourcePath(type, call.key));
  call.request.timeout = options_.timeout;
  ASSIGN_OR_RETURN(Json json, Run(call));

  ListPage page;
  page.resource_version = ResourceVersionOf(json);
  page.continue_token = GetString(json, {"metadata", "continue"});

  const auto items = json.find("items");
  if (items == json.end() || !(items->is_array() || items->is_null())) {
    return absl::DataLossError(
        absl::StrCat("list ", type.resource, ": the API server's answer is not a list"));
  }

  page.items.reserve(items->size());
  for (Json& item : *items) {
    if (!item.is_object()) continue;
    item["apiVersion"] = type.ApiVersion();
    item["kind"] = type.kind;
    page.items.push_back(std::move(item));
  }
  return page;
}

absl::StatusOr<Json> HttpClient::Create(const ResourceType& type, absl::string_view ns,
                                        const Json& object, const WriteOptions& options) {
  const std::string name = GetString(object, {"metadata", "name"});
  Call call{"create", &type, {std::string(ns), name}, {}, true, false};
  call.request.method = "POST";
  call.request.target =
      WriteQuery(options).After(ResourcePath(type, ObjectKey{std::string(ns), ""}));
  call.request.content_type = "application/json";
  call.request.body = Dump(WithType(type, object));
  call.request.timeout = options_.timeout;
  return Run(call);
}

absl::StatusOr<Json> HttpClient::Update(const ResourceType& type, const ObjectKey& key,
                                        const Json& object, const WriteOptions& options) {
  Call call{"update", &type, key, {}, true, true};
  call.request.method = "PUT";
  call.request.target =
      WriteQuery(options).After(ResourcePath(type, key, SubresourcePath(options.subresource)));
  call.request.content_type = "application/json";
  call.request.body =
      Dump(options.subresource == Subresource::kScale ? object : WithType(type, object));
  call.request.timeout = options_.timeout;
  return Run(call);
}

absl::StatusOr<Json> HttpClient::Patch(const ResourceType& type, const ObjectKey& key,
                                       PatchKind kind, const Json& body,
                                       const WriteOptions& options) {
  const bool apply = kind == PatchKind::kApply;
  if (apply && options.field_manager.empty()) {
    return absl::InvalidArgumentError("server-side apply needs a field manager");
  }

  Call call{apply ? "apply" : "patch", &type, key, {}, true, apply || HasPrecondition(body)};
  call.request.method = "PATCH";
  call.request.target =
      WriteQuery(options).After(ResourcePath(type, key, SubresourcePath(options.subresource)));

  call.request.content_type = apply                      ? "application/apply-patch+yaml"
                              : kind == PatchKind::kJson ? "application/json-patch+json"
                                                         : "application/merge-patch+json";

  call.request.body =
      Dump(apply && options.subresource != Subresource::kScale ? WithType(type, body) : body);
  call.request.timeout = options_.timeout;
  return Run(call);
}

absl::StatusOr<Json> HttpClient::Delete(const ResourceType& type, const ObjectKey& key,
                                        const DeleteOptions& options) {
  const bool guarded = !options.uid.empty() || !options.resource_version.empty();
  Call call{"delete", &type, key, {}, true, guarded};

  Json body = {{"apiVersion", "v1"}, {"kind", "DeleteOptions"}};
  if (!options.uid.empty()) body["preconditions"]["uid"] = options.uid;
  if (!options.resource_version.empty()) {
    body["preconditions"]["resourceVersion"] = options.resource_version;
  }

  if (options.grace_period_seconds.has_value()) {
    body["gracePeriodSeconds"] = *options.grace_period_seconds;
  }

  if (options.propagation != Propagation::kDefault) {
    body["propagationPolicy"] = options.propagation == Propagation::kBackground   ? "Background"
                                : options.propagation == Propagation::kForeground ? "Foreground"
                                                                                  : "Orphan";
  }

  call.request.method = "DELETE";
  call.request.target = ResourcePath(type, key);
  call.request.content_type = "application/json";
  call.request.body = Dump(body);
  call.request.timeout = options_.timeout;
  return Run(call);
}

absl::Status HttpClient::Watch(const ResourceType& type, const WatchOptions& options,
                               const WatchSink& sink, Cancellation* cancellation) {
  Query query;
  query.Add("watch", "true").Add("allowWatchBookmarks", "true");
  query.Add("labelSelector", options.label_selector).Add("fieldSelector", options.field_selector);
  query.Add("resourceVersion", options.resource_version);
  query.Add("timeoutSeconds", absl::StrCat(absl::ToInt64Seconds(options.timeout)));
  if (options.send_initial_events) {
    query.Add("sendInitialEvents", "true").Add("resourceVersionMatch", "NotOlderThan");
  }

  HttpRequest request;
  request.method = "GET";
  request.target = query.After(ResourcePath(type, ObjectKey{options.ns, ""}));
  request.timeout = options_.timeout;
  request.idle_timeout = options.idle_timeout;

  WatchParser parser(sink);
  const absl::Time start = options_.on_call ? options_.now() : absl::Time();
  const absl::StatusOr<HttpResponse> response = transport_->Stream(
      request, [&parser](absl::string_view bytes) { return parser.Feed(bytes); }, cancellation);
  if (options_.on_call) {
    options_.on_call("watch", type.resource, response.ok() ? response->code : 0,
                     options_.now() - start);
  }

  absl::Status status = response.status();
  if (response.ok()) status = response->code == 200 ? parser.Finish() : StatusOf(*response);
  return Annotate(status, absl::StrCat("watch ", type.resource));
}

}  // namespace sluice::kube
