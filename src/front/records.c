/* records.c: owns the framing of what comes in on a FastCGI connection.  Does not own bytes, descriptors or meaning of
 * parameters.  Invariant: whatever the peer sends, no read goes past LEN, and a head that is called complete satisfies
 * every limit of records.h, so that a later parser meets nothing it could overflow or wait on (CVE-2025-23016). */
#include "front/records.h"

#include <string.h>

enum { ROLE_RESPONDER = 1, VERSION = 1 };

struct header {
	unsigned version, type, request_id, content, padding;
};

static struct header read_header(const unsigned char *b)
{
	return (struct header){ .version = b[0], .type = b[1], .request_id = (unsigned)b[2] << 8 | b[3],
		.content = (unsigned)b[4] << 8 | b[5], .padding = b[6] };
}

void records_put_header(unsigned char ret[RECORDS_HEADER], enum records_type type, uint16_t request_id, size_t content)
{
	ret[0] = VERSION;
	ret[1] = (unsigned char)type;
	ret[2] = (unsigned char)(request_id >> 8);
	ret[3] = (unsigned char)request_id;
	ret[4] = (unsigned char)(content >> 8);
	ret[5] = (unsigned char)content;
	ret[6] = ret[7] = 0;
}

static enum status bad(struct error *error, const char *what, size_t got, size_t limit)
{
	return error_set(error, STATUS_INVALID, "FastCGI: %s: %zu, at most %zu allowed", what, got, limit);
}

/* Reads a length of one or four bytes at *AT. */
static bool read_length(const unsigned char *bytes, size_t len, size_t *at, uint32_t *ret)
{
	if (*at >= len)
		return false;
	if (bytes[*at] < 0x80) {
		*ret = bytes[(*at)++];
		return true;
	}
	if (len - *at < 4)
		return false;
	const unsigned char *b = bytes + *at;
	*ret = (uint32_t)(b[0] & 0x7f) << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
	*at += 4;
	return true;
}

static enum status check_pairs(const unsigned char *bytes, size_t len, struct error *error)
{
	size_t at = 0, pairs = 0;

	while (at < len) {
		uint32_t name, value;
		if (!read_length(bytes, len, &at, &name) || !read_length(bytes, len, &at, &value))
			return error_set(error, STATUS_INVALID, "FastCGI: a parameter's length is cut off at byte %zu of %zu", at,
			    len);
		if (++pairs > RECORDS_PAIRS_MAX)
			return bad(error, "number of parameters", pairs, RECORDS_PAIRS_MAX);
		if (name == 0 || name > RECORDS_NAME_MAX)
			return bad(error, "bytes of a parameter's name", name, RECORDS_NAME_MAX);
		if (value > RECORDS_VALUE_MAX)
			return bad(error, "bytes of a parameter's value", value, RECORDS_VALUE_MAX);
		if (name + value > len - at)
			return error_set(error, STATUS_INVALID, "FastCGI: a parameter of %u bytes with %zu left", name + value,
			    len - at);
		for (size_t i = 0; i < name; i++)
			if (bytes[at + i] <= 0x20 || bytes[at + i] >= 0x7f || bytes[at + i] == '=')
				return error_set(error, STATUS_INVALID, "FastCGI: byte 0x%02x in a parameter's name", bytes[at + i]);
		if (value && memchr(bytes + at + name, '\0', value))
			return error_set(error, STATUS_INVALID, "FastCGI: a NUL in a parameter's value");
		at += name + value;
	}
	return STATUS_OK;
}

/* The record at AT of the head: STATUS_AGAIN while it is not there whole. */
static enum status next_record(const unsigned char *bytes, size_t len, size_t at, struct header *ret,
    struct error *error)
{
	if (len - at < RECORDS_HEADER)
		return STATUS_AGAIN;
	*ret = read_header(bytes + at);
	if (ret->version != VERSION)
		return error_set(error, STATUS_INVALID, "FastCGI: version %u, only %d is spoken", ret->version, VERSION);
	if (ret->request_id == 0)
		return error_set(error, STATUS_INVALID, "FastCGI: management record of type %u refused", ret->type);
	return len - at - RECORDS_HEADER < ret->content + ret->padding ? STATUS_AGAIN : STATUS_OK;
}

enum status records_check_head(unsigned char *bytes, size_t len, struct records_head *ret, struct error *error)
{
	struct records_head head = { 0 };
	struct header       record;
	enum status         status;
	size_t              at = 0;

