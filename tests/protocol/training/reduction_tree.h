// The binary tree of BitExact's additions (docs/protocol.md, section 7.7), around one view change.
//
// This model is an enumeration, not a search: every assignment of M microbatches before a view
// change and after it, with every set of nodes that had arrived at a shard.
#ifndef SLUICE_TESTS_PROTOCOL_TRAINING_REDUCTION_TREE_H_
#define SLUICE_TESTS_PROTOCOL_TRAINING_REDUCTION_TREE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::protocol_models {

// The microbatches [index << level, (index + 1) << level).
struct TreeNode {
  int level;
  int index;

  friend bool operator==(const TreeNode& a, const TreeNode& b) {
    return a.level == b.level && a.index == b.index;
  }
};

// The nodes that a worker sends after the view change.
enum class TreeRule {
  kNewSubtrees,     // the maximal subtrees of its new assignment
  kOldNodesInside,  // the nodes that it has, where they are inside the new assignment, and the rest
  kOldNodesThatTouch,  // the nodes that it has, where they overlap the new assignment, and the rest
};

struct TreeOptions {
  int levels = 2;  // 2^levels microbatches
  int workers = 3;
  TreeRule rule = TreeRule::kNewSubtrees;
  // Each worker has one range; else any set.
  bool contiguous = true;
  // A shard drops what has arrived when it installs the view.
  bool install_drops_nodes = true;
};

struct TreeFindings {
  int64_t cases = 0;
  int64_t violations = 0;
  std::string first_violation;
  int most_nodes = 0;  // that one worker sends
};

// Checks that the shard can close after the view change, with each microbatch added once.
TreeFindings EnumerateViewChanges(const TreeOptions& options);

// The most nodes that a worker sends after any number of view changes if it keeps the nodes that it
// has (kOldNodesInside), and the number of different sets of nodes.
struct TreeGrowth {
  size_t sets = 0;
  size_t most_nodes = 0;
};
TreeGrowth KeepOldNodes(int levels);

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_TRAINING_REDUCTION_TREE_H_
