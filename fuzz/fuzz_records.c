/* fuzz_records.c: what comes in on a FastCGI connection, head and body, in pieces.  Properties: no read or write outside
 * the bytes given; a head that is called complete keeps every limit and its pairs can be walked to their end; a head that
 * is refused or complete stays so when more bytes follow; a body gives the same content in whatever pieces it comes. */
#include "front/records.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition)
{
	if (!condition)
		abort();
}

static unsigned char *copy(const uint8_t *data, size_t size)
{
	unsigned char *bytes = malloc(size ? size : 1);
	must(bytes != NULL);
	memcpy(bytes, data, size);
	return bytes;
}

static size_t length_at(const unsigned char *bytes, size_t *at)
{
	if (bytes[*at] < 0x80)
		return bytes[(*at)++];
	*at += 4;
	return (size_t)(bytes[*at - 4] & 0x7f) << 24 | (size_t)bytes[*at - 3] << 16 | (size_t)bytes[*at - 2] << 8 | bytes[*at - 1];
}

static void walk_pairs(const unsigned char *bytes, const struct records_head *head)
{
	size_t at = 0, pairs = 0;

	while (at < head->params_bytes) {
		size_t name = length_at(bytes, &at), value = length_at(bytes, &at);
		must(name >= 1 && name <= RECORDS_NAME_MAX && value <= RECORDS_VALUE_MAX);
		at += name + value;
		pairs++;
	}
	must(at == head->params_bytes && pairs <= RECORDS_PAIRS_MAX);
}

static void check_head(const uint8_t *data, size_t size)
{
	struct records_head head = { 0 }, again = { 0 };
	struct error        error;
	enum status         before = STATUS_AGAIN;
	size_t              most = size < RECORDS_HEAD_MAX ? size : RECORDS_HEAD_MAX;

	for (size_t len = 0; len <= most; len += 1 + len / 7) {
		unsigned char *bytes = copy(data, len);
		enum status    status = records_check_head(bytes, len, &head, &error);
		if (status == STATUS_OK) {
			must(head.bytes <= len && head.params_bytes <= RECORDS_PARAMS_MAX && head.request_id != 0);
			must(before != STATUS_OK || (again.bytes == head.bytes && again.params_bytes == head.params_bytes));
			walk_pairs(bytes, &head);
			again = head;
		}
		must(before == STATUS_AGAIN || status == before);
		before = status;
		free(bytes);
	}
}

/* Content of the body fed in pieces of PIECE bytes; *ret is the last status. */
static size_t feed(const uint8_t *data, size_t size, size_t piece, unsigned char *content, struct records_body *body,
    enum status *ret)
{
	struct error error;
	size_t       total = 0, n = 0;

	*body = (struct records_body){ .request_id = 1 };
	*ret = STATUS_OK;
	for (size_t at = 0; at < size && !*ret; at += piece) {
		size_t         len = size - at < piece ? size - at : piece;
		unsigned char *bytes = copy(data + at, len);
		*ret = records_push_body(body, bytes, len, &n, &error);
		if (!*ret) {
			must(n <= len);
			memcpy(content + total, bytes, n);
			total += n;
		}
		free(bytes);
	}
	return total;
}

static void check_body(const uint8_t *data, size_t size)
{
	unsigned char      *one = malloc(size + 1), *other = malloc(size + 1);
	struct records_body first, second;
	enum status         a, b;

	must(one && other);
	for (size_t piece = 1; piece <= 17; piece += 4) {
		size_t x = feed(data, size, 1, one, &first, &a);
		size_t y = feed(data, size, piece, other, &second, &b);
		must(a == b);
		/* A piece with a bad record in it gives nothing, so the content may end earlier, never differ. */
		must(y <= x && !memcmp(one, other, y));
		must(a != STATUS_OK || (x == y && first.ended == second.ended && first.aborted == second.aborted));
	}
	free(one);
	free(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_head(data, size);
	check_body(data, size < 4096 ? size : 4096);
	return 0;
}
