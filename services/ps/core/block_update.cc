#include "services/ps/core/block_update.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "services/common/arithmetic/cord_reader.h"
#include "services/common/arithmetic/kernels.h"
#include "services/protocol/elements.h"

namespace sluice::ps {
namespace {

template <typename T>
struct SlotSpans {
  std::array<absl::Span<const T>, kMaxSlots> in;
  std::array<absl::Span<T>, kMaxSlots> out;
};

// Slots of the next version. Those of a first update start from their initial values, in place.
template <typename Compute>
SlotSpans<Compute> OpenSlots(const BlockInfo& info, absl::Span<const SlotSpec> specs,
                             const BlockState& now, BlockPool& pool,
                             std::array<MutableBlockRef, kMaxSlots>* written) {
  SlotSpans<Compute> spans;
  for (size_t i = 0; i < specs.size(); ++i) {
    MutableBlockRef block = pool.Take(info.sum_bytes);
    spans.out[i] = block->MutableAs<Compute>();
    if (now.slots[i] != nullptr) {
      spans.in[i] = now.slots[i]->As<Compute>();
    } else {
      std::fill(spans.out[i].begin(), spans.out[i].end(),
                static_cast<Compute>(specs[i].initial_value));
      spans.in[i] = spans.out[i];
    }
    (*written)[i] = std::move(block);
  }
  return spans;
}

template <typename T>
StepRange<T> SubRange(const StepRange<T>& whole, size_t slots, size_t offset,
                      absl::Span<const ComputeType<T>> gradient) {
  StepRange<T> part;
  const size_t count = gradient.size();
  part.parameters = whole.parameters.subspan(offset, count);
  part.gradient = gradient;
  part.parameters_out = whole.parameters_out.subspan(offset, count);
  for (size_t i = 0; i < slots; ++i) {
    part.slots[i] = whole.slots[i].subspan(offset, count);
    part.slots_out[i] = whole.slots_out[i].subspan(offset, count);
  }
  return part;
}

absl::Status NonFinite() { return absl::OutOfRangeError("the gradient is not finite"); }

StepArguments ArgumentsOfStep(const ShardModel& model, const BlockInfo& info,
                              const UpdateArguments& arguments, const BlockState& now) {
  StepArguments step;
  step.learning_rate =
      model.LearningRate(info, arguments.schedule_step) * arguments.staleness.learning_rate_factor;
  step.momentum_taken_off = arguments.staleness.momentum_taken_off;
  step.count = now.count + 1;
  step.gradient_scale = arguments.gradient_scale;
  return step;
}

// Runs the optimizer over a whole block. Finiteness is checked run by run, so that the run is in
// the cache when the optimizer reads it. If a later run is not finite, the output written so far is
// discarded.
template <typename T>
absl::Status StepParameters(const ShardModel& model, const BlockInfo& info,
                            const UpdateArguments& arguments, const BlockState& now,
                            const BlockRef& base, Sum& sum, BlockPool& pool, BlockState* next) {
  using Compute = ComputeType<T>;
  if (sum.rows.has_value()) {
    if (absl::Status whole = Materialize(info, pool, &sum); !whole.ok()) return whole;
  }
  if (arguments.staleness.delay_compensation != 0 && base != nullptr && base != now.parameters) {
    if (absl::Status whole = Materialize(info, pool, &sum); !whole.ok()) return whole;
    CompensateDelay<T>(arguments.staleness.delay_compensation * arguments.gradient_scale,
                       now.parameters->As<T>(), base->As<T>(), sum.block->MutableAs<Compute>());
  }
  constexpr size_t kRun = 16 << 10;  // elements
  const Optimizer& optimizer = *model.group(info).optimizer;
  const absl::Span<const SlotSpec> specs = optimizer.slots();
  std::array<MutableBlockRef, kMaxSlots> slots;
  SlotSpans<Compute> spans = OpenSlots<Compute>(info, specs, now, pool, &slots);
  MutableBlockRef parameters = pool.Take(info.bytes);

  StepRange<T> whole;
  whole.parameters = now.parameters->As<T>();
  whole.parameters_out = parameters->MutableAs<T>();
  whole.slots = spans.in;
  whole.slots_out = spans.out;
  const StepArguments step = ArgumentsOfStep(model, info, arguments, now);

  bool finite = true;
  const auto run = [&](size_t offset, absl::Span<const Compute> gradient) {
    if (!finite) return;
    if (arguments.check_finite && FirstNonFinite(gradient).has_value()) {
      finite = false;
      return;
    }
    optimizer.Step(step, SubRange<T>(whole, specs.size(), offset, gradient));
  };
  if (sum.block != nullptr) {
    const absl::Span<const Compute> gradient = std::as_const(*sum.block).As<Compute>();
    for (size_t offset = 0; offset < gradient.size(); offset += kRun) {
      run(offset, gradient.subspan(offset, kRun));
    }
  } else {
    absl::Status read = ForEachRun<Compute>(sum.payload, run);
    if (!read.ok()) return read;
  }
  if (!finite) return NonFinite();
  next->parameters = std::move(parameters);
  for (size_t i = 0; i < specs.size(); ++i) next->slots[i] = std::move(slots[i]);
  next->count = now.count + 1;
  return absl::OkStatus();
}

void CopyParts(absl::Span<const RowPart> parts, size_t element, const Block& from, Block& to) {
  for (const RowPart& part : parts) {
    std::memcpy(to.mutable_bytes().data() + part.offset * element,
                from.bytes().data() + part.offset * element, part.count * element);
  }
}

template <typename T>
void StepRows(const Optimizer& optimizer, const StepArguments& step, const BlockState& now,
              const WritableBlock& target, const RowSum& sum) {
  using Compute = ComputeType<T>;
  const size_t slots = optimizer.slots().size();
  StepRange<T> whole;
  whole.parameters = now.parameters->As<T>();
  whole.parameters_out = target.parameters->MutableAs<T>();
  for (size_t i = 0; i < slots; ++i) {
    whole.slots[i] = now.slots[i]->As<Compute>();
    whole.slots_out[i] = target.slots[i]->MutableAs<Compute>();
  }
  absl::Span<const Compute> rest = sum.As<Compute>();
  for (const RowPart& part : sum.parts) {
    optimizer.Step(step, SubRange<T>(whole, slots, part.offset, rest.subspan(0, part.count)));
    rest.remove_prefix(part.count);
  }
}

// out = now + factor * change.
template <typename T>
void AddChange(double factor, absl::Span<const T> now, absl::Span<const ComputeType<T>> change,
               absl::Span<T> out) {
  using Compute = ComputeType<T>;
  if constexpr (std::is_same_v<T, Compute>) {
    std::memcpy(out.data(), now.data(), now.size() * sizeof(T));
    AddScaled(static_cast<Compute>(factor), change, out);
  } else {
    std::vector<Compute> wide(now.size());
    Convert(now, absl::MakeSpan(wide));
    AddScaled(static_cast<Compute>(factor), change, absl::MakeSpan(wide));
    Convert(absl::MakeConstSpan(wide), out);
  }
}

template <typename T>
absl::Status ChangeBuffer(const BlockInfo& info, const UpdateArguments& arguments,
                          const BlockState& now, Sum* sum, BlockPool& pool, BlockState* next) {
  using Compute = ComputeType<T>;
  if (absl::Status whole = Materialize(info, pool, sum); !whole.ok()) return whole;
  const absl::Span<const Compute> change = std::as_const(*sum->block).As<Compute>();
  if (arguments.check_finite && FirstNonFinite(change).has_value()) return NonFinite();
  MutableBlockRef parameters = pool.Take(info.bytes);
  AddChange<T>(arguments.buffer_scale, now.parameters->As<T>(), change, parameters->MutableAs<T>());
  next->parameters = std::move(parameters);
  next->count = now.count + 1;
  return absl::OkStatus();
}

BlockState Advance(const BlockInfo& info, const BlockState& now, BlockPool& pool) {
  BlockState next;
  MutableBlockRef counters = pool.Take(info.bytes);
  const absl::Span<const int64_t> from = now.parameters->As<int64_t>();
  const absl::Span<int64_t> to = counters->MutableAs<int64_t>();
  for (size_t i = 0; i < from.size(); ++i) {
    to[i] = static_cast<int64_t>(static_cast<uint64_t>(from[i]) + 1);
  }
  next.parameters = std::move(counters);
  next.count = now.count + 1;
  return next;
}

}  // namespace

absl::Status UpdateBlock(const ShardModel& model, const BlockInfo& info,
                         const UpdateArguments& arguments, const BlockState& now,
                         const BlockRef& base, Sum* sum, BlockPool& pool, BlockState* next) {
  if (info.kind == v1::COUNTER) {
    *next = Advance(info, now, pool);
    return absl::OkStatus();
  }
  if (sum == nullptr) {
    *next = now;
    return absl::OkStatus();
  }
  absl::Status status = absl::InternalError("a block of a type that cannot be updated");
  BlockState made;
  VisitFloatingPoint(info.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    status = info.kind == v1::BUFFER
                 ? ChangeBuffer<T>(info, arguments, now, sum, pool, &made)
                 : StepParameters<T>(model, info, arguments, now, base, *sum, pool, &made);
  });
  if (!status.ok()) return status;
  *sum = Sum();
  *next = std::move(made);
  return absl::OkStatus();
}

