# The version of the Python package that this folder is in.
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../__init__.py" _opforge_version
     REGEX "^__version__ = " LIMIT_COUNT 1)
string(REGEX REPLACE "^__version__ = \"([^\"]*)\".*" "\\1" PACKAGE_VERSION "${_opforge_version}")
unset(_opforge_version)

if(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
