#ifndef SLUICE_SERVICES_TRANSPORT_EVENT_LOOP_H_
#define SLUICE_SERVICES_TRANSPORT_EVENT_LOOP_H_

#include <grpcpp/completion_queue.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace sluice {

namespace internal {

// What gRPC gives back when an operation has ended: its tag.
class Event {
 public:
  virtual ~Event() = default;
  virtual void Complete(bool ok) = 0;
};

template <typename Owner, void (Owner::*kMethod)(bool)>
class MethodEvent final : public Event {
 public:
  explicit MethodEvent(Owner* owner) : owner_(owner) {}
  void Complete(bool ok) override { (owner_->*kMethod)(ok); }

 private:
  Owner* const owner_;
};

}  // namespace internal

// A completion queue of gRPC's and the thread that serves it: what the streams of a process run on.
//
// Intuition. gRPC's waiting threads receive for each other: whichever waits at the sockets reads
// what comes, for any queue, and wakes the thread whose it is. So a second thread that waits, be it
// for a stream that is silent, costs every message two thread switches. Where one thread waits for
// everything, nothing is handed over. The streams of one process therefore share a loop.
//
// What runs on the thread must not block, nor destroy what waits for the loop.
class EventLoop {
 public:
  // `name` of the thread. Started at once.
  explicit EventLoop(std::string name);
  // Over a queue of a server's, which takes operations when the server has started: then call
  // Start.
  EventLoop(std::string name, std::unique_ptr<grpc::CompletionQueue> queue);

  // Everything that runs on the loop is gone, or comes back by itself; waits for that.
  ~EventLoop();

  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // `sweep`, if any, is called on the thread every quarter of a second.
  void Start(std::function<void()> sweep = nullptr);

  // Tags are internal::Event. Before an operation begins: internal::BeforeGrpc(loop).
  grpc::CompletionQueue* queue() { return queue_.get(); }

 private:
  void Run(const std::function<void()>& sweep);

  const std::string name_;
  const std::unique_ptr<grpc::CompletionQueue> queue_;
  std::thread thread_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_EVENT_LOOP_H_
