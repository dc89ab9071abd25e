# Which Python generates: OPFORGE_PYTHON_EXECUTABLE, or one that is found.
include_guard()

set(OPFORGE_PYTHON_EXECUTABLE "" CACHE FILEPATH "The Python that has opforge, torch and triton")

# Sets `result` to a Python that has everything that generating needs, or stops.
function(_opforge_find_python result)
  set(python "${OPFORGE_PYTHON_EXECUTABLE}")
  set(came_from "it is what OPFORGE_PYTHON_EXECUTABLE says")
  if(NOT python)
    # A project that has chosen its Python means that one here, too.
    foreach(chosen Python3_EXECUTABLE Python_EXECUTABLE)
      if(${chosen} AND NOT python)
        set(python "${${chosen}}")
        set(came_from "it is what ${chosen} says")
      endif()
    endforeach()
  endif()
  if(NOT python)
    # The first on the path, not the newest: in a virtual environment it is its own.
    set(Python3_FIND_STRATEGY LOCATION)
    set(Python3_FIND_UNVERSIONED_NAMES FIRST)
    find_package(Python3 QUIET COMPONENTS Interpreter)
    set(python "${Python3_EXECUTABLE}")
    set(came_from "it is what find_package(Python3) found")
  endif()
  if(NOT python)
    _opforge_no_python("no Python was found, and opforge needs it to generate")
  endif()
  _opforge_check_python("${python}" "${came_from}")
  if(NOT OPFORGE_PYTHON_EXECUTABLE)
    set(help "The Python that has opforge, torch and triton")
    set(OPFORGE_PYTHON_EXECUTABLE "${python}" CACHE FILEPATH "${help}" FORCE)
    message(STATUS "opforge: generating with ${python}")
  endif()
  set(${result} "${python}" PARENT_SCOPE)
endfunction()

# Finds packages without importing them: torch alone takes seconds.
function(_opforge_check_python python came_from)
  string(CONCAT script
    "from importlib.util import find_spec\n"
    "found = {name: find_spec(name) for name in ('opforge', 'torch', 'triton')}\n"
    # A plain folder of that name does not count.
    "print(*[n for n, spec in found.items() if spec is None or not spec.origin], sep=', ')\n")
  # Python looks for modules in the current folder; this one has none.
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/opforge.dir")
  file(MAKE_DIRECTORY "${folder}")
  execute_process(
    COMMAND "${python}" -c "${script}"
    WORKING_DIRECTORY "${folder}"
    RESULT_VARIABLE status
    OUTPUT_VARIABLE missing OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_VARIABLE said ERROR_STRIP_TRAILING_WHITESPACE)
  if(NOT status EQUAL 0)
    _opforge_no_python("${python} does not run (${came_from}): ${status}\n${said}")
  elseif(missing)
    _opforge_no_python("${python} does not have ${missing} (${came_from})")
  endif()
endfunction()

function(_opforge_no_python reason)
  message(FATAL_ERROR
    "opforge: ${reason}\n"
    "Set OPFORGE_PYTHON_EXECUTABLE to a Python that has opforge, torch and triton:\n"
    "  cmake -DOPFORGE_PYTHON_EXECUTABLE=/path/to/python ...")
endfunction()
