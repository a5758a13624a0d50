// How to write an optimizer that Sluice's parameter servers load from a shared library.
//
//   #include <sluice/optimizer_plugin.h>
//
//   class SignSgd final : public sluice::plugin::Optimizer {
//    public:
//     explicit SignSgd(sluice::plugin::Parameters& parameters)
//         : decay_(parameters.Get("decay", 0.0)) {}
//     void Step(const Arguments& a, const Range<float>& range) const override { Run(a, range); }
//     void Step(const Arguments& a, const Range<double>& range) const override { Run(a, range); }
//    private: ...
//   };
//   SLUICE_OPTIMIZER_PLUGIN(SignSgd)
//
// Build it as a shared library `libsign-sgd.so` (C++17; this header needs nothing else), put that
// into /usr/local/lib/sluice, /usr/lib/sluice or a directory of $SLUICE_PLUGIN_PATH on the shards'
// machines, and name it in the job:
//
//   optimizer: {name: Plugin, library: sign-sgd, learningRate: 0.01, parameters: {decay: 0.9}}
//
// An update must be elementwise: a tensor is updated in pieces, in any order and on several threads
// at once, and the result must be the same. Its state is in slots, which Sluice keeps,
// checkpoints and restores beside the parameters: the object itself has no state that changes.
//
// The interface of the library is plain C, so the library may be built by another compiler or
// against another standard library than Sluice.
#ifndef SLUICE_OPTIMIZER_PLUGIN_H_
#define SLUICE_OPTIMIZER_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

// Changes with every change of what follows; a library with another number is refused.
#define SLUICE_OPTIMIZER_ABI 1
#define SLUICE_OPTIMIZER_MAX_SLOTS 3
#define SLUICE_OPTIMIZER_SYMBOL "sluice_optimizer_plugin"

#ifdef __cplusplus
extern "C" {
#endif

// The arguments of one step of one tensor.
typedef struct SluiceOptimizerArguments {
  double learning_rate;  // of the tensor's group, times the schedule's factor
  uint64_t count;  // updates that this tensor has received, this one included: 1 for the first
  double gradient_scale;  // the gradient is to be multiplied by it first
} SluiceOptimizerArguments;

// An array of state, of as many elements as the tensor.
typedef struct SluiceOptimizerSlot {
  const char* name;      // in checkpoints; lives as long as the library
  double initial_value;  // of every element, before the first update
} SluiceOptimizerSlot;

// `count` elements of version s and, beside it, of version s + 1. An output may be exactly its own
// input; nothing else overlaps. Slots are filled up to the optimizer's number of slots.
typedef struct SluiceOptimizerRangeF32 {
  size_t count;
  const float* parameters;
  const float* gradient;  // summed over all contributions
  const float* slots[SLUICE_OPTIMIZER_MAX_SLOTS];
  float* parameters_out;
  float* slots_out[SLUICE_OPTIMIZER_MAX_SLOTS];
} SluiceOptimizerRangeF32;

typedef struct SluiceOptimizerRangeF64 {
  size_t count;
  const double* parameters;
  const double* gradient;
  const double* slots[SLUICE_OPTIMIZER_MAX_SLOTS];
  double* parameters_out;
  double* slots_out[SLUICE_OPTIMIZER_MAX_SLOTS];
} SluiceOptimizerRangeF64;

// The library exports this as SLUICE_OPTIMIZER_SYMBOL. `abi` is first in every version.
typedef struct SluiceOptimizerPlugin {
  uint32_t abi;
  // An optimizer with the job's parameters; NULL, with the reason in `error` (at most `error_size`
  // bytes with the final 0), if they are not valid.
  void* (*create)(const char* const* names, const double* values, size_t parameters, char* error,
                  size_t error_size);
  void (*destroy)(void* optimizer);
  // Writes the slots and returns how many there are.
  size_t (*slots)(const void* optimizer, SluiceOptimizerSlot* slots);
  // Called on several threads at once. Parameters in bfloat16 and float16 are updated in float32.
  void (*step_f32)(const void* optimizer, const SluiceOptimizerArguments* arguments,
                   const SluiceOptimizerRangeF32* range);
  void (*step_f64)(const void* optimizer, const SluiceOptimizerArguments* arguments,
                   const SluiceOptimizerRangeF64* range);
} SluiceOptimizerPlugin;

#ifdef __cplusplus
}  // extern "C"

