#include "services/ps/core/replication/gradients.h"

#include <algorithm>
#include <string>

#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/ps/core/base/check_errors.h"
#include "services/ps/core/state/row_sum.h"

namespace sluice::ps {
namespace {

absl::Status Decode(const BlockInfo& info, v1::Codec codec, const absl::Cord& payload, Sum* sum) {
  if (codec == v1::CODEC_ROWS && info.rows_apart) {
    return DecodeRowSum(info, payload, &sum->rows.emplace());
  }
  if (codec != v1::CODEC_RAW) return Invalid("has codec ", codec, ", which no sum has");
  if (payload.size() != info.sum_bytes) {
    return Invalid("has a sum of ", payload.size(), " bytes, not of ", info.sum_bytes);
  }
  sum->payload = payload;
  return absl::OkStatus();
}

// Adds the blocks of one part to the sums of the partition's blocks.
absl::Status AddBlocks(const ShardModel& model, const v1::CopyEntry::Gradients& part,
                       const absl::Cord& payload, std::vector<GradientSum>* sums) {
  const uint32_t first = model.FirstBlock(part.partition());
  std::vector<std::pair<size_t, Sum>> added;
  size_t at = 0;
  for (const v1::BlockHeader& header : part.blocks()) {
    if (header.block() < first || header.block() >= first + sums->size()) {
      return Invalid("block ", header.block(), " is not of partition ", part.partition());
    }
    const size_t place = header.block() - first;
    const BlockInfo& info = model.block(header.block());
    const bool repeated =
        !(*sums)[place].empty() ||
        std::any_of(added.begin(), added.end(), [&](const auto& a) { return a.first == place; });
    if (repeated || info.kind == v1::COUNTER) {
      return Invalid(model.BlockName(info), repeated ? " has two sums" : " is a counter");
    }
    if (payload.size() - at < header.payload_bytes()) {
      return Invalid(model.BlockName(info), " ends after the payload's ", payload.size(), " bytes");
    }
    added.emplace_back(place, Sum());
    RETURN_IF_ERROR(Decode(info, header.codec(), payload.Subcord(at, header.payload_bytes()),
                           &added.back().second),
                    Invalid(model.BlockName(info), " ", _.message()));
    at += header.payload_bytes();
  }
  if (at != payload.size()) {
    return Invalid("the payload has ", payload.size(), " bytes, its blocks are ", at);
  }
  for (auto& [place, sum] : added) (*sums)[place].Put(std::move(sum));
  return absl::OkStatus();
}

}  // namespace

std::vector<GradientsPart> EncodeGradients(const ShardModel& model, uint32_t partition,
                                           uint64_t number, const StepClose& close,
                                           const std::vector<GradientSum>& sums,
                                           uint64_t max_bytes) {
  SLUICE_DCHECK(sums.size() == model.BlockCount(partition), "a partition has one sum per block");
  std::vector<GradientsPart> parts(1);
  for (size_t place = 0; place < sums.size() && !close.unchanged; ++place) {
    if (sums[place].empty()) continue;
    const BlockInfo& info = model.block(model.FirstBlock(partition) + place);
    const Sum& sum = sums[place].settled();
    v1::BlockHeader header;
    header.set_block(info.index);
    absl::Cord payload;
    if (sum.rows.has_value()) {
      header.set_codec(v1::CODEC_ROWS);
      payload = EncodeRowSum(model, info, *sum.rows);
    } else {
      payload = sum.block != nullptr ? CordOver(sum.block) : sum.payload;
    }
    header.set_payload_bytes(payload.size());
    if (!parts.back().second.empty() && parts.back().second.size() + payload.size() > max_bytes) {
      parts.emplace_back();
    }
    *parts.back().first.add_blocks() = header;
    parts.back().second.Append(std::move(payload));
  }
  for (size_t part = 0; part < parts.size(); ++part) {
    v1::CopyEntry::Gradients& body = parts[part].first;
    body.set_partition(partition);
    body.set_number(number);
    body.set_part(static_cast<uint32_t>(part));
    body.set_parts(static_cast<uint32_t>(parts.size()));
    body.set_gradient_scale(close.arguments.gradient_scale);
    body.set_buffer_scale(close.arguments.buffer_scale);
    body.set_unchanged(close.unchanged);
  }
  return parts;
}

absl::Status CopiedUpdate::Add(const ShardModel& model, const v1::CopyEntry::Gradients& part,
                               const absl::Cord& payload) {
  const bool first = arrived.empty();
  const bool fits =
      first || (part.number() == number && part.parts() == arrived.size() && !arrived[part.part()]);
  if (!fits) {
    return Invalid("part ", part.part(), " of ", part.parts(), " of the gradients ", part.number(),
                   " of partition ", part.partition(), " comes while gradients ", number, " in ",
                   arrived.size(), " parts arrive");
  }
  std::vector<GradientSum> fresh(first ? model.BlockCount(part.partition()) : 0);
  RETURN_IF_ERROR(AddBlocks(model, part, payload, first ? &fresh : &sums));

  if (first) {
    number = part.number();
    arrived.resize(part.parts());
    missing = part.parts();
    sums = std::move(fresh);
    close.arguments.schedule_step = part.number();
    close.arguments.gradient_scale = part.gradient_scale();
    close.arguments.buffer_scale = part.buffer_scale();
    close.unchanged = part.unchanged();
  }
  arrived[part.part()] = true;
  bytes += payload.size();
  --missing;
  return absl::OkStatus();
}

}  // namespace sluice::ps
