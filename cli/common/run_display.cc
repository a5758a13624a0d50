#include "cli/common/run_display.h"

#include <utility>

namespace sluice::cli {

std::unique_ptr<RunDisplay> MakeDisplay(const Environment& environment, const std::string& output,
                                        DisplayOptions options) {
  if (output == "json") return MakeJsonDisplay(environment, std::move(options));
  if (output == "plain") return MakePlainDisplay(environment, std::move(options));
  return MakeTextDisplay(environment, std::move(options));
}

}  // namespace sluice::cli
