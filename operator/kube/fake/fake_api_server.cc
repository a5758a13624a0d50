#include "operator/kube/fake/fake_api_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "operator/kube/api_error.h"
#include "operator/kube/fake/selector.h"
#include "services/common/status_macros.h"

namespace sluice::kube {
namespace {

absl::Status Refuse(int code, const std::string& reason, const std::string& message) {
  return ApiError{code, reason, message, {}}.ToStatus();
}

Json StatusObject(const absl::Status& status) {
  const ApiError error = ApiErrorOf(status).value_or(
      ApiError{500, "InternalError", std::string(status.message()), {}});
  return {{"kind", "Status"},        {"apiVersion", "v1"}, {"metadata", Json::object()},
          {"status", "Failure"},     {"code", error.code}, {"reason", error.reason},
          {"message", error.message}};
}

HttpResponse Respond(const absl::StatusOr<Json>& result, int success) {
  HttpResponse response;
  response.headers["content-type"] = "application/json";
  const Json body = result.ok() ? *result : StatusObject(result.status());
  response.code = result.ok() ? success : static_cast<int>(GetInt(body, {"code"}));
  response.body = body.dump();
  return response;
}

std::string EventLine(absl::string_view type, const Json& object) {
  return Json{{"type", std::string(type)}, {"object", object}}.dump() + "\n";
}

std::string QueryValue(const std::map<std::string, std::string>& query, const std::string& key) {
  const auto found = query.find(key);
  return found == query.end() ? "" : found->second;
}

WriteOptions WriteOptionsOf(const std::map<std::string, std::string>& query) {
  WriteOptions options;
  options.field_manager = QueryValue(query, "fieldManager");
  options.force = QueryValue(query, "force") == "true";
  options.dry_run = QueryValue(query, "dryRun") == "All";
  return options;
}

DeleteOptions DeleteOptionsOf(const Json& body) {
  DeleteOptions options;
  options.uid = GetString(body, {"preconditions", "uid"});
  options.resource_version = GetString(body, {"preconditions", "resourceVersion"});
  if (Find(body, {"gracePeriodSeconds"}) != nullptr) {
    options.grace_period_seconds = GetInt(body, {"gracePeriodSeconds"});
  }
  const std::string policy = GetString(body, {"propagationPolicy"});
  if (policy == "Foreground") options.propagation = Propagation::kForeground;
  if (policy == "Orphan") options.propagation = Propagation::kOrphan;
  return options;
}

std::map<std::string, std::string> LabelsOf(const Json& object) {
  std::map<std::string, std::string> labels;
  const Json* found = Find(object, {"metadata", "labels"});
  if (found == nullptr || !found->is_object()) return labels;
  for (const auto& [key, value] : found->items()) {
    if (value.is_string()) labels.emplace(key, value.get<std::string>());
  }
  return labels;
}

}  // namespace

struct FakeApiServer::Watch {
  const FakeType* type = nullptr;
  std::string ns;
  LabelSelector labels;
  FieldSelector fields;
  int64_t version = 0;
  absl::Time deadline;
  int cuts = 0;
  int bookmarks = 0;
  std::string first;  // sent before the changes
  bool cancelled = false;

  bool Matches(const Json& object) const {
    return (ns.empty() || KeyOf(object).ns == ns) && labels.Matches(LabelsOf(object)) &&
           fields.Matches(object);
  }

  std::string BookmarkLine(int64_t at, bool ends_initial_events) const {
    Json object = {{"apiVersion", type->type.ApiVersion()},
                   {"kind", type->type.kind},
                   {"metadata", {{"resourceVersion", absl::StrCat(at)}}}};
    if (ends_initial_events) {
      object["metadata"]["annotations"]["k8s.io/initial-events-end"] = "true";
    }
    return EventLine("BOOKMARK", object);
  }

