// Measures the shard's arithmetic on one core: 100 MiB of float32, in blocks of 1 MiB and received
// chunks of 64 KiB, as on a shard. Bytes per second count the parameters, not all bytes that are
// read and written.
//
//   bazel run -c opt //bench:arithmetic_benchmark

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "proto/job.pb.h"
#include "services/common/arithmetic/cord_reader.h"
#include "services/common/arithmetic/half.h"
#include "services/common/arithmetic/kernels.h"
#include "services/ps/optimizer/optimizer.h"

namespace sluice {
namespace {

constexpr size_t kCount = 100 * 1024 * 1024 / sizeof(float);
constexpr size_t kBlock = 1024 * 1024 / sizeof(float);

std::vector<float> Values(size_t count = kCount) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 1000) * 1e-3f;
  return values;
}

void SetBytes(benchmark::State& state) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kCount * sizeof(float)));
}

void BM_Copy(benchmark::State& state) {
  const std::vector<float> from = Values();
  std::vector<float> to = Values();
  while (state.KeepRunning()) {
    std::memcpy(to.data(), from.data(), kCount * sizeof(float));
    benchmark::ClobberMemory();
  }
  SetBytes(state);
}

void BM_Add(benchmark::State& state) {
  const std::vector<float> values = Values();
  std::vector<float> sums = Values();
  while (state.KeepRunning()) {
    Add(absl::MakeConstSpan(values), absl::MakeSpan(sums));
    benchmark::ClobberMemory();
  }
  SetBytes(state);
}

// Adds chunks that start `state.range(0)` bytes after an aligned address.
void BM_AddPayload(benchmark::State& state) {
  const auto shift = static_cast<size_t>(state.range(0));
  std::vector<float> sums = Values();
  std::vector<char> bytes(kCount * sizeof(float) + 64);
  const absl::Cord whole = absl::MakeCordFromExternal(
      absl::string_view(bytes.data() + shift, kCount * sizeof(float)), [] {});
  absl::Cord payload;
  for (size_t at = 0; at < whole.size(); at += 65536) payload.Append(whole.Subcord(at, 65536));
  while (state.KeepRunning()) {
    if (!AddPayload<float>(payload, absl::MakeSpan(sums)).ok()) state.SkipWithError("refused");
    benchmark::ClobberMemory();
  }
  SetBytes(state);
}

void BM_SquareSum(benchmark::State& state) {
  const std::vector<float> values = Values();
  while (state.KeepRunning()) benchmark::DoNotOptimize(SquareSum(absl::MakeConstSpan(values)));
  SetBytes(state);
}

void BM_FirstNonFinite(benchmark::State& state) {
  const std::vector<float> values = Values();
  while (state.KeepRunning()) benchmark::DoNotOptimize(FirstNonFinite(absl::MakeConstSpan(values)));
  SetBytes(state);
}

template <typename Half>
void BM_ConvertToHalf(benchmark::State& state) {
  const std::vector<float> values = Values();
  std::vector<Half> halves(kCount);
  while (state.KeepRunning()) {
    Convert(absl::MakeConstSpan(values), absl::MakeSpan(halves));
    benchmark::ClobberMemory();
  }
  SetBytes(state);
}

// Writes version s + 1 beside version s, block by block, alternating between two versions.
void StepBeside(benchmark::State& state, const v1::OptimizerSpec& spec) {
  const std::unique_ptr<Optimizer> optimizer = *MakeOptimizer(spec);
  const std::vector<float> gradient = Values();
  std::vector<float> parameters[2] = {Values(), Values()};
  std::vector<std::vector<float>> slots[2];
  for (auto& version : slots) version.assign(optimizer->slots().size(), Values());
  StepArguments arguments;
  arguments.learning_rate = 1e-3;
  arguments.gradient_scale = 1.0 / 32;
  while (state.KeepRunning()) {
    const size_t from = arguments.count % 2;
    for (size_t begin = 0; begin < kCount; begin += kBlock) {
      StepRange<float> range;
      range.parameters = absl::MakeConstSpan(parameters[from]).subspan(begin, kBlock);
      range.gradient = absl::MakeConstSpan(gradient).subspan(begin, kBlock);
      range.parameters_out = absl::MakeSpan(parameters[1 - from]).subspan(begin, kBlock);
      for (size_t i = 0; i < slots[0].size(); ++i) {
        range.slots[i] = absl::MakeConstSpan(slots[from][i]).subspan(begin, kBlock);
        range.slots_out[i] = absl::MakeSpan(slots[1 - from][i]).subspan(begin, kBlock);
      }
      optimizer->Step(arguments, range);
    }
    ++arguments.count;
    benchmark::ClobberMemory();
  }
  SetBytes(state);
}

void BM_SgdBeside(benchmark::State& state) {
  v1::OptimizerSpec spec;
  spec.set_name(v1::OptimizerSpec::SGD);
  StepBeside(state, spec);
}

void BM_SgdMomentumBeside(benchmark::State& state) {
  v1::OptimizerSpec spec;
  spec.set_name(v1::OptimizerSpec::SGD);
  spec.set_momentum(0.9);
  StepBeside(state, spec);
}

void BM_AdamBeside(benchmark::State& state) {
  v1::OptimizerSpec spec;
  spec.set_name(v1::OptimizerSpec::ADAM);
  spec.set_beta1(0.9);
  spec.set_beta2(0.999);
  spec.set_eps(1e-8);
  StepBeside(state, spec);
}

BENCHMARK(BM_Copy)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Add)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_AddPayload)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_SquareSum)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_FirstNonFinite)->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(BM_ConvertToHalf, BFloat16)->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(BM_ConvertToHalf, Float16)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_SgdBeside)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_SgdMomentumBeside)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_AdamBeside)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice
