# How targets are declared in this tree: one library, program or test at a time, all with the same warnings.

set(FREERIDE_PYTHON /usr/bin/python3 CACHE FILEPATH "The Python that has PyTorch")
find_package(Threads REQUIRED)
include(FreeRideHardening)
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(freeride_options INTERFACE)
target_compile_options(freeride_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra $<$<CONFIG:Debug,RelWithDebInfo>:-Werror>>
                                                 $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
freeride_harden(freeride_options)
# Who configures by hand debugs, too, and has lines. Fewer collections of the compiler's garbage cost half a gigabyte at most.
if(FREERIDE_UNITY AND NOT FREERIDE_SANITIZE)
  foreach(language C CXX)  # a link that optimizes has to say the same as compiling
    string(APPEND CMAKE_${language}_FLAGS_RELWITHDEBINFO " -g0")
  endforeach()
  target_compile_options(freeride_options INTERFACE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=524288>")
endif()
# For files that run once, at a program's start: options are templates, a seventh of a build.
set(FREERIDE_STARTS_ONCE $<$<CONFIG:RelWithDebInfo>:-O0> $<$<CONFIG:RelWithDebInfo>:-U_FORTIFY_SOURCE>)
if(FREERIDE_SANITIZE)
  target_compile_options(freeride_options INTERFACE -fsanitize=${FREERIDE_SANITIZE} -fno-omit-frame-pointer
                                                   -fno-sanitize-recover=all)
  if(FREERIDE_FUZZ)  # clang's coverage, in all that a fuzz target links
    target_compile_options(freeride_options INTERFACE -fsanitize=fuzzer-no-link -fno-sanitize=function,vptr)
  endif()
  target_link_options(freeride_options INTERFACE -fsanitize=${FREERIDE_SANITIZE})
  target_compile_definitions(freeride_options INTERFACE FREERIDE_SANITIZED=1)
  if(FREERIDE_SANITIZE STREQUAL "thread")
    target_compile_definitions(freeride_options INTERFACE FREERIDE_SANITIZED_THREADS=1)
  endif()
endif()

# freeride_library(NAME SOURCES... [USES targets...])
#   Static library freeride_NAME, alias FreeRide::NAME, public headers under include/.
function(freeride_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES" ${ARGN})
  add_library(freeride_${name} STATIC ${ARG_SOURCES})
  add_library(FreeRide::${name} ALIAS freeride_${name})
  target_include_directories(freeride_${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/include
                             PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  target_link_libraries(freeride_${name} PUBLIC ${ARG_USES} Threads::Threads PRIVATE freeride_options)
  if(NOT name STREQUAL base)  # of which the hook takes single files: with one of them it would need all libraries of the others
    freeride_unity(freeride_${name} .cpp$)
  endif()
endfunction()

# freeride_static_runtime(TARGET)   For libraries in other people's processes: gcc's runtime is inside of it, and needs no newer glibc
# than 2.34. (A sanitizer's runtime comes with the program.)
function(freeride_static_runtime target)
  if(NOT FREERIDE_SANITIZE)
    set(old_glibc ${CMAKE_SOURCE_DIR}/base/src/old_glibc.c)
    target_sources(${target} PRIVATE ${old_glibc})
    set_source_files_properties(${old_glibc} PROPERTIES COMPILE_OPTIONS -fno-lto)  # the runtime asks for it after the optimizer
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endfunction()

# freeride_unity(TARGET REGEX)   With FREERIDE_UNITY: compiles up to 25 of its files of that name together, in a third of the time.
# Groups are made when CMake runs: after an edit that makes two names of a group meet, cmake --preset dev parts them.
function(freeride_unity target regex)
  if(NOT FREERIDE_UNITY OR NOT EXISTS ${FREERIDE_PYTHON})
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources EXCLUDE REGEX "^${CMAKE_BINARY_DIR}|python_sdk_|^\\$")
  list(FILTER sources INCLUDE REGEX "${regex}")
  list(LENGTH sources count)
  if(count LESS 2)
    return()
  endif()
  execute_process(COMMAND ${FREERIDE_PYTHON} -B ${CMAKE_SOURCE_DIR}/cmake/unity_groups.py 25 ${sources}
                  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE groups COMMAND_ERROR_IS_FATAL ANY)
  foreach(source group IN ZIP_LISTS sources groups)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # Every file of ours is a main file, also where another includes it.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()

# freeride_program(NAME SOURCES... [USES targets...])   Program NAME, installed to bin/, with a man page of its --help.
function(freeride_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${ARG_USES} Threads::Threads freeride_options)
  set_source_files_properties(${ARG_SOURCES} PROPERTIES COMPILE_OPTIONS "${FREERIDE_STARTS_ONCE}")
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  freeride_cli_docs(${name} man/${name}.1 "man;${PROJECT_VERSION}" ${CMAKE_INSTALL_MANDIR}/man1)
endfunction()

# freeride_cli_docs(NAME FILE "KIND[;VERSION]" DESTINATION)   What scripts/cli-docs.py makes of the program's --help.
function(freeride_cli_docs name file how destination)
  if(FREERIDE_SANITIZE OR FREERIDE_FUZZ OR NOT EXISTS ${FREERIDE_PYTHON})
    return()
  endif()
  list(POP_FRONT how kind)
  get_filename_component(folder ${CMAKE_BINARY_DIR}/${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/${file}
    COMMAND ${FREERIDE_PYTHON} ${CMAKE_SOURCE_DIR}/scripts/cli-docs.py ${kind} $<TARGET_FILE:${name}> ${how} > ${CMAKE_BINARY_DIR}/${file}.new
    COMMAND ${CMAKE_COMMAND} -E rename ${CMAKE_BINARY_DIR}/${file}.new ${CMAKE_BINARY_DIR}/${file}
    DEPENDS ${name} ${CMAKE_SOURCE_DIR}/scripts/cli-docs.py VERBATIM)
  add_custom_target(${name}-${kind} ALL DEPENDS ${CMAKE_BINARY_DIR}/${file})
  # Who builds some targets alone and installs them gets no pages.
  install(FILES ${CMAKE_BINARY_DIR}/${file} DESTINATION ${destination} OPTIONAL)
endfunction()

# freeride_sample_config(DESTINATION SECTION...)   freeride.toml with every key of the programs freeride-SECTION, commented out.
function(freeride_sample_config destination)
  if(FREERIDE_SANITIZE OR FREERIDE_FUZZ OR NOT EXISTS ${FREERIDE_PYTHON})
    return()
  endif()
  set(programs "")
  set(targets "")
  foreach(section ${ARGN})
    list(APPEND targets freeride-${section})
    list(APPEND programs $<TARGET_FILE:freeride-${section}>)
  endforeach()
  set(file ${CMAKE_BINARY_DIR}/freeride.toml)
  add_custom_command(OUTPUT ${file}
    COMMAND ${FREERIDE_PYTHON} ${CMAKE_SOURCE_DIR}/scripts/cli-docs.py config ${programs} > ${file}.new
    COMMAND ${CMAKE_COMMAND} -E rename ${file}.new ${file}
    DEPENDS ${targets} ${CMAKE_SOURCE_DIR}/scripts/cli-docs.py VERBATIM)
  add_custom_target(freeride-sample-config ALL DEPENDS ${file})
  install(FILES ${file} DESTINATION ${destination} OPTIONAL)
endfunction()

# One Catch2 main for every test program: it is the slowest file of all to compile.
function(freeride_test_main)
  if(NOT TARGET freeride_test_main)
    find_package(Catch2 REQUIRED)  # 2 or 3
    file(WRITE ${CMAKE_BINARY_DIR}/test_main.cpp "#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n")
    add_library(freeride_test_main STATIC ${CMAKE_BINARY_DIR}/test_main.cpp)
    add_library(freeride_catch INTERFACE)
    if(Catch2_VERSION VERSION_LESS 3)
      target_link_libraries(freeride_catch INTERFACE Catch2::Catch2)
    else()
      target_link_libraries(freeride_catch INTERFACE Catch2::Catch2WithMain)
      target_include_directories(freeride_catch INTERFACE ${CMAKE_SOURCE_DIR}/cmake/catch2-3)
    endif()
    target_link_libraries(freeride_test_main PUBLIC freeride_catch PRIVATE freeride_options)
    if(FREERIDE_UNITY)  # what every test reads, compiled once, with the options of programs
      file(WRITE ${CMAKE_BINARY_DIR}/test_headers.cpp "")
      add_library(freeride_test_headers OBJECT ${CMAKE_BINARY_DIR}/test_headers.cpp)
      set_target_properties(freeride_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(freeride_test_headers PRIVATE -fPIE)
      target_link_libraries(freeride_test_headers PRIVATE freeride_catch freeride_options)
      target_precompile_headers(freeride_test_headers PRIVATE <algorithm> <atomic> <chrono> <filesystem> <fstream> <functional>
        <map> <memory> <optional> <set> <sstream> <string> <thread> <variant> <vector> <catch2/catch.hpp>)
    endif()
  endif()
endfunction()

# freeride_test(NAME LABEL unit|process|sandbox|framework|gpu|slow SOURCES... [USES targets...] [DEPENDS targets...])
#   Catch2 program NAME as one CTest of that label; the timeout is a watchdog, not an assertion.
function(freeride_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;USES;DEPENDS" ${ARGN})
  if(NOT FREERIDE_BUILD_TESTS)
    return()
  endif()
  freeride_test_main()
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  target_compile_definitions(${name} PRIVATE FREERIDE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                             FREERIDE_BUILD_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_USES} freeride_test_main freeride_options)
  if(FREERIDE_UNITY)
    target_precompile_headers(${name} REUSE_FROM freeride_test_headers)
    # Of precompiled headers gcc 12 does not know that they are the system's, and warns of what it inlines from them. A tree that is
    # configured by hand has all warnings.
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread
      -Wno-restrict -Wno-maybe-uninitialized -Wno-dangling-pointer -Wno-free-nonheap-object -Wno-use-after-free -Wno-nonnull>)
    freeride_unity(${name} _test.cpp$)
  endif()
  if(ARG_DEPENDS)
    add_dependencies(${name} ${ARG_DEPENDS})
  endif()
  add_test(NAME ${name} COMMAND ${name} --durations no)
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
endfunction()

# freeride_test_without_futex_waitv(NAME TEST ARGUMENTS...)   The program of the test TEST once more, as CTest NAME, as on a kernel
# before 5.16. ARGUMENTS say which of its cases.
function(freeride_test_without_futex_waitv name test)
  if(NOT FREERIDE_BUILD_TESTS)
    return()
  endif()
  add_test(NAME ${name} COMMAND ${FREERIDE_PYTHON} -B ${CMAKE_SOURCE_DIR}/tests/rig/without_futex_waitv.py
           $<TARGET_FILE:${test}> --durations no ${ARGN})
  get_test_property(${test} LABELS label)
  get_test_property(${test} TIMEOUT timeout)
  set_tests_properties(${name} PROPERTIES LABELS "${label}" TIMEOUT ${timeout})
endfunction()

# freeride_python_test(NAME LABEL FILE)   A pytest file run by Debian's Python (the one with PyTorch).
function(freeride_python_test name label file)
  if(NOT FREERIDE_BUILD_TESTS)
    return()
  endif()
  add_test(NAME ${name} COMMAND ${FREERIDE_PYTHON} -m pytest -q -p no:cacheprovider ${file}
           WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 300 ENVIRONMENT
    "PYTHONPATH=${CMAKE_SOURCE_DIR}/hooks/python;FREERIDE_BUILD_DIR=${CMAKE_BINARY_DIR};FREERIDE_SOURCE_DIR=${CMAKE_SOURCE_DIR};PYTHONDONTWRITEBYTECODE=1")
endfunction()
