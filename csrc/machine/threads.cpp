#include "machine/threads.h"

#include <algorithm>
#include <atomic>
#include <exception>

#ifdef __linux__
#include <dlfcn.h>
#endif
#ifndef _WIN32
#include <pthread.h>
#endif

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace swin {
namespace {

// The tasks of one call. Whoever comes takes the next: so it does not matter how many threads come.
struct Job {
  int64_t count;
  void (*task)(void*, int64_t);
  void* context;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error{};

  void work() noexcept {
    for (int64_t i; (i = next++) < count;) try {
        task(context, i);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
  }
  static void work_on(void* job) { static_cast<Job*>(job)->work(); }
};

// How OpenMP's compilers start threads: GNU's runtime has it, and LLVM's and Intel's have it for GNU's programs. torch
// has loaded one of them for all the process to see.
using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

Parallel torchs_threads() {
#ifdef __linux__
  static const Parallel found = [] {
    Parallel parallel = nullptr;
    void* symbol = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    static_assert(sizeof symbol == sizeof parallel);
    __builtin_memcpy(&parallel, &symbol, sizeof symbol);
    return parallel;
  }();
  return found;
#else
  return nullptr;
#endif
}

// Threads of our own, where there is no such OpenMP. They live as long as the process, and one call has them at a time:
// another meanwhile computes alone.
class Pool {
 public:
  bool run(Job& job, int64_t threads) {
    const std::unique_lock<std::mutex> alone(taken, std::try_to_lock);
    if (!alone) return false;
    {
      const std::lock_guard<std::mutex> guard(lock);
      while (static_cast<int64_t>(workers) < threads - 1) {
        std::thread([this, number = workers] { serve(number); }).detach();
        workers++;
      }
      current = &job;
      wanted = threads - 1;
      running = wanted;
      round++;
    }
    start.notify_all();
    job.work();
    std::unique_lock<std::mutex> guard(lock);
    done.wait(guard, [this] { return running == 0; });
    return true;
  }

 private:
  void serve(int64_t number) {
    for (uint64_t seen = 0;;) {
      Job* job = nullptr;
      {
        std::unique_lock<std::mutex> guard(lock);
        start.wait(guard, [&] { return round != seen; });
        seen = round;
        if (number >= wanted) continue;
        job = current;
      }
      job->work();
      const std::lock_guard<std::mutex> guard(lock);
      if (--running == 0) done.notify_one();
    }
  }

  std::mutex taken, lock;
  std::condition_variable start, done;
  Job* current = nullptr;
  int64_t workers = 0, wanted = 0, running = 0;
  uint64_t round = 0;
};

// Never freed: its threads may outlive what is freed at the end.
std::atomic<Pool*>& pool() {
  static std::atomic<Pool*> current = [] {
#ifndef _WIN32
    pthread_atfork(nullptr, nullptr, [] { pool() = new Pool; });  // a child has none of its parent's threads
#endif
    return new Pool;
  }();
  return current;
}

struct Host {
  HostThreads::Run run;
  void* context;
};
thread_local Host host{};

}  // namespace

HostThreads::HostThreads(Run run, void* context) { host = {run, context}; }
HostThreads::~HostThreads() { host = {}; }

void run_tasks(int64_t count, int64_t threads, void (*task)(void*, int64_t), void* context) {
  threads = std::min(threads, count);
  if (threads <= 1) {
    for (int64_t i = 0; i < count; i++) task(context, i);
    return;
  }
  Job job{count, task, context};
  if (host.run) {
    host.run(host.context, threads, Job::work_on, &job);
    job.work();
  } else if (const Parallel parallel = torchs_threads()) {
    parallel(Job::work_on, &job, static_cast<unsigned>(threads), 0);
  } else {
    if (!pool().load()->run(job, threads)) job.work();
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace swin
