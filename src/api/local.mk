noinst_LIBRARIES += libapi.a
libapi_a_SOURCES = src/api/api.h src/api/call.h src/api/call.c src/api/request.c src/api/respond.c \
	src/api/sampling.c src/api/logprobs.h src/api/logprobs.c \
	src/api/route.c src/api/route.h src/api/routes.def src/api/params.c src/api/params.h src/api/params.def \
	src/api/json_text.c src/api/json_text.h src/api/stop.c src/api/stop.h src/api/keys.c src/api/keys.h src/api/key_settings.def \
	src/api/exposition.c src/api/exposition.h src/api/json_scan.c src/api/json_scan.h src/api/output.c src/api/output.h \
	src/api/output_parts.h src/api/answer.c src/api/answer.h src/api/output_call.c src/api/output_format.c src/api/output_tools.c \
	src/api/messages.c src/api/messages.h src/api/chat_fields.c src/api/chat_kwargs.def
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

check_PROGRAMS += tests/unit/test_output
TESTS += tests/unit/test_output
tests_unit_test_output_SOURCES = tests/unit/test_output.c tests/support/output_cases.h tests/support/output_reader.c \
	tests/support/output_reader.h
tests_unit_test_output_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS) -I$(top_srcdir)/tests
tests_unit_test_output_LDADD = $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)

check_PROGRAMS += tests/unit/test_api_sampling
TESTS += tests/unit/test_api_sampling
tests_unit_test_api_sampling_SOURCES = tests/unit/test_api_sampling.c tests/support/api_fixture.c tests/support/api_fixture.h
tests_unit_test_api_sampling_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS) -I$(top_srcdir)/tests
tests_unit_test_api_sampling_LDADD = $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)
check_PROGRAMS += tests/unit/test_api_call
TESTS += tests/unit/test_api_call
tests_unit_test_api_call_SOURCES = tests/unit/test_api_call.c tests/support/api_fixture.c tests/support/api_fixture.h
tests_unit_test_api_call_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS) -I$(top_srcdir)/tests
tests_unit_test_api_call_LDADD = $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)

check_PROGRAMS += tests/unit/test_api_messages
TESTS += tests/unit/test_api_messages
tests_unit_test_api_messages_SOURCES = tests/unit/test_api_messages.c
tests_unit_test_api_messages_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS)
tests_unit_test_api_messages_LDADD = $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)

check_PROGRAMS += tests/unit/test_api_choices
TESTS += tests/unit/test_api_choices
tests_unit_test_api_choices_SOURCES = tests/unit/test_api_choices.c tests/support/api_fixture.c tests/support/api_fixture.h
tests_unit_test_api_choices_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS) -I$(top_srcdir)/tests
tests_unit_test_api_choices_LDADD = $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS) $(UNIT_LIBS)

check_PROGRAMS += tests/unit/api_tables
tests_unit_api_tables_SOURCES = tests/unit/api_tables.c
tests_unit_api_tables_CFLAGS = $(UNIT_CFLAGS) $(JANSSON_CFLAGS)
tests_unit_api_tables_LDADD = $(API_LIBS) $(TEXT_LIBS) $(VOCAB_LIBS) $(FILE_LIBS) $(BASE_LIBS)
TESTS += tests/scripts/check_api_doc.sh
endif
