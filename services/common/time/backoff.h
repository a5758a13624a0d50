#ifndef SLUICE_SERVICES_COMMON_TIME_BACKOFF_H_
#define SLUICE_SERVICES_COMMON_TIME_BACKOFF_H_

#include "absl/random/bit_gen_ref.h"
#include "absl/time/time.h"

namespace sluice {

// How long to wait before the next try: exponential, capped, and with jitter, so that clients that
// failed together do not return together (the "equal jitter" of the AWS Architecture Blog,
// "Exponential Backoff and Jitter", 2015). One thread at a time.
class Backoff {
 public:
  struct Options {
    absl::Duration initial = absl::Milliseconds(50);
    absl::Duration max = absl::Seconds(5);
    double multiplier = 2.0;
    double jitter = 0.5;  // each wait is drawn from [1 - jitter, 1] of its full length
  };

  explicit Backoff(const Options& options) : options_(options), next_(options.initial) {}

  // The next wait. Its full length grows by `multiplier` with each call, up to `max`, until Reset.
  absl::Duration Next(absl::BitGenRef random);

  // After a success.
  void Reset() { next_ = options_.initial; }

 private:
  Options options_;
  absl::Duration next_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_TIME_BACKOFF_H_
