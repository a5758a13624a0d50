// The order in which samples are trained on: a pure function of the job, the same in every process.
//
// Intuition. A job walks through an endless line of *positions* 0, 1, 2, ... With N samples,
// position p is in epoch p / N, and each epoch visits every sample once in its own order. A
// synchronous job's step is a range of positions, a step's microbatches are ranges within it; an
// asynchronous job's ledger leases ranges of positions. So a step number, or a set of ranges, fully
// describes which samples were trained on.
//
// The order is specified to the bit, so that it can be implemented elsewhere. All arithmetic is on
// unsigned 64-bit integers, modulo 2^64; mix and at are SplitMix64Mix and SplitMix64At
// (services/common/arithmetic/splitmix64.h).
//
//   seed_e = at(seed, e)                                      for epoch e
//   key_r  = at(seed_e, r)                                    for rounds r = 0 .. 7
//   w      = the smallest integer >= 1 with 2^(2w) >= N
//   round_r(left, right) = (right, left xor (mix(right + key_r) mod 2^w))
//   walk(x) = left * 2^w + right  after  (left, right) = round_7(... round_0(x / 2^w, x mod 2^w))
//   index(p) = walk(i), or walk(walk(i)), ...: the first below N, where i = p mod N, e = p / N
//
// A Feistel network is a permutation of [0, 2^(2w)), and walking along its cycles until below N
// makes it one of [0, N) (J. Black, P. Rogaway: "Ciphers with arbitrary finite domains", CT-RSA
// 2002). It needs no memory, so a process that reads ten samples of a billion does not pay for the
// rest. 2^(2w) < 4N (N > 1): few walks are longer than 4.
#ifndef SLUICE_SERVICES_PROTOCOL_SAMPLES_SEQUENCE_H_
#define SLUICE_SERVICES_PROTOCOL_SAMPLES_SEQUENCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

// Half-open: [begin, end).
struct PositionRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  friend bool operator==(const PositionRange& a, const PositionRange& b) {
    return a.begin == b.begin && a.end == b.end;
  }
};

// More samples, or more samples in a batch, are refused.
inline constexpr uint64_t kMaxSamples = uint64_t{1} << 40;

// Maps positions to samples. Cheap to copy.
class SampleOrder {
 public:
  struct Options {
    uint64_t samples = 0;
    uint64_t seed = 0;
    bool shuffle = true;  // false: sample i is at place i of every epoch
  };

  // InvalidArgument unless 1 <= samples <= kMaxSamples.
  static absl::StatusOr<SampleOrder> Create(const Options& options);

  uint64_t samples() const { return options_.samples; }

  // Epochs count from 0.
  uint64_t EpochOf(uint64_t position) const { return position / options_.samples; }

  // The indices of all positions of a range, in order, each in [0, samples()). The range may span
  // epochs.
  std::vector<uint64_t> IndicesOf(PositionRange positions) const;

 private:
  static constexpr int kRounds = 8;
  struct Keys {
    uint64_t round[kRounds];
  };

  explicit SampleOrder(const Options& options);

  Keys KeysOf(uint64_t epoch) const;
  uint64_t Permute(const Keys& keys, uint64_t place) const;

  Options options_;
  int half_bits_;  // w
};

// The steps of a synchronous job. An epoch has ceil(samples / global_batch_size) steps; the last
// one takes the remaining samples, so that every sample is in exactly one step of an epoch. With
// `drop_last` it has floor(samples / global_batch_size) steps, and no step has the positions of
// the remaining samples: they are skipped. A step's samples are divided into microbatches of
// microbatch_size; the last may be smaller, and those past the end of a smaller step are empty.
// Copyable.
class StepSchedule {
 public:
  struct Options {
    uint64_t samples = 0;
    uint64_t global_batch_size = 0;
    uint64_t microbatch_size = 0;
    bool drop_last = false;
  };

  // InvalidArgument, naming the field, unless all are in [1, kMaxSamples] and an epoch has a step.
  static absl::StatusOr<StepSchedule> Create(const Options& options);

  uint64_t microbatch_size() const { return options_.microbatch_size; }

  // At least 1.
  uint64_t StepsPerEpoch() const;
  uint64_t EpochOf(uint64_t step) const { return step / StepsPerEpoch(); }

  // 2^64 - 1 if there are more.
  uint64_t StepsOfEpochs(uint64_t epochs) const;

  // Microbatches of a full step; a view assigns this number, the same for every step.
  uint64_t MicrobatchesPerStep() const;

  // Those that are not empty: fewer in a smaller step, never 0.
  uint64_t MicrobatchesOfStep(uint64_t step) const;

  PositionRange PositionsOf(uint64_t step) const;

  // The first step that begins at this position, or after it.
  uint64_t StepFrom(uint64_t position) const;

  // The positions of microbatches [microbatches.begin, microbatches.end) of a step; empty if all
  // these microbatches are.
  PositionRange PositionsOf(uint64_t step, PositionRange microbatches) const;

 private:
  explicit StepSchedule(const Options& options) : options_(options) {}

  Options options_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_SAMPLES_SEQUENCE_H_
