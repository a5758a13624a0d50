#include "operator/kube/reflector.h"

#include <algorithm>
#include <utility>

#include "operator/kube/api_error.h"
#include "services/common/status_macros.h"

namespace sluice::kube {
namespace {

// A list whose pages keep expiring is requested as one page.
constexpr int kMaxListRestarts = 1;

}  // namespace

Reflector::Reflector(Client* client, ResourceType type, Options options, ReflectorSink* sink)
    : client_(client),
      type_(std::move(type)),
      options_(std::move(options)),
      sink_(sink),
      streaming_(options_.streaming_lists),
      backoff_(options_.initial_backoff) {}

absl::Status Reflector::List() {
  ListOptions options;
  options.ns = options_.ns;
  options.label_selector = options_.label_selector;
  options.field_selector = options_.field_selector;
  options.limit = options_.page_size;

  const auto strip = [this](Json* object) { Strip(object); };
  absl::StatusOr<ListPage> page = ListAll(client_, type_, options, kMaxListRestarts, strip);
  if (!page.ok() && IsExpired(page.status())) {
    options.limit = 0;
    page = ListAll(client_, type_, options, 0, strip);
  }

  RETURN_IF_ERROR(page.status());
  if (page->resource_version.empty()) {
    return absl::DataLossError("a list without a resourceVersion cannot be watched");
  }

  version_ = page->resource_version;
  sink_->Replace(std::move(page->items));
  return absl::OkStatus();
}

absl::Status Reflector::OnEvent(WatchEvent event) {
  const std::string version = ResourceVersionOf(event.object);
  if (version.empty()) return absl::DataLossError("a watch event without a resourceVersion");

  quiet_rounds_ = 0;
  const bool ends_initial = EndsInitialEvents(event);
  if (event.type != WatchEvent::Type::kBookmark) Strip(&event.object);

  if (Initial()) {
    if (ends_initial) {
      version_ = version;
      backoff_ = options_.initial_backoff;
      std::vector<Json> objects;
      objects.reserve(initial_.size());
      for (auto& [key, object] : initial_) objects.push_back(std::move(object));
      initial_.clear();
      sink_->Replace(std::move(objects));
    } else if (event.type == WatchEvent::Type::kDeleted) {
      // Changes during the initial events arrive in between.
      initial_.erase(KeyOf(event.object));
    } else if (event.type != WatchEvent::Type::kBookmark) {
      const ObjectKey key = KeyOf(event.object);
      initial_[key] = std::move(event.object);
    }
    return absl::OkStatus();
  }

  backoff_ = options_.initial_backoff;
  expired_ = false;
  version_ = version;
  if (event.type != WatchEvent::Type::kBookmark) sink_->Apply(std::move(event));
  return absl::OkStatus();
}

absl::Status Reflector::Watch(Cancellation* cancellation) {
  WatchOptions options;
  options.ns = options_.ns;
  options.label_selector = options_.label_selector;
  options.field_selector = options_.field_selector;
  options.resource_version = version_;
  options.send_initial_events = Initial();
  options.timeout = options_.watch_timeout * (1.0 + options_.random());
  options.idle_timeout = options_.idle_timeout;

  initial_.clear();
  absl::Status status = client_->Watch(
      type_, options, [this](WatchEvent event) { return OnEvent(std::move(event)); }, cancellation);

  if (Initial()) {
    initial_.clear();
    // Refused, or ended during the initial events: this server does not support streaming lists.
    if (absl::IsInvalidArgument(status) || status.ok()) {
      streaming_ = false;
      return absl::OkStatus();
    }
  }

  if (IsExpired(status)) {
    version_.clear();
    // Prevents a tight loop with a server that forgets its versions at once.
    return std::exchange(expired_, true) ? status : absl::OkStatus();
  }
  return status;
}

absl::Status Reflector::Round(Cancellation* cancellation) {
  if (cancellation->cancelled()) return absl::CancelledError("the reflector was stopped");
  ++quiet_rounds_;
  if (Initial() && !streaming_) {
    RETURN_IF_ERROR(List());
  }
  return Watch(cancellation);
}

absl::Duration Reflector::Delay() {
  const absl::Duration delay = backoff_ * (0.5 + options_.random() / 2);
  backoff_ = std::min(options_.max_backoff, backoff_ * 2);
  return delay;
}

void Reflector::Run(Cancellation* cancellation,
                    const std::function<void(const absl::Status&)>& on_error) {
  while (!cancellation->cancelled()) {
    const absl::Status status = Round(cancellation);
    if (status.ok()) {
      // Prevents a tight loop with a server that ends every watch before the first event.
      const absl::Duration pause = absl::Milliseconds(10) * (1 << std::min(quiet_rounds_, 7));
      if (cancellation->WaitFor(pause)) return;
      continue;
    }

    if (absl::IsCancelled(status)) return;
    on_error(status);
    if (cancellation->WaitFor(Delay())) return;
  }
}

}  // namespace sluice::kube
