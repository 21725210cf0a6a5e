# penstock-cuda.so: loaded by penstockd when batcher.backend = cuda.  To add a file: one line in gpu_objects.
# Objects are named NAME_cu.o: make's built-in link rule would take NAME.cu.o for a program built from NAME.cu.
EXTRA_DIST += gpu/entry.cu
if CUDA
gpu_objects = gpu/entry_cu.o gpu/status_cu.o

plugindir = $(pkglibdir)
plugin_DATA = penstock-cuda.so
CLEANFILES += penstock-cuda.so $(gpu_objects) $(gpu_objects:.o=.d)
GPU_FLAGS = -std=c++17 -O3 -lineinfo -Xcompiler -fPIC,-Wall,-Wextra -I$(top_srcdir)/src -I$(top_srcdir)/gpu \
	-DPENSTOCK_CUDART_VERSION='"$(NVCC_VERSION)"'
NVCC_BUILD = $(NVCC) $(NVCC_GENCODE) $(GPU_FLAGS) -MD -MP

gpu/%_cu.o: $(top_srcdir)/gpu/%.cu
	@$(MKDIR_P) gpu
	$(AM_V_GEN)$(NVCC_BUILD) -MF gpu/$*_cu.d -c -o $@ $<

# The object carries its own copy of the status table: a plugin does not depend on symbols of the program that loads it.
gpu/status_cu.o: $(top_srcdir)/src/base/status.c
	@$(MKDIR_P) gpu
	$(AM_V_CC)$(CC) $(DEFS) $(AM_CPPFLAGS) $(CPPFLAGS) $(PENSTOCK_CFLAGS) -O2 -fPIC -MD -MP -MF gpu/status_cu.d -c -o $@ $(top_srcdir)/src/base/status.c

penstock-cuda.so: $(gpu_objects)
	$(AM_V_GEN)$(NVCC) -shared -cudart static -o $@ $(gpu_objects)

-include $(gpu_objects:.o=.d)

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_plugin
TESTS += tests/unit/test_plugin
tests_unit_test_plugin_SOURCES = tests/unit/test_plugin.c
tests_unit_test_plugin_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_plugin_CPPFLAGS = $(AM_CPPFLAGS) -DPLUGIN_PATH='"$(abs_top_builddir)/penstock-cuda.so"'
tests_unit_test_plugin_LDADD = libplugin.a $(BASE_LIBS) $(UNIT_LIBS) -ldl
endif
endif
