// Updates of a table by rows give the same bits as updates of the whole table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/common/arithmetic/half.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/rows.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"
#include "services/ps/core/state/partition.h"

namespace sluice::ps {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kRows = 4000;
constexpr uint64_t kRowElements = 7;
constexpr uint64_t kMicrobatches = 4;

struct Contribution {
  std::vector<uint64_t> rows;
  std::vector<double> values;  // of whole rows
};

template <typename T>
T Narrow(double value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return ToBFloat16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
std::string Bytes(const std::vector<double>& values) {
  std::string bytes;
  for (double value : values) {
    const T narrow = Narrow<T>(value);
    bytes.append(reinterpret_cast<const char*>(&narrow), sizeof(narrow));
  }
  return bytes;
}

std::string Bytes(v1::DataType dtype, const std::vector<double>& values) {
  if (dtype == v1::FLOAT64) return Bytes<double>(values);
  return dtype == v1::BFLOAT16 ? Bytes<BFloat16>(values) : Bytes<float>(values);
}

v1::OptimizerSpec Spec(v1::OptimizerSpec::Name name) {
  v1::OptimizerSpec spec;
  spec.set_name(name);
  spec.set_learning_rate(0.125);
  spec.set_eps(1e-8);
  spec.set_beta1(0.9);
  spec.set_beta2(0.99);
  return spec;
}

// One table of several blocks in one partition. Contributions are added by rows or whole.
class Table {
 public:
  Table(const v1::OptimizerSpec& optimizer, v1::DataType dtype, bool by_rows)
      : dtype_(dtype), by_rows_(by_rows) {
    v1::JobSpec job;
    *job.mutable_optimizer() = optimizer;
    v1::TensorTable table;
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name("table");
    tensor.add_shape(kRows);
    tensor.add_shape(kRowElements);
    tensor.set_dtype(dtype);
    tensor.set_kind(v1::PARAMETER);
    model_ = *ShardModel::Create(job, table, *MakeLayout(table, 1));
    std::vector<BlockState> blocks;
    for (size_t i = 0; i < model_->blocks(); ++i) {
      const BlockInfo& info = model_->block(i);
      std::vector<double> values;
      for (uint64_t at = 0; at < info.count; ++at) values.push_back(at % 5 == 0 ? -0.0 : 1.5);
      MutableBlockRef block = pool_->Take(info.bytes);
      const std::string bytes = Bytes(dtype, values);
      std::copy(bytes.begin(), bytes.end(), block->mutable_bytes().begin());
      blocks.push_back(InitialBlock(std::move(block)));
    }
    partition_ = std::make_unique<Partition>(model_, 0, 0, std::move(blocks));
  }

  Partition& partition() { return *partition_; }
  BlockPool& pool() { return *pool_; }

  // Adds a contribution of this member to its only microbatch, `member`. `tree`: as a node of the
  // tree.
  void Add(size_t member, const Contribution& given, bool tree) {
    for (size_t i = 0; i < model_->blocks(); ++i) {
      Partition::Source source;
      source.member = member;
      source.microbatches = {member, member + 1};
      source.tree_node = tree;
      const absl::Status added = partition_->Add(source, BlockOf(i, given), *pool_);
      ASSERT_TRUE(added.ok()) << added;
    }
  }

  absl::Status Close() {
    UpdateArguments arguments;
    arguments.gradient_scale = 0.25;
    arguments.check_finite = true;
    return partition_->Close(arguments, *pool_, runner_);
  }

  absl::Status Apply(const std::vector<Contribution>& given) {
    std::vector<GradientSum> sums(model_->blocks());
    for (const Contribution& one : given) {
      for (size_t i = 0; i < model_->blocks(); ++i) {
        const ReceivedBlock block = BlockOf(i, one);
        RETURN_IF_ERROR(sums[i].Add(model_->block(i), block.codec, block.payload, *pool_));
      }
    }
    UpdateArguments arguments;
    arguments.check_finite = true;
    return partition_->Apply(arguments, nullptr, &sums, *pool_, runner_);
  }

 private:
  ReceivedBlock BlockOf(size_t index, const Contribution& given) const {
    const BlockInfo& info = model_->block(index);
    const RowCut cut{kRowElements, info.offset, info.count};

    ReceivedBlock block;
    block.block = static_cast<uint32_t>(index);
    const size_t row_bytes = kRowElements * ElementBytes(dtype_);
    const std::string bytes = Bytes(dtype_, given.values);
    const absl::Span<const uint64_t> rows = RowsIn(cut, given.rows);
    const size_t first = rows.data() - given.rows.data();
    block.codec = v1::CODEC_ROWS;
    block.payload = EncodeRows(cut, rows, dtype_,
                               [&](size_t i) { return bytes.data() + (first + i) * row_bytes; });

    if (by_rows_) return block;
    std::string whole(info.bytes, '\0');
    EXPECT_TRUE((*FindCodec(v1::CODEC_ROWS))
                    ->Decode(block.payload, Elements(dtype_, whole.data(), info.count))
                    .ok());
    block.codec = v1::CODEC_RAW;
    block.payload = absl::Cord(whole);
    return block;
  }

  const v1::DataType dtype_;
  const bool by_rows_;
  const std::shared_ptr<BlockPool> pool_ = BlockPool::Create(1 << 28);
  InlineRunner runner_;
  std::shared_ptr<const ShardModel> model_;
  std::unique_ptr<Partition> partition_;
};

std::string BytesOf(const std::vector<BlockState>& blocks) {
  std::string bytes;
  for (const BlockState& block : blocks) {
    bytes.append(block.parameters->bytes().data(), block.parameters->size());
    for (const BlockRef& slot : block.slots) {
      if (slot != nullptr) bytes.append(slot->bytes().data(), slot->size());
    }
    bytes += std::to_string(block.count);
  }
  return bytes;
}

class RandomGradients {
 public:
  explicit RandomGradients(uint32_t seed) : random_(seed) {}

  size_t Below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }

  Contribution Next(size_t most) {
    std::set<uint64_t> rows;
    const size_t wanted = Below(most + 1);
    while (rows.size() < wanted) rows.insert(Below(kRows));
    Contribution made;
    made.rows.assign(rows.begin(), rows.end());
    for (size_t i = 0; i < rows.size() * kRowElements; ++i) {
      made.values.push_back(Below(20) == 0 ? 0.0 : normal_(random_));
    }
    return made;
  }

 private:
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
};

struct Case {
  v1::OptimizerSpec optimizer;
  v1::DataType dtype;
  bool tree;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  std::vector<v1::OptimizerSpec> optimizers = {
      Spec(v1::OptimizerSpec::SGD), Spec(v1::OptimizerSpec::ADAGRAD), Spec(v1::OptimizerSpec::ADD),
      Spec(v1::OptimizerSpec::ADAM), Spec(v1::OptimizerSpec::SGD)};
  optimizers.back().set_momentum(0.9);
  for (const auto name :
       {v1::OptimizerSpec::N_ADAM, v1::OptimizerSpec::R_ADAM, v1::OptimizerSpec::ADAMAX,
        v1::OptimizerSpec::ADADELTA, v1::OptimizerSpec::LION}) {
    optimizers.push_back(Spec(name));
    optimizers.back().set_rho(0.9);
  }
  optimizers[1].set_lr_decay(0.01);
  for (const v1::OptimizerSpec& optimizer : optimizers) {
    for (const v1::DataType dtype : {v1::FLOAT32, v1::FLOAT64, v1::BFLOAT16}) {
      for (const bool tree : {false, true}) cases.push_back({optimizer, dtype, tree});
    }
  }
  return cases;
}

// Steps, rollbacks, commits and pins in random order.
TEST(PartitionRowsTest, StepsByRowsEqualWholeStepsBitForBit) {
  for (const Case& c : Cases()) {
    Table rows(c.optimizer, c.dtype, true);
    Table whole(c.optimizer, c.dtype, false);
    RandomGradients random(static_cast<uint32_t>(c.dtype) * 10 + c.optimizer.name());
    std::vector<std::pair<std::shared_ptr<PartitionContent>, std::string>> pinned;

    for (int step = 0; step < 60; ++step) {
      const size_t members = 1 + random.Below(kMicrobatches);
      for (Table* table : {&rows, &whole}) table->partition().Reset(members);
      for (size_t member = 0; member < members; ++member) {
        if (random.Below(5) == 0) continue;  // no gradient at all
        const Contribution given = random.Next(random.Below(10) == 0 ? kRows / 2 : 60);
        for (Table* table : {&rows, &whole}) table->Add(member, given, c.tree);
      }

      for (Table* table : {&rows, &whole}) ASSERT_TRUE(table->Close().ok());
      ASSERT_EQ(BytesOf(rows.partition().blocks()), BytesOf(whole.partition().blocks()))
          << v1::OptimizerSpec::Name_Name(c.optimizer.name()) << " step " << step;

      const uint64_t version = rows.partition().version();
      if (random.Below(6) == 0) {
        const auto content = rows.partition().Pin(version - random.Below(2));
        pinned.emplace_back(content, BytesOf(content->blocks));
      }
      if (random.Below(6) == 0 && !pinned.empty()) pinned.erase(pinned.begin());
      ASSERT_EQ(BytesOf(*rows.partition().At(version - 1)),
                BytesOf(*whole.partition().At(version - 1)));

      const bool undone = random.Below(5) == 0;
      for (Table* table : {&rows, &whole}) {
        undone ? table->partition().RollBack() : table->partition().DropUndo();
      }
      for (const auto& [content, bytes] : pinned) ASSERT_EQ(BytesOf(content->blocks), bytes);
    }
  }
}

TEST(PartitionRowsTest, AsynchronousUpdatesByRowsEqualWholeUpdatesBitForBit) {
  for (const Case& c : Cases()) {
    if (c.tree) continue;
    Table rows(c.optimizer, c.dtype, true);
    Table whole(c.optimizer, c.dtype, false);
    RandomGradients random(static_cast<uint32_t>(c.dtype) * 10 + c.optimizer.name());
    std::vector<std::pair<std::shared_ptr<PartitionContent>, std::string>> pinned;

    for (int update = 0; update < 30; ++update) {
      std::vector<Contribution> given;
      for (size_t i = random.Below(3); i > 0; --i) given.push_back(random.Next(60));
      for (Table* table : {&rows, &whole}) ASSERT_TRUE(table->Apply(given).ok());
      ASSERT_EQ(BytesOf(rows.partition().blocks()), BytesOf(whole.partition().blocks()))
          << v1::OptimizerSpec::Name_Name(c.optimizer.name()) << " update " << update;

      if (random.Below(6) == 0) {
        const auto content = rows.partition().Pin(0);
        pinned.emplace_back(content, BytesOf(content->blocks));
      }
      if (random.Below(6) == 0 && !pinned.empty()) pinned.erase(pinned.begin());
      for (const auto& [content, bytes] : pinned) ASSERT_EQ(BytesOf(content->blocks), bytes);
    }
  }
}

void Step(Table& table, RandomGradients& random) {
  table.partition().Reset(1);
  table.Add(0, random.Next(20), false);
  ASSERT_TRUE(table.Close().ok());
  table.partition().DropUndo();
}

// The pool has no idle blocks, so any further block would be a new allocation.
TEST(PartitionRowsTest, AlternatesBetweenTwoVersionsIfRowsAreIndependent) {
  for (const auto name : {v1::OptimizerSpec::SGD, v1::OptimizerSpec::ADAGRAD,
                          v1::OptimizerSpec::ADD, v1::OptimizerSpec::ADAM}) {
    Table table(Spec(name), v1::FLOAT32, true);
    RandomGradients random(3);
    for (int step = 0; step < 3; ++step) Step(table, random);
    table.pool().Trim();
    const size_t allocated = table.pool().allocated();
    for (int step = 0; step < 5; ++step) Step(table, random);
    if (name == v1::OptimizerSpec::ADAM) {
      EXPECT_GT(table.pool().allocated(), allocated);
    } else {
      EXPECT_EQ(table.pool().allocated(), allocated) << v1::OptimizerSpec::Name_Name(name);
    }
  }
}

TEST(PartitionRowsTest, FirstUpdateTakesReservedMemory) {
  Table table(Spec(v1::OptimizerSpec::SGD), v1::FLOAT32, false);
  RandomGradients random(3);
  table.partition().Reset(1);
  table.Add(0, random.Next(20), false);
  std::vector<BlockRef> memory;
  for (const BlockState& block : table.partition().blocks()) {
    memory.push_back(table.pool().Take(block.parameters->size()));
  }
  table.partition().Reserve(std::move(memory));
  table.pool().Trim();
  const size_t reserved = table.pool().allocated();
  ASSERT_TRUE(table.Close().ok());
  EXPECT_EQ(table.pool().allocated(), reserved);
}

TEST(PartitionRowsTest, UpdatesAsynchronousRowsInPlace) {
  Table table(Spec(v1::OptimizerSpec::SGD), v1::FLOAT32, true);
  RandomGradients random(3);
  ASSERT_TRUE(table.Apply({random.Next(20)}).ok());
  table.pool().Trim();
  const size_t allocated = table.pool().allocated();
  const BlockRef::element_type* const before = table.partition().blocks()[0].parameters.get();
  for (int update = 0; update < 5; ++update) ASSERT_TRUE(table.Apply({random.Next(20)}).ok());
  EXPECT_EQ(table.partition().blocks()[0].parameters.get(), before);
  EXPECT_EQ(table.pool().allocated(), allocated);
}

TEST(PartitionRowsTest, NonFiniteValueChangesNothing) {
  for (const bool asynchronous : {false, true}) {
    Table table(Spec(v1::OptimizerSpec::SGD), v1::FLOAT32, true);
    RandomGradients random(3);
    for (int step = 0; step < 3; ++step) {
      if (asynchronous) {
        ASSERT_TRUE(table.Apply({random.Next(20)}).ok());
      } else {
        Step(table, random);
      }
    }

    const std::string before = BytesOf(table.partition().blocks());
    // Only the last block is refused; the blocks before it are valid.
    Contribution bad;
    bad.rows = {0, kRows / 2, kRows - 1};
    bad.values.assign(3 * kRowElements, 1);
    bad.values.back() = std::numeric_limits<double>::quiet_NaN();

    absl::Status refused;
    if (asynchronous) {
      refused = table.Apply({bad});
    } else {
      table.partition().Reset(1);
      table.Add(0, bad, false);
      refused = table.Close();
    }

    EXPECT_TRUE(absl::IsOutOfRange(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("table["));
    EXPECT_EQ(BytesOf(table.partition().blocks()), before);
  }
}

// A hostile peer may send rows of a different width than before.
TEST(PartitionRowsTest, AddsContributionsWithDifferentRowWidthsAsBlocks) {
  Table table(Spec(v1::OptimizerSpec::ADD), v1::FLOAT32, true);
  const BlockInfo info = [] {
    BlockInfo made;
    made.count = 12;
    made.dtype = made.sum_dtype = v1::FLOAT32;
    made.bytes = made.sum_bytes = 48;
    made.rows_apart = true;
    return made;
  }();

  const std::vector<float> ones(12, 1);
  const auto payload = [&](uint64_t width, const std::vector<uint64_t>& rows) {
    return EncodeRows({width, 0, 12}, rows, v1::FLOAT32,
                      [&](size_t) { return reinterpret_cast<const char*>(ones.data()); });
  };

  GradientSum sum;
  ASSERT_TRUE(sum.Add(info, v1::CODEC_ROWS, payload(3, {0}), table.pool()).ok());
  ASSERT_TRUE(sum.Add(info, v1::CODEC_ROWS, payload(2, {1}), table.pool()).ok());

  Sum taken;
  ASSERT_TRUE(sum.Take(info, table.pool(), &taken).ok());
  ASSERT_NE(taken.block, nullptr);
  const auto values = std::as_const(*taken.block).As<float>();
  EXPECT_EQ(std::vector<float>(values.begin(), values.begin() + 5),
            (std::vector<float>{1, 1, 2, 1, 0}));
}

}  // namespace
}  // namespace sluice::ps
