#include "services/download/download_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/common/status_macros.h"
#include "services/download/sha256.h"

namespace sluice {
namespace {

// How often to try a lock that another process holds.
constexpr absl::Duration kPoll = absl::Milliseconds(200);

std::string SizeText(uint64_t bytes) {
  if (bytes < 10'000'000) return absl::StrFormat("%.2g MB", static_cast<double>(bytes) / 1e6);
  return absl::StrFormat("%.0f MB", static_cast<double>(bytes) / 1e6);
}

std::string ProgressText(const std::string& url, uint64_t bytes, uint64_t total) {
  if (total == 0) return absl::StrCat("Downloading ", url, ": ", SizeText(bytes));
  return absl::StrFormat("Downloading %s: %d %% of %s", url, bytes * 100 / total, SizeText(total));
}

absl::Status With(const absl::Status& status, absl::string_view advice) {
  return absl::Status(status.code(), absl::StrCat(status.message(), ". ", advice));
}

// Adds what a user can do about an error.
absl::Status Advise(const absl::Status& status, const std::string& url,
                    const std::string& directory) {
  const std::string by_hand =
      "or download the file by hand and put its path into the manifest instead of the address";
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDataLoss:
      return status;
    case absl::StatusCode::kResourceExhausted:
      return With(absl::ResourceExhaustedError(absl::StrCat(url, ": ", status.message())),
                  absl::StrCat("Free space in ", directory,
                               ", or set SLUICE_CACHE to a directory on another disk"));
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return With(status, absl::StrCat("Is the network available, and is a proxy needed "
                                       "(https_proxy)? Try again, ",
                                       by_hand));
    default:
      return With(status, absl::StrCat("Check the address, ", by_hand));
  }
}

bool IsTransient(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

// For errors of the cache's own directory, as opposed to the network's.
absl::Status OfDirectory(const absl::Status& status, const std::string& url) {
  return absl::Status(status.code(), absl::StrCat(url, " cannot be stored: ", status.message(),
                                                  ". Set SLUICE_CACHE to a writable directory"));
}

}  // namespace

DownloadCache::DownloadCache(Options options, FileSystem* files, HttpGet* http, const Clock* clock)
    : options_(std::move(options)), files_(files), http_(http), clock_(clock) {}

absl::StatusOr<std::string> DownloadCache::Fetch(const WebAddress& address) {
  if (options_.directory.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(address.url,
                     " cannot be stored: there is no home directory; set SLUICE_CACHE to "
                     "a directory for downloads"));
  }

  const std::string directory = JoinPath(options_.directory, address.sha256);
  std::string file = JoinPath(directory, address.file_name);
  if (absl::StatusOr<bool> there = files_->Exists(file); there.ok() && *there) return file;

  RETURN_IF_ERROR(files_->CreateDirectories(directory), OfDirectory(_, address.url));
  ASSIGN_OR_RETURN(const LockHandle lock, Lock(address, file));

  // While this process waited, the other process may have stored the file.
  if (absl::StatusOr<bool> there = files_->Exists(file); there.ok() && *there) return file;
  RETURN_IF_ERROR(Download(address, file), Advise(_, address.url, options_.directory));
  return file;
}

absl::StatusOr<DownloadCache::LockHandle> DownloadCache::Lock(const WebAddress& address,
                                                              const std::string& file) {
  const std::string path = absl::StrCat(JoinPath(options_.directory, address.sha256), ".lock");
  bool said = false;
  while (true) {
    ASSIGN_OR_RETURN(LockHandle lock, options_.try_lock(path), OfDirectory(_, address.url));
    if (lock != nullptr) return lock;

    if (options_.cancelled()) {
      return absl::CancelledError(absl::StrCat(address.url, ": the download was stopped"));
    }

    if (!said) {
      options_.say(absl::StrCat("Another process is downloading ", address.url, " to ", file));
      said = true;
    }
    options_.sleep(kPoll);
  }
}

absl::Status DownloadCache::Download(const WebAddress& address, const std::string& file) {
  const std::string part = absl::StrCat(file, ".part");
  absl::Status status;
  for (int tries = 1;; ++tries) {
    status = DownloadOnce(address, part);
    if (!IsTransient(status) || tries >= options_.max_tries || options_.cancelled()) break;
    options_.say(
        absl::StrCat("Tried ", tries, " of ", options_.max_tries, " times: ", status.message()));
    options_.sleep(absl::Seconds(tries));
  }

  if (status.ok()) status = files_->Rename(part, file);
  if (status.ok()) status = files_->SyncDirectory(DirectoryOf(file));
  if (!status.ok()) (void)files_->Remove(part);
  return status;
}

absl::Status DownloadCache::DownloadOnce(const WebAddress& address, const std::string& part) {
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_->Create(part, /*exclusive=*/false));
  options_.say(absl::StrCat("Downloading ", address.url, " to ", DirectoryOf(part)));

  Sha256 checksum;
  uint64_t bytes = 0;
  absl::Time said = clock_->Now();
  const auto sink = [&](absl::string_view piece, uint64_t total) {
    checksum.Append(piece);
    bytes += piece.size();
    if (const absl::Time now = clock_->Now(); now - said >= options_.say_every) {
      options_.say(ProgressText(address.url, bytes, total));
      said = now;
    }
    return file->Append(piece);
  };

  RETURN_IF_ERROR(http_->Get(address.url, sink, options_.cancelled));
  if (const std::string found = checksum.Finish(); found != address.sha256) {
    return absl::DataLossError(absl::StrCat(
        address.url, " has the SHA-256 checksum ", found, " (", bytes,
        " bytes), and the job asks for ", address.sha256,
        ". The server has another file than the manifest expects. If it is the right one, put its "
        "checksum into the manifest"));
  }

  RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::StatusOr<DownloadCache::LockHandle> FlockFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
    return std::shared_ptr<int>(new int(fd), [](const int* held) {
      close(*held);
      delete held;
    });
  }

  const int error = errno;
  close(fd);
  if (error == EWOULDBLOCK) return DownloadCache::LockHandle();
  return absl::ErrnoToStatus(error, path);
}

std::string CacheDirectory(const std::function<std::string(const char*)>& variable) {
  if (std::string chosen = variable("SLUICE_CACHE"); !chosen.empty()) return chosen;
  if (const std::string caches = variable("XDG_CACHE_HOME"); !caches.empty()) {
    return JoinPath(caches, "sluice");
  }
  if (const std::string home = variable("HOME"); !home.empty() && home != "/") {
    return JoinPath(home, ".cache/sluice");
  }
  return "";
}

}  // namespace sluice
