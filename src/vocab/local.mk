noinst_LIBRARIES += libvocab.a
libvocab_a_SOURCES = src/vocab/vocab.c src/vocab/vocab.h src/vocab/bytelevel.h
VOCAB_LIBS = libvocab.a


if HAVE_CHECK
check_PROGRAMS += tests/unit/test_vocab
TESTS += tests/unit/test_vocab
tests_unit_test_vocab_SOURCES = tests/unit/test_vocab.c tests/unit/gguf_builder.h
tests_unit_test_vocab_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_vocab_LDADD = $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
endif
