/* Unit tests of src/front/records: FastCGI heads and bodies, whole, cut, and hostile. */
#include "front/records.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct bytes {
	unsigned char data[2 * RECORDS_HEAD_MAX];
	size_t        len;
};

static void put(struct bytes *b, const void *data, size_t len)
{
	ck_assert_uint_le(b->len + len, sizeof b->data);
	memcpy(b->data + b->len, data, len);
	b->len += len;
}

static void put_record(struct bytes *b, int version, int type, int id, const void *content, size_t len, int padding)
{
	static const unsigned char zeros[256];
	unsigned char              header[8];

	records_put_header(header, (enum records_type)type, (uint16_t)id, len);
	header[0] = (unsigned char)version;
	header[6] = (unsigned char)padding;
	put(b, header, sizeof header);
	put(b, content, len);
	put(b, zeros, (size_t)padding);
}

static void put_begin(struct bytes *b, int role)
{
	unsigned char body[8] = { (unsigned char)(role >> 8), (unsigned char)role };
	put_record(b, 1, RECORDS_BEGIN, 1, body, sizeof body, 0);
}

static size_t put_pair(unsigned char *at, const char *name, const char *value, size_t value_len)
{
	size_t n = 0, name_len = strlen(name);

	at[n++] = (unsigned char)name_len;
	at[n++] = (unsigned char)(0x80 | value_len >> 24);
	at[n++] = (unsigned char)(value_len >> 16);
	at[n++] = (unsigned char)(value_len >> 8);
	at[n++] = (unsigned char)value_len;
	memcpy(at + n, name, name_len);
	n += name_len;
	memcpy(at + n, value, value_len);
	return n + value_len;
}

/* What a web server sends: BEGIN, PARAMS cut into records of PIECE bytes with PADDING, the empty PARAMS. */
static void make_head(struct bytes *b, const unsigned char *params, size_t len, size_t piece, int padding)
{
	b->len = 0;
	put_begin(b, 1);
	for (size_t at = 0; at < len; at += piece)
		put_record(b, 1, RECORDS_PARAMS, 1, params + at, len - at < piece ? len - at : piece, padding);
	put_record(b, 1, RECORDS_PARAMS, 1, "", 0, padding);
}

static enum status check(const struct bytes *b, struct records_head *ret)
{
	/* A copy of exactly this size, so that a sanitizer sees a read past it. */
	unsigned char *copy = malloc(b->len ? b->len : 1);
	struct error   error = { 0 };

	memcpy(copy, b->data, b->len);
	enum status status = records_check_head(copy, b->len, ret, &error);
	if (status == STATUS_INVALID)
		ck_assert_str_ne(error.message, "");
	free(copy);
	return status;
}

static struct bytes b; /* too large for the stack */

START_TEST(head_in_pieces_of_every_size)
{
	unsigned char       params[600], copy[sizeof b.data];
	size_t              len = 0;
	struct records_head head;
	struct error        error;
	char                value[300];

	memset(value, 'v', sizeof value);
	len += put_pair(params + len, "REQUEST_METHOD", "POST", 4);
	len += put_pair(params + len, "LONG", value, sizeof value);
	len += put_pair(params + len, "EMPTY", "", 0);
	for (size_t piece = 1; piece <= len; piece++) {
		make_head(&b, params, len, piece, (int)(piece % 256));
		size_t whole = b.len;
		put(&b, "body", 4); /* what follows is not looked at */
		memcpy(copy, b.data, b.len);
		ck_assert_int_eq(records_check_head(copy, b.len, &head, &error), STATUS_OK);
		ck_assert_uint_eq(head.bytes, whole);
		ck_assert_uint_eq(head.params_bytes, len);
		ck_assert_uint_eq(head.request_id, 1);
		ck_assert_mem_eq(copy, params, len);
	}
	make_head(&b, params, len, 7, 255);
	for (size_t cut = b.len; cut-- > 0;) { /* every beginning of it waits for more */
		b.len = cut;
		ck_assert_msg(check(&b, &head) == STATUS_AGAIN, "cut at %zu", cut);
	}
}
END_TEST

START_TEST(head_without_parameters)
{
	struct records_head head;

	make_head(&b, NULL, 0, 1, 0);
	ck_assert_int_eq(check(&b, &head), STATUS_OK);
	ck_assert_uint_eq(head.params_bytes, 0);
}
END_TEST

