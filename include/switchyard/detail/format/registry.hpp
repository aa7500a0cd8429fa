// The registry of token formats. Everything that goes over formats visits this list: a format with a line
// here is a TokenFormatKind, has kernels on every target, is offered by `switchyard run`, `simulate` and
// `bench`, and is tested. CONTRIBUTING.md, "Add a token format", says what else a new one needs.
//
//   X(kind, name, type, element, group_size, scale, placement, encoding)
//     kind        the enumerator of TokenFormatKind
//     name        what the command line, the reports and docs/formats.md call it
//     type        what its kernels are instantiated with; all_formats.hpp includes the file that holds it
//     element     ElementType
//     group_size  elements that share a scale
//     scale       ScaleType
//     placement   ScalePlacement
//     encoding    TokenEncoding
//
// src/CMakeLists.txt reads the kinds from here, too, and has the kernels of each compiled in a file of their
// own.
#pragma once

// clang-format off
#define SWITCHYARD_TOKEN_FORMATS(X)                                                                                                    \
  X(kBF16,          "bf16",            BF16TokenFormat,                                    kBF16, 1,   kNone,  kNone,       kOnce)     \
  X(kFP8,           "fp8",             BlockwiseFP8TokenFormat<e4m3>,                      kE4M3, 128, kFloat, kTransposed, kOnce)     \
  X(kFP8E5M2,       "fp8-e5m2",        BlockwiseFP8TokenFormat<e5m2>,                      kE5M2, 128, kFloat, kTransposed, kOnce)     \
  X(kMXFP8,         "mxfp8",           MXTokenFormat<e4m3>,                                kE4M3, 32,  kE8M0,  kByRow,      kOnce)     \
  X(kMXFP8E5M2,     "mxfp8-e5m2",      MXTokenFormat<e5m2>,                                kE5M2, 32,  kE8M0,  kByRow,      kOnce)     \
  X(kMXFP6,         "mxfp6",           MXTokenFormat<e2m3>,                                kE2M3, 32,  kE8M0,  kByRow,      kOnce)     \
  X(kMXFP6E3M2,     "mxfp6-e3m2",      MXTokenFormat<e3m2>,                                kE3M2, 32,  kE8M0,  kByRow,      kOnce)     \
  X(kMXFP4,         "mxfp4",           MXTokenFormat<e2m1>,                                kE2M1, 32,  kE8M0,  kByRow,      kOnce)     \
  X(kNVFP4,         "nvfp4",           NVBlockScaledTokenFormat<NVFP4<OneInputScale>>,     kE2M1, 16,  kE4M3,  kTiled,      kOnce)     \
  X(kNVFP4ByExpert, "nvfp4-by-expert", NVBlockScaledTokenFormat<NVFP4<ExpertInputScales>>, kE2M1, 16,  kE4M3,  kTiled,      kByExpert) \
  X(kMXFP8Tiled,    "mxfp8-tiled",     NVBlockScaledTokenFormat<TiledMX<e4m3>>,            kE4M3, 32,  kE8M0,  kTiled,      kOnce)     \
  X(kMXFP4Tiled,    "mxfp4-tiled",     NVBlockScaledTokenFormat<TiledMX<e2m1>>,            kE2M1, 32,  kE8M0,  kTiled,      kOnce)     \
  X(kFP8UE8M0,      "fp8-ue8m0",       PackedFP8TokenFormat<e4m3>,                         kE4M3, 128, kE8M0,  kPacked,     kOnce)     \
  X(kFP8ByRow,      "fp8-by-row",      RowScaledTokenFormat<BlockwiseFP8Quantizer<e4m3>>,  kE4M3, 128, kFloat, kByRow,      kOnce)
// clang-format on
