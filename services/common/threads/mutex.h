#ifndef SLUICE_SERVICES_COMMON_THREADS_MUTEX_H_
#define SLUICE_SERVICES_COMMON_THREADS_MUTEX_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#if defined(__SANITIZE_THREAD__)
#define SLUICE_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SLUICE_THREAD_SANITIZER 1
#endif
#endif

#ifdef SLUICE_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace sluice {

// Why not absl::Mutex itself: the system's Abseil is not compiled with ThreadSanitizer, which then
// sees neither its locks nor its condition waits and reports correctly locked data as a race. These
// classes are absl::Mutex, absl::MutexLock and absl::CondVar, plus clang's lock annotations and,
// only in builds with ThreadSanitizer, the calls that inform it.
//
// absl::Mutex::Await is left out on purpose: it runs the waiter's predicate on the thread that
// unlocks. Wait in a loop on a CondVar instead:
//
//   MutexLock lock(&mutex_);
//   while (queue_.empty()) not_empty_.Wait(&mutex_);
//
// A Mutex is not recursive. Declare its order with ABSL_ACQUIRED_BEFORE or ABSL_ACQUIRED_AFTER
// where two are ever held together, and guard fields with ABSL_GUARDED_BY.
class ABSL_LOCKABLE Mutex {
 public:
#ifdef SLUICE_THREAD_SANITIZER
  Mutex() { __tsan_mutex_create(this, 0); }
  ~Mutex() { __tsan_mutex_destroy(this, 0); }
#else
  Mutex() = default;
#endif
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  // Blocks until this thread holds the mutex exclusively.
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    BeforeLock(kExclusive);
    mutex_.Lock();
    AfterLock(kExclusive);
  }

  // Only by the thread that holds it.
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    BeforeUnlock(kExclusive);
    mutex_.Unlock();
    AfterUnlock(kExclusive);
  }

  // Takes the mutex if that is possible without waiting; returns whether it did.
  [[nodiscard]] bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true);

  // Blocks until this thread holds the mutex together with other readers only.
  void ReaderLock() ABSL_SHARED_LOCK_FUNCTION() {
    BeforeLock(kShared);
    mutex_.ReaderLock();
    AfterLock(kShared);
  }

  // Only by a thread that holds it as a reader.
  void ReaderUnlock() ABSL_UNLOCK_FUNCTION() {
    BeforeUnlock(kShared);
    mutex_.ReaderUnlock();
    AfterUnlock(kShared);
  }

  // Declares to the compiler's analysis that the calling thread holds the mutex; builds of Abseil
  // with assertions check it at run time too.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() { mutex_.AssertHeld(); }
  void AssertReaderHeld() const ABSL_ASSERT_SHARED_LOCK() { mutex_.AssertReaderHeld(); }

 private:
  friend class CondVar;

#ifdef SLUICE_THREAD_SANITIZER
  static constexpr unsigned kExclusive = 0;
  static constexpr unsigned kShared = __tsan_mutex_read_lock;
  void BeforeLock(unsigned mode) { __tsan_mutex_pre_lock(this, mode); }
  void AfterLock(unsigned mode) { __tsan_mutex_post_lock(this, mode, 0); }
  void BeforeUnlock(unsigned mode) { __tsan_mutex_pre_unlock(this, mode); }
  void AfterUnlock(unsigned mode) { __tsan_mutex_post_unlock(this, mode); }
#else
  static constexpr unsigned kExclusive = 0;
  static constexpr unsigned kShared = 0;
  void BeforeLock(unsigned) {}
  void AfterLock(unsigned) {}
  void BeforeUnlock(unsigned) {}
  void AfterUnlock(unsigned) {}
#endif

  absl::Mutex mutex_;
};

inline bool Mutex::TryLock() {
#ifdef SLUICE_THREAD_SANITIZER
  __tsan_mutex_pre_lock(this, __tsan_mutex_try_lock);
  const bool locked = mutex_.TryLock();
  __tsan_mutex_post_lock(this, __tsan_mutex_try_lock | (locked ? 0u : __tsan_mutex_try_lock_failed),
                         0);
  return locked;
#else
  return mutex_.TryLock();
#endif
}

// Holds a mutex exclusively from construction to the end of the scope.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Holds a mutex as a reader from construction to the end of the scope.
class ABSL_SCOPED_LOCKABLE ReaderMutexLock {
 public:
  explicit ReaderMutexLock(Mutex* mutex) ABSL_SHARED_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->ReaderLock();
  }
  ~ReaderMutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->ReaderUnlock(); }
  ReaderMutexLock(const ReaderMutexLock&) = delete;
  ReaderMutexLock& operator=(const ReaderMutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// A condition variable. Each wait releases the mutex, which the caller holds exclusively, blocks,
// and holds it again when it returns. It may return spuriously, so callers wait in a loop on their
// condition.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  // Blocks until woken.
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Blocks until woken or until `timeout` has passed; true if it has passed.
  bool WaitWithTimeout(Mutex* mutex, absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Blocks until woken or until the real clock shows `deadline`; true if it did.
  bool WaitWithDeadline(Mutex* mutex, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Wakes at least one waiting thread, or all; the mutex may be held or not.
  void Signal() { cond_var_.Signal(); }
  void SignalAll() { cond_var_.SignalAll(); }

 private:
  // To ThreadSanitizer a wait is an unlock followed by a lock.
  static void BeforeWait(Mutex* mutex) {
    mutex->BeforeUnlock(Mutex::kExclusive);
    mutex->AfterUnlock(Mutex::kExclusive);
    mutex->BeforeLock(Mutex::kExclusive);
  }
  static void AfterWait(Mutex* mutex) { mutex->AfterLock(Mutex::kExclusive); }

  absl::CondVar cond_var_;
};

inline void CondVar::Wait(Mutex* mutex) {
  BeforeWait(mutex);
  cond_var_.Wait(&mutex->mutex_);
  AfterWait(mutex);
}

inline bool CondVar::WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
  BeforeWait(mutex);
  const bool timed_out = cond_var_.WaitWithTimeout(&mutex->mutex_, timeout);
  AfterWait(mutex);
  return timed_out;
}

inline bool CondVar::WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
  BeforeWait(mutex);
  const bool timed_out = cond_var_.WaitWithDeadline(&mutex->mutex_, deadline);
  AfterWait(mutex);
  return timed_out;
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_THREADS_MUTEX_H_
