noinst_LIBRARIES += libfile.a
libfile_a_SOURCES = src/file/gguf.c src/file/gguf.h src/file/map.c src/file/map.h src/file/jsonfile.c src/file/jsonfile.h \
	src/file/json_pull.c src/file/json_pull.h \
	src/file/safetensors.c src/file/safetensors_write.c src/file/safetensors.h src/file/checkpoint.c src/file/checkpoint.h \
	src/file/hf_config.c src/file/hf_model.c src/file/hf_config.h
libfile_a_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
FILE_LIBS = libfile.a $(JANSSON_LIBS) -lm

if HAVE_CHECK
FILE_TESTS = tests/unit/test_gguf tests/unit/test_safetensors tests/unit/test_checkpoint tests/unit/test_hf_config
check_PROGRAMS += $(FILE_TESTS)
TESTS += $(FILE_TESTS)
tests_unit_test_gguf_SOURCES = tests/unit/test_gguf.c tests/unit/gguf_builder.h
tests_unit_test_gguf_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_gguf_LDADD = $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_safetensors_SOURCES = tests/unit/test_safetensors.c
tests_unit_test_safetensors_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_safetensors_LDADD = $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_checkpoint_SOURCES = tests/unit/test_checkpoint.c
tests_unit_test_checkpoint_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_checkpoint_LDADD = $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_hf_config_SOURCES = tests/unit/test_hf_config.c
tests_unit_test_hf_config_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_hf_config_LDADD = $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
endif
