# engine: kv and sched are pure; engine runs a model on a backend; script is a backend for tests.
noinst_LIBRARIES += libengine.a
libengine_a_SOURCES = src/engine/estimate.c src/engine/estimate.h src/engine/kv.c src/engine/kv.h \
	src/engine/sched.c src/engine/sched.h \
	src/engine/sched_internal.h src/engine/sched_queue.c src/engine/sched_plan.c src/engine/sched_cost.c \
	src/engine/sched_heap.c src/engine/sched_heap.h src/engine/sched_trace.c src/engine/sched_trace.h \
	src/engine/engine.c src/engine/engine.h src/engine/engine_internal.h src/engine/engine_step.c \
	src/engine/engine_slots.c src/engine/engine_draft.c src/engine/engine_think.c src/engine/speculate.c \
	src/engine/speculate.h \
	src/engine/script_backend.c src/engine/script_backend.h
ENGINE_LIBS = libengine.a

check_PROGRAMS += tests/unit/test_engine_model
TESTS += tests/unit/test_engine_model
tests_unit_test_engine_model_SOURCES = tests/unit/test_engine_model.c
tests_unit_test_engine_model_LDADD = $(ENGINE_LIBS) $(RUNNER_LIBS)

check_PROGRAMS += tests/unit/test_speculation_model
TESTS += tests/unit/test_speculation_model
tests_unit_test_speculation_model_SOURCES = tests/unit/test_speculation_model.c tests/support/model_runner.c tests/support/model_runner.h
tests_unit_test_speculation_model_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_speculation_model_LDADD = $(ENGINE_LIBS) $(RUNNER_LIBS)

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_estimate
TESTS += tests/unit/test_estimate
tests_unit_test_estimate_SOURCES = tests/unit/test_estimate.c
tests_unit_test_estimate_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_estimate_LDADD = $(ENGINE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
check_PROGRAMS += tests/unit/test_engine_overlap
TESTS += tests/unit/test_engine_overlap
tests_unit_test_engine_overlap_SOURCES = tests/unit/test_engine_overlap.c tests/unit/test_engine_fake.c tests/unit/test_engine_fake.h
tests_unit_test_engine_overlap_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_engine_overlap_LDADD = libsim.a $(ENGINE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
check_PROGRAMS += tests/unit/test_speculate tests/unit/test_engine_draft
TESTS += tests/unit/test_speculate tests/unit/test_engine_draft
tests_unit_test_speculate_SOURCES = tests/unit/test_speculate.c
tests_unit_test_speculate_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_speculate_LDADD = $(ENGINE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_engine_draft_SOURCES = tests/unit/test_engine_draft.c tests/unit/test_engine_fake.c tests/unit/test_engine_fake.h
tests_unit_test_engine_draft_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_engine_draft_LDADD = $(ENGINE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
check_PROGRAMS += tests/unit/test_sched tests/unit/test_engine tests/unit/test_engine_policy tests/unit/test_engine_script
TESTS += tests/unit/test_sched tests/unit/test_engine tests/unit/test_engine_policy tests/unit/test_engine_script
tests_unit_test_sched_SOURCES = tests/unit/test_sched.c
tests_unit_test_sched_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_sched_LDADD = $(ENGINE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_engine_SOURCES = tests/unit/test_engine.c tests/unit/test_engine_fake.c tests/unit/test_engine_fake.h
tests_unit_test_engine_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_engine_LDADD = $(ENGINE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_engine_policy_SOURCES = tests/unit/test_engine_policy.c tests/unit/test_engine_fake.c tests/unit/test_engine_fake.h
tests_unit_test_engine_policy_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_engine_policy_LDADD = $(ENGINE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_engine_script_SOURCES = tests/unit/test_engine_script.c
tests_unit_test_engine_script_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_engine_script_LDADD = $(ENGINE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
endif
