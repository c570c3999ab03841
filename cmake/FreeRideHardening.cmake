# What compiler and linker add against memory errors, for all that is installed. freeride_options carries it to every target; sanitizers
# see more by themselves, and go without.
include(CheckCXXCompilerFlag)
include(CheckPIESupported)
check_pie_supported()

function(freeride_harden target)
  if(FREERIDE_SANITIZE OR FREERIDE_FUZZ)
    return()
  endif()
  set(flags -fstack-protector-strong -fstack-clash-protection)
  check_cxx_compiler_flag(-fcf-protection FREERIDE_HAS_CF_PROTECTION)  # x86
  if(FREERIDE_HAS_CF_PROTECTION)
    list(APPEND flags -fcf-protection)
  endif()
  target_compile_options(${target} INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${flags}>"
    "$<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")  # needs an optimizing compiler
  target_link_options(${target} INTERFACE LINKER:-z,relro,-z,now,-z,noexecstack)
endfunction()
