#include "services/execution/shard/host.h"

#include <algorithm>
#include <set>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/common/status_macros.h"
#include "services/protocol/elements.h"

namespace sluice::stage {
namespace {

absl::Status NoSuchContext(uint64_t context) {
  return absl::NotFoundError(
      absl::StrCat("context ", context,
                   " is not here (any more): its worker forgot it, or is not a "
                   "member of the view"));
}

absl::Status NoSuchWorker(uint64_t incarnation) {
  return absl::NotFoundError(
      absl::StrCat("worker ", absl::Hex(incarnation),
                   " has pulled nothing here: it is not a member of the view, "
                   "or only of an earlier view"));
}

// Checks that the tensor has as many numbers as its shape says.
absl::Status CheckTensor(const v1::StageTensor& tensor) {
  constexpr int kMaxDimensions = 16;
  if (tensor.shape_size() > kMaxDimensions) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor of ", tensor.shape_size(), " dimensions"));
  }

  const size_t element = ElementBytes(tensor.dtype());
  if (element == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor of type ", tensor.dtype()));
  }

  const uint64_t elements = tensor.data().size() / element;
  bool fits = tensor.data().size() % element == 0;
  uint64_t product = 1;
  for (const int64_t extent : tensor.shape()) {
    fits = fits && extent >= 0;
    if (!fits) break;
    const auto size = static_cast<uint64_t>(extent);
    // A size of 0 stays 0; no other product may exceed the number of elements.
    fits = product == 0 || size <= elements / product || size == 0;
    product = fits ? product * size : product;
  }

  if (fits && product == elements) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a tensor of shape [", absl::StrJoin(tensor.shape(), ", "), "] with ",
                   tensor.data().size(), " bytes, ", element, " for each element"));
}

absl::Status Exceeded(absl::string_view bound, size_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat(bound, ": a worker has at most ", limit, " on a shard"));
}

}  // namespace

class Host::ComputeLock {
 public:
  explicit ComputeLock(Host* host) : host_(*host) {
    MutexLock lock(&host_.mutex_);
    while (host_.computing_ >= host_.options_.max_computing) {
      host_.computing_changed_.Wait(&host_.mutex_);
    }
    ++host_.computing_;
  }
  ~ComputeLock() {
    {
      MutexLock lock(&host_.mutex_);
      --host_.computing_;
    }
    host_.computing_changed_.Signal();
  }

  ComputeLock(const ComputeLock&) = delete;
  ComputeLock& operator=(const ComputeLock&) = delete;

 private:
  Host& host_;
};

// ---- ps::References

void Host::Begin(const v1::Register& identity) {
  MutexLock lock(&mutex_);
  identity_ = identity;
}

absl::Cord Host::Hold(uint64_t worker, const ps::ShardModel& model, const ps::BlockInfo& block,
                      absl::Cord content) {
  TensorPart part{model.TensorName(block), block.offset, std::move(content)};
  v1::BlockReference reference;

  MutexLock lock(&mutex_);
  Worker& holder = workers_[worker];
  reference.set_handle(++holder.last_handle);
  reference.set_address(identity_.address());
  reference.set_shard(identity_.process().incarnation());

  // A worker that never computes never reports what it has forgotten; the oldest blocks are of no
  // use to it.
  if (holder.blocks.size() >= options_.max_blocks) holder.blocks.erase(holder.blocks.begin());
  holder.blocks.emplace(reference.handle(), std::move(part));
  return absl::Cord(reference.SerializeAsString());
}

absl::StatusOr<absl::Cord> Host::Find(uint64_t worker, const ps::ShardModel& model,
                                      const ps::BlockInfo& block, const absl::Cord& reference) {
  v1::GradientReference parsed;
  if (!parsed.ParseFromString(std::string(reference)) || parsed.context() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(model.BlockName(block), " is not a reference"));
  }
  const std::string& name = model.TensorName(block);

  MutexLock lock(&mutex_);
  const auto found = workers_.find(worker);
  if (found != workers_.end()) {
    const auto& contexts = found->second.contexts;
    for (auto it = contexts.lower_bound({parsed.context(), 0});
         it != contexts.end() && it->first.first == parsed.context(); ++it) {
      const auto gradient = it->second->gradients.find(name);
      if (gradient == it->second->gradients.end()) continue;
      const size_t element = ElementBytes(gradient->second.dtype);
      return gradient->second.value.Subcord(block.offset * element, block.count * element);
    }
  }
  return absl::DataLossError(absl::StrCat("context ", parsed.context(), " has no gradient of ",
                                          model.BlockName(block), " here (any more)"));
}

void Host::Retain(absl::Span<const v1::ProcessId> members) {
  std::vector<Worker> gone;  // destroyed without the lock
  MutexLock lock(&mutex_);
  members_.clear();
  for (const v1::ProcessId& member : members) members_[member.incarnation()] = member;

  // Drops everything of workers that are not members.
  for (auto it = workers_.begin(); it != workers_.end();) {
    if (members_.count(it->first) > 0) {
      ++it;
      continue;
    }
    gone.push_back(std::move(it->second));
    it = workers_.erase(it);
  }
}

