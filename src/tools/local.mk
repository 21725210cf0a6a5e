# The load tool, apart from its command a library of small parts, so that each can be tested.
noinst_LIBRARIES += libbench.a
libbench_a_SOURCES = src/tools/bench_serve.c src/tools/bench_serve.h src/tools/bench_options.c src/tools/bench_options.h \
	src/tools/bench_dataset.c src/tools/bench_dataset.h src/tools/bench_dataset_file.c src/tools/bench_dataset_file.h \
	src/tools/bench_body.c src/tools/bench_body.h src/tools/bench_client.c src/tools/bench_client.h \
	src/tools/bench_sse.c src/tools/bench_sse.h src/tools/bench_stream.c src/tools/bench_stream.h \
	src/tools/bench_stats.c src/tools/bench_stats.h src/tools/bench_report.c src/tools/bench_report.h \
	src/tools/bench_html.c src/tools/bench_chart.c src/tools/bench_chart.h
libbench_a_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS) $(CURL_CFLAGS)
BENCH_LIBS = libbench.a $(CURL_LIBS)
EXTRA_DIST += tests/data/make_bench_stats.py tests/data/alice.txt tests/reference/perplexity.py docs/accuracy.md

# penstock: the command-line tool.
bin_PROGRAMS += penstock
penstock_SOURCES = src/tools/penstock.c src/tools/tool.h src/tools/bench.c src/tools/bench_engine.c src/tools/bench_engine.h src/tools/bench_kernels.c src/tools/bench_products.c src/tools/bench_products.h src/tools/bench_sample.c src/tools/bench_sample.h src/tools/backend.c src/tools/backend.h src/tools/blackbox.c \
	src/tools/config.c src/tools/dry.c \
	src/tools/dry.h src/tools/eval.c src/tools/eval_stats.c src/tools/eval_stats.h src/tools/eval_text.c src/tools/eval_text.h src/tools/generate.c src/tools/inspect.c src/tools/key.c src/tools/lines.c src/tools/lines.h src/tools/nvml.c src/tools/nvml.h src/tools/plan.c src/tools/quantise.c src/tools/quantise_gguf.c src/tools/quantise_gguf.h src/tools/quantise_weight.c src/tools/quantise_weight.h src/tools/ranks.c \
	src/tools/ranks.h src/tools/render.c src/tools/run.c src/tools/run.h src/tools/status.c src/tools/text.c src/tools/text.h src/tools/tokenize.c src/tools/top.c
penstock_CPPFLAGS = $(AM_CPPFLAGS) -DPENSTOCK_CONF='"$(sysconfdir)/penstock/penstock.conf"' -DBACKEND_OBJECTS='"$(pkglibdir)"'
penstock_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
penstock_LDADD = $(BENCH_LIBS) $(SIM_LIBS) $(ENGINE_LIBS) $(CPU_LIBS) $(MODEL_LIBS) $(PLUGIN_LIBS) $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(IPC_LIBS) $(BASE_LIBS) \
	$(JANSSON_LIBS) -lm

# The simulator as a library, for its tests.
noinst_LIBRARIES += libsim.a
libsim_a_SOURCES = src/tools/sim_cost.c src/tools/sim_cost.h src/tools/sim_generate.c src/tools/sim_generate.h \
	src/tools/sim_histogram.c src/tools/sim_histogram.h src/tools/sim_replay.c src/tools/sim_replay.h src/tools/sim_report.c \
	src/tools/sim_report.h src/tools/sim_run.c src/tools/sim_run.h src/tools/sim_stats.c src/tools/sim_stats.h \
	src/tools/sim_trace.c src/tools/sim_trace.h
libsim_a_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
SIM_LIBS = libsim.a
penstock_SOURCES += src/tools/sim.c

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_ranks
TESTS += tests/unit/test_ranks
tests_unit_test_ranks_SOURCES = tests/unit/test_ranks.c src/tools/ranks.c src/tools/ranks.h src/tools/run.c src/tools/run.h \
	src/tools/backend.c src/tools/backend.h
tests_unit_test_ranks_CPPFLAGS = $(AM_CPPFLAGS) -DBACKEND_OBJECTS='"$(pkglibdir)"'
tests_unit_test_ranks_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_ranks_LDADD = $(CPU_LIBS) $(MODEL_LIBS) $(PLUGIN_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS) -lm
check_PROGRAMS += tests/unit/test_bench_stats tests/unit/test_bench_stream tests/unit/test_bench_dataset
TESTS += tests/unit/test_bench_stats tests/unit/test_bench_stream tests/unit/test_bench_dataset
tests_unit_test_bench_stats_SOURCES = tests/unit/test_bench_stats.c tests/unit/bench_stats_numpy.h
tests_unit_test_bench_stats_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS)
tests_unit_test_bench_stats_LDADD = libbench.a $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_bench_stream_SOURCES = tests/unit/test_bench_stream.c
tests_unit_test_bench_stream_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS)
tests_unit_test_bench_stream_LDADD = $(BENCH_LIBS) $(API_LIBS) $(BASE_LIBS) $(JANSSON_LIBS) $(UNIT_LIBS)
tests_unit_test_bench_dataset_SOURCES = tests/unit/test_bench_dataset.c
tests_unit_test_bench_dataset_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS)
tests_unit_test_bench_dataset_LDADD = libbench.a $(SIM_LIBS) $(API_LIBS) $(BASE_LIBS) $(JANSSON_LIBS) $(UNIT_LIBS)
check_PROGRAMS += tests/unit/test_sim tests/unit/test_sim_run
TESTS += tests/unit/test_sim tests/unit/test_sim_run
tests_unit_test_sim_SOURCES = tests/unit/test_sim.c
tests_unit_test_sim_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS)
tests_unit_test_sim_LDADD = $(SIM_LIBS) $(ENGINE_LIBS) $(API_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_sim_run_SOURCES = tests/unit/test_sim_run.c
tests_unit_test_sim_run_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS)
tests_unit_test_sim_run_LDADD = $(SIM_LIBS) $(ENGINE_LIBS) $(API_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
endif
