// Tasks on several threads. Beside torch the library uses the OpenMP threads of torch: two OpenMP runtimes in one
// process would compete for the cores.
//
// This part is compiled once, for every processor. Only templates over types of an instruction set may be inline.
#pragma once

#include <cstdint>

namespace swin {

// Call task(context, i) for each i < count, on at most `threads` threads. For one thread or one task, this thread does
// all work. If a task throws, the exception is thrown here after all tasks.
void run_tasks(int64_t count, int64_t threads, void (*task)(void* context, int64_t i), void* context);

// While it lives, run_tasks of its thread starts no threads: run(context, count, work, job) calls work(job) up to
// `count` times, on threads of the host. A call of `work` returns when no task is left.
class HostThreads {
 public:
  using Run = void (*)(void* context, int64_t count, void (*work)(void* job), void* job);
  HostThreads(Run run, void* context);
  ~HostThreads();
  HostThreads(const HostThreads&) = delete;
  HostThreads& operator=(const HostThreads&) = delete;
};

// f(i) for each i < count.
template <class F>
void each_task(int64_t count, int64_t threads, const F& f) {
  run_tasks(count, threads, [](void* context, int64_t i) { (*static_cast<const F*>(context))(i); }, const_cast<F*>(&f));
}

// f(begin, end) for at most `threads` parts of 0 ... count - 1.
template <class F>
void each_part(int64_t count, int64_t threads, const F& f) {
  const int64_t parts = count < threads ? count : threads;
  each_task(parts, threads, [&](int64_t i) { f(count * i / parts, count * (i + 1) / parts); });
}

}  // namespace swin