// ---- service Stage

absl::Status Host::CheckCaller(const std::optional<security::PeerIdentity>& caller,
                               uint64_t worker) const {
  if (!caller.has_value()) return absl::OkStatus();
  MutexLock lock(&mutex_);
  const auto member = members_.find(worker);
  if (member == members_.end()) return NoSuchWorker(worker);
  return security::CheckClaim(caller, member->second);
}

absl::StatusOr<Host::Worker*> Host::FindWorker(uint64_t incarnation) {
  const auto found = workers_.find(incarnation);
  if (found != workers_.end()) return &found->second;
  return NoSuchWorker(incarnation);
}

absl::StatusOr<v1::OpenStageReply> Host::Open(const v1::OpenStageRequest& request) {
  const uint32_t stages = std::max(1, request.model().stages_size());
  if (request.stage() >= stages) {
    return absl::InvalidArgumentError(
        absl::StrCat("stage ", request.stage(), " of a model of ", stages));
  }

  v1::OpenStageRequest shared = request;
  shared.clear_worker();
  const std::string key = shared.SerializeAsString();
  std::shared_ptr<Layers> layers;
  {
    MutexLock lock(&mutex_);
    ASSIGN_OR_RETURN(const auto known, FindWorker(request.worker()));
    if (known->stages.size() >= options_.max_stages && known->stages.count(request.stage()) == 0) {
      return Exceeded("max_stages", options_.max_stages);
    }
    if (request.job() != identity_.job()) {
      return absl::InvalidArgumentError(absl::StrCat("this shard is of job '", identity_.job(),
                                                     "', not of '", request.job(), "'"));
    }
    if (const auto made = layers_.find(key); made != layers_.end()) layers = made->second.lock();
  }

  if (layers == nullptr) {
    ASSIGN_OR_RETURN(layers, options_.make_layers(request));
  }

  bool first = false;
  {
    MutexLock lock(&mutex_);
    ASSIGN_OR_RETURN(const auto worker, FindWorker(request.worker()));
    for (auto it = layers_.begin(); it != layers_.end();) {
      it = it->second.expired() ? layers_.erase(it) : std::next(it);
    }
    // Several calls may have made layers at the same time; the later ones use the first one's.
    if (const std::shared_ptr<Layers> other = layers_[key].lock()) {
      layers = other;
    } else {
      layers_[key] = layers;
      first = true;
    }
    worker->stages[request.stage()] = layers;
  }

  v1::OpenStageReply description = layers->Describe();
  if (first && !description.warning().empty() && options_.on_warning) {
    options_.on_warning(description.warning());
  }
  return description;
}

absl::StatusOr<std::shared_ptr<Layers>> Host::BeginForward(const v1::ForwardRequest& request,
                                                           Layers::Input* input) {
  RETURN_IF_ERROR(CheckTensor(request.input()));

  // Checks the request's sizes.
  const size_t elements = request.input().data().size() / ElementBytes(request.input().dtype());
  if (request.microbatches() > std::max<size_t>(1, elements)) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.microbatches(), " microbatches of ", elements, " numbers"));
  }
  if (static_cast<size_t>(request.live_handles_size()) > options_.max_blocks ||
      static_cast<size_t>(request.handles_size()) > options_.max_blocks) {
    return Exceeded("max_blocks", options_.max_blocks);
  }
  if (static_cast<size_t>(request.live_contexts_size()) > options_.max_contexts) {
    return Exceeded("max_contexts", options_.max_contexts);
  }

  // Everything that the worker has forgotten is dropped, also if the request then fails.
  const std::set<uint64_t> live(request.live_handles().begin(), request.live_handles().end());
  const std::set<uint64_t> live_contexts(request.live_contexts().begin(),
                                         request.live_contexts().end());
  std::vector<TensorPart> old_blocks;  // destroyed without the lock
  std::vector<std::shared_ptr<Context>> old_contexts;
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const auto worker, FindWorker(request.worker()));

  auto& blocks = worker->blocks;
  for (auto it = blocks.begin(); it != blocks.end() && it->first <= request.newest_handle();) {
    if (live.count(it->first) > 0) {
      ++it;
      continue;
    }
    old_blocks.push_back(std::move(it->second));
    it = blocks.erase(it);
  }

  auto& contexts = worker->contexts;
  for (auto it = contexts.begin(); it != contexts.end();) {
    if (it->first.first == request.context() || live_contexts.count(it->first.first) > 0) {
      ++it;
      continue;
    }
    old_contexts.push_back(std::move(it->second));
    it = contexts.erase(it);
  }

  // Checks that there is room for the new context, and finds the named blocks.
  if (contexts.size() >= options_.max_contexts) {
    return Exceeded("max_contexts", options_.max_contexts);
  }
  if (static_cast<size_t>(request.handles_size()) > blocks.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.handles_size(), " block references of ", blocks.size(), " blocks"));
  }

  for (uint64_t handle : request.handles()) {
    const auto found = blocks.find(handle);
    if (found == blocks.end()) {
      return absl::NotFoundError(absl::StrCat("block reference ", handle, " is not here"));
    }
    input->parameters.push_back(found->second);
  }

  const auto stage = worker->stages.find(request.stage());
  if (stage == worker->stages.end()) {
    return absl::NotFoundError(absl::StrCat("stage ", request.stage(), " was not opened"));
  }
  return stage->second;
}

