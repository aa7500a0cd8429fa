# libswitchyard.so, the C ABI (switchyard.h): its objects, linked with those of the static libraries, which are
# position-independent. Nothing is compiled twice, and nothing else is exported.
option(SWITCHYARD_BUILD_SHARED "Build libswitchyard.so, the C ABI" ON)
if(SWITCHYARD_BUILD_SHARED AND NOT SWITCHYARD_SANITIZER)
  set(exports ${PROJECT_SOURCE_DIR}/src/c_api/exports.map)
  add_library(switchyard_shared SHARED $<TARGET_OBJECTS:switchyard_c_api>)
  target_link_libraries(switchyard_shared PRIVATE switchyard)
  target_link_options(switchyard_shared PRIVATE LINKER:--version-script=${exports})
  set_target_properties(switchyard_shared PROPERTIES OUTPUT_NAME switchyard VERSION ${PROJECT_VERSION} SOVERSION 0
    LINK_DEPENDS ${exports} LINKER_LANGUAGE CXX)
  target_include_directories(switchyard_shared INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  install(TARGETS switchyard_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  file(RELATIVE_PATH SWITCHYARD_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  configure_file(${CMAKE_CURRENT_LIST_DIR}/switchyard.pc.in ${PROJECT_BINARY_DIR}/switchyard.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/switchyard.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
