// Times attention by graph replay, on shapes that share their memory, and verifies some rows of each result.
// Decoding is timed beside a kernel that only reads as many bytes: its limit.
#pragma once

#include <functional>
#include <memory>

#include "periodic_numbers.hpp"
#include "reference/attention_case.hpp"
#include "replay.hpp"

namespace switchyard::tools {

// One line of the table. A batch is dense if all lengths are equal, else it is given by offsets.
struct AttentionBenchCase {
  std::string group;  // "full", "causal", "ragged", "decode", "mla"
  std::string label;  // of the line
  reference::AttentionCase attention_case;
};

struct AttentionBenchResult {
  AttentionBenchCase bench_case;
  AttentionChoice choice;
  Timing timing{};
  double flops = 0;
  uint64_t kv_bytes = 0;
  double read_us = 0;  // few queries: of a kernel that only reads the keys and values; else 0
  reference::AttentionDifference difference;  // of a few rows of the last sequence:
  int stride = 1;                             // every so many of its rows and heads

  bool is_verified() const { return difference.first_bad.empty(); }
  double tflops() const { return flops / timing.median_us * 1e-6; }
  double kv_terabytes_per_second() const { return static_cast<double>(kv_bytes) / timing.median_us * 1e-6; }
  double read_terabytes_per_second() const {
    return read_us > 0 ? static_cast<double>(kv_bytes) / read_us * 1e-6 : 0;
  }
};

class AttentionBench {
 public:
  // Memory for the largest of the cases, filled once.
  static Result<std::unique_ptr<AttentionBench>> create(World& world,
                                                        const std::vector<AttentionBenchCase>& cases,
                                                        uint64_t seed);

  Result<AttentionBenchResult> time(const AttentionBenchCase& bench_case, int num_replays);

  // Queries, keys and values repeat these numbers, each from an offset of its own: for a caller that compares
  // with another library.
  const std::vector<bf16>& period() const { return numbers_.period(); }
  static constexpr int kShifts[] = {0, 1000003, 2000003};

 private:
  explicit AttentionBench(World& world) : world_(world), rank_(world.rank(0)) {}
  Status fill(uint64_t seed);
  // Where each sequence's keys are, with pages: [sequence][page], in a random order.
  static std::vector<int32_t> page_table_of(const reference::AttentionCase& attention_case);
  // Elements begin..end - 1 of keys, or of values, that were filled with this shift.
  std::vector<bf16> elements_at(KvFormat format, int shift, size_t begin, size_t end) const;
  // The keys, or values, of the last sequence.
  std::vector<bf16> rows_of_last(const reference::AttentionCase& attention_case, int shift) const;
  // Times num_launches of `enqueue` in a graph; the times are those of one launch.
  Result<Timing> time_launches(const std::function<Status()>& enqueue, int num_replays);
  Status enqueue_read(const AttentionBenchResult& result);
  Result<reference::AttentionDifference> compare(const reference::AttentionCase& attention_case, int stride);

  World& world_;
  Rank& rank_;
  PeriodicNumbers numbers_, codes_;
  Buffer<bf16> queries_, keys_, values_, output_;
  Buffer<bf16> key_codes_, value_codes_;  // two to each
  Buffer<float> lse_, scales_;
};

// What the cases attend to.
enum class AttentionBenchKeys {
  kTable,    // as the table has it: keys and values in bf16; when decoding in fp8, too, and latents
  kBF16,     // keys and values in bf16
  kFP8,      // in fp8
  kLatents,  // multi-head latent attention
};

// The shapes of the table: head dimensions and lengths at one number of tokens, full and causal; a ragged
// batch; decoding, of latents in a group of its own. Latents have one head dimension.
struct AttentionBenchSweep {
  AttentionBenchKeys keys = AttentionBenchKeys::kTable;
  std::vector<int> head_dims;
  std::vector<int> lengths;
  int num_tokens = 0;
  bool is_small = false;  // for the emulator
};
std::vector<AttentionBenchCase> attention_bench_cases(const AttentionBenchSweep& sweep);

}  // namespace switchyard::tools
