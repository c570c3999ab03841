# The Debian package: make deb, or cpack -G DEB in a build folder. One package with all that `cmake --install` installs.
set(CPACK_PACKAGE_NAME freeride)
set(CPACK_PACKAGE_CONTACT "FreeRide <freeride@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS bubblewrap)
# The CUDA driver is opened where there is one.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS python3)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS python3-torch)  # for the example training
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/scripts/deb/postinst ${CMAKE_SOURCE_DIR}/scripts/deb/prerm
    ${CMAKE_SOURCE_DIR}/scripts/deb/postrm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
