# Finds libfabric through pkg-config: Libfabric_FOUND, Libfabric_VERSION, Libfabric::Libfabric.
# From 1.17 on; absent, the part `libfabric` cannot be used, and nothing that needs it is built.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(EPTRANSPORT_LIBFABRIC QUIET IMPORTED_TARGET GLOBAL libfabric>=1.17)
endif()
set(Libfabric_VERSION "${EPTRANSPORT_LIBFABRIC_VERSION}")
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libfabric REQUIRED_VARS EPTRANSPORT_LIBFABRIC_FOUND
                                  VERSION_VAR Libfabric_VERSION)
if(Libfabric_FOUND AND NOT TARGET Libfabric::Libfabric)
  add_library(Libfabric::Libfabric INTERFACE IMPORTED GLOBAL)
  target_link_libraries(Libfabric::Libfabric INTERFACE PkgConfig::EPTRANSPORT_LIBFABRIC)
endif()
