#ifndef SLUICE_SERVICES_TRANSPORT_STREAMS_EVENT_LOOP_H_
#define SLUICE_SERVICES_TRANSPORT_STREAMS_EVENT_LOOP_H_

#include <grpcpp/completion_queue.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace sluice {

namespace internal {

// The tag of an operation, which gRPC returns when the operation has ended. The loop's thread calls
// Complete; `ok` is gRPC's: whether the operation succeeded.
class Event {
 public:
  virtual ~Event() = default;
  virtual void Complete(bool ok) = 0;
};

// Calls a method of its owner, which must outlive the operation. One operation of an event at a
// time.
template <typename Owner, void (Owner::*kMethod)(bool)>
class MethodEvent final : public Event {
 public:
  explicit MethodEvent(Owner* owner) : owner_(owner) {}
  void Complete(bool ok) override { (owner_->*kMethod)(ok); }

 private:
  Owner* const owner_;
};

}  // namespace internal

// A gRPC completion queue and the thread that serves it. The streams of a process run on it.
//
// Intuition. gRPC's waiting threads receive for each other: the thread that waits at the sockets
// reads what arrives, for any queue, and wakes the thread that serves that queue. So a second
// waiting thread, even one that waits for an idle stream, costs every message two thread switches.
// Where one thread waits for everything, nothing is handed over. The streams of one process
// therefore share a loop.
//
// Code on the thread must neither block nor destroy an object that waits for the loop.
class EventLoop {
 public:
  // Starts the thread at once, under this name.
  explicit EventLoop(std::string name);
  // On a server's queue, which takes operations once the server has started: call Start then.
  EventLoop(std::string name, std::unique_ptr<grpc::CompletionQueue> queue);

  // Waits for the operations that are still under way. Each stream on the loop must be gone by
  // then, or end by itself.
  ~EventLoop();

  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // `sweep`, unless null, is called on the thread every quarter of a second.
  void Start(std::function<void()> sweep = nullptr);

  // Tags are internal::Event. Call internal::BeforeGrpc(loop) before starting an operation.
  grpc::CompletionQueue* queue() { return queue_.get(); }

 private:
  // The body of the thread: completes operations until the queue is shut down and empty.
  void Run(const std::function<void()>& sweep);

  const std::string name_;
  const std::unique_ptr<grpc::CompletionQueue> queue_;
  std::thread thread_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_STREAMS_EVENT_LOOP_H_
