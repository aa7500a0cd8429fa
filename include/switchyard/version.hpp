// The version of Switchyard. It is told here alone: CMakeLists.txt reads this line.
#pragma once

namespace switchyard {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace switchyard
