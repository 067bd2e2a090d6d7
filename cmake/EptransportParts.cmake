# The parts of the library: INTERFACE targets with an explicit header list each.
include_guard(GLOBAL)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# eptransport_add_part(<name> FILES <header>...
#                      [DEPENDS <part or target>...] [PACKAGES <package>...])
#
# Defines eptransport::<name>. FILES are relative to include/eptransport. DEPENDS names parts that
# were added before, or imported targets. PACKAGES are what find_package(eptransport COMPONENTS
# <name>) looks for on the user's machine; those of the parts in DEPENDS are added to them.
function(eptransport_add_part name)
  cmake_parse_arguments(PARSE_ARGV 1 part "" "" "FILES;DEPENDS;PACKAGES")
  if(NOT part_FILES OR part_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "eptransport_add_part(${name}): FILES is missing, or unknown arguments "
                        "'${part_UNPARSED_ARGUMENTS}'")
  endif()
  set(target eptransport_${name})
  add_library(${target} INTERFACE)
  add_library(eptransport::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} INTERFACE cxx_std_20)

  set(headers ${part_FILES})
  list(TRANSFORM headers PREPEND ${PROJECT_SOURCE_DIR}/include/eptransport/)
  target_sources(${target} INTERFACE FILE_SET HEADERS
                 BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${headers})

  set(packages ${part_PACKAGES})
  foreach(dependency IN LISTS part_DEPENDS)
    if(TARGET eptransport_${dependency})
      target_link_libraries(${target} INTERFACE eptransport_${dependency})
      get_target_property(inherited eptransport_${dependency} EPTRANSPORT_PACKAGES)
      list(APPEND packages ${inherited})
    else()
      target_link_libraries(${target} INTERFACE ${dependency})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES packages)
  set_target_properties(${target} PROPERTIES EPTRANSPORT_FILES "${part_FILES}"
                                             EPTRANSPORT_PACKAGES "${packages}")
  set_property(GLOBAL APPEND PROPERTY EPTRANSPORT_PARTS ${name})
  foreach(package IN LISTS part_PACKAGES)
    find_package(${package} QUIET GLOBAL)
  endforeach()
endfunction()

# Installs every part. Headers go only through their file sets: the links under include/eptransport
# become real folders, so an installed tree is self-contained.
function(eptransport_install_parts)
  get_property(parts GLOBAL PROPERTY EPTRANSPORT_PARTS)
  set(where ${CMAKE_INSTALL_LIBDIR}/cmake/eptransport)
  set(part_packages "")
  foreach(part IN LISTS parts)
    install(TARGETS eptransport_${part} EXPORT eptransport-targets FILE_SET HEADERS)
    get_target_property(packages eptransport_${part} EPTRANSPORT_PACKAGES)
    string(APPEND part_packages "set(_eptransport_${part}_packages \"${packages}\")\n")
  endforeach()
  install(EXPORT eptransport-targets NAMESPACE eptransport:: DESTINATION ${where})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/eptransport-config.cmake.in
                                eptransport-config.cmake INSTALL_DESTINATION ${where})
  write_basic_package_version_file(eptransport-config-version.cmake
                                   COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/eptransport-config.cmake
                ${CMAKE_CURRENT_BINARY_DIR}/eptransport-config-version.cmake
                ${PROJECT_SOURCE_DIR}/cmake/FindLibfabric.cmake DESTINATION ${where})
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
endfunction()
