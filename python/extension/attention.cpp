#include "switchyard/attention.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <array>

#include "kernels.hpp"
#include "options.hpp"

namespace switchyard::python {
namespace {

// The library's lists, and "auto".
constexpr auto kSchedulerChoices = [] {
  std::array<Choice<TileSchedulerKind>, kNumTileSchedulers + 1> choices{};
  choices[0] = {"auto", TileSchedulerKind::kAutomatic};
  for (size_t i = 0; i < kNumTileSchedulers; ++i)
    choices[i + 1] = {kTileSchedulers[i].name, kTileSchedulers[i].kind};
  return choices;
}();
constexpr auto kOrderChoices = [] {
  std::array<Choice<MHASchedule>, kNumOrders + 1> choices{};
  choices[0] = {"auto", MHASchedule::AUTOMATIC};
  for (size_t i = 0; i < kNumOrders; ++i) choices[i + 1] = {kOrders[i].option, kOrders[i].order};
  return choices;
}();

constexpr Choice<KvFormat> kKvFormatChoices[] = {{"bf16", KvFormat::kBF16}, {"fp8", KvFormat::kFP8}};

using AttentionHandle = KernelHandle<Attention>;

std::unique_ptr<AttentionHandle> create(std::shared_ptr<Session> session, int rank, int head_dim,
                                        int num_heads, int num_kv_heads, int batch_size, int max_query_len,
                                        int max_key_len, int64_t num_query_rows, int64_t num_key_rows,
                                        bool causal, int window, int page_size, int pages_per_sequence,
                                        float scale, float soft_cap, int value_dim,
                                        const std::string& kv_format, const std::string& scheduler,
                                        const std::string& order, int num_blocks) {
  const AttentionShape shape{
      .head_dim = head_dim,
      .num_heads = num_heads,
      .num_kv_heads = num_kv_heads,
      .batch_size = batch_size,
      .max_query_len = max_query_len,
      .max_key_len = max_key_len,
      .num_query_rows = num_query_rows != 0 ? num_query_rows : int64_t{batch_size} * max_query_len,
      .num_key_rows = num_key_rows != 0 ? num_key_rows : int64_t{batch_size} * max_key_len,
      .causal = causal,
      .window = window,
      .page_size = page_size,
      .pages_per_sequence = pages_per_sequence,
      .scale = scale,
      .soft_cap = soft_cap,
      .scheduler = parse(kSchedulerChoices, "scheduler", scheduler),
      .order = parse(kOrderChoices, "order", order),
      .num_blocks = num_blocks,
      .value_dim = value_dim,
      .kv_format = parse(kKvFormatChoices, "kv_format", kv_format)};
  return make_handle<Attention>("Attention", std::move(session), rank, shape);
}

// By the names of the arguments, which the library has others for. Latents are keys alone.
void check_keys(const AttentionShape& shape, nb::handle keys, nb::handle values) {
  if (shape.value_dim != 0 && !values.is_none())
    raise(
        invalid_argument("values is given; it must be None with value_dim: values are columns of the keys"));
  if (shape.num_key_rows == 0) return;
  if (keys.is_none()) raise(invalid_argument("keys is None"));
  if (shape.value_dim == 0 && values.is_none()) raise(invalid_argument("values is None; value_dim is 0"));
}

// Keys and values: rows of bfloat16, or codes with a scale for each head.
void add_keys(const AttentionShape& shape, Arguments& arguments, nb::handle keys, nb::handle values,
              nb::handle key_scales, nb::handle value_scales, AttentionTensors& tensors) {
  check_keys(shape, keys, values);
  const bool has_codes = shape.kv_format == KvFormat::kFP8;
  const Expected rows{has_codes ? kE4M3 : kBFloat16,
                      {shape.num_key_rows, shape.num_kv_heads, shape.head_dim},
                      "(num_key_rows, num_kv_heads, head_dim)",
                      Access::kRead,
                      has_codes ? &kUInt8 : nullptr};
  const void* const of_keys = arguments.pointer<const void>(keys, "keys", rows);
  const void* const of_values = arguments.pointer<const void>(values, "values", rows);
  if (has_codes) {
    tensors.key_codes = static_cast<const uint8_t*>(of_keys);
    tensors.value_codes = static_cast<const uint8_t*>(of_values);
  } else {
    tensors.keys = static_cast<const bf16*>(of_keys);
    tensors.values = static_cast<const bf16*>(of_values);
  }
  const Expected scales{kFloat32, {shape.num_kv_heads}, "(num_kv_heads,)"};
  tensors.key_scales = arguments.pointer<const float>(key_scales, "key_scales", scales);
  tensors.value_scales = arguments.pointer<const float>(value_scales, "value_scales", scales);
}

nb::any run(AttentionHandle& handle, nb::handle queries, nb::handle keys, nb::handle values, nb::object out,
            nb::handle lse, nb::handle query_offsets, nb::handle key_offsets, nb::handle key_lengths,
            nb::handle page_table, nb::handle sinks, nb::handle key_scales, nb::handle value_scales,
            nb::handle stream) {
  Session& session = *handle.session;
  (void)session.rank("run", handle.rank);
  const AttentionShape& shape = handle.kernel->shape();
  Arguments arguments("run", session, handle.rank, stream);
  const Expected query_rows{kBFloat16,
                            {shape.num_query_rows, shape.num_heads, shape.head_dim},
                            "(num_query_rows, num_heads, head_dim)"};
  const Expected output_rows{
      kBFloat16,
      {shape.num_query_rows, shape.num_heads, shape.value_dim != 0 ? shape.value_dim : shape.head_dim},
      shape.value_dim != 0 ? "(num_query_rows, num_heads, value_dim)" : query_rows.shape_name,
      Access::kWrite};
  arguments.make_output(out, "out", output_rows.shape, kBFloat16);
  AttentionTensors tensors;
  tensors.queries = arguments.pointer<const bf16>(queries, "queries", query_rows);
  add_keys(shape, arguments, keys, values, key_scales, value_scales, tensors);
  tensors.output = arguments.pointer<bf16>(out, "out", output_rows);
  tensors.sinks =
      arguments.pointer<const float>(sinks, "sinks", {kFloat32, {shape.num_heads}, "(num_heads,)"});
  tensors.lse = arguments.pointer<float>(
      lse, "lse",
      {kFloat32, {shape.num_query_rows, shape.num_heads}, "(num_query_rows, num_heads)", Access::kWrite});
  const int64_t batch = shape.batch_size;
  tensors.query_offsets =
      checked_pointer<uint32_t>(arguments, session, query_offsets, "query_offsets",
                                {kUInt32, {batch + 1}, "(batch_size + 1,)"}, shape.num_query_rows, true);
  tensors.key_offsets =
      checked_pointer<uint32_t>(arguments, session, key_offsets, "key_offsets",
                                {kUInt32, {batch + 1}, "(batch_size + 1,)"}, shape.num_key_rows, true);
  tensors.key_lengths = checked_pointer<uint32_t>(arguments, session, key_lengths, "key_lengths",
                                                  {kUInt32, {batch}, "(batch_size,)"}, shape.max_key_len);
  const int64_t num_pages = shape.page_size == 0 ? 0 : shape.num_key_rows / shape.page_size;
  tensors.page_table = checked_pointer<int32_t>(
      arguments, session, page_table, "page_table",
      {kInt32, {batch, shape.pages_per_sequence}, "(batch_size, pages_per_sequence)"}, num_pages - 1);
  return run_kernel(handle, tensors, arguments, out);
}

}  // namespace

void bind_attention(nb::module_& module) {
  const std::string text =
      "Softmax attention over bfloat16, of one shape on one rank: full, causal, windowed or decoding, ragged "
      "or paged. num_query_rows and num_key_rows are those of all sequences together; 0: batch_size x the "
      "longest. With value_dim 512, head_dim 576 and a scale it attends to latents (MLA), which are the "
      "keys, and whose first columns are the values; with kv_format 'fp8' to codes, float8_e4m3fn, with a "
      "scale for each K/V head. scheduler is one of " +
      names_of(kSchedulerChoices) + "; order is one of " + names_of(kOrderChoices) + ".";
  nb::class_<AttentionHandle>(module, "Attention", text.c_str())
      .def(nb::new_(&create), nb::arg("world"), nb::arg("rank"), nb::kw_only(), nb::arg("head_dim"),
           nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("batch_size") = 1, nb::arg("max_query_len"),
           nb::arg("max_key_len"), nb::arg("num_query_rows") = 0, nb::arg("num_key_rows") = 0,
           nb::arg("causal") = false, nb::arg("window") = 0, nb::arg("page_size") = 0,
           nb::arg("pages_per_sequence") = 0, nb::arg("scale") = 0.0f, nb::arg("soft_cap") = 0.0f,
           nb::arg("value_dim") = 0, nb::arg("kv_format") = "bf16", nb::arg("scheduler") = "auto",
           nb::arg("order") = "auto", nb::arg("num_blocks") = 0)
      .def(
          "run", &run, nb::arg("queries").none(), nb::arg("keys").none(), nb::arg("values") = nb::none(),
          nb::kw_only(), nb::arg("out") = nb::none(), nb::arg("lse") = nb::none(),
          nb::arg("query_offsets") = nb::none(), nb::arg("key_offsets") = nb::none(),
          nb::arg("key_lengths") = nb::none(), nb::arg("page_table") = nb::none(),
          nb::arg("sinks") = nb::none(), nb::arg("key_scales") = nb::none(),
          nb::arg("value_scales") = nb::none(), nb::arg("stream") = nb::none(),
          nb::sig(SWITCHYARD_OUT_SIGNATURES(
              "run", "queries: object | None, keys: object | None, values: object | None = None",
              "lse: object | None = None, query_offsets: object | None = None, key_offsets: object | None = "
              "None, "
              "key_lengths: object | None = None, page_table: object | None = None, sinks: object | None = "
              "None, "
              "key_scales: object | None = None, value_scales: object | None = None, stream: object | None = "
              "None")),
          "Enqueues the attention on the stream, or the rank's, and returns out, (num_query_rows, num_heads, "
          "head_dim), or with value_dim (.., value_dim); values is None then. Offsets "
          "and lengths are uint32, the page table is int32; those of a GPU, and a Tensor's, are taken on "
          "trust.")
      .def(
          "choice",
          [](const AttentionHandle& handle) {
            (void)handle.session->use("choice");
            return switchyard::to_string(handle.kernel->choice({}));
          },
          "Returns what run() launches, and why, in words.");
}

}  // namespace switchyard::python
