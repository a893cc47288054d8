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

// The tasks of one call. Each thread takes the next task, so any number of threads may come.
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

// The function by which compilers start OpenMP threads. GNU's runtime has it, and so have LLVM's and Intel's. torch has
// loaded one of these runtimes with global symbols.
using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

Parallel torchs_threads() {
#ifdef __linux__
  static const Parallel runtime = [] {
    Parallel parallel = nullptr;
    void* symbol = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    static_assert(sizeof symbol == sizeof parallel);
    __builtin_memcpy(&parallel, &symbol, sizeof symbol);
    return parallel;
  }();
  return runtime;
#else
  return nullptr;
#endif
}

// Own threads, for processes without such an OpenMP. The threads live until the process ends, and serve one call at a
// time. A second call meanwhile computes alone.
class Pool {
 public:
  bool run(Job& job, int64_t threads) {
    const std::unique_lock<std::mutex> alone(taken, std::try_to_lock);
    if (!alone) return false;
    {
      const std::lock_guard<std::mutex> guard(lock);
      while (static_cast<int64_t>(workers) < threads - 1) {
        std::thread([this, index = workers] { serve(index); }).detach();
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
  void serve(int64_t index) {
    for (uint64_t seen = 0;;) {
      Job* job = nullptr;
      {
        std::unique_lock<std::mutex> guard(lock);
        start.wait(guard, [&] { return round != seen; });
        seen = round;
        if (index >= wanted) continue;
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

// Never freed: the threads may outlive destructors at the end of the process.
std::atomic<Pool*>& pool() {
  static std::atomic<Pool*> current = [] {
#ifndef _WIN32
    pthread_atfork(nullptr, nullptr, [] { pool() = new Pool; });  // a forked child has no threads of its parent
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
