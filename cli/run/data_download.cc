#include "cli/run/data_download.h"

#include <atomic>
#include <string>

#include "services/download/job_data.h"

namespace sluice::cli {

absl::Status DownloadData(const Environment& environment, bool quiet, const v1::DataSpec& data) {
  std::atomic<bool> interrupted{false};
  environment.set_interrupt_handler([&](int) { interrupted = true; });
  DownloadListener listener;
  listener.say = [&](const std::string& text) {
    if (!quiet) *environment.err << text << std::endl;
  };
  listener.cancelled = [&] { return interrupted.load(); };
  v1::DataSpec found = data;
  absl::Status status = FetchData(
      {environment.cache_directory, environment.http, environment.files, environment.clock},
      listener, &found);
  environment.set_interrupt_handler(nullptr);
  return status;
}

}  // namespace sluice::cli
