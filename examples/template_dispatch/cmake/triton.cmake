# The operators in ops/, compiled by Triton into a C library. Needs Python while CMake runs.
if(NOT WITH_NVIDIA AND NOT WITH_AMD)
  message(FATAL_ERROR "WITH_TRITON needs WITH_NVIDIA or WITH_AMD: its kernels are built for GPUs")
endif()

set(archs ${GPU_ARCHS})
if(NOT GPU_ARCHS AND WITH_NVIDIA)
  list(APPEND archs 80 90)
endif()
if(NOT GPU_ARCHS AND WITH_AMD)
  list(APPEND archs gfx942)
endif()

# Only the generated sources are C.
enable_language(C)
find_package(opforge CONFIG REQUIRED)
opforge_add_library(lab_ops STATIC OPERATORS ops ARCHS ${archs})

target_sources(dispatch PRIVATE src/compare.cpp src/memory.cpp)
target_compile_definitions(dispatch PRIVATE LAB_WITH_TRITON)
target_link_libraries(dispatch PRIVATE lab_ops::lab_ops ${CMAKE_DL_LIBS})
