// The vocabulary of target/ as a contract, continued: wide accesses and copies. Compiled for the host and,
// through cuda_tests.cu, for CUDA.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "switchyard/detail/target/target.hpp"
#include "target_fixture.hpp"

#define Copies SWITCHYARD_SUITE(Copies)

namespace switchyard {
namespace {

class Copies : public testing_support::OneRankTest {};

INSTANTIATE_TEST_SUITE_P(Modes, Copies, testing_support::modes_of_target(), testing_support::mode_name);

struct VectorParams {
  const uint32_t* in;  // [num_threads][4]
  uint32_t* out;
};

SWITCHYARD_KERNEL void reverse_vectors(VectorParams params) {
  const Vec16 value = target::ld_16(params.in + 4 * target::thread_idx());
  target::st_16(params.out + 4 * (target::num_threads() - 1 - target::thread_idx()), value);
}

TEST_P(Copies, SixteenByteAccessesKeepTheOrderOfTheirWords) {
  std::vector<uint32_t> values(32 * 4);
  std::iota(values.begin(), values.end(), 0x01020304u);
  const auto in = upload(values), out = zeros<uint32_t>(32 * 4);
  run(reverse_vectors, {}, VectorParams{in.data(), out.data()});
  const std::vector<uint32_t> seen = download(out);
  for (size_t i = 0; i < seen.size(); ++i)
    EXPECT_EQ(seen[i], values[(31 - i / 4) * 4 + i % 4]) << "word " << i;
}

constexpr int kMaxCopyLanes = 40;
// In 16-byte vectors: around the warp size, and around the four rounds a target may keep in flight.
constexpr int kCopySizes[] = {0, 1, 2, 3, 31, 32, 33, 127, 128, 129, 170};
constexpr int kNumCopySizes = sizeof(kCopySizes) / sizeof(kCopySizes[0]);
constexpr int kMaxCopyVectors = 170;
constexpr int kCopyStride = kMaxCopyVectors + 2;  // room to see a write before or past the row

struct CopyParams {
  const Vec16* src;  // [kMaxCopyVectors]
  const int* sizes;  // [kNumCopySizes]
  Vec16* dst;        // [kMaxCopyLanes][kNumCopySizes][kCopyStride]; a row starts after one vector
};

// Block b copies a row of each size with b + 1 lanes.
SWITCHYARD_KERNEL void copy_with_every_lane_count(CopyParams params) {
  const int num_lanes = target::block_idx() + 1;
  if (target::thread_idx() >= num_lanes) return;
  for (int i = 0; i < kNumCopySizes; ++i)
    target::copy_row(params.dst + (target::block_idx() * kNumCopySizes + i) * kCopyStride + 1, params.src,
                     params.sizes[i] * sizeof(Vec16), target::thread_idx(), num_lanes);
}

TEST_P(Copies, CopyRowCopiesExactlyTheRowWithAnyNumberOfLanes) {
  const auto vector_of = [](uint32_t i) { return Vec16{{i, ~i, i * 2654435761u, i << 20}}; };
  const auto is_equal = [](const Vec16& a, const Vec16& b) {
    return std::equal(a.words, a.words + 4, b.words);
  };
  std::vector<Vec16> source(kMaxCopyVectors);
  for (uint32_t i = 0; i < kMaxCopyVectors; ++i) source[i] = vector_of(i);
  const auto src = upload(source);
  const auto sizes = upload(std::vector<int>(std::begin(kCopySizes), std::end(kCopySizes)));
  auto dst = zeros<Vec16>(kMaxCopyLanes * kNumCopySizes * kCopyStride);
  ASSERT_TRUE(dst.fill_bytes(0xee).ok());
  constexpr Vec16 kUntouched{{0xeeeeeeee, 0xeeeeeeee, 0xeeeeeeee, 0xeeeeeeee}};
  run(copy_with_every_lane_count, {.num_blocks = kMaxCopyLanes, .num_threads = 64},
      CopyParams{src.data(), sizes.data(), dst.data()});
  const std::vector<Vec16> seen = download(dst);
  for (int row = 0; row < kMaxCopyLanes * kNumCopySizes; ++row) {
    const int num_vectors = kCopySizes[row % kNumCopySizes];
    int num_wrong = 0;
    for (int i = -1; i <= kMaxCopyVectors; ++i) {
      const bool is_copied = i >= 0 && i < num_vectors;
      const Vec16 expected = is_copied ? source[static_cast<size_t>(i)] : kUntouched;
      if (!is_equal(seen[static_cast<size_t>(row * kCopyStride + 1 + i)], expected)) ++num_wrong;
    }
    EXPECT_EQ(num_wrong, 0) << num_vectors << " vectors with " << row / kNumCopySizes + 1 << " lanes";
  }
}

constexpr int kBulkRows = 7, kBulkColumns = 96, kBulkStages = 2;
constexpr uint32_t kBulkRowBytes = kBulkColumns * sizeof(int);

struct BulkParams {
  const int* in;  // [kBulkRows][kBulkColumns]
  int* out;
  uint32_t* num_early;  // barriers that were done before anything had been brought
};

struct BulkShared {
  alignas(128) int rows[kBulkStages][kBulkColumns];
  target::TransferBarrier full[kBulkStages];   // one arrival, and the row's bytes
  target::TransferBarrier empty[kBulkStages];  // one arrival per consumer
};

SWITCHYARD_DEVICE uint32_t bulk_parity(int row) { return static_cast<uint32_t>(row / kBulkStages % 2); }

// The last warp's first thread: loads each row into its stage once the consumers have left it.
SWITCHYARD_DEVICE void produce_rows(const BulkParams& params, BulkShared& shared) {
  for (int row = 0; row < kBulkRows; ++row) {
    const int stage = row % kBulkStages;
    // acquire: the consumers are done with what was here; pairs with their arrive()
    if (row >= kBulkStages)
      target::wait_until([&] { return shared.empty[stage].done(bulk_parity(row - kBulkStages)); },
                         kNoDeadline);
    target::fence_proxy_async();
    shared.full[stage].arrive_expect(kBulkRowBytes);
    target::bulk_load(shared.rows[stage], params.in + row * kBulkColumns, kBulkRowBytes, shared.full[stage]);
  }
}

// A thread per column: reads another thread's column, as the barrier must have brought the whole row.
SWITCHYARD_DEVICE void consume_rows(const BulkParams& params, BulkShared& shared) {
  const int column = target::thread_idx();
  for (int row = 0; row < kBulkRows; ++row) {
    const int stage = row % kBulkStages;
    target::wait_until([&] { return shared.full[stage].done(bulk_parity(row)); }, kNoDeadline);
    params.out[row * kBulkColumns + column] = 3 * shared.rows[stage][kBulkColumns - 1 - column];
    shared.empty[stage].arrive();  // release: pairs with the producer's wait
  }
}

SWITCHYARD_KERNEL void pipeline_bulk_loads(BulkParams params) {
  BulkShared& shared = target::shared_storage<BulkShared>();
  if (target::thread_idx() == 0)
    for (int stage = 0; stage < kBulkStages; ++stage) {
      shared.full[stage].init(1);
      shared.empty[stage].init(kBulkColumns);
      if (shared.full[stage].done(0) || shared.empty[stage].done(0)) *params.num_early += 1;
    }
  target::sync_block();
  if (target::thread_idx() < kBulkColumns)
    consume_rows(params, shared);
  else if (target::thread_idx() == kBulkColumns)
    produce_rows(params, shared);
}

TEST_P(Copies, ABulkLoadCompletesOnItsBarrierPhaseByPhase) {
  std::vector<int> values(kBulkRows * kBulkColumns), expected(values.size());
  std::iota(values.begin(), values.end(), 1);
  for (int i = 0; i < kBulkRows * kBulkColumns; ++i)
    expected[i] = 3 * values[i / kBulkColumns * kBulkColumns + kBulkColumns - 1 - i % kBulkColumns];
  const auto in = upload(values), out = zeros<int>(values.size());
  const auto num_early = zeros<uint32_t>(1);
  run(pipeline_bulk_loads, {.num_threads = kBulkColumns + kWarpSize, .shared_bytes = sizeof(BulkShared)},
      BulkParams{in.data(), out.data(), num_early.data()});
  EXPECT_EQ(download(out), expected);
  EXPECT_EQ(download(num_early).front(), 0u);
}

struct BulkStoreParams {
  int* out;     // [kBulkRows][kBulkColumns]
  int* echoed;  // the same, as read back by the storing thread
};

// Rows are made in turn in two stages and stored; a stage is written again only once its store has read it.
SWITCHYARD_KERNEL void store_rows_in_bulk(BulkStoreParams params) {
  BulkShared& shared = target::shared_storage<BulkShared>();
  for (int row = 0; row < kBulkRows; ++row) {
    const int stage = row % kBulkStages;
    if (target::thread_idx() == 0) target::bulk_wait_read<kBulkStages - 1>();
    target::sync_block();
    shared.rows[stage][target::thread_idx()] = row * 1000 + target::thread_idx();
    target::fence_proxy_async();
    target::sync_block();
    if (target::thread_idx() == 0) {
      target::bulk_store(params.out + row * kBulkColumns, shared.rows[stage], kBulkRowBytes);
      target::bulk_commit();
    }
  }
  if (target::thread_idx() != 0) return;
  target::bulk_wait<0>();
  target::fence_proxy_async();
  for (int i = 0; i < kBulkRows * kBulkColumns; ++i) params.echoed[i] = params.out[i];
}

TEST_P(Copies, BulkStoresAreDoneAfterTheirWait) {
  std::vector<int> expected;
  for (int row = 0; row < kBulkRows; ++row)
    for (int column = 0; column < kBulkColumns; ++column) expected.push_back(row * 1000 + column);
  const auto out = zeros<int>(expected.size()), echoed = zeros<int>(expected.size());
  run(store_rows_in_bulk, {.num_threads = kBulkColumns, .shared_bytes = sizeof(BulkShared)},
      BulkStoreParams{out.data(), echoed.data()});
  EXPECT_EQ(download(out), expected);
  EXPECT_EQ(download(echoed), expected);
}

}  // namespace
}  // namespace switchyard

#undef Copies
