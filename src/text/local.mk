noinst_LIBRARIES += libtext.a
libtext_a_SOURCES = src/text/tokenizer.c src/text/tokenizer_load.c src/text/tokenizer_parts.h src/text/tokenizer.h \
	src/text/token_list.c src/text/token_list.h src/text/added.c src/text/added.h \
	src/text/normalizer.c src/text/normalizer.h src/text/normalizer_spm.c src/text/normalizer_spm.h src/text/charsmap.c \
	src/text/charsmap.h src/text/pretokenizer.c src/text/pretokenizer.h src/text/scanner.c src/text/scanner.h \
	src/text/regex.c src/text/regex.h src/text/regex_newer.def src/text/bpe.c src/text/bpe.h \
	src/text/bpe_whole.c src/text/bpe_whole.h src/text/wordpiece.c src/text/wordpiece.h \
	src/text/unigram.c src/text/unigram.h src/text/unicode.c src/text/unicode.h src/text/unicode_ranges.def \
	src/text/detokenizer.c src/text/detokenizer.h src/text/chat.c src/text/chat.h src/text/chat_parts.h src/text/chat_probe.c \
	src/text/chat_source.c src/text/chat_source.h src/text/jinja.h src/text/jinja_parts.h src/text/jinja_call.c \
	src/text/jinja_eval.c src/text/jinja_filter.c src/text/jinja_lexer.c src/text/jinja_parser.c src/text/jinja_string.c \
	src/text/jinja_value.c
libtext_a_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS) $(PCRE2_CFLAGS) $(UTF8PROC_CFLAGS) $(ICU_CFLAGS)
# Chat templates for models that ship none, as C strings.
chat_templates = src/text/templates/chatglm2.jinja src/text/templates/chatglm3.jinja src/text/templates/glm-4-9b-chat.jinja \
	src/text/templates/glm-4-0414.jinja src/text/templates/glm-z1.jinja src/text/templates/glm-4.5.jinja \
	src/text/templates/glm-4.7.jinja src/text/templates/glm-5.1.jinja src/text/templates/glm-5.2.jinja
src/text/chat_templates.inc: src/text/make_templates.sh $(chat_templates)
	$(AM_V_GEN)$(MKDIR_P) src/text && (cd $(top_srcdir) && $(SHELL) src/text/make_templates.sh $(chat_templates)) > $@.part && mv $@.part $@
src/text/libtext_a-chat_source.$(OBJEXT): src/text/chat_templates.inc
CLEANFILES += src/text/chat_templates.inc
EXTRA_DIST += src/text/make_templates.sh $(chat_templates)
TEXT_LIBS = libtext.a $(PCRE2_LIBS) $(UTF8PROC_LIBS) $(ICU_LIBS) $(JANSSON_LIBS) -lm
EXTRA_DIST += src/text/make_unicode_ranges.py

# Small tokenizers of every kind with what the reference makes of some texts.
EXTRA_DIST += tests/data/make_tokenizers.py tests/data/tokenizers tests/data/make_directories.py tests/data/directories.json
dist_check_SCRIPTS += tests/behaviour/test_tokenizers.py tests/behaviour/test_tokenizer_parts.py tests/reference/test_packages.py \
	tests/behaviour/test_model_directory.py
EXTRA_DIST += tests/support/multilingual.py

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
tests_unit_test_tokenizer_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_tokenizer_LDADD = $(text_test_libs)
tests_unit_test_detokenizer_SOURCES = tests/unit/test_detokenizer.c tests/unit/text_cases.h tests/unit/gguf_builder.h
tests_unit_test_detokenizer_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_detokenizer_LDADD = $(text_test_libs)
tests_unit_test_chat_SOURCES = tests/unit/test_chat.c tests/unit/text_cases.h tests/unit/gguf_builder.h
tests_unit_test_chat_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_chat_LDADD = $(text_test_libs)
endif
