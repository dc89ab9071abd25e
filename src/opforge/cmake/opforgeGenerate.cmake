# Runs `opforge build --sources-only` while CMake configures.
include_guard()

# Writes the sources of library `name` to `folder`. `arguments` are those of `opforge build`.
function(_opforge_generate name folder python arguments)
  set(depfile "${folder}/read.d")
  # -B: write no bytecode into the operators' folders.
  set(command "${python}" -B -m opforge build ${arguments} --name "${name}" --output "${folder}"
      --depfile "${depfile}" --sources-only)
  file(MAKE_DIRECTORY "${folder}")
  # Python looks for modules in the current folder; this one has none.
  execute_process(
    COMMAND ${command}
    WORKING_DIRECTORY "${folder}"
    RESULT_VARIABLE status
    OUTPUT_VARIABLE told OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_VARIABLE said ECHO_ERROR_VARIABLE)
  if(NOT status EQUAL 0)
    _opforge_reason(reason "${said}" "${status}")
    list(JOIN command " " shown)
    message(FATAL_ERROR
      "opforge: cannot generate ${name}: ${reason}\n"
      "The whole message is above. The command was\n"
      "  ${shown}\n"
      "If this is the wrong Python, choose another: -DOPFORGE_PYTHON_EXECUTABLE=/path/to/python")
  endif()
  message(STATUS "opforge: ${told}")
  _opforge_reconfigure_after("${depfile}")
endfunction()

# The first line of the command's error; what comes before it is progress.
function(_opforge_reason result said status)
  set(reason "the command ended with ${status}")
  string(FIND "\n${said}" "\nError: " start)
  if(NOT start EQUAL -1)
    string(SUBSTRING "${said}" ${start} -1 reason)
    string(REGEX REPLACE "^Error: ([^\n]*).*" "\\1" reason "${reason}")
  endif()
  set(${result} "${reason}" PARENT_SCOPE)
endfunction()

# Lets CMake run again when a file that the depfile names has changed.
function(_opforge_reconfigure_after depfile)
  file(READ "${depfile}" text)
  # A backslash at the end of a list element would join it to the next.
  string(REPLACE " \\\n" "\n" text "${text}")
  string(REGEX MATCHALL "\n  [^\n]+" lines "${text}")
  foreach(line IN LISTS lines)
    string(STRIP "${line}" file)
    string(REPLACE "\\ " " " file "${file}")
    string(REPLACE "\\#" "#" file "${file}")
    string(REPLACE "$$" "$" file "${file}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  endforeach()
endfunction()