START_TEST(head_refusals)
{
	struct records_head head;
	unsigned char       begin[8] = { 0, 1 };

	b.len = 0;
	put_record(&b, 2, RECORDS_BEGIN, 1, begin, 8, 0); /* version */
	ck_assert_int_eq(check(&b, &head), STATUS_INVALID);
	b.len = 0;
	put_record(&b, 1, RECORDS_BEGIN, 0, begin, 8, 0); /* id 0 */
	ck_assert_int_eq(check(&b, &head), STATUS_INVALID);
	b.len = 0;
	put_record(&b, 1, 9, 0, "", 0, 0); /* GET_VALUES */
	ck_assert_int_eq(check(&b, &head), STATUS_INVALID);
	b.len = 0;
	put_record(&b, 1, RECORDS_BEGIN, 1, begin, 7, 0); /* short */
	ck_assert_int_eq(check(&b, &head), STATUS_INVALID);
	b.len = 0;
	put_record(&b, 1, RECORDS_STDIN, 1, begin, 8, 0); /* not BEGIN */
	ck_assert_int_eq(check(&b, &head), STATUS_INVALID);
	for (int role = 0; role < 5; role++) {
		b.len = 0;
		put_begin(&b, role);
		ck_assert_int_eq(check(&b, &head), role == 1 ? STATUS_AGAIN : STATUS_INVALID);
	}
	for (int type = 0; type < 256; type++) { /* after BEGIN only PARAMS */
		b.len = 0;
		put_begin(&b, 1);
		put_record(&b, 1, type, 1, "", 0, 0);
		ck_assert_int_eq(check(&b, &head), type == RECORDS_PARAMS ? STATUS_OK : STATUS_INVALID);
	}
	b.len = 0;
	put_begin(&b, 1);
	put_record(&b, 1, RECORDS_PARAMS, 2, "", 0, 0); /* another request */
	ck_assert_int_eq(check(&b, &head), STATUS_INVALID);
}
END_TEST

/* CVE-2025-23016 and its second half: lengths whose sum wraps, or that promise what is not there. */
START_TEST(pair_lengths_that_lie)
{
	static const unsigned char cases[][16] = {
		{ 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff }, { 0xff, 0xff, 0xff, 0xfe, 0xff, 0xff, 0xff, 0xfe },
		{ 0xc0, 0, 0, 0, 0xc0, 0, 0, 0 }, { 0x80, 0, 0, 4, 0xff, 0xff, 0xff, 0xfe, 'N', 'A', 'M', 'E' },
		{ 4, 0x80, 0, 0, 9, 'N', 'A', 'M', 'E' }, { 200, 0, 0, 1 }, { 0, 4, 'v', 'v', 'v', 'v' },
	};
	struct records_head head;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (size_t len = 1; len <= sizeof cases[i]; len++) {
			make_head(&b, cases[i], len, len, 0);
			ck_assert_msg(check(&b, &head) == STATUS_INVALID, "case %zu, %zu bytes", i, len);
		}
}
END_TEST

START_TEST(pair_bytes_that_mislead)
{
	unsigned char       params[100];
	struct records_head head;

	make_head(&b, params, put_pair(params, "A=B", "v", 1), 99, 0);
	ck_assert_int_eq(check(&b, &head), STATUS_INVALID);
	make_head(&b, params, put_pair(params, "A B", "v", 1), 99, 0);
	ck_assert_int_eq(check(&b, &head), STATUS_INVALID);
	make_head(&b, params, put_pair(params, "A\x7f", "v", 1), 99, 0);
	ck_assert_int_eq(check(&b, &head), STATUS_INVALID);
	make_head(&b, params, put_pair(params, "A", "v\0v", 3), 99, 0);
	ck_assert_int_eq(check(&b, &head), STATUS_INVALID);
	make_head(&b, params, put_pair(params, "A", "v\r\nv\xff", 5), 99, 0);
	ck_assert_int_eq(check(&b, &head), STATUS_OK);
}
END_TEST

