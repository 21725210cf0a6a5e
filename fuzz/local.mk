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

# Model files: safetensors headers, and the JSON configurations beside them.
FUZZ_FILE_LIBS = $(FILE_LIBS) $(BASE_LIBS)
check_PROGRAMS += tests/unit/replay_safetensors tests/unit/replay_hf_config
TESTS += tests/unit/replay_safetensors tests/unit/replay_hf_config
tests_unit_replay_safetensors_SOURCES = fuzz/replay.c fuzz/fuzz_safetensors.c
tests_unit_replay_safetensors_CPPFLAGS = $(AM_CPPFLAGS) -DREPLAY_CORPUS='"tests/corpus/safetensors"'
tests_unit_replay_safetensors_LDADD = $(FUZZ_FILE_LIBS)
tests_unit_replay_hf_config_SOURCES = fuzz/replay.c fuzz/fuzz_hf_config.c
tests_unit_replay_hf_config_CPPFLAGS = $(AM_CPPFLAGS) -DREPLAY_CORPUS='"tests/corpus/hf_config"'
tests_unit_replay_hf_config_LDADD = $(FUZZ_FILE_LIBS)
if FUZZ
noinst_PROGRAMS += fuzz/fuzz_safetensors fuzz/fuzz_hf_config
fuzz_fuzz_safetensors_SOURCES = fuzz/fuzz_safetensors.c
fuzz_fuzz_safetensors_LDADD = $(FUZZ_FILE_LIBS)
fuzz_fuzz_safetensors_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
fuzz_fuzz_hf_config_SOURCES = fuzz/fuzz_hf_config.c
fuzz_fuzz_hf_config_LDADD = $(FUZZ_FILE_LIBS)
fuzz_fuzz_hf_config_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
endif
EXTRA_DIST += tests/corpus/safetensors.dict tests/corpus/safetensors tests/corpus/hf_config.dict tests/corpus/hf_config

# Model files: GGUF, up to token ids.
FUZZ_GGUF_LIBS = $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS)
check_PROGRAMS += tests/unit/replay_gguf
TESTS += tests/unit/replay_gguf
tests_unit_replay_gguf_SOURCES = fuzz/replay.c fuzz/fuzz_gguf.c
tests_unit_replay_gguf_CPPFLAGS = $(AM_CPPFLAGS) -DREPLAY_CORPUS='"tests/corpus/gguf"'
tests_unit_replay_gguf_LDADD = $(FUZZ_GGUF_LIBS)
if FUZZ
noinst_PROGRAMS += fuzz/fuzz_gguf
fuzz_fuzz_gguf_SOURCES = fuzz/fuzz_gguf.c
fuzz_fuzz_gguf_LDADD = $(FUZZ_GGUF_LIBS)
fuzz_fuzz_gguf_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
endif
EXTRA_DIST += tests/corpus/gguf.dict tests/corpus/gguf tests/corpus/make_gguf.py


# Tokenizers: tokenizer.json and SentencePiece models, up to ids and back.
FUZZ_TOKENIZER_LIBS = $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS)
check_PROGRAMS += tests/unit/replay_tokenizer
TESTS += tests/unit/replay_tokenizer
tests_unit_replay_tokenizer_SOURCES = fuzz/replay.c fuzz/fuzz_tokenizer.c
tests_unit_replay_tokenizer_CPPFLAGS = $(AM_CPPFLAGS) -DREPLAY_CORPUS='"tests/corpus/tokenizer"'
tests_unit_replay_tokenizer_LDADD = $(FUZZ_TOKENIZER_LIBS)
if FUZZ
noinst_PROGRAMS += fuzz/fuzz_tokenizer
fuzz_fuzz_tokenizer_SOURCES = fuzz/fuzz_tokenizer.c
fuzz_fuzz_tokenizer_LDADD = $(FUZZ_TOKENIZER_LIBS)
fuzz_fuzz_tokenizer_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
endif
EXTRA_DIST += tests/corpus/tokenizer.dict tests/corpus/tokenizer

