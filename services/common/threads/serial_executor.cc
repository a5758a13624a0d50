#include "services/common/threads/serial_executor.h"

#include <pthread.h>

#include <utility>

namespace sluice {

SerialExecutor::SerialExecutor(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] { Loop(); });
}

SerialExecutor::~SerialExecutor() { Stop(); }

void SerialExecutor::Run(Task task, size_t bytes) {
  if (!TryStart(task, bytes)) return;
  std::move(task)();
  task = nullptr;  // free what it holds before another task runs
  Entry next;
  for (int combined = 0; EndAndTakeNext(combined, &next); ++combined) Execute(std::move(next));
}

void SerialExecutor::Post(Task task, size_t bytes) {
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    Enqueue({std::move(task), bytes, /*own_thread=*/true});
  }
  Account(static_cast<int64_t>(bytes));
}

// True: the caller runs the task, and then the tasks that EndAndTakeNext returns.
bool SerialExecutor::TryStart(Task& task, size_t bytes) {
  {
    MutexLock lock(&mutex_);
    if (stopping_) return false;
    if (!running_ && queue_.empty()) {
      running_ = true;
      ++given_;
      return true;
    }
    Enqueue({std::move(task), bytes, /*own_thread=*/false});
  }
  Account(static_cast<int64_t>(bytes));
  return false;
}

bool SerialExecutor::EndAndTakeNext(int combined, Entry* next) {
  MutexLock lock(&mutex_);
  EndTask();
  if (queue_.empty() || queue_.front().own_thread || combined >= options_.max_combined) {
    running_ = false;
    if (!queue_.empty() || stopping_) work_.Signal();
    return false;
  }
  *next = Take();
  return true;
}

void SerialExecutor::Loop() {
  pthread_setname_np(pthread_self(), options_.name.substr(0, 15).c_str());
  while (true) {
    Entry next;
    {
      MutexLock lock(&mutex_);
      while (running_ || (queue_.empty() && !stopping_)) work_.Wait(&mutex_);
      if (queue_.empty()) return;
      running_ = true;
      next = Take();
    }

    Execute(std::move(next));
    MutexLock lock(&mutex_);
    EndTask();
    running_ = false;
  }
}

void SerialExecutor::Execute(Entry entry) {
  Account(-static_cast<int64_t>(entry.bytes));
  std::move(entry.task)();
}

void SerialExecutor::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    work_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

void SerialExecutor::Flush() {
  MutexLock lock(&mutex_);
  const uint64_t until = given_;
  while (ended_ < until) progress_.Wait(&mutex_);
}

size_t SerialExecutor::queued_tasks() const {
  MutexLock lock(&mutex_);
  return queue_.size();
}

size_t SerialExecutor::queued_bytes() const {
  MutexLock lock(&mutex_);
  return queued_bytes_;
}

void SerialExecutor::Enqueue(Entry entry) {
  ++given_;
  queued_bytes_ += entry.bytes;
  queue_.push_back(std::move(entry));
  if (!running_) work_.Signal();  // else the running thread runs it, or wakes the executor's
}

SerialExecutor::Entry SerialExecutor::Take() {
  Entry entry = std::move(queue_.front());
  queue_.pop_front();
  queued_bytes_ -= entry.bytes;
  return entry;
}

void SerialExecutor::EndTask() {
  ++ended_;
  progress_.SignalAll();
}

void SerialExecutor::Account(int64_t change) {
  if (options_.on_queued_bytes && change != 0) options_.on_queued_bytes(change);
}

}  // namespace sluice
