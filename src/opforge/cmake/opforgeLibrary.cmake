# opforge_add_library(): a library target of operators written in Python.
include_guard()

set(_OPFORGE_CMAKE_DIR "${CMAKE_CURRENT_LIST_DIR}")
set(_OPFORGE_KEYWORDS
  "there are OPERATORS, MODULES, ONLY, ARCHS, TUNING, STATIC, SHARED, JOBS and NAMESPACE")

# opforge_add_library(<target>
#   OPERATORS <folder>...     each with one folder per operator: ops/add/op.py
#   [MODULES <file.py>...]    further files with operators
#   [ONLY <operator>...]      these operators only
#   ARCHS <arch>...           architectures of GPUs: 80 90 gfx942
#   [TUNING <file.json>]      what `opforge tune` measured, for autotuned kernels
#   [STATIC | SHARED]         by default as BUILD_SHARED_LIBS says
#   [JOBS <n>]                processes that compile kernels; by default one per core
#   [NAMESPACE <name>])       prefix of the C functions; by default the target's name
#
# Defines <target> and <target>::<target>, and installs it for find_package(<target>).
function(opforge_add_library target)
  cmake_parse_arguments(PARSE_ARGV 1 given
    "STATIC;SHARED" "TUNING;JOBS;NAMESPACE" "OPERATORS;MODULES;ONLY;ARCHS")
  _opforge_check_given(${target})
  set(name "${target}")
  if(given_NAMESPACE)
    set(name "${given_NAMESPACE}")
  endif()
  if(NOT name MATCHES "^[A-Za-z][A-Za-z0-9_]*$")
    _opforge_refuse(${target}
      "'${name}' cannot begin the names of C functions; give another: NAMESPACE <name>")
  endif()

  _opforge_arguments(arguments)
  _opforge_find_python(python)
  # By name, too: a library that is renamed leaves nothing among the sources.
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/opforge.dir/${target}/${name}")
  _opforge_generate(${name} "${folder}" "${python}" "${arguments}")

  _opforge_target(${target} ${name} "${folder}")
  _opforge_install(${target} ${name} "${folder}")
endfunction()

function(_opforge_refuse target reason)
  message(FATAL_ERROR "opforge_add_library(${target}): ${reason}")
endfunction()

# Like all functions below, sees the caller's parsed arguments.
function(_opforge_check_given target)
  if(given_UNPARSED_ARGUMENTS)
    list(JOIN given_UNPARSED_ARGUMENTS " " shown)
    _opforge_refuse(${target} "unknown arguments: ${shown}; ${_OPFORGE_KEYWORDS}")
  endif()
  _opforge_check_words(${target})
  if(given_STATIC AND given_SHARED)
    _opforge_refuse(${target} "STATIC and SHARED are both given")
  elseif(NOT given_OPERATORS AND NOT given_MODULES)
    _opforge_refuse(${target} "there is nothing to build: give OPERATORS <folder> or MODULES <file.py>")
  elseif(NOT given_ARCHS)
    _opforge_refuse(${target} "no GPU architecture is given: ARCHS 80 90")
  elseif(TARGET ${target})
    _opforge_refuse(${target} "a target of this name exists already")
  endif()
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(NOT "C" IN_LIST languages)
    _opforge_refuse(${target} "the library is written in C: add enable_language(C) before this call")
  endif()
endfunction()

# A misspelt keyword is taken for one more value of the keyword before it.
function(_opforge_check_words target)
  foreach(keyword OPERATORS MODULES ONLY ARCHS)
    foreach(word IN LISTS given_${keyword})
      # Folders, modules and operators may be in capitals, too; an architecture has a number.
      set(wrong "^[A-Z][A-Z_]+$")
      if(keyword STREQUAL "ARCHS")
        set(wrong "^[^0-9]*$")
      endif()
      if(word MATCHES "${wrong}" AND NOT keyword STREQUAL "ONLY"
         AND NOT EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${word}"
         AND NOT EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${word}.py")
        _opforge_refuse(${target} "unknown keyword ${word}, after ${keyword}; ${_OPFORGE_KEYWORDS}")
      endif()
    endforeach()
  endforeach()
endfunction()

function(_opforge_arguments result)
  set(arguments)
  foreach(tree IN LISTS given_OPERATORS)
    cmake_path(ABSOLUTE_PATH tree BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
    if(NOT IS_DIRECTORY "${tree}")
      _opforge_refuse(${target} "there is no folder ${tree}")
    endif()
    # With a slash, a folder is a tree of operators whatever is in it.
    cmake_path(APPEND tree "")
    list(APPEND arguments "${tree}")
    # The depfile has the files that change; this is for operators that come and go.
    file(GLOB _ CONFIGURE_DEPENDS "${tree}*/op.py")
  endforeach()
  foreach(module IN LISTS given_MODULES)
    if(module MATCHES "\\.py(:|$)|/")
      cmake_path(ABSOLUTE_PATH module BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
    endif()
    list(APPEND arguments "${module}")
  endforeach()
  foreach(operator IN LISTS given_ONLY)
    list(APPEND arguments --only "${operator}")
  endforeach()
  foreach(arch IN LISTS given_ARCHS)
    list(APPEND arguments --arch "${arch}")
  endforeach()
  if(given_TUNING)
    cmake_path(ABSOLUTE_PATH given_TUNING BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
    if(NOT EXISTS "${given_TUNING}")
      _opforge_refuse(${target} "there is no tuning table ${given_TUNING}")
    endif()
    list(APPEND arguments --tuning "${given_TUNING}")
  endif()
  if(given_JOBS)
    list(APPEND arguments --jobs "${given_JOBS}")
  endif()
  set(${result} "${arguments}" PARENT_SCOPE)
endfunction()

function(_opforge_target target name folder)
  set(kind)
  if(given_STATIC)
    set(kind STATIC)
  elseif(given_SHARED)
    set(kind SHARED)
  endif()
  # Generated a moment ago; the generator removes files that it no longer writes.
  file(GLOB sources "${folder}/src/${name}/*.c")
  add_library(${target} ${kind} ${sources})
  add_library(${target}::${target} ALIAS ${target})
  set_target_properties(${target} PROPERTIES
    C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
    C_VISIBILITY_PRESET hidden
    POSITION_INDEPENDENT_CODE ON)
  # Without a build type, compile as `opforge build` does.
  target_compile_options(${target} PRIVATE $<$<CONFIG:>:-O2>)
  target_include_directories(${target} PUBLIC "$<BUILD_INTERFACE:${folder}/include>")
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS} pthread m)
endfunction()

function(_opforge_install target name folder)
  include(GNUInstallDirs)
  set(package "${CMAKE_INSTALL_LIBDIR}/cmake/${target}")
  install(TARGETS ${target} EXPORT ${target}Targets
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}"
    INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(DIRECTORY "${folder}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(FILES "${folder}/share/${name}/manifest.json"
    DESTINATION "${CMAKE_INSTALL_DATADIR}/${name}")
  install(EXPORT ${target}Targets NAMESPACE ${target}:: DESTINATION "${package}")
  set(config "${folder}/${target}Config.cmake")
  configure_file("${_OPFORGE_CMAKE_DIR}/libraryConfig.cmake.in" "${config}" @ONLY)
  install(FILES "${config}" DESTINATION "${package}")
  install(FILES "${folder}/lib/cmake/${name}/${name}ConfigVersion.cmake"
    DESTINATION "${package}" RENAME "${target}ConfigVersion.cmake")
endfunction()
