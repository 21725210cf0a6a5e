# penstock-cuda.so: loaded by penstockd when batcher.backend = cuda.  To add a file: one line in gpu_sources.
# Objects are named NAME_cu.o: make's built-in link rule would take NAME.cu.o for a program built from NAME.cu.
gpu_sources = entry backend driver tensor step weight load load_host linear linear_own linear_wide fmt_int4 fmt_byte fmt_byte_large rows kv attention attention_byte sampler
# Own kernels: the build fails where one of theirs spills registers or has its wgmma serialised.
gpu_strict = linear_own linear_wide fmt_byte fmt_byte_large fmt_int4 attention attention_byte
gpu_shapes = glm4-9b glm4-32b glm4-9b-fp8 glm4-32b-fp8 glm4-9b-int4 glm4-32b-int4 glm4-9b-2-layers glm4-32b-2-layers \
	glm4-9b-2-layers-fp8 glm4-9b-2-layers-int8
# Each header in the line of its family.
EXTRA_DIST += $(gpu_sources:%=gpu/%.cu)
EXTRA_DIST += gpu/cuda.h gpu/device.cuh gpu/metadata.h gpu/block.cuh gpu/types.cuh gpu/convert.cuh gpu/choose.c gpu/choose.h \
	gpu/fault.c gpu/fault.h gpu/postponed.h gpu/launch.cuh
EXTRA_DIST += gpu/decode.cuh gpu/stored.c gpu/stored.h gpu/upload.c gpu/upload.h
EXTRA_DIST += gpu/linear_skinny.cuh gpu/linear_wide.cuh gpu/linear_portable.cuh gpu/linear_own.h
EXTRA_DIST += gpu/fmt_int4.cuh gpu/fmt_int4_folded.cuh gpu/fmt_int4_wide.cuh gpu/fmt_octet.cuh gpu/int4_choose.h
EXTRA_DIST += gpu/byte_round.cuh gpu/fmt_byte.cuh gpu/fmt_byte_large.cuh gpu/fmt_byte_load.cuh gpu/pace.cuh gpu/ring.cuh
EXTRA_DIST += gpu/attention.cuh gpu/attention_byte.cuh gpu/attention_decode.cuh gpu/attention_plain.cuh gpu/attention_prefill.cuh \
	gpu/attention_tile.cuh gpu/attention_plan.c gpu/attention_plan.h
EXTRA_DIST += gpu/attention_hopper.cuh gpu/attention_hopper_byte.cuh gpu/attention_hopper_pass.cuh gpu/attention_hopper_unit.cuh
EXTRA_DIST += gpu/rows.cuh gpu/kv.cuh gpu/heads.cuh gpu/norm.cuh
EXTRA_DIST += gpu/sampler.cuh gpu/sampler_row.cuh gpu/sampler_propose.cuh gpu/sampler_select.cuh
EXTRA_DIST += gpu/check_ptxas.sh tests/gpu/run tests/gpu/tokens tests/gpu/serve.py tests/gpu/make_real.py \
	$(gpu_shapes:%=tests/gpu/shapes/%/config.json)
if CUDA
# What is C in the object is compiled once more, position-independent: a plugin does not depend on symbols of the program
# that loads it.
gpu_c_sources = gpu/choose gpu/fault gpu/attention_plan gpu/stored gpu/upload src/base/status src/model/weight src/model/blocks src/model/batch
gpu_objects = $(gpu_sources:%=gpu/%_cu.o) $(gpu_c_sources:%=gpu/c/%.o)

plugindir = $(pkglibdir)
plugin_DATA = penstock-cuda.so
CLEANFILES += penstock-cuda.so $(gpu_objects) $(gpu_objects:.o=.d) trap/step_cu.d
GPU_FLAGS = -std=c++20 -O3 -lineinfo -Xcompiler -fPIC,-Wall,-Wextra,-Wno-missing-field-initializers -I$(top_srcdir)/src -I$(top_srcdir) \
	-DPENSTOCK_CUDART_VERSION='"$(NVCC_VERSION)"' -DPENSTOCK_CUDA_ARCHS='"$(CUDA_ARCHS)"'
NVCC_BUILD = $(NVCC) $(NVCC_GENCODE) $(GPU_FLAGS) -MD -MP

gpu/%_cu.o: $(top_srcdir)/gpu/%.cu
	@$(MKDIR_P) gpu
	$(AM_V_GEN)$(NVCC_BUILD) -MF gpu/$*_cu.d -c -o $@ $< $(gpu_checked)
gpu_checked = $(if $(filter $*,$(gpu_strict)),-Xptxas -v 2> $@.log || { cat $@.log >&2; exit 1; }; \
	$(SHELL) $(top_srcdir)/gpu/check_ptxas.sh $@.log || { rm -f $@; exit 1; })
CLEANFILES += $(gpu_strict:%=gpu/%_cu.o.log)

gpu/c/%.o: $(top_srcdir)/%.c
	@$(MKDIR_P) $(@D)
	$(AM_V_CC)$(CC) $(DEFS) $(AM_CPPFLAGS) -I$(top_srcdir) $(CPPFLAGS) $(PENSTOCK_CFLAGS) -O2 -fPIC -MD -MP -MF $(@:.o=.d) -c -o $@ $<

