/* bytes.c: owns nothing.  Invariant: a quoted text is one line of printable ASCII, whatever the bytes are, so that a hostile
 * file or request can neither break a log line nor hide part of a message. */
#include "base/bytes.h"

#include <stdio.h>
#include <string.h>

const char *bytes_quote(char ret_text[BYTES_QUOTE_MAX], const void *bytes, size_t len)
{
	const unsigned char *s = bytes;
	size_t               at = 0;
	bool                 cut = false;

	ret_text[at++] = '"';
	for (size_t i = 0; i < len; i++) {
		bool   plain = s[i] >= 0x20 && s[i] < 0x7f && s[i] != '"' && s[i] != '\\';
		size_t need = plain ? 1 : 4;

		if (at + need + sizeof "\"..." > BYTES_QUOTE_MAX) {
			cut = true;
			break;
		}
		if (plain)
			ret_text[at++] = (char)s[i];
		else
			at += (size_t)snprintf(ret_text + at, BYTES_QUOTE_MAX - at, "\\x%02x", s[i]);
	}
	snprintf(ret_text + at, BYTES_QUOTE_MAX - at, cut ? "\"..." : "\"");
	return ret_text;
}

int bytes_compare(const void *a, size_t a_len, const void *b, size_t b_len)
{
	size_t common = a_len < b_len ? a_len : b_len;
	int    order = common ? memcmp(a, b, common) : 0;
	return order ? order : (a_len > b_len) - (a_len < b_len);
}

bool bytes_from_base64(const char *text, size_t len, char *ret, size_t *ret_len)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	size_t            count = 0;
	unsigned          bits = 0, have = 0;

	for (int i = 0; i < 2 && len && text[len - 1] == '='; i++)
		len--;
	if (len % 4 == 1)
		return false;
	for (size_t i = 0; i < len; i++) {
		const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
		if (!digit)
			return false;
		bits = (bits << 6 | (unsigned)(digit - digits)) & 0xffff;
		have += 6;
		if (have >= 8) {
			have -= 8;
			ret[count++] = (char)(bits >> have);
		}
	}
	*ret_len = count;
	return true;
}
