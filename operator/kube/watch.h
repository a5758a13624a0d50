// Parses the bytes of a watch into events.
#ifndef SLUICE_OPERATOR_KUBE_WATCH_H_
#define SLUICE_OPERATOR_KUBE_WATCH_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "operator/kube/object.h"

namespace sluice::kube {

// An event of a watch: a change of an object, or a bookmark.
struct WatchEvent {
  enum class Type { kAdded, kModified, kDeleted, kBookmark };
  Type type = Type::kAdded;
  // The object; for a deleted object its last state; for a bookmark only kind and resourceVersion.
  // With a selector, an object that no longer matches arrives as deleted.
  Json object;
};

// Whether it is the bookmark that ends the initial events of a streaming list.
bool EndsInitialEvents(const WatchEvent& event);

// Takes a watch's body in arbitrary pieces; one JSON object per line. Not thread-safe.
class WatchParser {
 public:
  using Sink = std::function<absl::Status(WatchEvent)>;

  // Lines above `max_line` bytes are rejected: objects in etcd have at most about 1.5 MB.
  explicit WatchParser(Sink sink, size_t max_line = size_t{16} << 20)
      : sink_(std::move(sink)), max_line_(max_line) {}

  // Calls the sink for each event that is complete. An ERROR event is returned as the status of its
  // ApiError (410 is OutOfRange); text that is not an event as DataLoss; an error of the sink
  // unchanged. After an error nothing more may be fed.
  absl::Status Feed(absl::string_view bytes);

  // At the end of the body: an incomplete line means that the stream broke (Unavailable).
  absl::Status Finish() const;

 private:
  // Handles one line of the body, which is one event.
  absl::Status Line(absl::string_view line);

  const Sink sink_;
  const size_t max_line_;
  std::string partial_;
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_WATCH_H_