penstock-cuda.so: $(gpu_objects)
	$(AM_V_GEN)$(NVCC) -shared -cudart static -o $@ $(gpu_objects) -lcublasLt

# The same with a kernel that traps in a step: tests/gpu/run sees what becomes of a device error.
check_DATA = trap/penstock-cuda.so
CLEANFILES += trap/step_cu.o trap/penstock-cuda.so
trap/step_cu.o: $(top_srcdir)/gpu/step.cu gpu/step_cu.o
	@$(MKDIR_P) trap
	$(AM_V_GEN)$(NVCC_BUILD) -DSTEP_TRAP=20 -MF trap/step_cu.d -c -o $@ $<

trap/penstock-cuda.so: $(gpu_objects) trap/step_cu.o
	$(AM_V_GEN)$(NVCC) -shared -cudart static -o $@ $(filter-out gpu/step_cu.o,$(gpu_objects)) trap/step_cu.o -lcublasLt

# The same with warps that come late to their rings at random: tests/gpu/run compares operations with it too.  Not built by
# make check.
stall_objects = $(gpu_strict:%=stall/%_cu.o)
CLEANFILES += stall/penstock-cuda.so $(stall_objects) $(stall_objects:.o=.d)
stall/%_cu.o: $(top_srcdir)/gpu/%.cu gpu/%_cu.o
	@$(MKDIR_P) stall
	$(AM_V_GEN)$(NVCC_BUILD) -DRING_STALL -MF stall/$*_cu.d -c -o $@ $<

stall/penstock-cuda.so: $(gpu_objects) $(stall_objects)
	$(AM_V_GEN)$(NVCC) -shared -cudart static -o $@ $(filter-out $(gpu_strict:%=gpu/%_cu.o),$(gpu_objects)) $(stall_objects) -lcublasLt

-include $(gpu_objects:.o=.d)

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_plugin
TESTS += tests/unit/test_plugin
tests_unit_test_plugin_SOURCES = tests/unit/test_plugin.c
tests_unit_test_plugin_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_plugin_CPPFLAGS = $(AM_CPPFLAGS) -DPLUGIN_PATH='"$(abs_top_builddir)/penstock-cuda.so"'
tests_unit_test_plugin_LDADD = libplugin.a $(BASE_LIBS) $(UNIT_LIBS) -ldl
endif
# Tests of the CUDA backend; they skip where there is no device.  tests/gpu/run runs all of them on a machine that has one.
check_PROGRAMS += tests/gpu/parity
TESTS += tests/gpu/parity
tests_gpu_parity_SOURCES = tests/gpu/parity.c
tests_gpu_parity_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_gpu_parity_LDADD = $(CPU_LIBS) $(PLUGIN_LIBS) $(BASE_LIBS) -lm
# What takes the memory and time of a large device is run by hand.
check_PROGRAMS += tests/gpu/invariance
tests_gpu_invariance_SOURCES = tests/gpu/invariance.c
tests_gpu_invariance_LDADD = $(CPU_LIBS) $(MODEL_LIBS) $(PLUGIN_LIBS) $(FILE_LIBS) $(BASE_LIBS) -lm
endif

# The choice of a device and the words about faults are plain C.
if HAVE_CHECK
check_PROGRAMS += tests/unit/test_gpu_choose
TESTS += tests/unit/test_gpu_choose
tests_unit_test_gpu_choose_SOURCES = tests/unit/test_gpu_choose.c gpu/choose.c gpu/choose.h
tests_unit_test_gpu_choose_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
tests_unit_test_gpu_choose_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_gpu_choose_LDADD = $(BASE_LIBS) $(UNIT_LIBS)
check_PROGRAMS += tests/unit/test_gpu_upload
TESTS += tests/unit/test_gpu_upload
tests_unit_test_gpu_upload_SOURCES = tests/unit/test_gpu_upload.c tests/support/stored.h tests/support/random.h gpu/upload.c gpu/upload.h gpu/stored.c gpu/stored.h
tests_unit_test_gpu_upload_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/tests
tests_unit_test_gpu_upload_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_gpu_upload_LDADD = libmodel.a $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
check_PROGRAMS += tests/unit/test_gpu_attention_plan
TESTS += tests/unit/test_gpu_attention_plan
tests_unit_test_gpu_attention_plan_SOURCES = tests/unit/test_gpu_attention_plan.c gpu/attention_plan.c gpu/attention_plan.h
tests_unit_test_gpu_attention_plan_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
tests_unit_test_gpu_attention_plan_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_gpu_attention_plan_LDADD = $(BASE_LIBS) $(UNIT_LIBS)
check_PROGRAMS += tests/unit/test_gpu_fault
TESTS += tests/unit/test_gpu_fault
tests_unit_test_gpu_fault_SOURCES = tests/unit/test_gpu_fault.c gpu/fault.c gpu/fault.h
tests_unit_test_gpu_fault_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
tests_unit_test_gpu_fault_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_gpu_fault_LDADD = $(BASE_LIBS) $(UNIT_LIBS)
endif

