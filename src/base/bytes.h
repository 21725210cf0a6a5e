/* bytes.h: strings with a length: quoting for messages, order. */
#ifndef PENSTOCK_BASE_BYTES_H
#define PENSTOCK_BASE_BYTES_H

#include <stddef.h>

enum { BYTES_QUOTE_MAX = 96 };

/* Writes the bytes between double quotes: printable ASCII as it is, everything else as \xNN; what does not fit is cut
 * and ends with "...".  Always terminated; returns ret_text. */
const char *bytes_quote(char ret_text[BYTES_QUOTE_MAX], const void *bytes, size_t len);

/* Order of the bytes as unsigned numbers, a prefix first: < 0, 0, > 0. */
int bytes_compare(const void *a, size_t a_len, const void *b, size_t b_len);

#endif
