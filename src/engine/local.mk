# engine: kv and sched are pure; engine runs a model on a backend; script is a backend for tests.
noinst_LIBRARIES += libengine.a
libengine_a_SOURCES = src/engine/kv.c src/engine/kv.h src/engine/sched.c src/engine/sched.h \
	src/engine/engine.c src/engine/engine.h src/engine/script_backend.c src/engine/script_backend.h
ENGINE_LIBS = libengine.a

if HAVE_CHECK
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
