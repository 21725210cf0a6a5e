# penstock: the command-line tool.
bin_PROGRAMS += penstock
penstock_SOURCES = src/tools/penstock.c src/tools/tool.h src/tools/config.c
penstock_CPPFLAGS = $(AM_CPPFLAGS) -DPENSTOCK_CONF='"$(sysconfdir)/penstock/penstock.conf"'
penstock_LDADD = $(BASE_LIBS)
