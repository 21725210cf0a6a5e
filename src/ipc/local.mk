noinst_LIBRARIES += libipc.a
libipc_a_SOURCES = src/ipc/wire.c src/ipc/wire.h src/ipc/wire.def src/ipc/ring.c src/ipc/ring.h src/ipc/lane.c src/ipc/lane.h \
	src/ipc/object.c src/ipc/object.h src/ipc/doorbell.c src/ipc/doorbell.h src/ipc/wake.c src/ipc/wake.h \
	src/ipc/header.c src/ipc/header.h src/ipc/metrics.c src/ipc/metrics.h src/ipc/metrics.def \
	src/ipc/control.c src/ipc/control.h src/ipc/blackbox.c src/ipc/blackbox.h src/ipc/census.c src/ipc/census.h \
	src/ipc/seqlock.h
# Followed by $(BASE_LIBS) on a link line.
IPC_LIBS = libipc.a

if HAVE_CHECK
ipc_unit_tests = tests/unit/test_ipc_ring tests/unit/test_ipc_lane tests/unit/test_ipc_objects tests/unit/test_ipc_control
check_PROGRAMS += $(ipc_unit_tests)
TESTS += $(ipc_unit_tests)
tests_unit_test_ipc_ring_SOURCES = tests/unit/test_ipc_ring.c
tests_unit_test_ipc_ring_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_ipc_ring_LDADD = $(IPC_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_ipc_lane_SOURCES = tests/unit/test_ipc_lane.c
tests_unit_test_ipc_lane_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_ipc_lane_LDADD = $(IPC_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_ipc_objects_SOURCES = tests/unit/test_ipc_objects.c
tests_unit_test_ipc_objects_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_ipc_objects_LDADD = $(IPC_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_ipc_control_SOURCES = tests/unit/test_ipc_control.c
tests_unit_test_ipc_control_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_ipc_control_LDADD = $(IPC_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
endif

# Two processes, and two threads, on one lane (tests/stress/lane_stress.c says how to run it at full size).
check_PROGRAMS += tests/stress/lane_stress
TESTS += tests/stress/lane_stress
tests_stress_lane_stress_SOURCES = tests/stress/lane_stress.c
tests_stress_lane_stress_LDADD = $(IPC_LIBS) $(BASE_LIBS)

# The sleep handshake as a model (skipped without spin).
dist_check_SCRIPTS += tests/scripts/promela.sh
EXTRA_DIST += contrib/doorbell.pml
