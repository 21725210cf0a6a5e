# fuzz

# Chat requests: a libFuzzer harness, and its corpus replayed by make check in every build.
FUZZ_CHAT_SOURCES = fuzz/fuzz_chat.c tests/support/api_fixture.c tests/support/api_fixture.h
FUZZ_CHAT_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests $(JANSSON_CFLAGS)
FUZZ_CHAT_LIBS = $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS) -lm
check_PROGRAMS += tests/unit/replay_chat
TESTS += tests/unit/replay_chat
tests_unit_replay_chat_SOURCES = fuzz/replay.c $(FUZZ_CHAT_SOURCES)
tests_unit_replay_chat_CPPFLAGS = $(FUZZ_CHAT_CPPFLAGS) -DREPLAY_CORPUS='"tests/corpus/chat"'
tests_unit_replay_chat_LDADD = $(FUZZ_CHAT_LIBS)
if FUZZ
noinst_PROGRAMS += fuzz/fuzz_chat
fuzz_fuzz_chat_SOURCES = $(FUZZ_CHAT_SOURCES)
fuzz_fuzz_chat_CPPFLAGS = $(FUZZ_CHAT_CPPFLAGS)
fuzz_fuzz_chat_LDADD = $(FUZZ_CHAT_LIBS)
fuzz_fuzz_chat_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
endif
EXTRA_DIST += tests/corpus/chat.dict tests/corpus/chat
