#ifndef SLUICE_SERVICES_PS_CORE_BASE_STALENESS_H_
#define SLUICE_SERVICES_PS_CORE_BASE_STALENESS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "services/common/arithmetic/half.h"

namespace sluice::ps {

// The effect of staleness on an asynchronous update, by the job's rule.
//
// Intuition. An update was computed on parameters that tau other updates have changed since. A rule
// may take a smaller step, correct the gradient to first order for the parameters' change since
// then, or reduce the momentum, because such delays act as momentum themselves. tau comes with the
// update's permit and so is the same on all shards.
//
//   Damped              lr / (1 + factor tau)
//   Inverse             lr / max(1, tau)
//                       W. Zhang, S. Gupta, X. Lian, J. Liu, "Staleness-aware async-SGD for
//                       distributed deep learning", IJCAI 2016
//   DelayCompensation   g + lambda g*g*(w_now - w_then), elementwise: the diagonal of g g^T
//                       replaces the Hessian. S. Zheng et al., "Asynchronous stochastic gradient
//                       descent with delay compensation", ICML 2017 (with a constant lambda)
//   MomentumCorrection  momentum - tau / (1 + tau), at least 0: I. Mitliagkas, C. Zhang, S. Hadjis,
//                       C. Re, "Asynchrony begets momentum, with an application to deep learning",
//                       Allerton 2016, find that n asynchronous workers, of staleness n - 1, act
//                       as a momentum of 1 - 1/n
struct StalenessEffect {
  double learning_rate_factor = 1;
  double momentum_taken_off = 0;
  double delay_compensation = 0;  // lambda
};

// `staleness`: tau. Without a rule it changes nothing.
StalenessEffect EffectOf(const v1::TrainingSpec::Staleness& rule, uint64_t staleness);

// gradient += factor gradient^2 (now - base), elementwise; computed in the gradient's type. The
// spans have one size.
template <typename T>
void CompensateDelay(double factor, absl::Span<const T> now, absl::Span<const T> base,
                     absl::Span<ComputeType<T>> gradient);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_BASE_STALENESS_H_
