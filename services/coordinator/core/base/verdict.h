#ifndef SLUICE_SERVICES_COORDINATOR_CORE_BASE_VERDICT_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_BASE_VERDICT_H_

#include <string>
#include <utility>

namespace sluice::coordinator {

// The verdict of a part of the core on the whole job. Unless it is kContinue, the part has stopped
// its work, and the core carries the verdict out at once.
struct [[nodiscard]] Verdict {
  enum class Kind {
    kContinue,
    kUnloadable,  // a shard cannot load the checkpoint with which the attempt began
    kSuperseded,  // another coordinator has taken over
    kEnded,       // the storage says that the job has ended
    kFailed,
  };

  Kind kind = Kind::kContinue;
  std::string why;   // one sentence
  std::string code;  // kEnded, kFailed: JobProgress.reason_code

  bool ok() const { return kind == Kind::kContinue; }

  static Verdict Continue() { return {}; }
  static Verdict Unloadable(std::string why) { return {Kind::kUnloadable, std::move(why), ""}; }
  static Verdict Superseded(std::string why) { return {Kind::kSuperseded, std::move(why), ""}; }
  static Verdict Failed(std::string why, std::string code = "") {
    return {Kind::kFailed, std::move(why), std::move(code)};
  }
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_BASE_VERDICT_H_
