EXTRA_DIST += bench/bench_path.py bench/bench_order.py bench/sim_bars.py bench/make_random_model.py bench/compare_tokenizers.py bench/make_random_tokenizer.py bench/make_texts.py

# Benchmarks: run by hand, never timed tests (BENCHMARKS.md records the figures).
noinst_PROGRAMS += bench/bench_hop
bench_bench_hop_SOURCES = bench/bench_hop.c
bench_bench_hop_LDADD = $(IPC_LIBS) $(BASE_LIBS)

noinst_PROGRAMS += bench/bench_chat
bench_bench_chat_SOURCES = bench/bench_chat.c
bench_bench_chat_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
bench_bench_chat_LDADD = $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS)
EXTRA_DIST += bench/compare_jinja2.py bench/compare_llama_cpp.py

noinst_PROGRAMS += bench/bench_tokenizer
bench_bench_tokenizer_SOURCES = bench/bench_tokenizer.c
bench_bench_tokenizer_LDADD = $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS)

noinst_PROGRAMS += bench/bench_sse
bench_bench_sse_SOURCES = bench/bench_sse.c tests/support/api_fixture.c tests/support/api_fixture.h
bench_bench_sse_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests $(JANSSON_CFLAGS)
bench_bench_sse_LDADD = $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS)

noinst_PROGRAMS += bench/bench_batcher
bench_bench_batcher_SOURCES = bench/bench_batcher.c tests/support/daemon.c tests/support/daemon.h \
	tests/support/lane_client.c tests/support/lane_client.h
bench_bench_batcher_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
bench_bench_batcher_LDADD = $(IPC_LIBS) $(BASE_LIBS)

noinst_PROGRAMS += bench/bench_read
bench_bench_read_SOURCES = bench/bench_read.c
bench_bench_read_LDADD = $(FILE_LIBS) $(BASE_LIBS)
noinst_PROGRAMS += bench/bench_lanes
bench_bench_lanes_SOURCES = bench/bench_lanes.c tests/support/daemon.c tests/support/daemon.h \
	tests/support/lane_client.c tests/support/lane_client.h
bench_bench_lanes_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
bench_bench_lanes_LDADD = $(IPC_LIBS) $(BASE_LIBS)

noinst_PROGRAMS += bench/bench_decode
bench_bench_decode_SOURCES = bench/bench_decode.c bench/read_memory.h $(RUNNER)
bench_bench_decode_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests -I$(top_srcdir)/bench
bench_bench_decode_LDADD = $(RUNNER_LIBS)

noinst_PROGRAMS += bench/bench_front
bench_bench_front_SOURCES = bench/bench_front.c tests/support/front_world.c tests/support/front_world.h
bench_bench_front_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
bench_bench_front_LDADD = $(FRONT_ALL_LIBS) -lm

noinst_PROGRAMS += bench/bench_linear
bench_bench_linear_SOURCES = bench/bench_linear.c bench/read_memory.h tests/support/random.h
bench_bench_linear_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests -I$(top_srcdir)/bench
bench_bench_linear_LDADD = $(CPU_LIBS) $(MODEL_LIBS) $(FILE_LIBS) $(BASE_LIBS) -lm

noinst_PROGRAMS += bench/bench_sched
bench_bench_sched_SOURCES = bench/bench_sched.c
bench_bench_sched_LDADD = $(ENGINE_LIBS) $(BASE_LIBS)

noinst_PROGRAMS += bench/bench_output
bench_bench_output_SOURCES = bench/bench_output.c tests/support/output_cases.h
bench_bench_output_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests $(JANSSON_CFLAGS)
bench_bench_output_LDADD = $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS)
bench_bench_output_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
