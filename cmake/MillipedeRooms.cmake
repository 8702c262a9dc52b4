# Compile settings, and one function per kind of target. Sources are globbed: a file in a room's
# folder is part of that room.

include(GNUInstallDirs)

set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# What every target is compiled with. Bits are a promise: no contraction, no fast math.
add_library(millipede_options INTERFACE)
target_compile_features(millipede_options INTERFACE cxx_std_20)
target_compile_options(millipede_options INTERFACE
  -ffp-contract=off -Wall -Wextra -Wshadow -Wno-missing-field-initializers
  $<$<BOOL:${MILLIPEDE_WERROR}>:-Werror>)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Highway's widest targets are picked at run time; this is the floor of the rest.
  target_compile_options(millipede_options INTERFACE -march=x86-64-v2)
endif()
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  # Kernels keep arrays of vectors in registers, which vectors of unknown length cannot be in: NEON.
  target_compile_definitions(millipede_options INTERFACE
    "HWY_DISABLED_TARGETS=(HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128)")
endif()
if(MILLIPEDE_SANITIZE)
  target_compile_options(millipede_options INTERFACE
    -fsanitize=${MILLIPEDE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(millipede_options INTERFACE -fsanitize=${MILLIPEDE_SANITIZE})
endif()
if(MILLIPEDE_FUZZ)
  target_compile_options(millipede_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(MILLIPEDE_COVERAGE)
  target_compile_options(millipede_options INTERFACE --coverage -fprofile-update=atomic)
  target_link_options(millipede_options INTERFACE --coverage)
endif()

# millipede_room(NAME [ROOMS room...] [LINK target...]): a room of src/, its headers seen as
# "<room>/file.h". ROOMS are the rooms above it that it uses.
function(millipede_room name)
  cmake_parse_arguments(ARG "" "" "ROOMS;LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  add_library(millipede_${name} STATIC ${sources})
  target_include_directories(millipede_${name} PUBLIC
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  list(TRANSFORM ARG_ROOMS PREPEND millipede_)
  target_link_libraries(millipede_${name} PUBLIC tl::expected ${ARG_ROOMS} ${ARG_LINK}
    PRIVATE millipede_options)
endfunction()

# millipede_library(NAME ROOMS room...): the library users link, of all rooms' objects, installed
# with the public headers as package millipede.
function(millipede_library name)
  cmake_parse_arguments(ARG "" "" "ROOMS" ${ARGN})
  set(objects "")
  foreach(room ${ARG_ROOMS})
    list(APPEND objects $<TARGET_OBJECTS:millipede_${room}>)
  endforeach()
  add_library(${name} STATIC ${objects})
  add_library(millipede::${name} ALIAS ${name})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${name} PUBLIC tl::expected
    PRIVATE hwy::hwy TBB::tbb fmt::fmt Threads::Threads)
  install(TARGETS ${name} EXPORT millipede-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/millipede
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endfunction()

# millipede_mpi_library(): the objects of the one room that needs MPI, a library of its own, so that
# the other does not. Component mpi of the package.
function(millipede_mpi_library)
  add_library(millipede_mpi STATIC $<TARGET_OBJECTS:millipede_distributed>)
  add_library(millipede::mpi ALIAS millipede_mpi)
  set_target_properties(millipede_mpi PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME mpi)
  target_link_libraries(millipede_mpi PUBLIC millipede PRIVATE MPI::MPI_CXX)
  install(TARGETS millipede_mpi EXPORT millipede-mpi-targets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT millipede-mpi-targets NAMESPACE millipede::
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millipede)
endfunction()

# millipede_package(): what find_package(millipede) finds.
function(millipede_package)
  install(EXPORT millipede-targets NAMESPACE millipede::
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millipede)
  include(CMakePackageConfigHelpers)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/millipede-config.cmake.in
    ${CMAKE_CURRENT_BINARY_DIR}/millipede-config.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millipede)
  write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/millipede-config-version.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/millipede-config.cmake
                ${CMAKE_CURRENT_BINARY_DIR}/millipede-config-version.cmake
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millipede)
endfunction()

# millipede_test(NAME LABEL label SOURCES file... LINK target... [CONCURRENT] [ARM64]): one GoogleTest program
# and one CTest entry. Labels: unit (small, also run under asan and ubsan), command (the
# command's own, small), flash (big shapes), mpi
# (several ranks), soak (long random runs), project. CONCURRENT adds the label of that name: tests
# whose code runs on several threads, which are those that also run under tsan. ARM64 does
# the same for those that scripts/arm64 runs under qemu. Target
# <label>_tests builds the programs of a label.
function(millipede_test name)
  cmake_parse_arguments(ARG "CONCURRENT;ARM64" "LABEL" "SOURCES;LINK" ${ARGN})
  set(labels ${ARG_LABEL})
  if(ARG_CONCURRENT)
    list(APPEND labels concurrent)
  endif()
  if(ARG_ARM64)
    list(APPEND labels arm64)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE millipede_options ${ARG_LINK} GTest::gtest_main
    GTest::gmock)
  # What a test waits for is the library, and its own compilation.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  foreach(label ${labels})
    add_dependencies(${label}_tests ${name})
  endforeach()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT 1500)
endfunction()

# millipede_mpi_entry(NAME COMMAND...): a CTest entry labelled mpi, one at a time, with what Open MPI
# needs to run as root, with more ranks than cores that do not spin while they wait, between processes
# of one machine alone, and without the system call for reading each other's memory, which containers
# deny.
function(millipede_mpi_entry name)
  add_test(NAME ${name} COMMAND ${ARGN})
  set(environment
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
    OMPI_MCA_mpi_yield_when_idle=1
    OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none)
  set_tests_properties(${name} PROPERTIES LABELS mpi TIMEOUT 120 RUN_SERIAL ON
    ENVIRONMENT "${environment}")
endfunction()
