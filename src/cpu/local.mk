# cpu
noinst_HEADERS += src/cpu/cpu_backend.h
