# The Debian packages: make deb, or cpack -G DEB in a build folder. `freeride-hook` is what a training needs, `freeride` the rest.
# Its release tells them from the one package that 0.1.0 was before.
set(CPACK_PACKAGE_NAME freeride)
set(CPACK_PACKAGE_CONTACT "FreeRide <freeride@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_RELEASE 2)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(version ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})

# The CUDA driver is opened where there is one.
set(CPACK_DEBIAN_FREERIDE_PACKAGE_NAME freeride)
set(CPACK_DEBIAN_FREERIDE_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_FREERIDE_PACKAGE_DEPENDS "bubblewrap, freeride-hook (= ${version})")
set(CPACK_DEBIAN_FREERIDE_PACKAGE_RECOMMENDS python3)
set(CPACK_DEBIAN_FREERIDE_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/scripts/deb/postinst ${CMAKE_SOURCE_DIR}/scripts/deb/prerm
    ${CMAKE_SOURCE_DIR}/scripts/deb/postrm)

set(CPACK_DEBIAN_HOOK_PACKAGE_NAME freeride-hook)
set(CPACK_DEBIAN_HOOK_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_HOOK_PACKAGE_RECOMMENDS python3)
set(CPACK_DEBIAN_HOOK_PACKAGE_SUGGESTS "python3-torch, freeride")  # torch: for the example training
set(CPACK_DEBIAN_HOOK_PACKAGE_REPLACES "freeride (<< ${version}~)")
set(CPACK_DEBIAN_HOOK_PACKAGE_BREAKS "freeride (<< ${version}~)")
set(CPACK_DEBIAN_HOOK_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/scripts/deb/hook/prerm)

include(CPack)
cpack_add_component_group(freeride DESCRIPTION "Manager, worker, runner, ctl, plugins and what plugins are built with")
cpack_add_component_group(hook DESCRIPTION "The training's side: libraries, Python package, freeride.run and freeride.observe")
cpack_add_component(hook GROUP hook)
foreach(component Unspecified plugins plugin-sdk)
  cpack_add_component(${component} GROUP freeride)
endforeach()
