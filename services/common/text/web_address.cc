#include "services/common/text/web_address.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace sluice {
namespace {

constexpr absl::string_view kChecksum = "#sha256=";
constexpr size_t kDigits = 64;
// The longest local file name; leaves room for a temporary suffix.
constexpr size_t kMaxName = 200;

bool IsHexadecimal(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isxdigit(c); });
}

// The file name in a URL without scheme: host/directory/name?query.
std::string NameIn(absl::string_view place) {
  place = place.substr(0, place.find('?'));
  std::string name(place.substr(place.rfind('/') + 1));
  for (char& c : name) {
    if (!absl::ascii_isalnum(c) && !absl::StrContains("-_.+", c)) c = '_';
  }
  if (name.size() > kMaxName) name = name.substr(name.size() - kMaxName);
  // Data must not be in a hidden file, nor be named like the directory itself.
  return absl::StartsWith(name, ".") ? absl::StrCat("_", name) : name;
}

}  // namespace

bool IsWebAddress(absl::string_view path) { return absl::StrContains(path, "://"); }

absl::StatusOr<WebAddress> ParseWebAddress(absl::string_view text) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, ": ", why,
                     "; an address is http://HOST/FILE#sha256=CHECKSUM or the same with https, "
                     "with the 64 digits that `sha256sum FILE` prints"));
  };

  absl::string_view place = text;
  if (!absl::ConsumePrefix(&place, "https://") && !absl::ConsumePrefix(&place, "http://")) {
    return refuse("is not http or https");
  }

  const size_t hash = text.find('#');
  if (hash == absl::string_view::npos || !absl::StartsWith(text.substr(hash), kChecksum)) {
    return refuse("has no checksum");
  }
  const absl::string_view digits = text.substr(hash + kChecksum.size());
  if (digits.size() != kDigits || !IsHexadecimal(digits)) {
    return refuse("has a checksum that is not 64 hexadecimal digits");
  }

  place = place.substr(0, place.find('#'));
  const auto is_blank = [](char c) { return absl::ascii_isspace(c) || absl::ascii_iscntrl(c); };
  if (std::any_of(place.begin(), place.end(), is_blank)) return refuse("has a space in it");
  const size_t slash = place.substr(0, place.find('?')).find('/');
  if (slash == absl::string_view::npos || slash == 0) return refuse("names no host or no file");

  WebAddress address;
  address.url = std::string(text.substr(0, hash));
  address.sha256 = absl::AsciiStrToLower(digits);
  address.file_name = NameIn(place);
  if (address.file_name.empty()) return refuse("names no file");
  return address;
}

}  // namespace sluice
