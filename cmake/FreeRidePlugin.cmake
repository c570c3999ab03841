# freeride_add_plugin(NAME SOURCES files... [USES libraries...])
#
#   Builds the side task NAME.so (a MODULE without the lib prefix): symbols hidden, a version script that exports only
#   freeride_plugin_v1, and missing libraries reported by the linker instead of by the first load. C++17 for C++ sources.
#   Used by FreeRide's own tree and, after find_package(FreeRide), by plugin authors.

function(freeride_add_plugin name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES" ${ARGN})
  if(NOT ARG_SOURCES)
    message(FATAL_ERROR "freeride_add_plugin(${name}): no SOURCES given")
  endif()
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "freeride_add_plugin(${name}): what is '${ARG_UNPARSED_ARGUMENTS}'? It takes SOURCES and USES")
  endif()
  set(map ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/freeride_plugin.map)
  add_library(${name} MODULE ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE FreeRide::plugin_api ${ARG_USES})
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(CXX IN_LIST languages)
    target_compile_features(${name} PRIVATE cxx_std_17)
  endif()
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ".so" POSITION_INDEPENDENT_CODE ON
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON LINK_DEPENDS ${map})
  target_link_options(${name} PRIVATE LINKER:--version-script=${map})
  if(TARGET freeride_options)  # inside FreeRide's own tree: its warnings and sanitizers
    target_link_libraries(${name} PRIVATE freeride_options)
  endif()
  if(NOT FREERIDE_SANITIZE)  # a sanitizer's runtime comes with the program
    target_link_options(${name} PRIVATE LINKER:--no-undefined)
  endif()
endfunction()
