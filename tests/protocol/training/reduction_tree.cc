#include "tests/protocol/training/reduction_tree.h"

#include <algorithm>
#include <set>
#include <utility>

namespace sluice::protocol_models {
namespace {

// Microbatches as a mask, and nodes in an order that has the largest first.
using Microbatches = uint32_t;
using Nodes = std::vector<TreeNode>;

Microbatches Range(int begin, int end) {
  return static_cast<Microbatches>((uint64_t{1} << end) - (uint64_t{1} << begin));
}

Microbatches Leaves(const TreeNode& node) {
  return Range(node.index << node.level, (node.index + 1) << node.level);
}

Nodes MaximalSubtrees(Microbatches microbatches, int levels) {
  Nodes nodes;
  for (int level = levels; level >= 0; --level) {
    for (int index = 0; index < 1 << (levels - level); ++index) {
      TreeNode node{level, index};
      if ((microbatches & Leaves(node)) != Leaves(node)) continue;
      nodes.push_back(node);
      microbatches &= ~Leaves(node);
    }
  }
  return nodes;
}

// The nodes that a shard stores of one block.
class Sums {
 public:
  explicit Sums(int levels) : levels_(levels) {}

  // Returns false if a microbatch of the node has arrived in another node.
  bool Add(TreeNode node) {
    for (const TreeNode& stored : nodes_) {
      if (stored == node) return true;  // R9: a repetition is ignored
      if (Leaves(stored) & Leaves(node)) return false;
    }
    for (; node.level < levels_; node = {node.level + 1, node.index >> 1}) {
      auto sibling = std::find(nodes_.begin(), nodes_.end(), TreeNode{node.level, node.index ^ 1});
      if (sibling == nodes_.end()) break;
      nodes_.erase(sibling);
    }
    nodes_.push_back(node);
    return true;
  }

  bool AreComplete() const { return nodes_.size() == 1 && nodes_[0].level == levels_; }

 private:
  const int levels_;
  Nodes nodes_;
};

// The nodes that a worker keeps from its old assignment, and then the rest of its new one.
Nodes KeepOld(const Nodes& old_nodes, Microbatches now, int levels, bool partly) {
  Nodes nodes;
  Microbatches rest = now;
  for (const TreeNode& node : old_nodes) {
    if (partly ? (Leaves(node) & now) == 0 : (Leaves(node) & ~now) != 0) continue;
    nodes.push_back(node);
    rest &= ~Leaves(node);
  }
  for (const TreeNode& node : MaximalSubtrees(rest, levels)) nodes.push_back(node);
  return nodes;
}

Nodes NodesAfterChange(const TreeOptions& options, Microbatches before, Microbatches now) {
  if (options.rule == TreeRule::kNewSubtrees) return MaximalSubtrees(now, options.levels);
  return KeepOld(MaximalSubtrees(before, options.levels), now, options.levels,
                 options.rule == TreeRule::kOldNodesThatTouch);
}

// By worker.
using Assignment = std::vector<Microbatches>;

void AddContiguous(const TreeOptions& options, int begin, Assignment& assignment,
                   std::vector<Assignment>& all) {
  const int count = 1 << options.levels;
  if (static_cast<int>(assignment.size()) == options.workers - 1) {
    assignment.push_back(Range(begin, count));
    all.push_back(assignment);
    assignment.pop_back();
    return;
  }
  for (int end = begin; end <= count; ++end) {
    assignment.push_back(Range(begin, end));
    AddContiguous(options, end, assignment, all);
    assignment.pop_back();
  }
}

std::vector<Assignment> Assignments(const TreeOptions& options) {
  std::vector<Assignment> all;
  if (options.contiguous) {
    Assignment assignment;
    AddContiguous(options, 0, assignment, all);
    return all;
  }
  const int count = 1 << options.levels;
  int number = 1;
  for (int i = 0; i < count; ++i) number *= options.workers;
  for (int code = 0; code < number; ++code) {
    Assignment assignment(options.workers, 0);
    for (int i = 0, rest = code; i < count; ++i, rest /= options.workers) {
      assignment[rest % options.workers] |= Range(i, i + 1);
    }
    all.push_back(assignment);
  }
  return all;
}

// One view change after which the worker `gone` is not a member. Returns what is wrong, if
// anything.
std::string Check(const TreeOptions& options, const Assignment& before, const Assignment& now,
                  int gone, const Nodes& arrived, TreeFindings& findings) {
  Sums sums(options.levels);
  for (const TreeNode& node : arrived) sums.Add(node);
  for (int w = 0; w < options.workers; ++w) {
    if (w == gone) continue;
    Nodes nodes = NodesAfterChange(options, before[w], now[w]);
    findings.most_nodes = std::max<int>(findings.most_nodes, nodes.size());
    for (const TreeNode& node : nodes) {
      if (!sums.Add(node)) return "a microbatch is added twice";
    }
  }
  return sums.AreComplete() ? "" : "the step never closes";
}

void CheckArrivals(const TreeOptions& options, const Assignment& before, const Assignment& now,
                   int gone, TreeFindings& findings) {
  Nodes sent;
  for (Microbatches assigned : before) {
    for (const TreeNode& node : MaximalSubtrees(assigned, options.levels)) sent.push_back(node);
  }
  // If the shard drops its nodes, it does not matter which have arrived.
  const int sets = options.install_drops_nodes ? 1 : 1 << sent.size();
  for (int set = 0; set < sets; ++set) {
    Nodes arrived;
    for (size_t i = 0; i < sent.size(); ++i) {
      if (set >> i & 1) arrived.push_back(sent[i]);
    }
    ++findings.cases;
    std::string violation = Check(options, before, now, gone, arrived, findings);
    if (violation.empty()) continue;
    ++findings.violations;
    if (findings.first_violation.empty()) findings.first_violation = violation;
  }
}

}  // namespace

TreeFindings EnumerateViewChanges(const TreeOptions& options) {
  TreeFindings findings;
  const std::vector<Assignment> assignments = Assignments(options);
  for (const Assignment& before : assignments) {
    for (const Assignment& now : assignments) {
      // All members stay, or one that has nothing to do from now on leaves.
      CheckArrivals(options, before, now, -1, findings);
      for (int gone = 0; gone < options.workers; ++gone) {
        if (now[gone] == 0) CheckArrivals(options, before, now, gone, findings);
      }
    }
  }
  return findings;
}

TreeGrowth KeepOldNodes(int levels) {
  using Key = std::vector<std::pair<int, int>>;
  auto key_of = [](const Nodes& nodes) {
    Key key;
    for (const TreeNode& node : nodes) key.emplace_back(node.level, node.index);
    return key;
  };
  const int count = 1 << levels;
  std::vector<Microbatches> ranges;
  for (int begin = 0; begin < count; ++begin) {
    for (int end = begin + 1; end <= count; ++end) ranges.push_back(Range(begin, end));
  }

  TreeGrowth growth;
  std::set<Key> seen;
  std::vector<Nodes> open;
  for (Microbatches range : ranges) open.push_back(MaximalSubtrees(range, levels));
  while (!open.empty()) {
    Nodes nodes = std::move(open.back());
    open.pop_back();
    growth.most_nodes = std::max(growth.most_nodes, nodes.size());
    for (Microbatches range : ranges) {
      Nodes next = KeepOld(nodes, range, levels, false);
      if (seen.insert(key_of(next)).second) open.push_back(std::move(next));
    }
  }
  growth.sets = seen.size();
  return growth;
}

}  // namespace sluice::protocol_models
