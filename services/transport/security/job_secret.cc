#include "services/transport/security/job_secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sluice::security {
namespace {

constexpr size_t kRandomBytes = 32;
constexpr mode_t kOthers = S_IRWXG | S_IRWXO;

// With room for the end of the line, and to detect a file that is too long.
constexpr size_t kMaxFileBytes = kMaxSecretLength + 16;

absl::Status WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, "write");
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace

std::string MakeSecret() {
  char random[kRandomBytes];
  // Never returns fewer bytes, and fails only where the kernel lacks the call.
  if (getrandom(random, sizeof(random), 0) != static_cast<ssize_t>(sizeof(random))) {
    std::perror("getrandom");
    std::abort();
  }
  return absl::BytesToHexString(absl::string_view(random, sizeof(random)));
}

absl::Status WriteSecretFile(const std::string& path, absl::string_view secret) {
  // An existing file may belong to another user, or be readable by others: it is replaced, not
  // written to.
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return absl::ErrnoToStatus(errno, path);

  const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);

  const absl::Status status = WriteAll(fd, absl::StrCat(secret, "\n"));
  close(fd);
  return status.ok() ? status
                     : absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

absl::StatusOr<std::string> ReadSecretFile(FileSystem* files, const std::string& path) {
  struct stat properties = {};
  if (stat(path.c_str(), &properties) == 0) {
    if (!S_ISREG(properties.st_mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the file of a secret must be a regular file"));
    }
    if ((properties.st_mode & kOthers) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path,
                       ": other users may read the secret; restrict it to its owner: "
                       "chmod 600 ",
                       path));
    }
  }

  absl::StatusOr<std::string> text = files->Read(path, kMaxFileBytes);
  if (!text.ok()) {
    if (!absl::IsPermissionDenied(text.status())) return text.status();
    return absl::PermissionDeniedError(
        absl::StrCat(text.status().message(),
                     "; only the user who started the job may connect to its processes"));
  }

  const absl::string_view secret = absl::StripAsciiWhitespace(*text);
  bool printable = true;
  for (const char c : secret) printable = printable && absl::ascii_isgraph(c);
  if (!printable || secret.size() < kMinSecretLength || secret.size() > kMaxSecretLength) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a secret is one line of ", kMinSecretLength, " to ", kMaxSecretLength,
                     " printable characters without spaces; make one: (umask 077 "
                     "&& head -c 32 /dev/urandom | base64 > ",
                     path, ")"));
  }
  return std::string(secret);
}

bool SameSecret(absl::string_view secret, absl::string_view guess) {
  if (secret.size() != guess.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < secret.size(); ++i) {
    difference |= static_cast<unsigned char>(secret[i]) ^ static_cast<unsigned char>(guess[i]);
  }
  return difference == 0;
}

}  // namespace sluice::security
