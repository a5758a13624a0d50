#include "services/download/job_data.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/status_macros.h"
#include "services/common/text/web_address.h"
#include "services/download/download_cache.h"

namespace sluice {
namespace {

absl::Status At(const char* field, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(field, ": ", status.message()));
}

}  // namespace

std::vector<DataPath> PathsOf(v1::DataSpec* data) {
  std::vector<DataPath> paths;
  if (data->has_source()) {
    paths.push_back({"spec.data.source.path", data->mutable_source()->mutable_path()});
    paths.push_back({"spec.data.source.labels", data->mutable_source()->mutable_labels()});
  }
  if (data->has_text()) {
    paths.push_back({"spec.data.text.vocabulary", data->mutable_text()->mutable_vocabulary()});
  }
  if (data->evaluation().has_source()) {
    v1::DataSource* source = data->mutable_evaluation()->mutable_source();
    paths.push_back({"spec.data.evaluation.source.path", source->mutable_path()});
    paths.push_back({"spec.data.evaluation.source.labels", source->mutable_labels()});
  }
  return paths;
}

absl::Status FetchData(const DownloadMeans& means, const DownloadListener& listener,
                       v1::DataSpec* data) {
  DownloadCache::Options options;
  options.directory = means.directory;
  options.try_lock = FlockFile;
  options.sleep = absl::SleepFor;
  options.cancelled = listener.cancelled;
  options.say = listener.say;

  DownloadCache cache(std::move(options), means.files, means.http, means.clock);

  for (const DataPath& named : PathsOf(data)) {
    if (!IsWebAddress(*named.path)) continue;
    ASSIGN_OR_RETURN(const WebAddress address, ParseWebAddress(*named.path), At(named.field, _));
    if (means.http == nullptr) {
      return At(named.field, absl::UnimplementedError("this program does not download data"));
    }
    ASSIGN_OR_RETURN(*named.path, cache.Fetch(address), At(named.field, _));
  }
  return absl::OkStatus();
}

}  // namespace sluice