START_TEST(limits)
{
	static unsigned char params[RECORDS_PARAMS_MAX + 1024], value[RECORDS_VALUE_MAX + 1];
	struct records_head  head;
	size_t               len = 0;
	char                 name[RECORDS_NAME_MAX + 2];

	memset(value, 'v', sizeof value);
	make_head(&b, params, put_pair(params, "A", (char *)value, RECORDS_VALUE_MAX), 60000, 0);
	ck_assert_int_eq(check(&b, &head), STATUS_OK);
	make_head(&b, params, put_pair(params, "A", (char *)value, RECORDS_VALUE_MAX + 1), 60000, 0);
	ck_assert_int_eq(check(&b, &head), STATUS_INVALID);

	memset(name, 'N', sizeof name);
	for (size_t n = RECORDS_NAME_MAX; n <= RECORDS_NAME_MAX + 1; n++) {
		params[0] = 0x80;
		params[1] = 0;
		params[2] = (unsigned char)(n >> 8);
		params[3] = (unsigned char)n;
		params[4] = 0;
		memcpy(params + 5, name, n);
		make_head(&b, params, 5 + n, 60000, 0);
		ck_assert_int_eq(check(&b, &head), n == RECORDS_NAME_MAX ? STATUS_OK : STATUS_INVALID);
	}
	for (size_t pairs = RECORDS_PAIRS_MAX; pairs <= RECORDS_PAIRS_MAX + 1; pairs++) {
		len = 0;
		for (size_t i = 0; i < pairs; i++)
			len += put_pair(params + len, "A", "", 0);
		make_head(&b, params, len, 60000, 0);
		ck_assert_int_eq(check(&b, &head), pairs == RECORDS_PAIRS_MAX ? STATUS_OK : STATUS_INVALID);
	}
	/* Too many bytes of parameters are refused by the header that promises them, before they come. */
	b.len = 0;
	put_begin(&b, 1);
	put_record(&b, 1, RECORDS_PARAMS, 1, params, RECORDS_PARAMS_MAX - 8, 0);
	unsigned char header[8];
	records_put_header(header, RECORDS_PARAMS, 1, 9);
	put(&b, header, sizeof header);
	ck_assert_int_eq(check(&b, &head), STATUS_INVALID);
	/* Small contents in large paddings fill the head: refused at its limit, waited for below. */
	b.len = 0;
	put_begin(&b, 1);
	while (b.len < RECORDS_HEAD_MAX)
		put_record(&b, 1, RECORDS_PARAMS, 1, "x", 1, 255);
	b.len = RECORDS_HEAD_MAX - 1;
	ck_assert_int_eq(check(&b, &head), STATUS_AGAIN);
	b.len = RECORDS_HEAD_MAX;
	ck_assert_int_eq(check(&b, &head), STATUS_INVALID);
}
END_TEST

/* Feeds the body in pieces of PIECE bytes; returns the content, the last status in *ret. */
static size_t feed(const struct bytes *in, size_t piece, unsigned char *content, struct records_body *body,
    enum status *ret)
{
	size_t       total = 0, n;
	struct error error;

	*body = (struct records_body){ .request_id = 1 };
	*ret = STATUS_OK;
	for (size_t at = 0; at < in->len && !*ret; at += piece) {
		size_t         len = in->len - at < piece ? in->len - at : piece;
		unsigned char *copy = malloc(len);
		memcpy(copy, in->data + at, len);
		*ret = records_push_body(body, copy, len, &n, &error);
		if (!*ret) {
			ck_assert_uint_le(n, len);
			memcpy(content + total, copy, n);
			total += n;
		}
		free(copy);
	}
	return total;
}

START_TEST(body_in_pieces_of_every_size)
{
	unsigned char       content[2000];
	struct records_body body;
	enum status         status;

	b.len = 0;
	put_record(&b, 1, RECORDS_STDIN, 1, "hello ", 6, 255);
	put_record(&b, 1, RECORDS_STDIN, 1, "w", 1, 0);
	put_record(&b, 1, RECORDS_STDIN, 1, "orld", 4, 3);
	put_record(&b, 1, RECORDS_STDIN, 1, "", 0, 9);
	for (size_t piece = 1; piece <= b.len; piece++) {
		size_t n = feed(&b, piece, content, &body, &status);
		ck_assert_int_eq(status, STATUS_OK);
		ck_assert_uint_eq(n, 11);
		ck_assert_mem_eq(content, "hello world", 11);
		ck_assert(body.ended && !body.aborted);
	}
	put_record(&b, 1, RECORDS_ABORT, 1, "", 0, 0); /* heard also after the end */
	feed(&b, 5, content, &body, &status);
	ck_assert_int_eq(status, STATUS_OK);
	ck_assert(body.aborted);
}
END_TEST

