# atoll_warnings(TARGET) enables the warnings for targets of this project.
# CMAKE_COMPILE_WARNING_AS_ERROR, which presets set, turns them into errors.
function(atoll_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wswitch-enum>
    $<$<COMPILE_LANGUAGE:CXX>:-Wconversion>
    # GCC 12 warns about overlaps in std::string operator+ that do not exist (GCC bug 105651).
    $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
endfunction()

include(AtollPlugin)
