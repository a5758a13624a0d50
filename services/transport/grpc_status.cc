#include "services/transport/grpc_status.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "services/common/text/utf8.h"

namespace sluice {
namespace {

// The longest message as gRPC encodes it. A client that receives 8 KiB of trailers or more replaces
// code and message by its own error, and the trailers have other entries too.
constexpr size_t kMaxEncodedBytes = 6144;

// gRPC sends a byte that is not printable ASCII, and '%', as three characters.
size_t EncodedBytes(absl::string_view text) {
  return text.size() + 2 * std::count_if(text.begin(), text.end(), [](char byte) {
                         return byte < ' ' || byte > '~' || byte == '%';
                       });
}

// The beginning of the message that gRPC can send, without part of a character at its end.
std::string Sendable(absl::string_view message) {
  size_t end = 0;
  for (size_t encoded = 0; end < message.size();) {
    const size_t bytes = std::max<size_t>(FirstCharacter(message.substr(end)), 1);
    encoded += EncodedBytes(message.substr(end, bytes));
    if (encoded > kMaxEncodedBytes) break;
    end += bytes;
  }

  return std::string(message.substr(0, end));
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Sendable(status.message()));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = status.error_code();
  const bool known = code >= static_cast<int>(absl::StatusCode::kCancelled) &&
                     code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      status.error_message());
}

}  // namespace sluice
