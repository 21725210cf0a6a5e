/* utf8.h: the few facts about UTF-8 that the token path needs (Unicode 15, table 3-7: well-formed byte sequences). */
#ifndef PENSTOCK_BASE_UTF8_H
#define PENSTOCK_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one code point.  Returns its length 1…4 and stores it; 0 when the bytes are a proper prefix of a sequence
 * that LEN cuts off; -N when the first N ≥ 1 bytes are a maximal ill-formed part (replace them by one U+FFFD). */
int utf8_decode(const char *bytes, size_t len, uint32_t *ret_code_point);

/* Writes 1…4 bytes; surrogates and values beyond U+10FFFF are written as U+FFFD. */
size_t utf8_encode(uint32_t code_point, char ret_bytes[4]);

/* True when the bytes are well-formed; otherwise *ret_offset (may be NULL) is where they stop being so. */
bool utf8_valid(const char *bytes, size_t len, size_t *ret_offset);

#endif
