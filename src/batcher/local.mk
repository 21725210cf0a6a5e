# penstockd: everything but main is a library, so that tests can reach its parts.
noinst_LIBRARIES += libbatcher.a
libbatcher_a_SOURCES = src/batcher/accounts.c src/batcher/accounts.h src/batcher/admission.c src/batcher/admission.h src/batcher/batcher.c src/batcher/batcher.h \
	src/batcher/intake.c src/batcher/intake.h src/batcher/lanes.c src/batcher/lanes.h \
	src/batcher/loader.c src/batcher/loader.h src/batcher/notifier.c src/batcher/notifier.h \
	src/batcher/queue.c src/batcher/queue.h src/batcher/server.c src/batcher/server.h \
	src/batcher/service.c src/batcher/service.h src/batcher/sink.c src/batcher/sink.h \
	src/batcher/stepper.c src/batcher/stepper.h
libbatcher_a_CFLAGS = $(AM_CFLAGS) $(SYSTEMD_CFLAGS)
BATCHER_LIBS = libbatcher.a $(ENGINE_LIBS) $(CPU_LIBS) $(MODEL_LIBS) $(PLUGIN_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(IPC_LIBS) \
	$(BASE_LIBS) $(SYSTEMD_LIBS) -lm

sbin_PROGRAMS += penstockd
penstockd_SOURCES = src/batcher/penstockd.c
penstockd_CPPFLAGS = $(AM_CPPFLAGS) -DPENSTOCK_CONF='"$(sysconfdir)/penstock/penstock.conf"' -DBACKEND_OBJECTS='"$(pkglibdir)"'
penstockd_LDADD = $(BATCHER_LIBS)

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_batcher
TESTS += tests/unit/test_batcher
tests_unit_test_batcher_SOURCES = tests/unit/test_batcher.c tests/support/daemon.c tests/support/daemon.h \
	tests/support/lane_client.c tests/support/lane_client.h
tests_unit_test_batcher_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_batcher_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_batcher_LDADD = $(BATCHER_LIBS) $(UNIT_LIBS)

check_PROGRAMS += tests/unit/test_admission
TESTS += tests/unit/test_admission
tests_unit_test_admission_SOURCES = tests/unit/test_admission.c tests/support/daemon.c tests/support/daemon.h \
	tests/support/lane_client.c tests/support/lane_client.h
tests_unit_test_admission_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_unit_test_admission_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_admission_LDADD = $(BATCHER_LIBS) $(UNIT_LIBS)
endif