#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace sluice::plugin {

using Arguments = SluiceOptimizerArguments;
using Slot = SluiceOptimizerSlot;

template <typename T>
struct RangeOf;
template <>
struct RangeOf<float> {
  using Type = SluiceOptimizerRangeF32;
};
template <>
struct RangeOf<double> {
  using Type = SluiceOptimizerRangeF64;
};
template <typename T>
using Range = typename RangeOf<T>::Type;

// `parameters` of the job's optimizer. The job fails if a parameter is given that the optimizer
// does not read.
class Parameters {
 public:
  explicit Parameters(std::map<std::string, double> values) : values_(std::move(values)) {}

  double Get(const std::string& name, double otherwise) {
    asked_.insert(name);
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : found->second;
  }

  // Throws if the job has a parameter that the optimizer has not read.
  void CheckAllAsked() const {
    for (const auto& [name, value] : values_) {
      if (asked_.count(name) != 0) continue;
      std::string known;
      for (const std::string& one : asked_) known += (known.empty() ? "" : ", ") + one;
      throw std::invalid_argument("there is no parameter `" + name +
                                  "`; there are: " + (known.empty() ? "none" : known));
    }
  }

 private:
  const std::map<std::string, double> values_;
  std::set<std::string> asked_;
};

// An update rule. The constructor takes Parameters& and may throw, which refuses the job; nothing
// else may.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::vector<Slot> slots() const { return {}; }
  virtual void Step(const Arguments& arguments, const Range<float>& range) const = 0;
  virtual void Step(const Arguments& arguments, const Range<double>& range) const = 0;
};

namespace internal {

template <typename T>
void* Create(const char* const* names, const double* values, size_t count, char* error,
             size_t error_size) {
  std::string reason;
  try {
    std::map<std::string, double> given;
    for (size_t i = 0; i < count; ++i) given[names[i]] = values[i];
    Parameters parameters(std::move(given));
    Optimizer* const made = new T(parameters);
    try {
      parameters.CheckAllAsked();
      return made;
    } catch (...) {
      delete made;
      throw;
    }
  } catch (const std::exception& exception) {
    reason = exception.what();
  } catch (...) {
    reason = "its constructor threw something that is not a std::exception";
  }
  const size_t length = std::min(reason.size(), error_size - 1);
  std::copy_n(reason.data(), length, error);
  error[length] = 0;
  return nullptr;
}

inline const Optimizer& Of(const void* optimizer) {
  return *static_cast<const Optimizer*>(optimizer);
}

inline size_t WriteSlots(const void* optimizer, Slot* to) {
  const std::vector<Slot> slots = Of(optimizer).slots();
  std::copy_n(slots.data(), std::min<size_t>(slots.size(), SLUICE_OPTIMIZER_MAX_SLOTS), to);
  return slots.size();
}

}  // namespace internal
}  // namespace sluice::plugin

// Once in a library, with the class of its optimizer.
#define SLUICE_OPTIMIZER_PLUGIN(T)                                                        \
  extern "C" __attribute__((visibility("default")))                                       \
  const SluiceOptimizerPlugin sluice_optimizer_plugin = {                                 \
      SLUICE_OPTIMIZER_ABI,                                                               \
      sluice::plugin::internal::Create<T>,                                                \
      [](void* optimizer) { delete static_cast<sluice::plugin::Optimizer*>(optimizer); }, \
      sluice::plugin::internal::WriteSlots,                                               \
      [](const void* optimizer, const SluiceOptimizerArguments* arguments,                \
         const SluiceOptimizerRangeF32* range) {                                          \
        sluice::plugin::internal::Of(optimizer).Step(*arguments, *range);                 \
      },                                                                                  \
      [](const void* optimizer, const SluiceOptimizerArguments* arguments,                \
         const SluiceOptimizerRangeF64* range) {                                          \
        sluice::plugin::internal::Of(optimizer).Step(*arguments, *range);                 \
      }};

#endif  // __cplusplus

#endif  // SLUICE_OPTIMIZER_PLUGIN_H_
