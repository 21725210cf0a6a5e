# model
noinst_HEADERS += src/model/backend.h src/model/model.h

# backend.h is a contract with C++ (nvcc's host compiler) too.
dist_check_SCRIPTS += tests/unit/test_backend_cxx.sh

# Loader of backends that live in loadable objects.
noinst_LIBRARIES += libplugin.a
libplugin_a_SOURCES = src/model/plugin.c src/model/plugin.h
PLUGIN_LIBS = libplugin.a -ldl
