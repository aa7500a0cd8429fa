#include "wire_thread.hpp"

#include <algorithm>
#include <thread>

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

struct Request {
  enum class Kind { kPut, kSettle, kSignal, kCall };
  Kind kind;
  int pe = 0;
  void* dst = nullptr;
  const void* src = nullptr;
  uint64_t number = 0;  // bytes of a put, value of a signal
  std::function<void()> function = {};
};

// How long the thread may rest. It must go on making progress, since a peer's put may need it; but an idle
// process should leave its core to others.
class Rest {
 public:
  void begin_anew() { last_request_ = Clock::now(); }
  std::chrono::microseconds next() const {
    using std::chrono::microseconds;
    const auto idle = Clock::now() - last_request_;
    if (idle < microseconds(50)) return microseconds(0);
    if (idle < std::chrono::milliseconds(20)) return microseconds(20);
    return idle < std::chrono::seconds(1) ? microseconds(100) : microseconds(1000);
  }

 private:
  Clock::time_point last_request_ = Clock::now();
};

}  // namespace

struct WireThread::Shared {
  const ShmemApi& api;
  std::mutex mutex;
  std::condition_variable has_requests;
  std::vector<Request> queue;
  bool rests = false;  // the thread waits for has_requests
  bool ends = false;
  bool has_ended = false;
  std::condition_variable ended;
  // Of the thread alone.
  bool has_shmem = false;          // between init() and finalize()
  bool has_unsettled_put = false;  // a fence would have something to order

  explicit Shared(const ShmemApi& api_in) : api(api_in) {}

  void add(Request request) {
    bool is_resting = false;
    {
      std::lock_guard lock(mutex);
      queue.push_back(std::move(request));
      is_resting = rests;
    }
    if (is_resting) has_requests.notify_one();
  }

  void run() {
    Rest rest;
    std::vector<Request> batch;
    while (take(batch, rest.next())) {
      for (const Request& request : batch) serve(request);
      if (!batch.empty()) rest.begin_anew();
      batch.clear();
      if (has_shmem && api.progress != nullptr) api.progress();
    }
    linger();
    std::lock_guard lock(mutex);
    has_ended = true;
    ended.notify_all();
  }
  // Where SHMEM is not ended, nobody waits for what was put last: a farewell gets some time to leave.
  void linger() const {
    constexpr int kMostLooks = 100;
    for (int i = 0; i < kMostLooks && has_shmem && api.progress != nullptr; ++i) {
      api.progress();
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }
  // False: the end has come, and the queue is empty.
  bool take(std::vector<Request>& batch, std::chrono::microseconds most_rest) {
    std::unique_lock lock(mutex);
    if (queue.empty() && !ends && most_rest.count() > 0) {
      rests = true;
      has_requests.wait_for(lock, most_rest);
      rests = false;
    }
    batch.swap(queue);
    return !batch.empty() || !ends;
  }
  void serve(const Request& request) {
    switch (request.kind) {
      case Request::Kind::kPut:
        api.put(request.dst, request.src, request.number, request.pe);
        has_unsettled_put = true;
        break;
      case Request::Kind::kSettle:
        if (has_unsettled_put) api.fence();
        has_unsettled_put = false;
        break;
      case Request::Kind::kSignal:
        api.signal(static_cast<uint64_t*>(request.dst), request.number, request.pe);
        break;
      case Request::Kind::kCall:
        request.function();
        break;
    }
  }
};

Result<std::unique_ptr<WireThread>> WireThread::start(const ShmemApi& api,
                                                      const ShmemRequirements& requirements,
                                                      const Deadline& deadline) {
  auto shared = std::make_shared<Shared>(api);
  std::unique_ptr<WireThread> thread(new WireThread(shared));
  std::thread([shared] { shared->run(); }).detach();
  // What the call writes to must outlive a caller that has given up.
  struct Answer {
    int code = 0;
    ShmemError error{};
  };
  auto answer = std::make_shared<Answer>();
  const bool has_started = thread->call(
      [shared, requirements, answer] {
        answer->code = shared->api.init(&requirements, &answer->error);
        shared->has_shmem = answer->code == 0;
      },
      deadline);
  if (!has_started) {
    api.abandon();
    return Status(StatusCode::kDeadlineExceeded,
                  std::string(api.library) + " did not start in time: not all of its processes came");
  }
  if (answer->code != 0) return unavailable("%s does not start: %s", api.library, answer->error.text);
  return thread;
}

WireThread::~WireThread() {
  constexpr auto kPatience = std::chrono::seconds(1);
  std::unique_lock lock(shared_->mutex);
  shared_->ends = true;
  shared_->has_requests.notify_one();
  shared_->ended.wait_for(lock, kPatience, [&] { return shared_->has_ended; });
}

void WireThread::put(int pe, void* dst, const void* src, uint64_t bytes) {
  shared_->add({.kind = Request::Kind::kPut, .pe = pe, .dst = dst, .src = src, .number = bytes});
}
void WireThread::settle() { shared_->add({.kind = Request::Kind::kSettle}); }
void WireThread::signal(int pe, uint64_t* cell, uint64_t value) {
  shared_->add({.kind = Request::Kind::kSignal, .pe = pe, .dst = cell, .number = value});
}

bool WireThread::call(std::function<void()> function, const Deadline& deadline) {
  struct Completion {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
  };
  auto completion = std::make_shared<Completion>();
  shared_->add({.kind = Request::Kind::kCall, .function = [completion, function = std::move(function)] {
                  function();
                  std::lock_guard lock(completion->mutex);
                  completion->is_done = true;
                  completion->changed.notify_all();
                }});
  std::unique_lock lock(completion->mutex);
  return completion->changed.wait_until(lock, deadline.at(), [&] { return completion->is_done; });
}

bool WireThread::end_shmem(const Deadline& deadline) {
  return call(
      [shared = shared_.get()] {
        shared->api.finalize();
        shared->has_shmem = false;
      },
      deadline);
}

}  // namespace switchyard
