# `cmake --install` and find_package(switchyard).
include(CMakePackageConfigHelpers)

get_property(layers GLOBAL PROPERTY SWITCHYARD_LAYERS)
install(TARGETS switchyard switchyard_emulator ${layers}
  EXPORT switchyardTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/switchyard DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT switchyardTargets NAMESPACE switchyard:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/switchyard)
# A build folder serves find_package(), too (SWITCHYARD_PREBUILT).
export(TARGETS switchyard switchyard_emulator ${layers} switchyard_options NAMESPACE switchyard::
  FILE ${PROJECT_BINARY_DIR}/switchyardTargets.cmake)
configure_package_config_file(cmake/switchyardConfig.cmake.in ${PROJECT_BINARY_DIR}/switchyardConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/switchyard)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/switchyardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/switchyardConfig.cmake ${PROJECT_BINARY_DIR}/switchyardConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/switchyard)
if(TARGET switchyard_tool)
  install(TARGETS switchyard_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
