#ifndef SLUICE_SERVICES_DOWNLOAD_JOB_DATA_H_
#define SLUICE_SERVICES_DOWNLOAD_JOB_DATA_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "services/common/clock.h"
#include "services/common/file_util.h"
#include "services/download/http_get.h"

namespace sluice {

// What a process has to do with, for downloads; everything outlives their use.
struct DownloadMeans {
  std::string directory;  // CacheDirectory
  HttpGet* http = nullptr;
  FileSystem* files = nullptr;
  const Clock* clock = nullptr;
};

// Called with sentences, and asked whether to stop.
struct DownloadListener {
  std::function<void(const std::string&)> say;
  std::function<bool()> cancelled;
};

// A path among those of a job's data, empty if it is not set, and the name of its field.
struct DataPath {
  const char* field;
  std::string* path;  // of the specification
};
std::vector<DataPath> PathsOf(v1::DataSpec* data);

// Puts a file of this machine in the place of each address among the paths of a job's data, after
// it has been downloaded unless it is there already. Blocks, with retries, until the last is there.
// Errors are those of DownloadCache::Fetch, with the field in front; `data` is then unspecified.
absl::Status FetchData(const DownloadMeans& means, const DownloadListener& listener,
                       v1::DataSpec* data);

}  // namespace sluice

#endif  // SLUICE_SERVICES_DOWNLOAD_JOB_DATA_H_
