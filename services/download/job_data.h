#ifndef SLUICE_SERVICES_DOWNLOAD_JOB_DATA_H_
#define SLUICE_SERVICES_DOWNLOAD_JOB_DATA_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "services/common/io/file_util.h"
#include "services/common/time/clock.h"
#include "services/download/http_get.h"

namespace sluice {

// The process's resources for downloads; everything must outlive their use.
struct DownloadMeans {
  std::string directory;  // CacheDirectory
  HttpGet* http = nullptr;
  FileSystem* files = nullptr;
  const Clock* clock = nullptr;
};

// Receives progress as sentences, and decides whether to stop.
struct DownloadListener {
  std::function<void(const std::string&)> say;
  std::function<bool()> cancelled;
};

// A path of a job's data, empty if it is not set, and the name of its field.
struct DataPath {
  const char* field;
  std::string* path;  // of the specification
};

// The paths of the data's source, vocabulary and evaluation source, of those that the job has. They
// point into `data`.
std::vector<DataPath> PathsOf(v1::DataSpec* data);

// Replaces each address among the paths of a job's data by a file of this machine, which is
// downloaded unless it exists. Blocks, with retries, until the last file is complete. Errors are
// those of DownloadCache::Fetch, with the field in front; `data` is then unspecified.
absl::Status FetchData(const DownloadMeans& means, const DownloadListener& listener,
                       v1::DataSpec* data);

}  // namespace sluice

#endif  // SLUICE_SERVICES_DOWNLOAD_JOB_DATA_H_
