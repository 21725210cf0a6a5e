noinst_LIBRARIES += libtext.a
libtext_a_SOURCES = src/text/tokenizer.c src/text/tokenizer.h src/text/bpe.c src/text/bpe.h \
	src/text/pretokenizer.c src/text/pretokenizer.h src/text/unicode.c src/text/unicode.h src/text/unicode_ranges.def \
	src/text/detokenizer.c src/text/detokenizer.h src/text/chat.c src/text/chat.h
TEXT_LIBS = libtext.a
EXTRA_DIST += src/text/make_unicode_ranges.py

# The tiny model of the tests.
EXTRA_DIST += tests/data/make_tiny.py tests/data/tiny.gguf
dist_check_SCRIPTS += tests/unit/test_tiny.sh
