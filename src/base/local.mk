noinst_LIBRARIES += libbase.a
libbase_a_SOURCES = src/base/status.c src/base/status.h src/base/status.def src/base/log.c src/base/log.h \
	src/base/buf.c src/base/buf.h src/base/checked.h src/base/floats.h src/base/hash.h src/base/random.c src/base/random.h src/base/clock.h src/base/utf8.c src/base/utf8.h \
	src/base/conf.c src/base/conf.h src/base/options.def src/base/bytes.c src/base/bytes.h \
	src/base/program.c src/base/program.h
libbase_a_CFLAGS = $(AM_CFLAGS) $(INIH_CFLAGS)
BASE_LIBS = libbase.a $(INIH_LIBS)

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_program
TESTS += tests/unit/test_program
tests_unit_test_program_SOURCES = tests/unit/test_program.c
tests_unit_test_program_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_program_LDADD = $(BASE_LIBS) $(UNIT_LIBS)
check_PROGRAMS += tests/unit/test_base
TESTS += tests/unit/test_base
tests_unit_test_base_SOURCES = tests/unit/test_base.c
tests_unit_test_base_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_base_LDADD = $(BASE_LIBS) $(UNIT_LIBS)
endif
