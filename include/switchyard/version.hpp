// The version of Switchyard, as MAJOR.MINOR.PATCH. CMakeLists.txt reads it from this line: it stands nowhere
// else.
#pragma once

namespace switchyard {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace switchyard
