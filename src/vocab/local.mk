noinst_LIBRARIES += libvocab.a
libvocab_a_SOURCES = src/vocab/vocab.c src/vocab/vocab.h src/vocab/bytelevel.h src/vocab/token_file.c src/vocab/token_file.h \
	src/vocab/token_file_gguf.c src/vocab/token_file_json.c src/vocab/token_file_spm.c src/vocab/token_file_tiktoken.c src/vocab/token_file_open.c src/vocab/token_file_special.c \
	src/vocab/token_index.c src/vocab/token_index.h src/vocab/decoder.c src/vocab/decoder.h src/vocab/component.c \
	src/vocab/component.h
libvocab_a_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
VOCAB_LIBS = libvocab.a


if HAVE_CHECK
check_PROGRAMS += tests/unit/test_vocab
TESTS += tests/unit/test_vocab
tests_unit_test_vocab_SOURCES = tests/unit/test_vocab.c tests/unit/gguf_builder.h
tests_unit_test_vocab_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_vocab_LDADD = $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
endif
