noinst_LIBRARIES += libapi.a
libapi_a_SOURCES = src/api/api.h src/api/call.h src/api/call.c src/api/request.c src/api/respond.c \
	src/api/route.c src/api/route.h src/api/routes.def src/api/params.c src/api/params.h src/api/params.def \
	src/api/json_text.c src/api/json_text.h src/api/stop.c src/api/stop.h src/api/keys.c src/api/keys.h \
	src/api/exposition.c src/api/exposition.h
libapi_a_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS) $(CRYPTO_CFLAGS)
API_LIBS = libapi.a $(JANSSON_LIBS) $(CRYPTO_LIBS)
EXTRA_DIST += docs/api.md tests/scripts/check_api_doc.sh

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_api_stop tests/unit/test_api_keys tests/unit/test_api_params
TESTS += tests/unit/test_api_stop tests/unit/test_api_keys tests/unit/test_api_params
tests_unit_test_api_stop_SOURCES = tests/unit/test_api_stop.c
tests_unit_test_api_stop_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_api_stop_LDADD = $(API_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_api_keys_SOURCES = tests/unit/test_api_keys.c
tests_unit_test_api_keys_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_api_keys_LDADD = $(API_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
tests_unit_test_api_params_SOURCES = tests/unit/test_api_params.c
tests_unit_test_api_params_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS)
tests_unit_test_api_params_LDADD = $(API_LIBS) $(BASE_LIBS) $(UNIT_LIBS)

check_PROGRAMS += tests/unit/test_api_call
TESTS += tests/unit/test_api_call
tests_unit_test_api_call_SOURCES = tests/unit/test_api_call.c tests/support/api_fixture.c tests/support/api_fixture.h
tests_unit_test_api_call_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS) -I$(top_srcdir)/tests
tests_unit_test_api_call_LDADD = $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)

check_PROGRAMS += tests/unit/api_tables
tests_unit_api_tables_SOURCES = tests/unit/api_tables.c
tests_unit_api_tables_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS)
tests_unit_api_tables_LDADD = $(API_LIBS) $(BASE_LIBS)
TESTS += tests/scripts/check_api_doc.sh
endif
