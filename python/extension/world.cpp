// World, Rank and Graph.
#include "switchyard/world.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "memory.hpp"
#include "options.hpp"
#include "session.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/expert_parallel.hpp"
#include "tensor.hpp"

namespace switchyard::python {
namespace {

constexpr Choice<TargetChoice> kTargets[] = {
    {"auto", TargetChoice::kAuto}, {"host", TargetChoice::kHost}, {"cuda", TargetChoice::kCuda}};
constexpr Choice<EmulatorMode> kModes[] = {{"fast", EmulatorMode::kFast},
                                           {"simulated", EmulatorMode::kSimulated}};
constexpr Choice<TransportChoice> kTransports[] = {{"process", TransportChoice::kProcess},
                                                   {"shmem", TransportChoice::kShmem}};

using Bytes = std::vector<std::byte>;

Bytes bytes_of(const nb::bytes& bytes) {
  const auto* data = static_cast<const std::byte*>(bytes.data());
  return Bytes(data, data + bytes.size());
}
nb::bytes to_python(const Bytes& bytes) {
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::shared_ptr<Session> make_session(std::unique_ptr<World> world, int first_gpu, int num_gpus,
                                      bool is_simulated, std::shared_ptr<ReturnedMemory> memory) {
  auto core = std::make_shared<WorldCore>();
  core->world = Owned<World>(world.release());
  core->first_gpu = core->world->target() == Target::kCuda ? first_gpu : -1;
  core->num_gpus = num_gpus;
  core->is_simulated = is_simulated;
  core->returned_memory = std::move(memory);
  return std::make_shared<Session>(std::move(core));
}

std::shared_ptr<Session> create_world(int n_ranks, const std::string& target, int num_gpus,
                                      const std::string& mode, uint64_t seed, bool weak, unsigned num_workers,
                                      nb::handle memory) {
  WorldOptions options{.target = parse(kTargets, "target", target), .n_ranks = n_ranks, .num_gpus = num_gpus};
  const std::shared_ptr<ReturnedMemory> allocator = python_memory(memory);
  options.memory = allocator_of(allocator);
  options.host.mode = parse(kModes, "mode", mode);
  options.host.seed = seed;
  options.host.weak = weak;
  options.host.num_workers = num_workers;
  std::optional<Result<std::unique_ptr<World>>> world;
  {
    WithoutGil no_gil;
    world.emplace(World::create(options));
  }
  const int gpus = num_gpus != 0 ? num_gpus : std::clamp(num_cuda_devices(), 1, std::max(n_ranks, 1));
  return make_session(need(std::move(*world)), 0, gpus, options.host.mode == EmulatorMode::kSimulated,
                      allocator);
}

// The caller's function, called on the caller's thread. What it raises is kept, so that join() raises it.
struct AllGather {
  nb::object function;
  std::optional<nb::python_error> raised;

  Result<std::vector<Bytes>> operator()(const Bytes& mine) {
    try {
      std::vector<Bytes> all;
      for (nb::handle item : function(to_python(mine))) all.push_back(bytes_of(nb::cast<nb::bytes>(item)));
      return all;
    } catch (nb::python_error& error) {
      raised.emplace(std::move(error));
    } catch (const std::exception&) {
      return invalid_argument("all_gather must return a list of bytes, those of each process");
    }
    return internal_error("all_gather raised");
  }
};

struct JoinArguments {
  JoinOptions options;
  std::shared_ptr<AllGather> all_gather;  // null: by rendezvous
};

std::unique_ptr<World> join(JoinArguments arguments) {
  // Owned by the helper's work, which may outlive an interrupted call.
  auto joined = std::make_shared<std::unique_ptr<World>>();
  const Status status = wait_for([joined, arguments](CallerThread& caller) -> Status {
    JoinOptions options = arguments.options;
    if (arguments.all_gather != nullptr)
      options.all_gather = [&](const Bytes& mine) {
        Result<std::vector<Bytes>> all = internal_error("join() was interrupted");
        (void)caller.run([&] { all = (*arguments.all_gather)(mine); });
        return all;
      };
    Result<std::unique_ptr<World>> world = World::join(options);
    if (!world.ok()) return world.status();
    *joined = std::move(world).value();
    return Status();
  });
  if (arguments.all_gather != nullptr && arguments.all_gather->raised) throw *arguments.all_gather->raised;
  need(status);
  return std::move(*joined);
}

std::shared_ptr<Session> join_world(int rank, int n_ranks, const std::string& rendezvous,
                                    nb::object all_gather, int num_local_ranks, const std::string& target,
                                    int gpu, double timeout, const std::string& token,
                                    const std::string& transport, unsigned num_workers, nb::handle memory) {
  if (!(timeout > 0 && timeout < 1e9))
    raise(invalid_argument("timeout is %g s; it must be more than 0 and less than 1e9", timeout));
  const std::shared_ptr<ReturnedMemory> allocator = python_memory(memory);
  JoinArguments arguments;
  arguments.options = {.transport = parse(kTransports, "transport", transport),
                       .target = parse(kTargets, "target", target),
                       .rank = rank,
                       .num_local_ranks = num_local_ranks,
                       .n_ranks = n_ranks,
                       .gpu = gpu,
                       .timeout_ns = static_cast<uint64_t>(timeout * 1e9),
                       .all_gather = {},
                       .rendezvous = rendezvous,
                       .memory = allocator_of(allocator),
                       .token = token};
  arguments.options.host.num_workers = num_workers;
  if (!all_gather.is_none()) {
    if (!rendezvous.empty())
      raise(invalid_argument("join needs one of all_gather and rendezvous; both are given"));
    arguments.all_gather = std::make_shared<AllGather>(AllGather{std::move(all_gather), {}});
  }
  const int num_gpus = std::max(num_cuda_devices(), 1);
  return make_session(join(std::move(arguments)), gpu >= 0 ? gpu : rank % num_gpus, 0, false, allocator);
}

// A rank of a session.
struct RankHandle {
  std::shared_ptr<Session> session;
  int index;

  Rank& use(const char* call) const { return session->rank(call, index); }
};

// Copies an array into new memory of the rank.
Tensor upload(const RankHandle& handle, nb::handle values, const std::string& dtype) {
  const nb::module_ numpy = nb::module_::import_("numpy");
  const Element& element = element_by_name("array", dtype);
  nb::object type = nb::str(element.name);
  const std::string name = element.name;
  if (name.starts_with("bfloat") || name.starts_with("float8"))
    type = nb::module_::import_("ml_dtypes").attr(element.name);
  const nb::object array = numpy.attr("ascontiguousarray")(values, type);
  const nb::object bits = array.attr("reshape")(-1).attr("view")("uint8");
  const auto bytes = nb::cast<nb::ndarray<nb::ro, uint8_t, nb::c_contig, nb::device::cpu>>(bits);
  std::vector<size_t> shape = nb::cast<std::vector<size_t>>(array.attr("shape"));
  const Rank& rank = handle.use("array");
  Tensor tensor = allocate(*handle.session, "array", handle.index, std::move(shape), element);
  Buffer<std::byte> view = rank.view(static_cast<std::byte*>(tensor.data), bytes.size());
  const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
  need(handle.session->wait(
      [core = handle.session->core(), kept = tensor,
       to = std::make_shared<Buffer<std::byte>>(std::move(view)),
       copy = Bytes(first, first + bytes.size())](CallerThread&) { return to->upload(copy); }));
  return tensor;
}

struct GraphHandle {
  std::shared_ptr<Session> session;
  std::vector<nb::object> kept;  // what the launches use
  Owned<Graph> graph;

  // Waits for the last launch.
  ~GraphHandle() {
    WithoutGil no_gil;
    graph.reset();
  }
};

std::unique_ptr<GraphHandle> capture(const std::shared_ptr<Session>& session, nb::callable enqueue) {
  World& world = session->use("capture");
  auto handle = std::make_unique<GraphHandle>();
  handle->session = session;
  std::optional<nb::python_error> raised;
  session->keep_for_graph(&handle->kept);
  Result<std::unique_ptr<Graph>> graph = world.capture([&]() -> Status {
    try {
      enqueue();
      return Status();
    } catch (nb::python_error& error) {
      raised.emplace(std::move(error));
      return internal_error("the function raised");
    }
  });
  session->keep_for_graph(nullptr);
  if (raised) throw *raised;
  handle->graph = Owned<Graph>(need(std::move(graph)).release());
  return handle;
}

void count_routing(Session& session, int rank, nb::handle topk_ids, int n_experts, nb::handle tokens_of_rank,
                   nb::handle choices_of_expert, nb::handle is_token_in_rank, nb::handle stream) {
  constexpr char kCall[] = "count_routing";
  (void)session.rank(kCall, rank);
  World& world = session.use(kCall);
  Arguments arguments(kCall, session, rank, stream);
  const Array ids =
      arguments.array(topk_ids, "topk_ids", {kInt64, {-1, -1}, "(num_tokens, top_k)", Access::kRead});
  const int64_t n_ranks = world.n_ranks();
  const RoutingCounts counts{
      arguments.pointer<int32_t>(tokens_of_rank, "tokens_of_rank",
                                 {kInt32, {n_ranks}, "(n_ranks,)", Access::kWrite}),
      arguments.pointer<int32_t>(choices_of_expert, "choices_of_expert",
                                 {kInt32, {n_experts}, "(n_experts,)", Access::kWrite}),
      arguments.pointer<uint8_t>(is_token_in_rank, "is_token_in_rank",
                                 {kUInt8, {ids.shape[0], n_ranks}, "(num_tokens, n_ranks)", Access::kWrite})};
  if (ids.shape[0] > INT32_MAX || ids.shape[1] > INT32_MAX)
    raise(invalid_argument("%s: topk_ids has too many elements", kCall));
  need(ExpertParallel::count_routing(world, rank,
                                     {static_cast<const int64_t*>(ids.data), static_cast<int>(ids.shape[0]),
                                      static_cast<int>(ids.shape[1]), n_experts},
                                     counts, arguments.stream()));
  arguments.enqueued();
}

void bind_rank(nb::module_& module) {
  nb::class_<RankHandle>(module, "Rank", "One rank of this process: its stream and its memory.")
      .def_ro("index", &RankHandle::index, "Its number in the world.")
      .def_prop_ro(
          "device", [](const RankHandle& rank) { return rank.use("device").device_name(); },
          "The emulator or the GPU that the rank lives on, by name.")
      .def_prop_ro(
          "stream",
          [](const RankHandle& rank) { return reinterpret_cast<uintptr_t>(rank.use("stream").stream()); },
          "The rank's stream as an integer: a cudaStream_t on CUDA, as torch.cuda.ExternalStream takes it.")
      .def(
          "create_stream",
          [](const RankHandle& rank) {
            return reinterpret_cast<uintptr_t>(need(rank.use("create_stream").create_stream()).handle());
          },
          "Makes another stream on the rank's device, which lives as long as the world, and returns it as an "
          "integer.")
      .def(
          "synchronize", [](const RankHandle& rank) { rank.session->synchronize(rank.index); },
          "Waits until everything on the rank's stream has ended. Ctrl-C interrupts the wait.")
      .def(
          "empty",
          [](const RankHandle& rank, std::vector<size_t> shape, const std::string& dtype) {
            return allocate(*rank.session, "empty", rank.index, std::move(shape),
                            element_by_name("empty", dtype));
          },
          nb::arg("shape"), nb::arg("dtype") = "bfloat16", "Allocates zeroed memory of the rank.")
      .def("array", &upload, nb::arg("values"), nb::arg("dtype") = "bfloat16",
           "Copies values, converted by NumPy, into new memory of the rank.")
      .def("__repr__", [](const RankHandle& rank) { return "<Rank " + std::to_string(rank.index) + ">"; });
}

void bind_graph(nb::module_& module) {
  nb::class_<GraphHandle>(module, "Graph",
                          "Launches of all ranks of this process, captured once and replayed as one.")
      .def(
          "launch",
          [](GraphHandle& handle) {
            handle.session->use("launch");
            Status status;
            {
              WithoutGil no_gil;
              status = handle.graph->launch();
            }
            need(status);
          },
          "Enqueues all captured launches and returns.")
      .def(
          "synchronize",
          [](nb::object self) {
            GraphHandle& handle = nb::cast<GraphHandle&>(self);
            handle.session->use("synchronize");
            need(
                handle.session->wait([self, &handle](CallerThread&) { return handle.graph->synchronize(); }));
          },
          "Waits until the last launch has ended. Faults are raised by ExpertParallel.synchronize().")
      .def(
          "elapsed",
          [](const GraphHandle& handle) {
            handle.session->use("elapsed");
            std::vector<std::pair<std::string, double>> spans;
            for (const GraphSpan& span : need(handle.graph->elapsed()))
              spans.emplace_back(span.name, span.microseconds);
            return spans;
          },
          "Returns (name, microseconds) of each span that World.mark() began, in the last launch.");
}

}  // namespace

void bind_world(nb::module_& module) {
  bind_rank(module);
  bind_graph(module);
  nb::class_<Session>(
      module, "World",
      "The ranks that exchange tokens, in one process or in several. World(n_ranks=8) makes "
      "a world whose ranks are all "
      "in this process; World.join() meets the processes of the others. target is 'auto' (a "
      "GPU if there is one that "
      "can run the kernels, else the emulator), 'host' or 'cuda'. mode, seed, weak and "
      "num_workers are the emulator's: "
      "'simulated' runs kernels on one core, in an order that the seed decides. memory, here and in join(), "
      "is "
      "an allocator: (allocate, deallocate), which may be called from any thread. allocate(bytes, gpu, "
      "stream) returns an address, aligned to 256 bytes and free for use behind what is on the "
      "stream (0: free at once); deallocate(address, bytes, gpu, stream) takes it back behind it.")
      .def(nb::new_(&create_world), nb::arg("n_ranks") = 1, nb::kw_only(), nb::arg("target") = "auto",
           nb::arg("num_gpus") = 0, nb::arg("mode") = "fast", nb::arg("seed") = 0, nb::arg("weak") = false,
           nb::arg("num_workers") = 0, nb::arg("memory") = nb::none())
      .def_static(
          "join", &join_world, nb::arg("rank"), nb::arg("n_ranks"), nb::kw_only(), nb::arg("rendezvous") = "",
          nb::arg("all_gather") = nb::none(), nb::arg("num_local_ranks") = 1, nb::arg("target") = "auto",
          nb::arg("gpu") = -1, nb::arg("timeout") = 30.0, nb::arg("token") = "",
          nb::arg("transport") = "process", nb::arg("num_workers") = 0, nb::arg("memory") = nb::none(),
          "Joins the world of n_ranks ranks that this process has `rank` of, and returns when all have "
          "joined. The "
          "processes find each other by exactly one of rendezvous ('unix:/path', 'unix:@name' or "
          "'tcp:HOST:PORT', where "
          "rank 0 listens) and all_gather, a function that gives the bytes of each process to all of them: "
          "bytes -> list[bytes]. It is called once, on this thread. timeout is in seconds; Ctrl-C interrupts "
          "the wait.")
      .def_static(
          "from_process_group",
          [](nb::handle group, const nb::kwargs& options) {
            const nb::module_ module = nb::module_::import_("switchyard_ep._process_group");
            return nb::cast<std::shared_ptr<Session>>(module.attr("join")(group, **options));
          },
          nb::arg("group"), nb::arg("options"),
          nb::sig("def from_process_group(group: object, **options: object) -> World"),
          "Joins the world of the processes of a torch.distributed group, or of an object that has rank(), "
          "size() and "
          "all_gather(bytes) -> list[bytes]. On CUDA the rank's GPU is PyTorch's current one. Options are "
          "those of "
          "join().")
      .def(
          "num_ranks_on_device_of",
          [](const Session& session, int index) {
            (void)session.rank("num_ranks_on_device_of", index);
            return session.use("num_ranks_on_device_of").num_ranks_on_device_of(index);
          },
          nb::arg("index"),
          "Returns how many ranks, of all processes, share the device of a rank of this one.")
      .def_prop_ro(
          "n_ranks", [](const Session& session) { return session.use("n_ranks").n_ranks(); },
          "The ranks of all processes.")
      .def_prop_ro(
          "local_ranks", [](const Session& session) { return session.use("local_ranks").local_ranks(); },
          "The ranks of this process.")
      .def_prop_ro(
          "target",
          [](const Session& session) { return switchyard::to_string(session.use("target").target()); },
          "'host' or 'cuda'.")
      .def_prop_ro(
          "transport", [](const Session& session) { return session.use("transport").transport_name(); },
          "'local', 'process' or 'shmem'.")
      .def_prop_ro(
          "is_closed", [](const Session& session) { return session.core()->is_closed.load(); },
          "Whether close() has been called.")
      .def(
          "rank",
          [](std::shared_ptr<Session> session, int index) {
            (void)session->rank("rank", index);
            return RankHandle{std::move(session), index};
          },
          nb::arg("index"), "Returns a rank of this process.")
      .def(
          "all_gather",
          [](const Session& session, const nb::bytes& mine) {
            session.use("all_gather");
            if (session.core()->is_gathering.exchange(true))
              raise(
                  failed_precondition("all_gather: a call of this process is still under way, perhaps one "
                                      "that was interrupted; it "
                                      "ends when the other processes have come, or at its deadline"));
            auto all = std::make_shared<std::vector<Bytes>>();
            need(session.wait([core = session.core(), all, mine = bytes_of(mine)](CallerThread&) -> Status {
              Result<std::vector<Bytes>> gathered = core->world->all_gather(mine);
              core->is_gathering = false;
              if (!gathered.ok()) return gathered.status();
              *all = std::move(gathered).value();
              return Status();
            }));
            nb::list result;
            for (const Bytes& bytes : *all) result.append(to_python(bytes));
            return result;
          },
          nb::arg("mine"), nb::sig("def all_gather(self, mine: bytes) -> list[bytes]"),
          "Gives every process what each has given, in the order of ranks. All processes call it.")
      .def("count_routing", &count_routing, nb::arg("rank"), nb::arg("topk_ids"), nb::arg("n_experts"),
           nb::kw_only(), nb::arg("tokens_of_rank"), nb::arg("choices_of_expert"),
           nb::arg("is_token_in_rank"), nb::arg("stream") = nb::none(),
           "Counts where the tokens of a rank would go, by topk_ids, (num_tokens, top_k) of int64, where the "
           "experts "
           "lie evenly on the ranks: tokens_of_rank, (n_ranks,) of int32, and choices_of_expert, "
           "(n_experts,) of "
           "int32, are added to; is_token_in_rank, (num_tokens, n_ranks) of uint8, is written.")
      .def(
          "synchronize", [](Session& session) { session.synchronize(); },
          "Waits until everything on the streams of all ranks of this process has ended. Ctrl-C interrupts "
          "the wait.")
      .def("capture", &capture, nb::arg("enqueue"),
           "Calls enqueue() and records what it launches on the streams of all ranks of this process, "
           "without running "
           "it. The Graph keeps the arrays that were passed, and reads them anew at every launch.")
      .def(
          "mark", [](Session& session, const std::string& span) { need(session.use("mark").mark(span)); },
          nb::arg("span"), "Inside capture(): begins the span of that name, for Graph.elapsed().")
      .def(
          "close",
          [](Session& session) {
            if (session.core()->is_closed || session.core()->process.is_of_parent()) return;
            session.synchronize();
            session.core()->is_closed = true;
          },
          "Waits for all ranks of this process; every later call on the world, or on what was made from it, "
          "raises. "
          "The memory lives as long as an array that shares it.")
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](nb::object self, nb::args) { self.attr("close")(); })
      .def("__repr__", [](const Session& session) {
        if (session.core()->is_closed) return std::string("<World, closed>");
        const World& world = *session.core()->world;
        return "<World of " + std::to_string(world.n_ranks()) + " ranks on " +
               switchyard::to_string(world.target()) + ">";
      });
}

}  // namespace switchyard::python
