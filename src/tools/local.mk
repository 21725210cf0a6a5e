# penstock: the command-line tool.
bin_PROGRAMS += penstock
penstock_SOURCES = src/tools/penstock.c src/tools/tool.h src/tools/backend.c src/tools/backend.h src/tools/config.c src/tools/dry.c \
	src/tools/dry.h src/tools/eval.c src/tools/generate.c src/tools/inspect.c src/tools/key.c src/tools/plan.c src/tools/run.c src/tools/run.h src/tools/status.c src/tools/text.c src/tools/text.h src/tools/tokenize.c
penstock_CPPFLAGS = $(AM_CPPFLAGS) -DPENSTOCK_CONF='"$(sysconfdir)/penstock/penstock.conf"' -DBACKEND_OBJECTS='"$(pkglibdir)"'
penstock_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
penstock_LDADD = $(ENGINE_LIBS) $(CPU_LIBS) $(MODEL_LIBS) $(PLUGIN_LIBS) $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(IPC_LIBS) $(BASE_LIBS) \
	$(JANSSON_LIBS) -lm