# Kernels on the host's processor.  To add a test: three lines like those of test_emulate; it includes expect.h and the
# kernel's .cuh.
if EMULATE
AM_CXXFLAGS = $(EMULATE_CXXFLAGS) -I$(top_srcdir) -I$(top_srcdir)/tests/gpu/emulate
check_LIBRARIES = libemulate.a
libemulate_a_SOURCES = tests/gpu/emulate/emulate.cc tests/gpu/emulate/emulate_copy.cc tests/gpu/emulate/emulate_matrix.cc \
	tests/gpu/emulate/emulate.h tests/gpu/emulate/machine.h tests/gpu/emulate/expect.h tests/gpu/emulate/heads.h
emulated_tests = tests/gpu/emulate/test_emulate
tests_gpu_emulate_test_emulate_SOURCES = tests/gpu/emulate/test_emulate.cc
tests_gpu_emulate_test_emulate_LDADD = libemulate.a
emulated_tests += tests/gpu/emulate/test_linear
tests_gpu_emulate_test_linear_SOURCES = tests/gpu/emulate/test_linear.cc
tests_gpu_emulate_test_linear_LDADD = libemulate.a
emulated_tests += tests/gpu/emulate/test_sampler tests/gpu/emulate/test_rows
tests_gpu_emulate_test_sampler_SOURCES = tests/gpu/emulate/test_sampler.cc
tests_gpu_emulate_test_sampler_LDADD = libemulate.a
tests_gpu_emulate_test_rows_SOURCES = tests/gpu/emulate/test_rows.cc
tests_gpu_emulate_test_rows_LDADD = libemulate.a
emulated_tests += tests/gpu/emulate/test_kv
tests_gpu_emulate_test_kv_SOURCES = tests/gpu/emulate/test_kv.cc
tests_gpu_emulate_test_kv_LDADD = libemulate.a
emulated_tests += tests/gpu/emulate/test_attention_pages
tests_gpu_emulate_test_attention_pages_SOURCES = tests/gpu/emulate/test_attention_pages.cc
tests_gpu_emulate_test_attention_pages_LDADD = libemulate.a
emulated_tests += tests/gpu/emulate/test_decode
tests_gpu_emulate_test_decode_SOURCES = tests/gpu/emulate/test_decode.cc tests/support/stored.h gpu/stored.c
tests_gpu_emulate_test_decode_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/tests
tests_gpu_emulate_test_decode_LDADD = libemulate.a libmodel.a $(FILE_LIBS) $(BASE_LIBS)
emulated_tests += tests/gpu/emulate/test_load
tests_gpu_emulate_test_load_SOURCES = tests/gpu/emulate/test_load.cc tests/gpu/runtime/runtime.cc tests/gpu/runtime/cuda_runtime.h \
	tests/gpu/runtime/cublasLt.h tests/support/stored.h gpu/upload.c gpu/stored.c
tests_gpu_emulate_test_load_CPPFLAGS = -I$(top_srcdir)/tests/gpu/runtime $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/tests
tests_gpu_emulate_test_load_LDADD = libemulate.a libmodel.a $(FILE_LIBS) $(BASE_LIBS) -lpthread
emulated_tests += tests/gpu/emulate/test_load_host
tests_gpu_emulate_test_load_host_SOURCES = tests/gpu/emulate/test_load_host.cc tests/gpu/runtime/runtime.cc tests/support/stored.h
tests_gpu_emulate_test_load_host_CPPFLAGS = -I$(top_srcdir)/tests/gpu/runtime $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/tests
tests_gpu_emulate_test_load_host_LDADD = libemulate.a libmodel.a $(FILE_LIBS) $(BASE_LIBS) -lpthread
emulated_tests += tests/gpu/emulate/test_fmt_byte
tests_gpu_emulate_test_fmt_byte_SOURCES = tests/gpu/emulate/test_fmt_byte.cc gpu/stored.c
tests_gpu_emulate_test_fmt_byte_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/tests
tests_gpu_emulate_test_fmt_byte_LDADD = libemulate.a libmodel.a $(FILE_LIBS) $(BASE_LIBS)
emulated_tests += tests/gpu/emulate/test_int4
tests_gpu_emulate_test_int4_SOURCES = tests/gpu/emulate/test_int4.cc gpu/stored.c
tests_gpu_emulate_test_int4_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
tests_gpu_emulate_test_int4_LDADD = libemulate.a libmodel.a $(FILE_LIBS) $(BASE_LIBS)
emulated_tests += tests/gpu/emulate/test_attention
tests_gpu_emulate_test_attention_SOURCES = tests/gpu/emulate/test_attention.cc gpu/attention_plan.c
tests_gpu_emulate_test_attention_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
tests_gpu_emulate_test_attention_LDADD = libemulate.a
# What a header of the made-up runtime lacks shows here: gpu/cuda.h is compiled without a toolkit.
check_PROGRAMS += $(emulated_tests)
TESTS += $(emulated_tests)
endif