START_TEST(body_refusals)
{
	unsigned char       content[2000];
	struct records_body body;
	enum status         status;

	for (int type = 0; type < 256; type++) {
		b.len = 0;
		put_record(&b, 1, RECORDS_STDIN, 1, "x", 1, 1);
		put_record(&b, 1, type, 1, "", 0, 0);
		feed(&b, 3, content, &body, &status);
		ck_assert_int_eq(status, type == RECORDS_STDIN || type == RECORDS_ABORT ? STATUS_OK : STATUS_INVALID);
	}
	const int wrong[][2] = { { 2, 1 }, { 1, 0 }, { 1, 2 } }; /* version, id */
	for (size_t i = 0; i < 3; i++) {
		b.len = 0;
		put_record(&b, wrong[i][0], RECORDS_STDIN, wrong[i][1], "x", 1, 0);
		feed(&b, 100, content, &body, &status);
		ck_assert_int_eq(status, STATUS_INVALID);
	}
	b.len = 0;
	put_record(&b, 1, RECORDS_STDIN, 1, "", 0, 0);
	put_record(&b, 1, RECORDS_STDIN, 1, "x", 1, 0); /* after the end */
	feed(&b, 100, content, &body, &status);
	ck_assert_int_eq(status, STATUS_INVALID);
}
END_TEST

/* Mutations of a good request: no read past the end (sanitizers), and a head called complete keeps the limits.  ROUNDS
 * can be raised with PENSTOCK_ROUNDS in the environment. */
START_TEST(mutations)
{
	const char          *rounds_text = getenv("PENSTOCK_ROUNDS");
	long                 rounds = rounds_text ? strtol(rounds_text, NULL, 10) : 20000;
	static unsigned char copy[sizeof b.data];
	unsigned char        params[400];
	size_t               len = 0;
	struct records_head  head;
	struct error         error;
	uint64_t             state = 88172645463325252u;

	len += put_pair(params + len, "REQUEST_METHOD", "POST", 4);
	len += put_pair(params + len, "HTTP_AUTHORIZATION", "Bearer sk-0123456789", 20);
	for (long round = 0; round < rounds; round++) {
		make_head(&b, params, len, 1 + round % 60, (int)(round % 7));
		for (int change = 0; change < 1 + round % 4; change++) {
			state ^= state << 13, state ^= state >> 7, state ^= state << 17;
			b.data[state % b.len] = (unsigned char)(state >> 32);
		}
		state ^= state << 13, state ^= state >> 7, state ^= state << 17;
		size_t cut = state % 3 ? b.len : state % b.len;
		memcpy(copy, b.data, cut);
		unsigned char *exact = malloc(cut + 1);
		memcpy(exact, copy, cut);
		if (records_check_head(exact, cut, &head, &error) == STATUS_OK) {
			ck_assert_uint_le(head.bytes, cut);
			ck_assert_uint_le(head.params_bytes, RECORDS_PARAMS_MAX);
		}
		struct records_body body = { .request_id = 1 };
		size_t              n;
		memcpy(exact, copy, cut);
		if (records_push_body(&body, exact, cut, &n, &error) == STATUS_OK)
			ck_assert_uint_le(n, cut);
		free(exact);
	}
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("front records");
	TCase   *tcase = tcase_create("records");
	SRunner *runner = srunner_create(suite);

	tcase_set_timeout(tcase, 600);
	tcase_add_test(tcase, head_in_pieces_of_every_size);
	tcase_add_test(tcase, head_without_parameters);
	tcase_add_test(tcase, head_refusals);
	tcase_add_test(tcase, pair_lengths_that_lie);
	tcase_add_test(tcase, pair_bytes_that_mislead);
	tcase_add_test(tcase, limits);
	tcase_add_test(tcase, body_in_pieces_of_every_size);
	tcase_add_test(tcase, body_refusals);
	tcase_add_test(tcase, mutations);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	int failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