# Rings between processes that do not trust each other.
FUZZ_RING_LIBS = $(IPC_LIBS) $(BASE_LIBS)
check_PROGRAMS += tests/unit/replay_ring
TESTS += tests/unit/replay_ring
tests_unit_replay_ring_SOURCES = fuzz/replay.c fuzz/fuzz_ring.c
tests_unit_replay_ring_CPPFLAGS = $(AM_CPPFLAGS) -DREPLAY_CORPUS='"tests/corpus/ring"'
tests_unit_replay_ring_LDADD = $(FUZZ_RING_LIBS)
if FUZZ
noinst_PROGRAMS += fuzz/fuzz_ring
fuzz_fuzz_ring_SOURCES = fuzz/fuzz_ring.c
fuzz_fuzz_ring_LDADD = $(FUZZ_RING_LIBS)
fuzz_fuzz_ring_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
endif
EXTRA_DIST += tests/corpus/ring

# FastCGI records.
check_PROGRAMS += tests/unit/replay_records
TESTS += tests/unit/replay_records
tests_unit_replay_records_SOURCES = fuzz/replay.c fuzz/fuzz_records.c
tests_unit_replay_records_CPPFLAGS = $(AM_CPPFLAGS) -DREPLAY_CORPUS='"tests/corpus/fcgi"'
tests_unit_replay_records_LDADD = libfront.a $(BASE_LIBS)
if FUZZ
noinst_PROGRAMS += fuzz/fuzz_records
fuzz_fuzz_records_SOURCES = fuzz/fuzz_records.c
fuzz_fuzz_records_LDADD = libfront.a $(BASE_LIBS)
fuzz_fuzz_records_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
endif
EXTRA_DIST += tests/corpus/fcgi

# Chat templates.
FUZZ_JINJA_LIBS = $(TEXT_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(JANSSON_LIBS)
check_PROGRAMS += tests/unit/replay_jinja
TESTS += tests/unit/replay_jinja
tests_unit_replay_jinja_SOURCES = fuzz/replay.c fuzz/fuzz_jinja.c
tests_unit_replay_jinja_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS) -DREPLAY_CORPUS='"tests/corpus/jinja"'
tests_unit_replay_jinja_LDADD = $(FUZZ_JINJA_LIBS)
if FUZZ
noinst_PROGRAMS += fuzz/fuzz_jinja
fuzz_fuzz_jinja_SOURCES = fuzz/fuzz_jinja.c
fuzz_fuzz_jinja_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
fuzz_fuzz_jinja_LDADD = $(FUZZ_JINJA_LIBS)
fuzz_fuzz_jinja_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
endif
EXTRA_DIST += tests/corpus/jinja.dict tests/corpus/jinja

# What models write.
FUZZ_OUTPUT_SOURCES = fuzz/fuzz_output.c tests/support/output_cases.h tests/support/output_reader.c tests/support/output_reader.h
FUZZ_OUTPUT_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests $(JANSSON_CFLAGS)
FUZZ_OUTPUT_LIBS = $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS)
check_PROGRAMS += tests/unit/replay_output
TESTS += tests/unit/replay_output
tests_unit_replay_output_SOURCES = fuzz/replay.c $(FUZZ_OUTPUT_SOURCES)
tests_unit_replay_output_CPPFLAGS = $(FUZZ_OUTPUT_CPPFLAGS) -DREPLAY_CORPUS='"tests/corpus/output"'
tests_unit_replay_output_LDADD = $(FUZZ_OUTPUT_LIBS)
if FUZZ
noinst_PROGRAMS += fuzz/fuzz_output
fuzz_fuzz_output_SOURCES = $(FUZZ_OUTPUT_SOURCES)
fuzz_fuzz_output_CPPFLAGS = $(FUZZ_OUTPUT_CPPFLAGS)
fuzz_fuzz_output_LDADD = $(FUZZ_OUTPUT_LIBS)
fuzz_fuzz_output_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
endif
EXTRA_DIST += tests/corpus/output.dict tests/corpus/output
