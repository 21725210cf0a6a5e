# model

# Loader of backends that live in loadable objects.
noinst_LIBRARIES += libplugin.a
libplugin_a_SOURCES = src/model/plugin.c src/model/plugin.h
PLUGIN_LIBS = libplugin.a -ldl