std::optional<WritableBlock> WritableIfOwned(const BlockState& state, size_t slots) {
  WritableBlock writable;
  writable.parameters = WritableIfOwned(state.parameters);
  if (writable.parameters == nullptr) return std::nullopt;
  for (size_t i = 0; i < slots; ++i) {
    if (state.slots[i] == nullptr) return std::nullopt;
    writable.slots[i] = WritableIfOwned(state.slots[i]);
    if (writable.slots[i] == nullptr) return std::nullopt;
  }
  return writable;
}

bool MayUpdateRows(const BlockInfo& info, const UpdateArguments& arguments, const Sum& sum) {
  return info.rows_apart && sum.rows.has_value() && arguments.staleness.delay_compensation == 0;
}

absl::Status CheckRows(const BlockInfo& info, const UpdateArguments& arguments, const RowSum& sum) {
  if (!arguments.check_finite) return absl::OkStatus();
  const bool finite = info.sum_dtype == v1::FLOAT64 ? !FirstNonFinite(sum.As<double>()).has_value()
                                                    : !FirstNonFinite(sum.As<float>()).has_value();
  return finite ? absl::OkStatus() : NonFinite();
}

BlockState UpdateRows(const ShardModel& model, const BlockInfo& info,
                      const UpdateArguments& arguments, const BlockState& now,
                      const WritableBlock& target, absl::Span<const RowPart> behind,
                      const RowSum& sum) {
  const Optimizer& optimizer = *model.group(info).optimizer;
  const StepArguments step = ArgumentsOfStep(model, info, arguments, now);
  const size_t slots = optimizer.slots().size();
  CopyParts(behind, ElementBytes(info.dtype), *now.parameters, *target.parameters);
  for (size_t i = 0; i < slots; ++i) {
    CopyParts(behind, ElementBytes(info.sum_dtype), *now.slots[i], *target.slots[i]);
  }
  VisitFloatingPoint(info.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    StepRows<T>(optimizer, step, now, target, sum);
  });
  BlockState next;
  next.parameters = target.parameters;
  for (size_t i = 0; i < slots; ++i) next.slots[i] = target.slots[i];
  next.count = now.count + 1;
  return next;
}

absl::Status MeasureGradient(const BlockInfo& info, double gradient_scale, Sum* sum,
                             BlockPool& pool, GradientNorm* norm) {
  if (absl::Status whole = Materialize(info, pool, sum); !whole.ok()) return whole;
  const auto measure = [&](auto values) {
    norm->non_finite = FirstNonFinite(values).has_value();
    if (info.kind == v1::PARAMETER && !norm->non_finite) {
      norm->square_sum = SquareSum(values) * gradient_scale * gradient_scale;
    }
  };
  if (info.sum_dtype == v1::FLOAT64) {
    measure(std::as_const(*sum->block).As<double>());
  } else {
    measure(std::as_const(*sum->block).As<float>());
  }
  return absl::OkStatus();
}

BlockState InitialBlock(MutableBlockRef parameters) {
  BlockState state;
  state.parameters = std::move(parameters);
  return state;
}

}  // namespace sluice::ps
