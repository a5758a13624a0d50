#include "services/coordinator/termination_message.h"

#include <google/protobuf/util/json_util.h>

#include "services/common/text/utf8.h"

namespace sluice::coordinator {

std::string TerminationMessage(v1::JobProgress progress) {
  progress.clear_events();
  progress.clear_processes();
  progress.clear_losses();
  if (progress.has_view()) {
    const v1::ViewId id = progress.view().id();
    *progress.mutable_view() = v1::View();
    *progress.mutable_view()->mutable_id() = id;
  }

  constexpr size_t kMaxText = 2000;
  std::string json;
  // A character may take six bytes in JSON; numbers take a few hundred bytes in all.
  for (size_t most = kMaxText; most > 0; most /= 2) {
    progress.set_reason(TruncateUtf8(progress.reason(), most));
    if (progress.has_checkpoint()) {
      v1::CheckpointStatus& checkpoint = *progress.mutable_checkpoint();
      checkpoint.set_error(TruncateUtf8(checkpoint.error(), most));
      // A truncated path is useless.
      if (checkpoint.directory().size() > most) checkpoint.clear_directory();
    }
    json.clear();
    (void)google::protobuf::util::MessageToJsonString(progress, &json);
    if (json.size() <= kMaxTerminationBytes) break;
  }
  return json;
}

}  // namespace sluice::coordinator
