#include "services/transport/security/handshake.h"

#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sluice::security {
namespace {

bool SaysAny(const std::string& text, std::initializer_list<absl::string_view> words) {
  for (absl::string_view word : words) {
    if (absl::StrContains(text, word)) return true;
  }
  return false;
}

}  // namespace

std::optional<HandshakeTrouble> FindHandshakeTrouble(const absl::Status& status, bool tls) {
  if (!absl::IsUnavailable(status)) return std::nullopt;
  const std::string text = absl::AsciiStrToLower(status.message());
  if (!tls) {
    // A server with TLS ends what does not begin with a handshake, and says nothing. So does one
    // that dies just then.
    if (!SaysAny(text, {"socket closed", "connection reset by peer", "broken pipe"})) {
      return std::nullopt;
    }
    return HandshakeTrouble{"this side speaks plain text, and perhaps the other one TLS",
                            "if the job speaks TLS, give this one --tls-directory too"};
  }
  if (SaysAny(text, {"wrong version number"})) {
    return HandshakeTrouble{"the other side speaks plain text, and this one TLS",
                            "give it --tls-directory too, or none to this one"};
  }
  if (SaysAny(text, {"certificate verify failed", "certificate_verify_failed"})) {
    return HandshakeTrouble{
        "the other side's certificate is not of this job's authority, or has expired",
        "compare the folders' ca.crt, and renew tls.crt"};
  }
  if (SaysAny(text, {"not one of job"})) {
    return HandshakeTrouble{"the other side's certificate is that of another job",
                            "compare the addresses and the folders of both"};
  }
  if (SaysAny(text, {"hostname verification", "is not in peer certificate"})) {
    return HandshakeTrouble{"the other side's certificate is that of another role",
                            "give it the folder of its own"};
  }
  if (SaysAny(text, {"handshake", "socket closed", "connection reset by peer"})) {
    return HandshakeTrouble{
        "TLS could not be agreed on: perhaps this side's certificate was refused",
        "the other side's log names the reason; compare both sides' --tls-directory"};
  }
  return std::nullopt;
}

absl::Status ExplainHandshake(const absl::Status& status, bool tls, absl::string_view help) {
  const std::optional<HandshakeTrouble> trouble = FindHandshakeTrouble(status, tls);
  if (!trouble.has_value()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), " (", trouble->fact, "; ",
                                   help.empty() ? absl::string_view(trouble->help) : help, ")"));
}

}  // namespace sluice::security
