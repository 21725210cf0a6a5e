/* bytes.h: strings with a length: quoting for messages, order, base64. */
#ifndef PENSTOCK_BASE_BYTES_H
#define PENSTOCK_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>

enum { BYTES_QUOTE_MAX = 96 };

/* Writes the bytes between double quotes: printable ASCII as it is, everything else as \xNN; what does not fit is cut
 * and ends with "...".  Always terminated; returns ret_text. */
const char *bytes_quote(char ret_text[BYTES_QUOTE_MAX], const void *bytes, size_t len);

/* Order of the bytes as unsigned numbers, a prefix first: < 0, 0, > 0. */
int bytes_compare(const void *a, size_t a_len, const void *b, size_t b_len);

/* Standard base64 (RFC 4648), padded or not, into RET, which has room for LEN / 4 · 3 + 3 bytes; RET may be TEXT.  False where
 * TEXT is none. */
bool bytes_from_base64(const char *text, size_t len, char *ret, size_t *ret_len);

#endif
