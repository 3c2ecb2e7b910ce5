# atoll_warnings(TARGET) enables compiler warnings for a target of this project. Presets may turn
# the warnings into errors (CMAKE_COMPILE_WARNING_AS_ERROR).
function(atoll_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wswitch-enum>
    $<$<COMPILE_LANGUAGE:CXX>:-Wconversion>
    # GCC 12 reports false overlaps in std::string operator+ (GCC bug 105651).
    $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
endfunction()

include(AtollPlugin)
