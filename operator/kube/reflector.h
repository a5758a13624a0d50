// Lists, then watches, until cancelled: keeps a copy of one type's objects up to date.
#ifndef SLUICE_OPERATOR_KUBE_REFLECTOR_H_
#define SLUICE_OPERATOR_KUBE_REFLECTOR_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "operator/kube/cancellation.h"
#include "operator/kube/client.h"

namespace sluice::kube {

// Receives the objects, on the reflector's thread.
class ReflectorSink {
 public:
  virtual ~ReflectorSink() = default;
  // These are all objects that exist now.
  virtual void Replace(std::vector<Json> objects) = 0;
  // kAdded and kModified: the object's new state. kDeleted: the last state of an object that is
  // gone.
  virtual void Apply(WatchEvent event) = 0;
};

// A watch continues from the version of the last event or bookmark. When the server reports that
// the version is too old, it is dropped and the next round lists. A list requests no version: a
// list "at 0" may go back in time after an API server was restarted.
class Reflector {
 public:
  // `ns` empty: all namespaces. The selectors are the server's: objects that they leave out do not
  // arrive.
  struct Options {
    std::string ns;
    std::string label_selector;
    std::string field_selector;
    int64_t page_size = 500;
    // Read the first objects as the beginning of a watch; if the server refuses that, or never ends
    // the beginning, the reflector lists from then on.
    bool streaming_lists = true;
    // The server ends a watch after between one and two times this, chosen by `random`.
    absl::Duration watch_timeout = absl::Minutes(5);
    absl::Duration idle_timeout = absl::Seconds(150);
    absl::Duration initial_backoff = absl::Milliseconds(500);
    absl::Duration max_backoff = absl::Seconds(30);
    std::function<double()> random;  // in [0, 1)
    // Applied to each object as it arrives, before the next one is read: a list is never held in
    // full. May be null.
    std::function<void(Json*)> strip;
  };

  // `client` and `sink` outlive this.
  Reflector(Client* client, ResourceType type, Options options, ReflectorSink* sink);

  // One list if there is no version to continue from, and one watch until it ends. Blocks. OK: the
  // watch ended normally; continue at once. Cancelled. Any other status: wait Delay(), then
  // continue.
  absl::Status Round(Cancellation* cancellation);

  // How long to wait after a failed round. It grows, with jitter, until a round delivers something
  // again.
  absl::Duration Delay();

  // Runs rounds until cancelled, and calls `on_error` for each one that failed. Blocks.
  void Run(Cancellation* cancellation, const std::function<void(const absl::Status&)>& on_error);

 private:
  // Lists all objects, page by page, and gives them to the sink. Sets the version to continue from.
  absl::Status List();
  void Strip(Json* object) const {
    if (options_.strip) options_.strip(object);
  }
  // Watches from the version, or from the beginning where the server streams lists.
  absl::Status Watch(Cancellation* cancellation);
  // An event of the watch. Initial events are gathered until the bookmark that ends them.
  absl::Status OnEvent(WatchEvent event);
  // Whether no list is complete yet: the next watch starts with the objects that exist.
  bool Initial() const { return version_.empty(); }

  Client* const client_;
  const ResourceType type_;
  const Options options_;
  ReflectorSink* const sink_;
  bool streaming_;
  std::string version_;                // empty: list first
  std::map<ObjectKey, Json> initial_;  // from a streaming list that has not ended
  absl::Duration backoff_;
  bool expired_ = false;  // the version was too old, and nothing has arrived since
  int quiet_rounds_ = 0;  // without an event, in a row
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_REFLECTOR_H_
