#include "waiting.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace switchyard::python {
namespace {

// Threads that ask for the GIL, having seen that the interpreter does not end.
std::atomic<int> g_num_returning = 0;
std::atomic<bool> g_is_ending = false;
std::thread::id g_ending_thread;  // written before g_is_ending

// Either the interpreter's end waits for this thread to have the GIL, or this thread stops here.
void begin_return() {
  ++g_num_returning;
  if (!g_is_ending || g_ending_thread == std::this_thread::get_id()) return;
  --g_num_returning;
  for (;;) pause();
}

constexpr auto kSignalInterval = std::chrono::milliseconds(20);

Status call_without_throwing(const std::function<Status(CallerThread&)>& work, CallerThread& caller) {
  try {
    return work(caller);
  } catch (const std::exception& error) {
    return internal_error("%s", error.what());
  }
}

// The thread that waits is the one that works.
class SameThread : public CallerThread {
 public:
  bool run(const std::function<void()>& function) override {
    begin_return();
    nb::gil_scoped_acquire gil;
    --g_num_returning;
    function();
    return true;
  }
};

class Helper : public CallerThread {
 public:
  explicit Helper(std::function<Status(CallerThread&)> work) : work_(std::move(work)) {
    // Signals go to threads of Python's.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] {
      const Status status = call_without_throwing(work_, *this);
      std::lock_guard lock(mutex_);
      status_ = status;
      is_done_ = true;
      changed_.notify_all();
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Helper() override {
    if (generation_ != fork_generation())
      thread_.detach();  // it is not there any more
    else
      join();
  }

  bool run(const std::function<void()>& function) override {
    std::unique_lock lock(mutex_);
    request_ = &function;
    changed_.notify_all();
    changed_.wait(lock, [&] { return request_ == nullptr || is_abandoned_; });
    return request_ == nullptr;
  }

  // Waits a moment without the GIL, and serves a request with it. Returns whether the work is done.
  bool serve() {
    const std::function<void()>* request = nullptr;
    {
      WithoutGil no_gil;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kSignalInterval, [&] { return is_done_ || request_ != nullptr; });
      if (is_done_) return true;
      request = request_;
    }
    if (request == nullptr) return false;
    (*request)();
    std::lock_guard lock(mutex_);
    request_ = nullptr;
    changed_.notify_all();
    return false;
  }
  void abandon() {
    std::lock_guard lock(mutex_);
    is_abandoned_ = true;
    changed_.notify_all();
  }
  bool is_done() {
    std::lock_guard lock(mutex_);
    return is_done_;
  }
  void join() {
    if (!thread_.joinable()) return;
    WithoutGil no_gil;
    thread_.join();
  }
  const Status& status() const { return status_; }
  uint64_t generation() const { return generation_; }

 private:
  const uint64_t generation_ = fork_generation();
  const std::function<Status(CallerThread&)> work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* request_ = nullptr;
  bool is_done_ = false, is_abandoned_ = false;
  Status status_;
  std::thread thread_;
};

// Of callers that were interrupted; guarded by the GIL, and never freed.
std::vector<std::unique_ptr<Helper>>& abandoned_helpers() {
  static auto* helpers = new std::vector<std::unique_ptr<Helper>>();
  return *helpers;
}

bool is_main_thread() {
  static const nb::object* threading = new nb::object(nb::module_::import_("threading"));
  return threading->attr("current_thread")().is(threading->attr("main_thread")());
}

}  // namespace

WithoutGil::~WithoutGil() {
  begin_return();
  PyEval_RestoreThread(state_);
  --g_num_returning;
}

void stop_other_threads() {
  g_ending_thread = std::this_thread::get_id();
  g_is_ending = true;
  PyThreadState* const state = PyEval_SaveThread();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (g_num_returning > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  PyEval_RestoreThread(state);
}

void install_fork_handler() {
  pthread_atfork(nullptr, nullptr, [] {
    g_num_returning = 0;  // those threads are the parent's
  });
}

void reap_helpers(bool wait_for_all) {
  std::vector<std::unique_ptr<Helper>> kept, ended;
  for (auto& helper : std::exchange(abandoned_helpers(), {})) {
    const bool is_of_parent = helper->generation() != fork_generation();
    if (is_of_parent)
      (void)helper.release();
    else
      (wait_for_all || helper->is_done() ? ended : kept).push_back(std::move(helper));
  }
  auto& helpers = abandoned_helpers();
  helpers.insert(helpers.end(), std::make_move_iterator(kept.begin()), std::make_move_iterator(kept.end()));
}  // here `ended` are joined and destroyed, with the GIL held

Status wait_for(std::function<Status(CallerThread&)> work, const std::function<void()>& on_interrupt) {
  reap_helpers(false);
  if (!is_main_thread()) {
    SameThread caller;
    WithoutGil no_gil;
    return call_without_throwing(work, caller);
  }
  auto helper = std::make_unique<Helper>(std::move(work));
  while (!helper->serve()) {
    if (PyErr_CheckSignals() == 0) continue;
    helper->abandon();
    if (on_interrupt) on_interrupt();
    abandoned_helpers().push_back(std::move(helper));
    throw nb::python_error();
  }
  helper->join();
  return helper->status();
}

}  // namespace switchyard::python
