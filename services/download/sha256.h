#ifndef SLUICE_SERVICES_DOWNLOAD_SHA256_H_
#define SLUICE_SERVICES_DOWNLOAD_SHA256_H_

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// FIPS 180-4, of bytes that arrive piece by piece. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  // Adds the next bytes. Not after Finish.
  void Append(absl::string_view bytes);
  // In lower-case hexadecimal digits. Call once, at the end.
  std::string Finish();

 private:
  struct Context;
  const std::unique_ptr<Context> context_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_DOWNLOAD_SHA256_H_