absl::StatusOr<v1::ForwardReply> Host::Forward(const v1::ForwardRequest& request) {
  Layers::Input input;
  ASSIGN_OR_RETURN(std::shared_ptr<Layers> layers, BeginForward(request, &input));

  input.value = &request.input();
  input.training = request.context() != 0;
  input.wants_input_gradient = request.stage() > 0;
  input.generator = request.generator();
  input.seed = request.seed();
  input.microbatches = std::max<uint64_t>(1, request.microbatches());
  absl::StatusOr<Layers::Output> output = absl::UnknownError("");
  {
    const ComputeLock lock(this);
    output = layers->Forward(input);
  }
  if (!output.ok()) return output.status();

  v1::ForwardReply reply;
  *reply.mutable_output() = std::move(output->value);
  reply.set_generator(std::move(output->generator));
  if (output->pass == nullptr) return reply;
  auto context = std::make_shared<Context>();
  {
    MutexLock running(&context->running);
    context->pass = std::move(output->pass);
  }

  std::shared_ptr<Context> old;  // of the same name; destroyed without the lock
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const auto worker, FindWorker(request.worker()));
  // Concurrent calls may each have found room for one more context.
  if (worker->contexts.size() >= options_.max_contexts &&
      worker->contexts.count({request.context(), request.stage()}) == 0) {
    return Exceeded("max_contexts", options_.max_contexts);
  }
  std::shared_ptr<Context>& place = worker->contexts[{request.context(), request.stage()}];
  old = std::exchange(place, std::move(context));
  return reply;
}

absl::StatusOr<std::shared_ptr<Host::Context>> Host::FindContext(uint64_t worker, uint64_t context,
                                                                 uint32_t stage) const {
  MutexLock lock(&mutex_);
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return NoSuchContext(context);
  const auto place = found->second.contexts.find({context, stage});
  if (place == found->second.contexts.end()) return NoSuchContext(context);
  return place->second;
}

absl::StatusOr<v1::BackwardReply> Host::Backward(const v1::BackwardRequest& request) {
  RETURN_IF_ERROR(CheckTensor(request.gradient()));
  ASSIGN_OR_RETURN(const auto context,
                   FindContext(request.worker(), request.context(), request.stage()));

  MutexLock running(&context->running);
  if (context->pass == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the backward pass of context ", request.context(), " is over"));
  }

  const std::unique_ptr<ForwardPass> pass = std::move(context->pass);
  absl::StatusOr<ForwardPass::Result> result = absl::UnknownError("");
  {
    const ComputeLock lock(this);
    result = pass->Backward(request.gradient());
  }
  if (!result.ok()) return result.status();

  v1::BackwardReply reply;
  if (result->input_gradient.shape_size() > 0) {
    *reply.mutable_gradient() = std::move(result->input_gradient);
  }

  MutexLock lock(&mutex_);
  for (TensorGradient& gradient : result->gradients) {
    (gradient.buffer ? reply.add_buffers() : reply.add_gradients())->assign(gradient.tensor);
    context->gradients[gradient.tensor] = std::move(gradient);
  }
  context->has_gradients = true;
  return reply;
}

absl::StatusOr<v1::ContextGradientsReply> Host::ContextGradients(
    const v1::ContextGradientsRequest& request) const {
  ASSIGN_OR_RETURN(const auto context,
                   FindContext(request.worker(), request.context(), request.stage()));

  v1::ContextGradientsReply reply;
  MutexLock lock(&mutex_);
  if (!context->has_gradients) {
    return absl::FailedPreconditionError(
        absl::StrCat("context ", request.context(), " has not had a backward pass"));
  }

  for (const auto& [name, gradient] : context->gradients) {
    v1::ContextGradientsReply::Gradient& entry = *reply.add_gradients();
    entry.set_name(name);
    for (int64_t extent : gradient.shape) entry.mutable_value()->add_shape(extent);
    entry.mutable_value()->set_dtype(gradient.dtype);
    entry.mutable_value()->set_data(std::string(gradient.value));
  }
  return reply;
}

Host::Status Host::status() const {
  MutexLock lock(&mutex_);
  Status status;
  status.workers = workers_.size();
  for (const auto& [incarnation, worker] : workers_) {
    status.blocks += worker.blocks.size();
    status.contexts += worker.contexts.size();
  }
  return status;
}

}  // namespace sluice::stage
