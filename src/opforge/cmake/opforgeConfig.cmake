# find_package(opforge CONFIG REQUIRED) gives opforge_add_library(), which makes a library target
# of Python functions that launch Triton kernels. `opforge cmake-dir` prints this folder.
if(CMAKE_VERSION VERSION_LESS 3.25)
  set(${CMAKE_FIND_PACKAGE_NAME}_FOUND FALSE)
  set(${CMAKE_FIND_PACKAGE_NAME}_NOT_FOUND_MESSAGE
      "opforge needs CMake 3.25 or newer, and this is ${CMAKE_VERSION}")
  return()
endif()

# Functions keep the policies under which they were defined; find_package restores the caller's.
cmake_policy(VERSION 3.25...4.1)

include("${CMAKE_CURRENT_LIST_DIR}/opforgePython.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/opforgeGenerate.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/opforgeLibrary.cmake")
