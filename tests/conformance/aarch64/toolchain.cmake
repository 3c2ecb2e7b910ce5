# Builds for 64-bit Arm Linux on another machine. The variable SYSROOT of the environment names the
# folder with the headers and libraries of Arm; `run` prepares it.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT $ENV{SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} $ENV{SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR}
  $ENV{SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:$ENV{SYSROOT}/usr/share/pkgconfig)
