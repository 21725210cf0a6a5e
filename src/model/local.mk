# model: a loaded model, and its architectures from arch/arch.list.
MODEL_ARCHS =
include src/model/arch/arch.list
noinst_LIBRARIES += libmodel.a
libmodel_a_SOURCES = src/model/model.c src/model/model.h src/model/arch.h src/model/source.c src/model/load.c \
	src/model/hparam.c src/model/dense.c src/model/rope.c src/model/weight.c src/model/weight.h \
	src/model/quant.c src/model/quant.h src/model/backend.h src/model/arch/bert.h $(MODEL_ARCHS:=.c)
nodist_libmodel_a_SOURCES = src/model/registry.c
MODEL_LIBS = libmodel.a
CLEANFILES += src/model/registry.c

# Adding an architecture is one file and one line in arch.list: this makes the table of them.
src/model/registry.c: $(top_srcdir)/src/model/arch/arch.list
	$(AM_V_GEN)$(MKDIR_P) src/model; { echo '/* Made from arch.list. */'; echo '#include "model/arch.h"'; \
	for arch in $(MODEL_ARCHS); do echo "extern const struct model_arch model_arch_$${arch##*/};"; done; \
	echo 'const struct model_arch *const model_archs[] = {'; \
	for arch in $(MODEL_ARCHS); do echo "	&model_arch_$${arch##*/},"; done; echo '};'; \
	echo 'const size_t model_arch_count = sizeof model_archs / sizeof model_archs[0];'; } > $@.new && mv $@.new $@

# backend.h is a contract with C++ (nvcc's host compiler) too.
dist_check_SCRIPTS += tests/unit/test_backend_cxx.sh

# Loader of backends that live in loadable objects.
noinst_LIBRARIES += libplugin.a
libplugin_a_SOURCES = src/model/plugin.c src/model/plugin.h
PLUGIN_LIBS = libplugin.a -ldl