  // The event for this watch; empty: the change does not concern it.
  std::string LineOf(const ObjectStore::Change& change) const {
    if (change.type_name != type->type.Name()) return "";
    const bool before = change.before.has_value() && Matches(*change.before);
    const bool after = change.type != WatchEvent::Type::kDeleted && Matches(change.object);
    if (before && !after) return EventLine("DELETED", change.object);
    if (!after) return "";
    return EventLine(before ? "MODIFIED" : "ADDED", change.object);
  }
};

FakeApiServer::FakeApiServer(const Clock* clock, Options options)
    : clock_(clock), options_(options), store_(clock, options.history_limit) {}

void FakeApiServer::RegisterType(FakeType type) { types_.push_back(std::move(type)); }

void FakeApiServer::SetFaultInjector(FaultInjector injector) {
  MutexLock lock(&mutex_);
  injector_ = std::move(injector);
}

absl::StatusOr<FakeApiServer::Route> FakeApiServer::Parse(const HttpRequest& request) const {
  const absl::Status unknown =
      Refuse(404, "NotFound", "the server could not find the requested resource");
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(request.target, absl::MaxSplits('?', 1));
  Route route;
  for (absl::string_view item : absl::StrSplit(parts.second, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    route.query[PercentDecode(pair.first)] = PercentDecode(pair.second);
  }
  std::vector<std::string> path = absl::StrSplit(parts.first, '/', absl::SkipEmpty());
  for (std::string& segment : path) segment = PercentDecode(segment);
  const size_t head = !path.empty() && path[0] == "apis" ? 3 : 2;
  if (path.size() <= head) return unknown;
  const std::string version = head == 3 ? absl::StrCat(path[1], "/", path[2]) : path[1];
  size_t at = head;
  if (path[at] == "namespaces" && path.size() > at + 2) {
    route.key.ns = path[at + 1];
    at += 2;
  }
  for (const FakeType& type : types_) {
    if (type.type.ApiVersion() == version && type.type.resource == path[at]) route.type = &type;
  }
  if (route.type == nullptr) return unknown;
  if (path.size() > at + 1) route.key.name = path[at + 1];
  if (path.size() > at + 2) route.subresource = path[at + 2];
  return route;
}

std::optional<FakeApiServer::Fault> FakeApiServer::Note(const HttpRequest& request) {
  FaultInjector injector;
  {
    MutexLock lock(&mutex_);
    const std::string line = absl::StrCat(request.method, " ", request.target);
    requests_.push_back(line);
    if (request.method != "GET") writes_.push_back(line.substr(0, line.find('?')));
    injector = injector_;
  }
  return injector ? injector(request) : std::nullopt;
}

absl::StatusOr<HttpResponse> FakeApiServer::Do(const HttpRequest& request) {
  const std::optional<Fault> fault = Note(request);
  HttpResponse response;
  if (!fault.has_value() || fault->after_effect) {
    const absl::StatusOr<Route> route = Parse(request);
    MutexLock lock(&mutex_);
    response = route.ok() ? Respond(Serve(request, *route), request.method == "POST" ? 201 : 200)
                          : Respond(route.status(), 0);
    changed_.SignalAll();
  }
  if (!fault.has_value()) return response;
  if (!fault->status.ok()) return fault->status;
  return fault->response;
}

absl::StatusOr<Json> FakeApiServer::Serve(const HttpRequest& request, const Route& route) {
  Json body;
  if (!request.body.empty()) {
    body = Json::parse(request.body, nullptr, false);
    if (body.is_discarded()) return Refuse(400, "BadRequest", "the body is no JSON");
  }
  const WriteOptions options = WriteOptionsOf(route.query);
  const Subresource subresource =
      route.subresource == "status" ? Subresource::kStatus : Subresource::kNone;
  if (request.method == "GET") {
    if (route.key.name.empty()) return ServeList(route);
    if (route.subresource == "scale") return store_.GetScale(*route.type, route.key);
    return store_.Get(*route.type, route.key);
  }
  if (request.method == "POST") {
    return store_.Create(*route.type, route.key.ns, std::move(body), options.dry_run);
  }
  if (request.method == "PUT") {
    if (route.subresource == "scale") return store_.SetScale(*route.type, route.key, body);
    return store_.Update(*route.type, route.key, std::move(body), subresource, options.dry_run);
  }
  if (request.method == "PATCH") return ServePatch(request, route, body);
  if (request.method == "DELETE") {
    return store_.Delete(*route.type, route.key, DeleteOptionsOf(body));
  }
  return Refuse(405, "MethodNotAllowed", "the method is not known");
}

absl::StatusOr<Json> FakeApiServer::ServePatch(const HttpRequest& request, const Route& route,
                                               const Json& body) {
  WriteOptions options = WriteOptionsOf(route.query);
  if (route.subresource == "status") options.subresource = Subresource::kStatus;
  if (route.subresource == "scale") {
    absl::StatusOr<Json> scale = store_.GetScale(*route.type, route.key);
    if (!scale.ok()) return scale;
    scale->merge_patch(body);
    return store_.SetScale(*route.type, route.key, *scale);
  }
  if (request.content_type == "application/apply-patch+yaml") {
    if (options.field_manager.empty()) {
      return Refuse(422, "Invalid", "fieldManager is required for apply patch");
    }
    return store_.ApplyPatch(*route.type, route.key, body, options);
  }
  if (request.content_type == "application/merge-patch+json" ||
      request.content_type == "application/json-patch+json") {
    const PatchKind kind = request.content_type == "application/json-patch+json"
                               ? PatchKind::kJson
                               : PatchKind::kMerge;
    return store_.Patch(*route.type, route.key, kind, body, options.subresource, options.dry_run);
  }
  return Refuse(
      415, "UnsupportedMediaType",
      absl::StrCat("the body of the request was in an unknown format: ", request.content_type));
}

absl::StatusOr<Json> FakeApiServer::ServeList(const Route& route) {
  std::vector<Json> items;
  int64_t version = store_.version();
  const std::string token = QueryValue(route.query, "continue");
  if (token.empty()) {
    const auto labels = LabelSelector::Parse(QueryValue(route.query, "labelSelector"));
    const auto fields = FieldSelector::Parse(QueryValue(route.query, "fieldSelector"));
    if (!labels.ok()) return Refuse(400, "BadRequest", std::string(labels.status().message()));
    if (!fields.ok()) return Refuse(400, "BadRequest", std::string(fields.status().message()));
    for (Json& object : store_.List(*route.type, route.key.ns)) {
      if (!labels->Matches(LabelsOf(object)) || !fields->Matches(object)) continue;
      object.erase("apiVersion");  // as real servers do
      object.erase("kind");
      items.push_back(std::move(object));
    }
  } else {
    const auto page = pages_.find(token);
    if (page == pages_.end()) {
      return Refuse(410, "Expired", "The provided continue parameter is too old");
    }
    version = page->second.first;
    items = page->second.second;
  }
  Json list = {{"apiVersion", route.type->type.ApiVersion()},
               {"kind", route.type->type.kind + "List"},
               {"metadata", {{"resourceVersion", absl::StrCat(version)}}}};
  size_t limit = 0;
  if (absl::SimpleAtoi(QueryValue(route.query, "limit"), &limit) && limit > 0 &&
      items.size() > limit) {
    const std::string next = absl::StrCat("page-", ++last_page_);
    pages_[next] = {version, std::vector<Json>(items.begin() + limit, items.end())};
    list["metadata"]["continue"] = next;
    items.resize(limit);
  }
  list["items"] = std::move(items);
  return list;
}

absl::Status FakeApiServer::StartWatch(const Route& route, Watch* watch) {
  auto labels = LabelSelector::Parse(QueryValue(route.query, "labelSelector"));
  auto fields = FieldSelector::Parse(QueryValue(route.query, "fieldSelector"));
  if (!labels.ok()) return Refuse(400, "BadRequest", std::string(labels.status().message()));
  if (!fields.ok()) return Refuse(400, "BadRequest", std::string(fields.status().message()));
  watch->type = route.type;
  watch->ns = route.key.ns;
  watch->labels = *std::move(labels);
  watch->fields = *std::move(fields);
  watch->cuts = cuts_;
  watch->bookmarks = options_.end_watches_when_drained ? 0 : bookmarks_;
  int64_t seconds = 0;
  watch->deadline = absl::SimpleAtoi(QueryValue(route.query, "timeoutSeconds"), &seconds)
                        ? clock_->Now() + absl::Seconds(seconds)
                        : absl::InfiniteFuture();
  const bool initial = QueryValue(route.query, "sendInitialEvents") == "true";
  if (initial && !options_.streaming_lists) {
    return Refuse(422, "Invalid",
                  "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless "
                  "the WatchList feature gate is enabled");
  }
  const std::string version = QueryValue(route.query, "resourceVersion");
  if (!version.empty() && !absl::SimpleAtoi(version, &watch->version)) {
    return Refuse(400, "BadRequest", "resourceVersion: Invalid value");
  }
  if (version.empty()) {
    watch->version = store_.version();
    for (const Json& object : store_.List(*route.type, watch->ns)) {
      if (watch->Matches(object)) watch->first += EventLine("ADDED", object);
    }
    if (initial) watch->first += watch->BookmarkLine(watch->version, true);
    return absl::OkStatus();
  }
  const absl::Status known = store_.ChangesSince(watch->version).status();
  if (known.ok() || !options_.gone_as_event) return known;
  watch->first = EventLine("ERROR", StatusObject(known));
  return absl::OkStatus();
}

absl::StatusOr<std::string> FakeApiServer::NextBytes(Watch* watch, bool* ended) {
  if (!watch->first.empty()) return std::exchange(watch->first, "");
  while (true) {
    const absl::StatusOr<std::vector<ObjectStore::Change>> changes =
        store_.ChangesSince(watch->version);
    if (!changes.ok()) {
      *ended = true;
      return EventLine("ERROR", StatusObject(changes.status()));
    }
    std::string bytes;
    for (const ObjectStore::Change& change : *changes) {
      watch->version = change.version;
      bytes += watch->LineOf(change);
    }
    if (watch->bookmarks != bookmarks_) {
      watch->bookmarks = bookmarks_;
      bytes += watch->BookmarkLine(watch->version, false);
    }
    if (!bytes.empty()) return bytes;
    *ended = true;
    if (watch->cuts != cuts_) {
      if (cut_cleanly_) return bytes;
      return absl::UnavailableError("the connection was reset");
    }
    if (watch->cancelled) return absl::CancelledError("the stream was cancelled");
    if (options_.end_watches_when_drained || clock_->Now() >= watch->deadline) return bytes;
    *ended = false;
    changed_.Wait(&mutex_);
  }
}

absl::Status FakeApiServer::SendPieces(const std::string& bytes, const BodySink& sink) const {
  const size_t piece = options_.piece_bytes == 0 ? bytes.size() : options_.piece_bytes;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    RETURN_IF_ERROR(sink(absl::string_view(bytes).substr(at, piece)));
  }
  return absl::OkStatus();
}

absl::StatusOr<HttpResponse> FakeApiServer::Stream(const HttpRequest& request, const BodySink& sink,
                                                   Cancellation* cancellation) {
  const std::optional<Fault> fault = Note(request);
  if (fault.has_value() && !fault->after_effect) {
    if (!fault->status.ok()) return fault->status;
    return fault->response;
  }
  ASSIGN_OR_RETURN(const Route route, Parse(request), Respond(_, 0));
  Watch watch;
  {
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(StartWatch(route, &watch), Respond(_, 0));
    ++running_watches_;
  }
  const int64_t callback = cancellation->AddCallback([this, &watch] {
    MutexLock lock(&mutex_);
    watch.cancelled = true;
    changed_.SignalAll();
  });
  absl::Status status;
  for (bool ended = false; status.ok() && !ended;) {
    std::string bytes;
    {
      MutexLock lock(&mutex_);
      absl::StatusOr<std::string> next = NextBytes(&watch, &ended);
      if (next.ok()) bytes = *std::move(next);
      status = next.status();
    }
    if (status.ok()) status = SendPieces(bytes, sink);
  }
  cancellation->RemoveCallback(callback);
  if (fault.has_value() && status.ok()) status = fault->status;
  MutexLock lock(&mutex_);
  --running_watches_;
  if (!status.ok()) return status;
  HttpResponse response;
  response.code = 200;
  return response;
}

void FakeApiServer::CutWatches(bool cleanly) {
  MutexLock lock(&mutex_);
  ++cuts_;
  cut_cleanly_ = cleanly;
  changed_.SignalAll();
}

void FakeApiServer::SendBookmarks() {
  MutexLock lock(&mutex_);
  ++bookmarks_;
  changed_.SignalAll();
}

void FakeApiServer::Compact() {
  MutexLock lock(&mutex_);
  store_.Compact();
  pages_.clear();
}

int FakeApiServer::CollectGarbage() {
  MutexLock lock(&mutex_);
  const int acted = store_.CollectGarbage();
  changed_.SignalAll();
  return acted;
}

std::vector<std::string> FakeApiServer::Writes() const {
  MutexLock lock(&mutex_);
  return writes_;
}

std::vector<std::string> FakeApiServer::Requests() const {
  MutexLock lock(&mutex_);
  return requests_;
}

int64_t FakeApiServer::version() const {
  MutexLock lock(&mutex_);
  return store_.version();
}

int FakeApiServer::running_watches() const {
  MutexLock lock(&mutex_);
  return running_watches_;
}

}  // namespace sluice::kube
