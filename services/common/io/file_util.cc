#include "services/common/io/file_util.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

// An error that names the action and the path.
absl::Status ErrnoStatus(int error, absl::string_view action, absl::string_view path) {
  const std::string message =
      absl::StrCat("cannot ", action, " ", path, ": ", std::string(strerror(error)));

  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EEXIST:
      return absl::AlreadyExistsError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case EISDIR:
    case ENOTDIR:
    case ENOTEMPTY:
    case ELOOP:
    case ENXIO:  // a socket, or a device that does not exist
    case ENODEV:
      return absl::FailedPreconditionError(message);
    case EINVAL:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

template <typename Call>
auto RetryOnInterrupt(const Call& call) {
  while (true) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

// The error of opening a file. A name that exists, as a link to nothing, is not a missing file.
absl::Status OpenError(int error, const std::string& path) {
  struct stat info;
  if (error == ENOENT && lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot read ", path, ": it is a link to a file that does not exist"));
  }
  return ErrnoStatus(error, "open", path);
}

// FAILED_PRECONDITION, with the kind of file, unless it is a regular file.
absl::Status CheckRegular(const struct stat& info, absl::string_view path) {
  if (S_ISREG(info.st_mode)) return absl::OkStatus();
  const char* kind = S_ISDIR(info.st_mode)    ? "a directory"
                     : S_ISFIFO(info.st_mode) ? "a pipe"
                     : S_ISSOCK(info.st_mode) ? "a socket"
                                              : "a device";
  return absl::FailedPreconditionError(
      absl::StrCat("cannot read ", path, ": it is ", kind, ", not a file"));
}

bool IsSameFile(const std::string& a, const std::string& b) {
  struct stat first, second;
  return lstat(a.c_str(), &first) == 0 && lstat(b.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

class RealWritableFile final : public WritableFile {
 public:
  RealWritableFile(std::string path, int fd) : path_(std::move(path)), file_(fd) {}

  absl::Status Append(absl::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t written =
          RetryOnInterrupt([&] { return write(file_.get(), bytes.data(), bytes.size()); });
      if (written < 0) return ErrnoStatus(errno, "write", path_);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (RetryOnInterrupt([&] { return fsync(file_.get()); }) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, "sync", path_);
  }

  absl::Status Close() override {
    if (close(file_.Release()) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, "close", path_);
  }

 private:
  const std::string path_;
  Descriptor file_;
};

class RealFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path,
                                                       bool exclusive) override {
    const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (exclusive ? O_EXCL : O_TRUNC);
    const int fd = RetryOnInterrupt([&] { return open(path.c_str(), flags, 0644); });
    if (fd < 0) return ErrnoStatus(errno, "create", path);
    return std::make_unique<RealWritableFile>(path, fd);
  }

  absl::StatusOr<std::string> Read(const std::string& path, size_t max_bytes) override {
    // Not blocking: a pipe in a file's place must not block the process until it is written to.
    const Descriptor file(RetryOnInterrupt(
        [&] { return open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); }));
    if (file.get() < 0) return OpenError(errno, path);

    struct stat info;
    if (fstat(file.get(), &info) != 0) return ErrnoStatus(errno, "stat", path);
    RETURN_IF_ERROR(CheckRegular(info, path));
    const absl::Status too_long = absl::ResourceExhaustedError(
        absl::StrCat("cannot read ", path, ": it is longer than ", max_bytes, " bytes"));
    if (info.st_size > 0 && static_cast<uint64_t>(info.st_size) > max_bytes) return too_long;

    std::string content;
    char buffer[64 << 10];
    while (true) {
      const ssize_t got =
          RetryOnInterrupt([&] { return read(file.get(), buffer, sizeof(buffer)); });
      if (got < 0) return ErrnoStatus(errno, "read", path);
      if (got == 0) return content;
      if (static_cast<size_t>(got) > max_bytes - content.size()) return too_long;
      content.append(buffer, static_cast<size_t>(got));
    }
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, absl::StrCat("rename ", from, " to"), to);
  }

  absl::Status Link(const std::string& from, const std::string& to) override {
    if (link(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    const int error = errno;
    if (error == EEXIST && IsSameFile(from, to)) return absl::OkStatus();
    return ErrnoStatus(error, absl::StrCat("link ", from, " to"), to);
  }

  absl::Status Remove(const std::string& path) override {
    if (unlink(path.c_str()) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, "remove", path);
  }

  absl::Status CreateDirectories(const std::string& path) override {
    if (path.empty() || path == "/" || path == ".") return absl::OkStatus();
    if (mkdir(path.c_str(), 0755) == 0) return SyncDirectory(DirectoryOf(path));
    if (errno == EEXIST) {
      struct stat info;
      if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return absl::OkStatus();
      return ErrnoStatus(ENOTDIR, "make the directory", path);
    }

    if (errno != ENOENT) return ErrnoStatus(errno, "make the directory", path);
    RETURN_IF_ERROR(CreateDirectories(DirectoryOf(path)));
    // Another process may have made it meanwhile.
    if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, "make the directory", path);
    }
    return SyncDirectory(DirectoryOf(path));
  }

  absl::Status RemoveDirectory(const std::string& path) override {
    if (rmdir(path.c_str()) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, "remove the directory", path);
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const Descriptor directory(
        RetryOnInterrupt([&] { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (directory.get() < 0) return ErrnoStatus(errno, "open the directory", path);
    if (RetryOnInterrupt([&] { return fsync(directory.get()); }) == 0) return absl::OkStatus();
    // Some network file systems lack this operation and do not need it.
    if (errno == EINVAL) return absl::OkStatus();
    return ErrnoStatus(errno, "sync the directory", path);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    DIR* directory = opendir(path.c_str());
    if (directory == nullptr) return ErrnoStatus(errno, "list", path);

    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(directory)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }

    const int error = errno;
    closedir(directory);
    if (error != 0) return ErrnoStatus(error, "list", path);

    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<bool> Exists(const std::string& path) override {
    struct stat info;
    if (stat(path.c_str(), &info) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return ErrnoStatus(errno, "stat", path);
  }

  absl::StatusOr<uint64_t> Size(const std::string& path) override {
    struct stat info;
    if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, "stat", path);
    RETURN_IF_ERROR(CheckRegular(info, path));
    return static_cast<uint64_t>(info.st_size);
  }
};

absl::Status WriteDurably(FileSystem* files, const std::string& path, const absl::Cord& content) {
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files->Create(path, /*exclusive=*/false));
  for (const absl::string_view chunk : content.Chunks()) {
    RETURN_IF_ERROR(file->Append(chunk));
  }
  RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

constexpr absl::string_view kTemporary = ".tmp-";

std::string TemporaryName(const std::string& path, absl::string_view suffix) {
  return absl::StrCat(path, kTemporary, suffix);
}

// The error with the path of the caller instead of the temporary one.
absl::Status Named(const absl::Status& status, const std::string& temporary,
                   const std::string& path) {
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrReplaceAll(status.message(), {{absl::StrCat("rename ", temporary, " to"), "write"},
                                             {absl::StrCat("link ", temporary, " to"), "create"},
                                             {temporary, path}}));
}

}  // namespace

std::unique_ptr<FileSystem> MakeRealFileSystem() { return std::make_unique<RealFileSystem>(); }

std::string DirectoryOf(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  return std::string(path.substr(0, std::max<size_t>(slash, 1)));
}

std::string FileNameOf(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  return std::string(slash == absl::string_view::npos ? path : path.substr(slash + 1));
}

std::string JoinPath(absl::string_view directory, absl::string_view name) {
  if (directory.empty()) return std::string(name);
  return absl::StrCat(directory, directory.back() == '/' ? "" : "/", name);
}

bool IsTemporaryName(absl::string_view name) { return absl::StrContains(name, kTemporary); }

absl::Status AtomicWriteFile(FileSystem* files, const std::string& path, const absl::Cord& content,
                             absl::string_view suffix) {
  const std::string temporary = TemporaryName(path, suffix);
  absl::Status status = WriteDurably(files, temporary, content);
  if (status.ok()) status = files->Rename(temporary, path);
  if (!status.ok()) {
    files->Remove(temporary).IgnoreError();
    return Named(status, temporary, path);
  }
  return files->SyncDirectory(DirectoryOf(path));
}

absl::Status ExclusiveCreateFile(FileSystem* files, const std::string& path,
                                 const absl::Cord& content, absl::string_view suffix) {
  const std::string temporary = TemporaryName(path, suffix);
  absl::Status status = WriteDurably(files, temporary, content);
  if (status.ok()) status = files->Link(temporary, path);
  // The other name, if it was made, does not depend on this one.
  files->Remove(temporary).IgnoreError();
  if (!status.ok()) return Named(status, temporary, path);
  return files->SyncDirectory(DirectoryOf(path));
}

}  // namespace sluice
