#include "services/manifest/suggest.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"

namespace sluice::api {
namespace {

constexpr size_t kMaxNameBytes = 64;

std::string Normalized(absl::string_view name) {
  std::string result;
  for (char c : name) {
    if (c != '_' && c != '-') result += absl::ascii_tolower(c);
  }
  return result;
}

// Optimal string alignment distance (Damerau 1964, without overlapping swaps).
int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

int ClosestName(absl::string_view name, const std::vector<std::string>& candidates) {
  if (name.empty() || name.size() > kMaxNameBytes) return -1;
  const std::string wanted = Normalized(name);
  int best = -1;
  int best_distance = static_cast<int>(std::max<size_t>(wanted.size(), 3) / 3) + 1;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int distance = EditDistance(wanted, Normalized(candidates[i]));
    if (distance < best_distance) {
      best_distance = distance;
      best = static_cast<int>(i);
    }
  }
  return best;
}

}  // namespace sluice::api
