noinst_LIBRARIES += libipc.a
libipc_a_SOURCES = src/ipc/wire.c src/ipc/wire.h src/ipc/wire.def src/ipc/ring.c src/ipc/ring.h src/ipc/lane.c src/ipc/lane.h \
	src/ipc/object.c src/ipc/object.h src/ipc/doorbell.c src/ipc/doorbell.h src/ipc/wake.c src/ipc/wake.h \
	src/ipc/header.c src/ipc/header.h src/ipc/metrics.c src/ipc/metrics.h src/ipc/metrics.def \
	src/ipc/control.c src/ipc/control.h
# Followed by $(BASE_LIBS) on a link line.
IPC_LIBS = libipc.a
