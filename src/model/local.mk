# model: a loaded model, and its architectures from arch/arch.list.
MODEL_ARCHS =
include src/model/arch/arch.list
noinst_LIBRARIES += libmodel.a
libmodel_a_SOURCES = src/model/model.c src/model/model.h src/model/arch.h src/model/source.c src/model/load.c src/model/rank.c \
	src/model/hparam.c src/model/dense.c src/model/moe.c \
	src/model/rope.c src/model/weight.c src/model/weight.h src/model/blocks.c \
	src/model/quant.c src/model/quant.h src/model/batch.c src/model/batch.h src/model/backend.h src/model/sampling.h src/model/arch/bert.h \
	src/model/arch/deepseek_v3.h src/model/arch/moe_weights.def $(MODEL_ARCHS:=.c)
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

# Small checkpoints of every architecture, with what transformers makes of them.
DENSE = llama llama-tied llama-yarn llama-dynamic llama-gptq qwen2 qwen2-int8 qwen3 qwen3-fp8 glm chatglm glm4 glm4-mixed bert \
	xlm_roberta
dense_data = tests/data/dense
EXTRA_DIST += tests/reference/make_dense.py $(DENSE:%=$(dense_data)/%)
MOE = glm4_moe glm4_moe-fused glm4_moe-int4 glm4_moe-nvfp4 glm4_moe_lite deepseek_v3 glm_moe_dsa glm_moe_dsa-pattern
EXTRA_DIST += tests/reference/make_moe.py $(MOE:%=tests/data/moe/%)
if HAVE_CHECK
check_PROGRAMS += tests/unit/test_dense tests/unit/test_moe
TESTS += tests/unit/test_dense tests/unit/test_moe
SMALL_MODELS = tests/support/small_models.c tests/support/small_models.h tests/support/model_runner.c tests/support/model_runner.h
tests_unit_test_moe_SOURCES = tests/unit/test_moe.c $(SMALL_MODELS)
tests_unit_test_moe_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_moe_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_moe_LDADD = libmodel.a $(CPU_ALL) libcpu.a libmodel.a $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_dense_SOURCES = tests/unit/test_dense.c $(SMALL_MODELS)
tests_unit_test_dense_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_dense_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_dense_LDADD = libmodel.a $(CPU_ALL) libcpu.a libmodel.a $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
endif
