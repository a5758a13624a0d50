#include "services/worker/data/file.h"

#include <sys/stat.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/text/wide_encoding.h"

namespace sluice {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a file"));
  }

  errno = 0;
  // zlib passes content through if it does not begin like gzip.
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read"));
  }
  constexpr unsigned kChunk = 1 << 20;
  gzbuffer(file.get(), kChunk);

  std::string content;
  content.reserve(info.st_size);
  while (true) {
    const size_t size = content.size();
    if (size > kMaxFileBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, ": holds more than ", kMaxFileBytes >> 30, " GiB"));
    }
    content.resize(size + kChunk);
    const int got = gzread(file.get(), &content[size], kChunk);
    content.resize(size + (got > 0 ? got : 0));
    if (got < static_cast<int>(kChunk)) break;
  }

  // A file that ends in the middle of its stream reads like a shorter file; only gzerror reports
  // it.
  int error = Z_OK;
  const char* message = gzerror(file.get(), &error);
  if (error == Z_ERRNO) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read"));
  if (error == Z_BUF_ERROR) {
    return absl::DataLossError(absl::StrCat(path, ": the compressed file is truncated"));
  }
  if (error != Z_OK && error != Z_STREAM_END) {
    return absl::DataLossError(
        absl::StrCat(path, ": the compressed file is damaged (", message, ")"));
  }
  return content;
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  absl::StatusOr<std::string> content = ReadFile(path);
  if (!content.ok() || WideEncoding(*content).empty()) return content;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", WideEncodingMessage(*content)));
}

}  // namespace sluice
