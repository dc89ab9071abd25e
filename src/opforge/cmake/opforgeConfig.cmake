# find_package(opforge CONFIG REQUIRED) gives opforge_add_library(), which turns Python functions
# that launch Triton kernels into a library target. `opforge cmake-dir` prints this folder.
if(CMAKE_VERSION VERSION_LESS 3.25)
  set(${CMAKE_FIND_PACKAGE_NAME}_FOUND FALSE)
  set(${CMAKE_FIND_PACKAGE_NAME}_NOT_FOUND_MESSAGE
      "opforge needs CMake 3.25 or newer, but this is ${CMAKE_VERSION}")
  return()
endif()

# Functions keep the policies they were defined under; find_package restores the caller's.
cmake_policy(VERSION 3.25...4.1)

include("${CMAKE_CURRENT_LIST_DIR}/opforgePython.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/opforgeGenerate.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/opforgeLibrary.cmake")
