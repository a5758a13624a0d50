// The bytes of a watch as events.
#ifndef SLUICE_OPERATOR_KUBE_WATCH_H_
#define SLUICE_OPERATOR_KUBE_WATCH_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "operator/kube/object.h"

namespace sluice::kube {

struct WatchEvent {
  enum class Type { kAdded, kModified, kDeleted, kBookmark };
  Type type = Type::kAdded;
  // The object; of a deleted one its last state; of a bookmark its kind and resourceVersion only.
  // With a selector, an object that stops matching arrives as deleted.
  Json object;
};

// A bookmark that ends the initial events of a streaming list.
bool EndsInitialEvents(const WatchEvent& event);

// Takes a watch's body in pieces with borders anywhere; one JSON object per line. Not thread-safe.
class WatchParser {
 public:
  using Sink = std::function<absl::Status(WatchEvent)>;

  // Lines above `max_line` bytes are refused: etcd's objects end at about 1.5 MB.
  explicit WatchParser(Sink sink, size_t max_line = size_t{16} << 20)
      : sink_(std::move(sink)), max_line_(max_line) {}

  // Calls the sink for each event that is complete now. An ERROR event is returned as the status of
  // its ApiError (410 is OutOfRange); text that is no event as DataLoss; an error of the sink as it
  // is. After an error nothing more may be fed.
  absl::Status Feed(absl::string_view bytes);

  // At the end of the body: a line without its end is a stream that was cut (Unavailable).
  absl::Status Finish() const;

 private:
  absl::Status Line(absl::string_view line);

  const Sink sink_;
  const size_t max_line_;
  std::string partial_;
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_WATCH_H_
