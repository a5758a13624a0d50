// Files that are downloaded once per machine.
#ifndef SLUICE_SERVICES_DOWNLOAD_DOWNLOAD_CACHE_H_
#define SLUICE_SERVICES_DOWNLOAD_DOWNLOAD_CACHE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/common/io/file_util.h"
#include "services/common/text/web_address.h"
#include "services/common/time/clock.h"
#include "services/download/http_get.h"

namespace sluice {

// A directory of files, each in a directory that is named by its checksum:
// <directory>/<sha256>/<name>.
//
// A file gets its name when it is complete and synced, and its checksum is right: a file with its
// name can be used by any process at any time. Until then it is <name>.part, which only the holder
// of <directory>/<sha256>.lock writes, from the beginning. The kernel releases the lock when its
// holder dies; the next holder overwrites the .part file.
class DownloadCache {
 public:
  // Holds a lock as long as it lives. Null: another process has it.
  using LockHandle = std::shared_ptr<void>;
  using TryLock = std::function<absl::StatusOr<LockHandle>(const std::string& path)>;

  struct Options {
    std::string directory;
    TryLock try_lock;                             // FlockFile
    std::function<void(absl::Duration)> sleep;    // absl::SleepFor
    std::function<bool()> cancelled;              // polled while waiting and between pieces
    std::function<void(const std::string&)> say;  // receives progress as sentences
    absl::Duration say_every = absl::Seconds(5);
    int max_tries = 3;  // for Unavailable and DeadlineExceeded
  };

  // The arguments must outlive it.
  DownloadCache(Options options, FileSystem* files, HttpGet* http, const Clock* clock);

  // The path of the file, which is downloaded unless it exists. Blocks during the download, by this
  // or another process. Not by two threads at once.
  //
  // FailedPrecondition: there is no directory. DataLoss: the file at the address has another
  // checksum. ResourceExhausted: the disk is full. Otherwise the errors of HttpGet::Get and
  // FileSystem. Each message names the URL and what the user can do.
  absl::StatusOr<std::string> Fetch(const WebAddress& address);

 private:
  // Polls until no other process downloads this file. CANCELLED if `cancelled` returns true.
  absl::StatusOr<LockHandle> Lock(const WebAddress& address, const std::string& file);
  // Downloads to the .part file, with retries after transient errors, and gives the file its name.
  absl::Status Download(const WebAddress& address, const std::string& file);
  // One try. DATA_LOSS if the file's checksum is not the address's.
  absl::Status DownloadOnce(const WebAddress& address, const std::string& part);

  const Options options_;
  FileSystem* const files_;
  HttpGet* const http_;
  const Clock* const clock_;
};

// Tries to lock a file (flock), which is created if it does not exist.
absl::StatusOr<DownloadCache::LockHandle> FlockFile(const std::string& path);

// Where downloads are kept: $SLUICE_CACHE; else sluice in $XDG_CACHE_HOME; else .cache/sluice in
// $HOME; else nowhere (empty). `variable` returns a variable of the environment, empty if it is not
// set.
std::string CacheDirectory(const std::function<std::string(const char*)>& variable);

}  // namespace sluice

#endif  // SLUICE_SERVICES_DOWNLOAD_DOWNLOAD_CACHE_H_
