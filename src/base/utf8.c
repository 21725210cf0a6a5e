/* utf8.c: owns nothing; pure functions.  Invariant: over-long forms, surrogates and values past U+10FFFF never decode. */
#include "base/utf8.h"

#include <string.h>

int utf8_decode(const char *bytes, size_t len, uint32_t *ret_code_point)
{
	const unsigned char *s = (const unsigned char *)bytes;
	unsigned char        low = 0x80, high = 0xbf;
	uint32_t             code;
	int                  need;

	if (len == 0)
		return 0;
	if (s[0] < 0x80) {
		*ret_code_point = s[0];
		return 1;
	}
	if (s[0] < 0xc2 || s[0] > 0xf4)
		return -1;
	if (s[0] < 0xe0) {
		need = 2;
		code = s[0] & 0x1f;
	} else if (s[0] < 0xf0) {
		need = 3;
		code = s[0] & 0x0f;
		if (s[0] == 0xe0)
			low = 0xa0;
		if (s[0] == 0xed)
			high = 0x9f;
	} else {
		need = 4;
		code = s[0] & 0x07;
		if (s[0] == 0xf0)
			low = 0x90;
		if (s[0] == 0xf4)
			high = 0x8f;
	}
	for (int i = 1; i < need; i++) {
		if ((size_t)i >= len)
			return 0;
		if (s[i] < low || s[i] > high)
			return -i;
		code = code << 6 | (s[i] & 0x3f);
		low = 0x80;
		high = 0xbf;
	}
	*ret_code_point = code;
	return need;
}

size_t utf8_encode(uint32_t code_point, char ret_bytes[4])
{
	if (code_point > 0x10ffff || (code_point >= 0xd800 && code_point <= 0xdfff))
		code_point = 0xfffd;
	if (code_point < 0x80) {
		ret_bytes[0] = (char)code_point;
		return 1;
	}
	if (code_point < 0x800) {
		ret_bytes[0] = (char)(0xc0 | code_point >> 6);
		ret_bytes[1] = (char)(0x80 | (code_point & 0x3f));
		return 2;
	}
	if (code_point < 0x10000) {
		ret_bytes[0] = (char)(0xe0 | code_point >> 12);
		ret_bytes[1] = (char)(0x80 | (code_point >> 6 & 0x3f));
		ret_bytes[2] = (char)(0x80 | (code_point & 0x3f));
		return 3;
	}
	ret_bytes[0] = (char)(0xf0 | code_point >> 18);
	ret_bytes[1] = (char)(0x80 | (code_point >> 12 & 0x3f));
	ret_bytes[2] = (char)(0x80 | (code_point >> 6 & 0x3f));
	ret_bytes[3] = (char)(0x80 | (code_point & 0x3f));
	return 4;
}

bool utf8_valid(const char *bytes, size_t len, size_t *ret_offset)
{
	for (size_t at = 0; at < len;) {
		uint32_t code;
		uint64_t eight;
		int      n;
		if (len - at >= sizeof eight) { /* ASCII, eight at a time */
			memcpy(&eight, bytes + at, sizeof eight);
			if (!(eight & UINT64_C(0x8080808080808080))) {
				at += sizeof eight;
				continue;
			}
		}
		n = utf8_decode(bytes + at, len - at, &code);
		if (n <= 0) {
			if (ret_offset)
				*ret_offset = at;
			return false;
		}
		at += (size_t)n;
	}
	return true;
}
