# Everything but main() is a library, so that unit tests and benchmarks link it.
noinst_LIBRARIES += libfront.a
libfront_a_SOURCES = src/front/records.c src/front/records.h src/front/fcgi.c src/front/fcgi.h \
	src/front/scoreboard.c src/front/scoreboard.h src/front/counters.def src/front/helper.c src/front/helper.h \
	src/front/attach.c src/front/attach.h src/front/child.c src/front/child.h src/front/request.c src/front/generate.c \
	src/front/listen.c src/front/listen.h src/front/load.c src/front/load.h src/front/master.c src/front/master.h
libfront_a_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS) $(SYSTEMD_CFLAGS)
FRONT_LIBS = libfront.a $(FCGI_LIBS) $(SYSTEMD_LIBS)
FRONT_ALL_LIBS = $(FRONT_LIBS) $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(IPC_LIBS) $(BASE_LIBS) $(PCRE2_LIBS)

sbin_PROGRAMS += penstock-front
penstock_front_SOURCES = src/front/main.c
penstock_front_CPPFLAGS = $(AM_CPPFLAGS) -DPENSTOCK_CONF='"$(sysconfdir)/penstock/penstock.conf"'
penstock_front_LDADD = $(FRONT_ALL_LIBS) -lm

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_front_child
TESTS += tests/unit/test_front_child
tests_unit_test_front_child_SOURCES = tests/unit/test_front_child.c tests/support/front_world.c tests/support/front_world.h
tests_unit_test_front_child_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_front_child_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_front_child_LDADD = $(FRONT_ALL_LIBS) $(UNIT_LIBS)

check_PROGRAMS += tests/unit/test_front_parts
TESTS += tests/unit/test_front_parts
tests_unit_test_front_parts_SOURCES = tests/unit/test_front_parts.c
tests_unit_test_front_parts_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_front_parts_LDADD = $(FRONT_ALL_LIBS) $(UNIT_LIBS)

check_PROGRAMS += tests/unit/test_front_records
TESTS += tests/unit/test_front_records
tests_unit_test_front_records_SOURCES = tests/unit/test_front_records.c
tests_unit_test_front_records_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_front_records_LDADD = libfront.a $(BASE_LIBS) $(UNIT_LIBS)
endif
