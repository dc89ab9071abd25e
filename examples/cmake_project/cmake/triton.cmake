# The operators in ops/, compiled by Triton into a C library. Needs Python while CMake runs.
if(NOT WITH_NVIDIA)
  message(FATAL_ERROR "WITH_TRITON needs WITH_NVIDIA: its kernels are built for NVIDIA GPUs")
endif()
foreach(backend ASCEND CAMBRICON METAX)
  if(WITH_${backend})
    message(FATAL_ERROR
      "WITH_TRITON and WITH_${backend} are both on: the kernels are built only for NVIDIA GPUs "
      "and cannot be combined with another device. Turn one of the two off.")
  endif()
endforeach()

# Only the generated sources are C.
enable_language(C)
find_package(opforge CONFIG REQUIRED)
opforge_add_library(engine_ops STATIC OPERATORS ops ARCHS ${ENGINE_GPU_ARCHS})

target_sources(engine PRIVATE src/triton.cpp)
target_compile_definitions(engine PRIVATE ENGINE_WITH_TRITON)
target_link_libraries(engine PRIVATE engine_ops::engine_ops ${CMAKE_DL_LIBS})
