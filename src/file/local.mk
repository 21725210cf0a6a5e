noinst_LIBRARIES += libfile.a
libfile_a_SOURCES = src/file/gguf.c src/file/gguf.h
FILE_LIBS = libfile.a


if HAVE_CHECK
check_PROGRAMS += tests/unit/test_gguf
TESTS += tests/unit/test_gguf
tests_unit_test_gguf_SOURCES = tests/unit/test_gguf.c tests/unit/gguf_builder.h
tests_unit_test_gguf_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_gguf_LDADD = $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
endif
