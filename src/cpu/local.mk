# cpu: the vector kernels are compiled once per instruction set, with its flags, and chosen at run time.
noinst_LIBRARIES += libcpu.a libcpu_avx2.a libcpu_avx512.a libcpu_vnni.a
libcpu_a_SOURCES = src/cpu/cpu_backend.c src/cpu/cpu_backend.h src/cpu/cpu.h src/cpu/team.c src/cpu/team.h \
	src/cpu/pages.c src/cpu/weight.c src/cpu/linear.c src/cpu/attention.c src/cpu/sampler.c src/cpu/sample_slots.c \
	src/cpu/kernels_generic.c src/cpu/format.c src/cpu/format.h src/cpu/fmt_float.c src/cpu/fmt_q8_0.c src/cpu/fmt_q4.c src/cpu/fmt_q6_k.c \
	src/cpu/fmt_byte.c src/cpu/fmt_dot.c src/cpu/fmt_i4.c src/cpu/fmt_q4_k.c src/cpu/fmt_q5.c src/cpu/fmt_q2_k.c src/cpu/fmt_q3_k.c \
	src/cpu/fmt_iq4.c src/cpu/layout.c src/cpu/input.c src/cpu/encoder.c src/cpu/experts.c \
	src/cpu/latent.c src/cpu/indexer.c src/cpu/group.c src/cpu/group.h
SIMD_SOURCES = src/cpu/simd.h src/cpu/linear_simd.h src/cpu/limbs_simd.h src/cpu/kernels_simd.c src/cpu/fmt_float_simd.c \
	src/cpu/fmt_q8_0_simd.c src/cpu/fmt_q4_simd.c src/cpu/fmt_q6_k_simd.c src/cpu/fmt_byte_simd.c src/cpu/fmt_i4_simd.c \
	src/cpu/fmt_q4_k_simd.c src/cpu/fmt_q5_simd.c src/cpu/fmt_q2_k_simd.c src/cpu/fmt_q3_k_simd.c src/cpu/fmt_iq4_simd.c
libcpu_avx2_a_SOURCES = $(SIMD_SOURCES)
libcpu_avx2_a_CFLAGS = $(AM_CFLAGS) $(AVX2_CFLAGS)
libcpu_avx512_a_SOURCES = $(SIMD_SOURCES)
libcpu_avx512_a_CFLAGS = $(AM_CFLAGS) $(AVX512_CFLAGS)
libcpu_vnni_a_SOURCES = src/cpu/fmt_dot_simd.c
libcpu_vnni_a_CFLAGS = $(AM_CFLAGS) $(VNNI_CFLAGS)
CPU_ALL = libcpu.a libcpu_avx2.a libcpu_avx512.a libcpu_vnni.a
CPU_LIBS = $(CPU_ALL) libcpu.a $(MODEL_LIBS) -lm

# The default model against transformers and llama.cpp; skipped unless PENSTOCK_TEST_MODEL names it.
RUNNER = tests/support/model_runner.c tests/support/model_runner.h
RUNNER_LIBS = $(MODEL_LIBS) $(CPU_LIBS) $(FILE_LIBS) $(BASE_LIBS) -lm
check_PROGRAMS += tests/reference/test_smollm2
TESTS += tests/reference/test_smollm2
tests_reference_test_smollm2_SOURCES = tests/reference/test_smollm2.c $(RUNNER)
tests_reference_test_smollm2_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_reference_test_smollm2_LDADD = $(RUNNER_LIBS)
EXTRA_DIST += tests/reference/make_smollm2.py tests/reference/smollm2.ref \
	tests/reference/make_tiny.py tests/reference/tiny.ref

# Weights of quantised checkpoints, from the file to the product.
check_PROGRAMS += tests/unit/test_fmt_linear
TESTS += tests/unit/test_fmt_linear
tests_unit_test_fmt_linear_SOURCES = tests/unit/test_fmt_linear.c
tests_unit_test_fmt_linear_LDADD = $(CPU_LIBS) $(MODEL_LIBS) $(FILE_LIBS) $(BASE_LIBS) -lm
EXTRA_DIST += tests/data/make_linear.py tests/data/linear.safetensors tests/data/make_blocks.py tests/data/blocks.safetensors

if HAVE_CHECK
cpu_tests = tests/unit/test_fmt_quant tests/unit/test_fmt_blocks tests/unit/test_cpu_team tests/unit/test_cpu_formats \
	tests/unit/test_cpu_limbs tests/unit/test_cpu tests/unit/test_cpu_sampler tests/unit/test_cpu_sample_slots tests/unit/test_model
check_PROGRAMS += $(cpu_tests)
TESTS += $(cpu_tests)
tests_unit_test_fmt_quant_SOURCES = tests/unit/test_fmt_quant.c
tests_unit_test_fmt_quant_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_fmt_quant_LDADD = $(MODEL_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_fmt_blocks_SOURCES = tests/unit/test_fmt_blocks.c tests/support/random.h
tests_unit_test_fmt_blocks_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_fmt_blocks_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_fmt_blocks_LDADD = $(CPU_LIBS) $(MODEL_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_cpu_team_SOURCES = tests/unit/test_cpu_team.c
tests_unit_test_cpu_team_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_cpu_team_LDADD = $(CPU_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_cpu_formats_SOURCES = tests/unit/test_cpu_formats.c tests/support/weights.h tests/support/random.h
tests_unit_test_cpu_formats_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_cpu_formats_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_cpu_formats_LDADD = $(CPU_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_cpu_limbs_SOURCES = tests/unit/test_cpu_limbs.c tests/support/random.h
tests_unit_test_cpu_limbs_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_cpu_limbs_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_cpu_limbs_LDADD = $(CPU_LIBS) $(MODEL_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_cpu_SOURCES = tests/unit/test_cpu.c tests/support/weights.h tests/support/random.h
tests_unit_test_cpu_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_cpu_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_cpu_LDADD = $(CPU_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_cpu_sampler_SOURCES = tests/unit/test_cpu_sampler.c tests/support/random.h
tests_unit_test_cpu_sampler_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_cpu_sampler_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_cpu_sampler_LDADD = $(CPU_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_cpu_sample_slots_SOURCES = tests/unit/test_cpu_sample_slots.c tests/support/random.h
tests_unit_test_cpu_sample_slots_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_cpu_sample_slots_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_cpu_sample_slots_LDADD = $(CPU_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_model_SOURCES = tests/unit/test_model.c tests/unit/gguf_builder.h $(RUNNER)
tests_unit_test_model_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_model_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_model_LDADD = $(RUNNER_LIBS) $(UNIT_LIBS)
endif
