/* bytelevel.h: the byte ↔ character mapping of byte-level BPE (GPT-2).
 *
 * Vocabulary files spell each byte as one printable character: the 188 bytes that are printable in Latin-1 stand for
 * themselves, the other 68 follow in order as U+0100 … U+0143 ("Ġ" U+0120 is the space).
 */
#ifndef PENSTOCK_VOCAB_BYTELEVEL_H
#define PENSTOCK_VOCAB_BYTELEVEL_H

#include <stddef.h>
#include <stdint.h>

static inline int bytelevel_is_plain(uint32_t code_point)
{
	return (code_point >= 0x21 && code_point <= 0x7e) || (code_point >= 0xa1 && code_point <= 0xac) ||
	       (code_point >= 0xae && code_point <= 0xff);
}

/* The byte a character stands for, −1 when it stands for none. */
static inline int bytelevel_byte(uint32_t code_point)
{
	if (bytelevel_is_plain(code_point))
		return (int)code_point;
	if (code_point < 0x100 || code_point > 0x143)
		return -1;
	code_point -= 0x100;
	if (code_point <= 0x20)
		return (int)code_point; /* 00…20 */
	if (code_point <= 0x42)
		return (int)(code_point - 0x21 + 0x7f); /* 7f…a0 */
	return 0xad;
}

/* The byte that the character at the beginning of LEN ≥ 1 bytes stands for, and how long it is; −1 when it stands for none. */
static inline int bytelevel_next(const char *spelling, size_t len, size_t *ret_len)
{
	unsigned char first = (unsigned char)spelling[0], second = len > 1 ? (unsigned char)spelling[1] : 0;

	if (first >= 0x21 && first <= 0x7e) {
		*ret_len = 1;
		return first;
	}
	if (first < 0xc2 || first > 0xc5 || (second & 0xc0) != 0x80)
		return -1;
	*ret_len = 2;
	return bytelevel_byte((first & 0x1fu) << 6 | (second & 0x3fu));
}

static inline uint32_t bytelevel_char(unsigned char byte)
{
	if (bytelevel_is_plain(byte))
		return byte;
	if (byte <= 0x20)
		return 0x100u + byte;
	return byte == 0xad ? 0x143u : 0x121u + byte - 0x7fu;
}

#endif