	status = next_record(bytes, len, 0, &record, error);
	if (status == STATUS_INVALID || (status == STATUS_AGAIN && len < RECORDS_HEADER))
		return status;
	if (record.type != RECORDS_BEGIN || record.content != 8)
		return error_set(error, STATUS_INVALID, "FastCGI: starts with type %u of %u bytes, not BEGIN_REQUEST",
		    record.type, record.content);
	if (status)
		return status;
	unsigned role = (unsigned)bytes[RECORDS_HEADER] << 8 | bytes[RECORDS_HEADER + 1];
	if (role != ROLE_RESPONDER)
		return error_set(error, STATUS_INVALID, "FastCGI: role %u, only the responder is served", role);
	head.request_id = (uint16_t)record.request_id;
	at = RECORDS_HEADER + record.content + record.padding;

	for (;;) {
		status = next_record(bytes, len, at, &record, error);
		if (status == STATUS_INVALID)
			return status;
		if (len - at >= RECORDS_HEADER) { /* the header is there: judge it before its content comes */
			if (record.type != RECORDS_PARAMS || record.request_id != head.request_id)
				return error_set(error, STATUS_INVALID, "FastCGI: type %u for request %u among the parameters of %u",
				    record.type, record.request_id, head.request_id);
			if (head.params_bytes + record.content > RECORDS_PARAMS_MAX)
				return bad(error, "bytes of parameters", head.params_bytes + record.content, RECORDS_PARAMS_MAX);
		}
		if (status == STATUS_AGAIN && len >= RECORDS_HEAD_MAX)
			return bad(error, "bytes before the end of the parameters", len, RECORDS_HEAD_MAX);
		if (status == STATUS_AGAIN)
			return status;
		at += RECORDS_HEADER + record.content + record.padding;
		if (record.content == 0)
			break;
		head.params_bytes += record.content;
	}
	head.bytes = at;

	/* Second pass, now that everything is there: move the contents together. */
	size_t used = 0;
	at = RECORDS_HEADER + 8 + (size_t)bytes[6];
	while (used < head.params_bytes) {
		record = read_header(bytes + at);
		memmove(bytes + used, bytes + at + RECORDS_HEADER, record.content);
		used += record.content;
		at += RECORDS_HEADER + record.content + record.padding;
	}
	status = check_pairs(bytes, head.params_bytes, error);
	if (!status)
		*ret = head;
	return status;
}

/* A complete header of the body: sets what is to come. */
static enum status begin_record(struct records_body *body, struct error *error)
{
	struct header record = read_header(body->header);

	if (record.version != VERSION)
		return error_set(error, STATUS_INVALID, "FastCGI: version %u, only %d is spoken", record.version, VERSION);
	if (record.request_id != body->request_id)
		return error_set(error, STATUS_INVALID, "FastCGI: type %u for request %u on the connection of %u", record.type,
		    record.request_id, body->request_id);
	if (record.type == RECORDS_ABORT)
		body->aborted = true;
	else if (record.type != RECORDS_STDIN || body->ended)
		return error_set(error, STATUS_INVALID, "FastCGI: type %u of %u bytes %s", record.type, record.content,
		    body->ended ? "after the end of the body" : "in the body");
	else if (record.content == 0)
		body->ended = true;
	body->content = record.content;
	body->padding = record.padding;
	return STATUS_OK;
}

enum status records_push_body(struct records_body *body, unsigned char *bytes, size_t len, size_t *ret_content,
    struct error *error)
{
	size_t at = 0, used = 0;

	while (at < len) {
		size_t left = len - at;
		if (body->content) {
			size_t n = body->content < left ? body->content : left;
			if (!body->aborted) { /* an ABORT has no content; drop what a strange one carries */
				memmove(bytes + used, bytes + at, n);
				used += n;
			}
			body->content -= (uint32_t)n;
			at += n;
		} else if (body->padding) {
			size_t n = body->padding < left ? body->padding : left;
			body->padding -= (uint32_t)n;
			at += n;
		} else {
			size_t n = RECORDS_HEADER - body->header_len < left ? RECORDS_HEADER - body->header_len : left;
			memcpy(body->header + body->header_len, bytes + at, n);
			body->header_len += (unsigned)n;
			at += n;
			if (body->header_len == RECORDS_HEADER) {
				body->header_len = 0;
				enum status status = begin_record(body, error);
				if (status)
					return status;
			}
		}
	}
	*ret_content = used;
	return STATUS_OK;
}
