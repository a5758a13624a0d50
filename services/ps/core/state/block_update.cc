#include "services/ps/core/state/block_update.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "services/common/arithmetic/cord_reader.h"
#include "services/common/arithmetic/kernels.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
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
SlotSpans<Compute> OpenSlots(const BlockUpdate& update, absl::Span<const SlotSpec> specs,
                             BlockPool& pool, std::array<MutableBlockRef, kMaxSlots>* written) {
  SlotSpans<Compute> spans;
  for (size_t i = 0; i < specs.size(); ++i) {
    MutableBlockRef block = pool.Take(update.info.sum_bytes);
    spans.out[i] = block->MutableAs<Compute>();
    SLUICE_DCHECK((update.now.slots[i] != nullptr) == (update.now.count > 0),
                  "a block has optimizer state from its first update on");
    SLUICE_DCHECK(
        update.now.slots[i] == nullptr || update.now.slots[i]->size() == update.info.sum_bytes,
        "optimizer state has the size of the block's sums");

    if (update.now.slots[i] != nullptr) {
      spans.in[i] = update.now.slots[i]->As<Compute>();
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

StepArguments ArgumentsOfStep(const BlockUpdate& update) {
  const ParameterGroups::Group& group = update.model.group(update.info);

  StepArguments step;
  step.learning_rate = group.LearningRate(update.arguments.schedule_step) *
                       update.arguments.staleness.learning_rate_factor *
                       update.arguments.learning_rate_factor;
  step.momentum = group.Momentum(update.arguments.schedule_step);
  step.momentum_taken_off = update.arguments.staleness.momentum_taken_off;
  step.count = update.now.count + 1;
  step.gradient_scale = update.arguments.gradient_scale;
  return step;
}

// Runs the optimizer over a whole block. Finiteness is checked run by run, so that the run is in
// the cache when the optimizer reads it. If a later run is not finite, the output written so far is
// discarded.
template <typename T>
absl::Status StepParameters(const BlockUpdate& update, const BlockRef& base, Sum& sum,
                            BlockPool& pool, BlockState* next) {
  using Compute = ComputeType<T>;
  SLUICE_DCHECK(update.now.parameters->size() == update.info.bytes,
                "a block has its layout's size");
  SLUICE_DCHECK(base == nullptr || base->size() == update.info.bytes,
                "a delay is compensated with an earlier version of the same block");

  // The optimizer reads a payload or a block, and the delay's compensation changes a block.
  if (sum.rows.has_value()) {
    RETURN_IF_ERROR(Materialize(update.info, pool, &sum));
  }
  if (update.arguments.staleness.delay_compensation != 0 && base != nullptr &&
      base != update.now.parameters) {
    RETURN_IF_ERROR(Materialize(update.info, pool, &sum));
    CompensateDelay<T>(
        update.arguments.staleness.delay_compensation * update.arguments.gradient_scale,
        update.now.parameters->As<T>(), base->As<T>(), sum.block->MutableAs<Compute>());
  }

  // The memory of the next version.
  constexpr size_t kRun = 16 << 10;  // elements
  const Optimizer& optimizer = *update.model.group(update.info).optimizer;
  const absl::Span<const SlotSpec> specs = optimizer.slots();
  std::array<MutableBlockRef, kMaxSlots> slots;
  SlotSpans<Compute> spans = OpenSlots<Compute>(update, specs, pool, &slots);
  MutableBlockRef parameters = pool.Take(update.info.bytes);

  StepRange<T> whole;
  whole.parameters = update.now.parameters->As<T>();
  whole.parameters_out = parameters->MutableAs<T>();
  whole.slots = spans.in;
  whole.slots_out = spans.out;
  const StepArguments step = ArgumentsOfStep(update);

  bool finite = true;
  const auto run = [&](size_t offset, absl::Span<const Compute> gradient) {
    if (!finite) return;
    if (update.arguments.check_finite && FirstNonFinite(gradient).has_value()) {
      finite = false;
      return;
    }
    optimizer.Step(step, SubRange<T>(whole, specs.size(), offset, gradient));
  };

  // The gradient is read in runs that fit the cache: from the block, or from the received slices.
  if (sum.block != nullptr) {
    const absl::Span<const Compute> gradient = std::as_const(*sum.block).As<Compute>();
    for (size_t offset = 0; offset < gradient.size(); offset += kRun) {
      run(offset, gradient.subspan(offset, kRun));
    }
  } else {
    RETURN_IF_ERROR(ForEachRun<Compute>(sum.payload, run));
  }

  if (!finite) return NonFinite();
  next->parameters = std::move(parameters);
  for (size_t i = 0; i < specs.size(); ++i) next->slots[i] = std::move(slots[i]);
  next->count = update.now.count + 1;
  return absl::OkStatus();
}

void CopyParts(absl::Span<const RowPart> parts, size_t element, const Block& from, Block& to) {
  for (const RowPart& part : parts) {
    SLUICE_DCHECK((part.offset + part.count) * element <= std::min(from.size(), to.size()),
                  "rows are rows of the block");
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
  SLUICE_DCHECK(rest.empty(), "every value of a row sum is part of a row");
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
absl::Status ChangeBuffer(const BlockUpdate& update, Sum* sum, BlockPool& pool, BlockState* next) {
  using Compute = ComputeType<T>;
  RETURN_IF_ERROR(Materialize(update.info, pool, sum));
  const absl::Span<const Compute> change = std::as_const(*sum->block).As<Compute>();
  SLUICE_DCHECK(change.size() == update.info.count, "a buffer's change has the buffer's elements");
  if (update.arguments.check_finite && FirstNonFinite(change).has_value()) return NonFinite();

  MutableBlockRef parameters = pool.Take(update.info.bytes);
  AddChange<T>(update.arguments.buffer_scale, update.now.parameters->As<T>(), change,
               parameters->MutableAs<T>());

  next->parameters = std::move(parameters);
  next->count = update.now.count + 1;
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

absl::Status UpdateBlock(const BlockUpdate& update, const BlockRef& base, Sum* sum, BlockPool& pool,
                         BlockState* next) {
  SLUICE_DCHECK(next != &update.now, "a version is written beside the current one");
  if (update.info.kind == v1::COUNTER) {
    *next = Advance(update.info, update.now, pool);
    return absl::OkStatus();
  }

  if (sum == nullptr) {
    *next = update.now;
    return absl::OkStatus();
  }

  absl::Status status = absl::InternalError("a block of a type that cannot be updated");
  BlockState made;
  VisitFloatingPoint(update.info.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    status = update.info.kind == v1::BUFFER ? ChangeBuffer<T>(update, sum, pool, &made)
                                            : StepParameters<T>(update, base, *sum, pool, &made);
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

BlockState UpdateRows(const BlockUpdate& update, const WritableBlock& target,
                      absl::Span<const RowPart> behind, const RowSum& sum) {
  SLUICE_DCHECK(update.now.count > 0,
                "rows are updated where the optimizer has written every element");
  SLUICE_DCHECK(target.parameters != nullptr && target.parameters->size() == update.info.bytes,
                "rows are written over a version of the same block");

  const Optimizer& optimizer = *update.model.group(update.info).optimizer;
  const StepArguments step = ArgumentsOfStep(update);
  const size_t slots = optimizer.slots().size();

  // First the rows in which `target` is behind, then those of this step.
  CopyParts(behind, ElementBytes(update.info.dtype), *update.now.parameters, *target.parameters);
  for (size_t i = 0; i < slots; ++i) {
    CopyParts(behind, ElementBytes(update.info.sum_dtype), *update.now.slots[i], *target.slots[i]);
  }

  VisitFloatingPoint(update.info.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    StepRows<T>(optimizer, step, update.now, target, sum);
  });

  BlockState next;
  next.parameters = target.parameters;
  for (size_t i = 0; i < slots; ++i) next.slots[i] = target.slots[i];
  next.count = update.now.count + 1;
  return next;
}

absl::Status MeasureGradient(const BlockInfo& info, double gradient_scale, Sum* sum,
                             BlockPool& pool, GradientNorm* norm) {
  RETURN_IF_ERROR(Materialize(info, pool, sum));

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
