#ifndef SLUICE_OPERATOR_KUBE_TOKEN_SOURCE_H_
#define SLUICE_OPERATOR_KUBE_TOKEN_SOURCE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/time/time.h"
#include "services/common/io/file_util.h"
#include "services/common/threads/mutex.h"
#include "services/common/time/clock.h"

namespace sluice::kube {

// The bearer token in a file that is replaced while it is in use (projected tokens are valid for an
// hour and are rotated at 80 % of that). The file is read again every minute, and at once after a
// refusal. Any thread; reads the file on the caller's thread.
class TokenSource {
 public:
  static constexpr absl::Duration kReadEvery = absl::Minutes(1);
  static constexpr size_t kMaxBytes = 64 << 10;

  // Both arguments outlive this.
  TokenSource(std::string path, FileSystem* files, const Clock* clock)
      : path_(std::move(path)), files_(files), clock_(clock) {}

  // If the file cannot be read, the previous token stays in use; if there is none, returns the
  // file's error.
  absl::StatusOr<std::string> Token() {
    MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    if (!token_.empty() && now < read_at_ + kReadEvery) return token_;
    absl::StatusOr<std::string> read = files_->Read(path_, kMaxBytes);
    if (!read.ok()) {
      if (token_.empty()) return read.status();
      return token_;
    }
    token_ = std::string(absl::StripAsciiWhitespace(*read));
    read_at_ = now;
    if (token_.empty()) return absl::FailedPreconditionError(path_ + ": contains no token");
    return token_;
  }

  // The server refused `token`: if it is the newest one, the next Token() reads the file again.
  void Refused(const std::string& token) {
    MutexLock lock(&mutex_);
    if (token == token_) read_at_ = absl::InfinitePast();
  }

 private:
  const std::string path_;
  FileSystem* const files_;
  const Clock* const clock_;
  Mutex mutex_;
  std::string token_ ABSL_GUARDED_BY(mutex_);
  absl::Time read_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_TOKEN_SOURCE_H_
