// Which tuning a grouped matmul gets, and the order of its tiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "switchyard/detail/gemm/tiled/tile_grid.hpp"
#include "switchyard/types/matmul_epilogue.hpp"

namespace switchyard {
namespace {

TEST(MatmulTuning, IsChosenByTheRowsOfAGroup) {
  using enum MatmulElement;
  EXPECT_EQ(to_string(choose_matmul_tuning(kBF16, 8, 4096, 7168)), "64x128x64x8");
  EXPECT_EQ(to_string(choose_matmul_tuning(kBF16, 32, 4096, 7168)), "64x128x128x4");
  EXPECT_EQ(to_string(choose_matmul_tuning(kBF16, 128, 4096, 7168)), "128x128x64x6");
  EXPECT_EQ(to_string(choose_matmul_tuning(kBF16, 1024, 4096, 7168)), "128x256x64x4");
  EXPECT_EQ(to_string(choose_matmul_tuning(kFP8, 32, 4096, 7168)), "64x128x128x8 fp8");
  EXPECT_EQ(to_string(choose_matmul_tuning(kFP8, 1024, 4096, 7168)), "128x256x128x4 fp8");
  EXPECT_EQ(to_string(choose_matmul_tuning(kFP8, 128, 4096, 7168)), "128x128x128x6 fp8");
  EXPECT_EQ(to_string(choose_matmul_tuning(MatmulEpilogue::kGatedFP8, kFP8, 8, 4096, 7168)),
            "128x256x128x4 fp8");
  EXPECT_EQ(to_string(choose_matmul_tuning(WeightFormat::kMXFP4, 8)), "16x256x256x5 mxfp4");
  EXPECT_EQ(to_string(choose_matmul_tuning(WeightFormat::kNVFP4, 17)), "64x256x256x3 nvfp4");
  EXPECT_EQ(to_string(choose_matmul_tuning(WeightFormat::kMXFP8, 65)), "128x256x128x3 mxfp8");
  for (const int64_t rows : {0, 1, 64, 65, 128, 129, 100000})
    for (const int64_t columns : {8, 128, 136, 7168})
      for (const MatmulElement element : {kBF16, kFP8}) {
        for (const MatmulEpilogue epilogue : {MatmulEpilogue::kAffine, MatmulEpilogue::kGated,
                                              MatmulEpilogue::kGatedFP8, MatmulEpilogue::kAffineFP8}) {
          if (epilogue == MatmulEpilogue::kGatedFP8 && element == kBF16) continue;
          EXPECT_TRUE(
              has_matmul_kernel(epilogue, choose_matmul_tuning(epilogue, element, rows, columns, 64)));
        }
        const MatmulTuning tuning = choose_matmul_tuning(element, rows, columns, 64);
        EXPECT_NE(std::find(std::begin(kMatmulTunings), std::end(kMatmulTunings), tuning),
                  std::end(kMatmulTunings))
            << to_string(tuning);
      }
}

TEST(MatmulTiles, EveryTileOfAGroupHasOnePlace) {
  for (const uint32_t num_row_tiles : {1u, 3u, 16u, 17u, 40u})
    for (const uint32_t num_column_tiles : {1u, 5u, 32u}) {
      std::set<std::pair<uint32_t, uint32_t>> seen;
      for (uint32_t idx = 0; idx < num_row_tiles * num_column_tiles; ++idx) {
        const TileIndex place = tile_of_place(idx, num_row_tiles, num_column_tiles, 16);
        EXPECT_LT(place.row_tile, num_row_tiles);
        EXPECT_LT(place.column_tile, num_column_tiles);
        seen.insert({place.row_tile, place.column_tile});
      }
      EXPECT_EQ(seen.size(), num_row_tiles * num_column_tiles);
    }
}

}  // namespace
}  // namespace switchyard
