noinst_LIBRARIES += libtext.a
libtext_a_SOURCES = src/text/tokenizer.c src/text/tokenizer.h src/text/bpe.c src/text/bpe.h \
	src/text/pretokenizer.c src/text/pretokenizer.h src/text/unicode.c src/text/unicode.h src/text/unicode_ranges.def \
	src/text/detokenizer.c src/text/detokenizer.h src/text/chat.c src/text/chat.h
TEXT_LIBS = libtext.a
EXTRA_DIST += src/text/make_unicode_ranges.py

# The tiny model of the tests.
EXTRA_DIST += tests/data/make_tiny.py tests/data/tiny.gguf
dist_check_SCRIPTS += tests/unit/test_tiny.sh
EXTRA_DIST += tests/data/make_cases.py tests/data/tiny_tokens.txt tests/data/smollm2_tokens.txt tests/data/chat_cases.txt

check_PROGRAMS += tests/unit/test_smollm2
TESTS += tests/unit/test_smollm2
tests_unit_test_smollm2_SOURCES = tests/unit/test_smollm2.c tests/unit/text_cases.h
tests_unit_test_smollm2_LDADD = $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS)

if HAVE_CHECK
text_tests = tests/unit/test_tokenizer tests/unit/test_detokenizer tests/unit/test_chat
check_PROGRAMS += $(text_tests)
TESTS += $(text_tests)
text_test_libs = $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_tokenizer_SOURCES = tests/unit/test_tokenizer.c tests/unit/text_cases.h tests/unit/gguf_builder.h
tests_unit_test_tokenizer_CFLAGS = $(UNIT_CFLAGS) $(PCRE2_TEST_CFLAGS)
tests_unit_test_tokenizer_LDADD = $(text_test_libs) $(PCRE2_LIBS)
tests_unit_test_detokenizer_SOURCES = tests/unit/test_detokenizer.c tests/unit/text_cases.h tests/unit/gguf_builder.h
tests_unit_test_detokenizer_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_detokenizer_LDADD = $(text_test_libs)
tests_unit_test_chat_SOURCES = tests/unit/test_chat.c tests/unit/text_cases.h tests/unit/gguf_builder.h
tests_unit_test_chat_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_chat_LDADD = $(text_test_libs)
endif
