/* regex.c: owns the translation of expressions and the searching.  Does not know what is split by them.
 *
 * Files are written for Oniguruma in Ruby's syntax.  Where PCRE2 (UTF, UCP) reads the same text otherwise, it is rewritten:
 * \s (PCRE2 counts U+180E), \w, \b, \d, \h, \uHHHH, names of properties and sets, ^ and $ (lines), class intersections with one
 * operand.  PCRE2 10.42 has the characters of Unicode 14, the reference those of 16: what was added since stands in
 * regex_newer.def and is put beside the property.  The expressions of the known families do not come here (text/scanner.h).
 *
 * Invariant: a search moves forward or ends, whatever the expression matches.
 */
#include "text/regex.h"
#include "base/buf.h"
#include "base/bytes.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Inside square brackets. */
#define SPACE "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define LATIN1_NUMBERS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}" /* in \\w where it stands alone, as the reference has it */
#define HEX "0-9a-fA-F"

/* Names of sets of characters: properties (joined by commas), or what stands in brackets. */
static const struct {
	const char *name, *properties, *text;
} sets[] = {
	{ "Alnum", "Alphabetic,Nd", NULL }, { "Alpha", "Alphabetic", NULL }, { "Word", "Alphabetic,M,Nd,Pc", NULL },
	{ "Punct", "P,S", NULL }, { "Upper", "Uppercase", NULL }, { "Lower", "Lowercase", NULL }, { "Digit", "Nd", NULL },
	{ "Cntrl", "Cc", NULL }, { "Blank", NULL, "\\t\\p{Zs}" }, { "Space", NULL, SPACE }, { "XDigit", NULL, HEX },
	{ "Graph", "L,M,N,P,S,Cf,Co", NULL }, { "Print", "L,M,N,P,S,Cf,Co,Zs", NULL },
	{ "Letter", "L", NULL }, { "Uppercase_Letter", "Lu", NULL }, { "Lowercase_Letter", "Ll", NULL },
	{ "Titlecase_Letter", "Lt", NULL }, { "Modifier_Letter", "Lm", NULL }, { "Other_Letter", "Lo", NULL }, { "Mark", "M", NULL },
	{ "Nonspacing_Mark", "Mn", NULL }, { "Spacing_Mark", "Mc", NULL }, { "Enclosing_Mark", "Me", NULL }, { "Number", "N", NULL },
	{ "Decimal_Number", "Nd", NULL }, { "Letter_Number", "Nl", NULL }, { "Other_Number", "No", NULL },
	{ "Punctuation", "P", NULL }, { "Connector_Punctuation", "Pc", NULL }, { "Dash_Punctuation", "Pd", NULL },
	{ "Open_Punctuation", "Ps", NULL }, { "Close_Punctuation", "Pe", NULL }, { "Initial_Punctuation", "Pi", NULL },
	{ "Final_Punctuation", "Pf", NULL }, { "Other_Punctuation", "Po", NULL }, { "Symbol", "S", NULL },
	{ "Math_Symbol", "Sm", NULL }, { "Currency_Symbol", "Sc", NULL }, { "Modifier_Symbol", "Sk", NULL },
	{ "Other_Symbol", "So", NULL }, { "Separator", "Z", NULL }, { "Space_Separator", "Zs", NULL },
	{ "Line_Separator", "Zl", NULL }, { "Paragraph_Separator", "Zp", NULL }, { "Other", "C", NULL }, { "Control", "Cc", NULL },
	{ "Format", "Cf", NULL }, { "Private_Use", "Co", NULL }, { "Unassigned", "Cn", NULL },
};

#define NEWER(property, ranges) { property, ranges },
static const struct {
	const char *property, *ranges;
} newer[] = {
#include "text/regex_newer.def"
};
#undef NEWER

enum { MATCH_LIMIT = 50000000, HEAP_LIMIT_KB = 65536, CODE_FACTOR = 16 };

struct regex {
	pcre2_code          *code;
	pcre2_match_context *context;
};

struct translation {
	const char *at, *end;
	struct buf  out;
	const char *unknown;
	bool        not_word; /* the class that is read has \\W in it */
};

static enum status put(struct translation *t, const char *text) { return buf_append_string(&t->out, text); }

static bool is_script(const char *name, size_t len)
{
	char        expression[64];
	int         code, written = snprintf(expression, sizeof expression, "\\p{sc:%.*s}", (int)len, name);
	PCRE2_SIZE  where;
	pcre2_code *compiled = written < 0 || (size_t)written >= sizeof expression ? NULL :
	    pcre2_compile((PCRE2_SPTR)expression, (PCRE2_SIZE)written, PCRE2_UTF, &code, &where, NULL);

	pcre2_code_free(compiled);
	return compiled != NULL;
}

/* The characters of one property, inside brackets.  A script is the characters that belong to it; PCRE2 would add those that
 * are used with it too. */
static enum status put_property(struct translation *t, const char *name, size_t len)
{
	enum status status = put(t, is_script(name, len) ? "\\p{sc:" : "\\p{");

	if (!status)
		status = buf_append(&t->out, name, len);
	if (!status)
		status = put(t, "}");
	for (size_t i = 0; i < sizeof newer / sizeof newer[0] && !status; i++)
		if (strlen(newer[i].property) == len && strncasecmp(newer[i].property, name, len) == 0)
			status = put(t, newer[i].ranges);
	return status;
}

/* The characters of the set that is called NAME, or of the property of that name, inside brackets. */
static enum status put_set(struct translation *t, const char *name, size_t len)
{
	enum status status = STATUS_OK;
	size_t      at;

	for (at = 0; at < sizeof sets / sizeof sets[0]; at++)
		if (strlen(sets[at].name) == len && strncasecmp(sets[at].name, name, len) == 0)
			break;
	if (at == sizeof sets / sizeof sets[0])
		return put_property(t, name, len);
	if (sets[at].text)
		return put(t, sets[at].text);
	for (const char *property = sets[at].properties; *property && !status; property += *property == ',') {
		size_t n = strcspn(property, ",");
		status = put_property(t, property, n);
		property += n;
	}
	return status;
}

static bool is_hex(char c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }

/* A set as an atom of its own, or inside of brackets. */
static enum status put_named(struct translation *t, const char *name, size_t len, bool negated, bool inside)
{
	enum status status = STATUS_OK;

	if (inside && negated) { /* cannot be said by what is in it */
		status = put(t, "\\P{");
		if (!status)
			status = buf_append(&t->out, name, len);
		return status ? status : put(t, "}");
	}
	if (!inside)
		status = put(t, negated ? "[^" : "[");
	if (!status && len == 5 && strncasecmp(name, "Punct", len) == 0) /* not what [:punct:] is */
		status = put_property(t, "P", 1);
	else if (!status)
		status = put_set(t, name, len);
	if (!status && len == 4 && strncasecmp(name, "Word", len) == 0)
		status = put(t, LATIN1_NUMBERS);
	return status || inside ? status : put(t, "]");
}

/* \p or \P at t->at, the name in braces or one letter. */
static enum status put_property_escape(struct translation *t, bool inside)
{
	bool        braces = t->end - t->at > 2 && t->at[2] == '{', negated = t->at[1] == 'P';
	const char *name = t->at + (braces ? 3 : 2), *stop = braces ? memchr(name, '}', (size_t)(t->end - name)) : name + 1;

	if (!stop || stop > t->end) {
		t->unknown = "a property that does not end";
		return STATUS_UNSUPPORTED;
	}
	t->at = stop + braces;
	if (braces && *name == '^') {
		negated = !negated;
		name++;
	}
	return put_named(t, name, (size_t)(stop - name), negated, inside);
}

/* \w, \W and their like. */
static enum status put_class_escape(struct translation *t, const char *name, bool negated, bool inside)
{
	bool        word = *name == 'W';
	enum status status;

	t->at += 2;
	if (inside && negated && word) {
		t->not_word = true; /* see put_class */
		return STATUS_OK;
	}
	if (inside && negated)
		return buf_append(&t->out, t->at - 2, 2); /* \S and \D are near enough, \H is refused before */
	if (inside)
		return put_set(t, name, strlen(name));
	status = put(t, negated ? "[^" : "[");
	if (!status)
		status = put_set(t, name, strlen(name));
	if (!status && word)
		status = put(t, LATIN1_NUMBERS);
	return status ? status : put(t, "]");
}

/* \b or \B at t->at: PCRE2 would count all numbers among the characters of words. */
static enum status put_boundary(struct translation *t)
{
	const char *parts[] = { "(?:(?<=[", t->at[1] == 'b' ? "])(?![" : "])(?=[", "])|(?<![", t->at[1] == 'b' ? "])(?=[" : "])(?![" };
	enum status status = STATUS_OK;

	t->at += 2;
	for (size_t i = 0; i < sizeof parts / sizeof parts[0] && !status; i++) {
		status = put(t, parts[i]);
		if (!status)
			status = put_set(t, "Word", 4);
		if (!status)
			status = put(t, LATIN1_NUMBERS);
	}
	return status ? status : put(t, "]))");
}

/* An escape at t->at, inside or outside of brackets. */
static enum status put_escape(struct translation *t, bool inside)
{
	static const struct {
		char        letter;
		const char *name;
	} classes[] = { { 's', "Space" }, { 'w', "Word" }, { 'd', "Digit" }, { 'h', "XDigit" } };
	char        letter = t->end - t->at > 1 ? t->at[1] : 0;
	enum status status;

	if (letter == 0 || (letter == 'H' && inside)) {
		t->unknown = letter ? "\\H inside brackets" : "a backslash at the end";
		return STATUS_UNSUPPORTED;
	}
	for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
		if ((letter | 0x20) == classes[i].letter)
			return put_class_escape(t, classes[i].name, letter < 'a', inside);
	if ((letter | 0x20) == 'p')
		return put_property_escape(t, inside);
	if ((letter | 0x20) == 'b' && !inside)
		return put_boundary(t);
	if (letter == 'O' && !inside) {
		t->at += 2;
		return put(t, "(?s:.)");
	}
	if (letter == 'u' && t->end - t->at > 5 && is_hex(t->at[2]) && is_hex(t->at[3]) && is_hex(t->at[4]) && is_hex(t->at[5])) {
		status = put(t, "\\x{");
		if (!status)
			status = buf_append(&t->out, t->at + 2, 4);
		t->at += 6;
		return status ? status : put(t, "}");
	}
	status = buf_append(&t->out, t->at, 2);
	t->at += 2;
	return status;
}

/* The class whose text begins at FIRST in the output has \W in it: [A\W] is (?:[A]|[^\w]), [^A\W] is (?:(?![A])[\w]). */
static enum status put_not_word(struct translation *t, size_t first)
{
	struct buf  left;
	bool        negated = t->out.len > first + 1 && t->out.data[first + 1] == '^', empty;
	enum status status;

	buf_init(&left, REGEX_MAX * CODE_FACTOR);
	status = buf_append(&left, t->out.data + first + 1 + negated, t->out.len - first - 1 - negated);
	empty = left.len == 0;
	t->out.len = first;
	if (!status)
		status = put(t, negated ? "(?:(?!" : "(?:");
	if (!status && !empty)
		status = put(t, "[");
	if (!status && !empty)
		status = buf_append(&t->out, left.data, left.len);
	if (!status)
		status = put(t, empty ? negated ? "[^\\s\\S])" : "" : negated ? "])" : "]|");
	buf_free(&left);
	if (!status)
		status = put(t, negated ? "[" : "[^");
	if (!status)
		status = put_set(t, "Word", 4);
	return status ? status : put(t, "])");
}

/* The rest of a class behind its opening bracket, up to and with the closing one.  FIRST: where its text begins in the
 * output, for an intersection. */
static enum status put_class(struct translation *t, size_t first)
{
	enum status status = STATUS_OK;
	bool        empty = true;

	t->not_word = false;
	if (t->at < t->end && *t->at == '^') {
		status = buf_append(&t->out, t->at++, 1);
	}
	while (!status && t->at < t->end) {
		char c = *t->at;
		if (c == ']' && !empty) {
			t->at++;
			return t->not_word ? put_not_word(t, first) : put(t, "]");
		}
		empty = false;
		if (c == '\\') {
			status = put_escape(t, true);
		} else if (c == '[' && t->end - t->at > 1 && t->at[1] == ':') { /* [:alpha:] */
			const char *stop = memmem(t->at, (size_t)(t->end - t->at), ":]", 2);
			if (!stop)
				break;
			if (t->at[2] == '^')
				status = buf_append(&t->out, t->at, (size_t)(stop + 2 - t->at));
			else
				status = put_set(t, t->at + 2, (size_t)(stop - t->at - 2));
			t->at = stop + 2;
		} else if (c == '&' && t->end - t->at > 2 && t->at[1] == '&' && t->at[2] == '[') {
			/* [A&&[B]] is (?=[B])[A], [A&&[^B]] is (?![B])[A] */
			struct buf left = { NULL, 0, 0, 0 };
			bool       negated = t->end - t->at > 3 && t->at[3] == '^';
			if (t->not_word) {
				t->unknown = "\\W beside an intersection";
				return STATUS_UNSUPPORTED;
			}
			buf_init(&left, REGEX_MAX * CODE_FACTOR);
			status = buf_append(&left, t->out.data + first, t->out.len - first);
			t->out.len = first;
			t->at += negated ? 4 : 3;
			if (!status)
				status = put(t, negated ? "(?:(?![" : "(?:(?=[");
			if (!status)
				status = put_class(t, t->out.len - 1);
			if (!status)
				status = put(t, ")");
			if (!status)
				status = buf_append(&t->out, left.data, left.len);
			buf_free(&left);
			if (!status && t->at < t->end && *t->at == ']') {
				t->at++;
				return put(t, "])");
			}
			t->unknown = "an intersection of more than two classes";
			return status ? status : STATUS_UNSUPPORTED;
		} else if (c == '[') {
			t->unknown = "a class inside a class";
			return STATUS_UNSUPPORTED;
		} else {
			status = buf_append(&t->out, t->at++, 1);
		}
	}
	t->unknown = "brackets that do not close";
	return status ? status : STATUS_UNSUPPORTED;
}

static enum status translate(struct translation *t)
{
	enum status status = STATUS_OK;

	while (!status && t->at < t->end) {
		char c = *t->at;
		if (c == '\\') {
			status = put_escape(t, false);
		} else if (c == '[') {
			size_t first = t->out.len;
			status = buf_append(&t->out, t->at++, 1);
			if (!status)
				status = put_class(t, first);
		} else {
			status = buf_append(&t->out, t->at++, 1);
		}
	}
	return status;
}

enum status regex_compile(const char *expression, size_t len, struct regex **ret, struct error *error)
{
	struct translation     t = { .at = expression, .end = expression + len };
	pcre2_compile_context *compile = pcre2_compile_context_create(NULL);
	struct regex          *regex = calloc(1, sizeof *regex);
	char                   quoted[BYTES_QUOTE_MAX];
	enum status            status = STATUS_NOMEM;
	int                    code = 0;
	PCRE2_SIZE             where = 0;

	buf_init(&t.out, REGEX_MAX * CODE_FACTOR);
	bytes_quote(quoted, expression, len);
	if (!compile || !regex) {
		error_set(error, status, "no memory for the expression %s", quoted);
		goto out;
	}
	status = len > REGEX_MAX ? STATUS_LIMIT : translate(&t);
	if (status) {
		error_set(error, status, "the expression %s: %s", quoted, t.unknown ? t.unknown : status_text(status));
		goto out;
	}
	pcre2_set_newline(compile, PCRE2_NEWLINE_LF);
	regex->code = pcre2_compile((PCRE2_SPTR)(t.out.len ? t.out.data : ""), t.out.len,
	    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &where, compile);
	if (!regex->code) {
		PCRE2_UCHAR text[128];
		pcre2_get_error_message(code, text, sizeof text);
		status = error_set(error, STATUS_UNSUPPORTED, "the expression %s: %s", quoted, (const char *)text);
		goto out;
	}
	pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE); /* where there is none, it is slower and equal */
	regex->context = pcre2_match_context_create(NULL);
	if (!regex->context) {
		status = error_set(error, STATUS_NOMEM, "no memory for the expression %s", quoted);
		goto out;
	}
	pcre2_set_match_limit(regex->context, MATCH_LIMIT);
	pcre2_set_heap_limit(regex->context, HEAP_LIMIT_KB);
	*ret = regex;
	regex = NULL;
out:
	regex_free(regex);
	pcre2_compile_context_free(compile);
	buf_free(&t.out);
	return status;
}

void regex_free(struct regex *regex)
{
	if (!regex)
		return;
	pcre2_code_free(regex->code);
	pcre2_match_context_free(regex->context);
	free(regex);
}

enum status regex_search_begin(struct regex_search *search, const struct regex *regex, const char *text, size_t len)
{
	*search = (struct regex_search){ .regex = regex, .text = text, .len = len, .match = pcre2_match_data_create(1, NULL) };
	return search->match ? STATUS_OK : STATUS_NOMEM;
}

void regex_search_end(struct regex_search *search)
{
	pcre2_match_data_free(search->match);
	search->match = NULL;
}

enum status regex_search_next(struct regex_search *search, size_t *ret_start, size_t *ret_end)
{
	while (search->at <= search->len) {
		PCRE2_SIZE *ends;
		int         rc = pcre2_match(search->regex->code, (PCRE2_SPTR)search->text, search->len, search->at, PCRE2_NO_UTF_CHECK,
		            search->match, search->regex->context);
		if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter has its own, larger stack */
			rc = pcre2_match(search->regex->code, (PCRE2_SPTR)search->text, search->len, search->at,
			    PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, search->match, search->regex->context);
		if (rc == PCRE2_ERROR_NOMATCH)
			break;
		if (rc < 0)
			return rc == PCRE2_ERROR_NOMEMORY ? STATUS_NOMEM : STATUS_LIMIT;
		ends = pcre2_get_ovector_pointer(search->match);
		if (ends[1] > search->at || (ends[1] == search->at && !(search->matched && search->last_end == ends[1]))) {
			*ret_start = ends[0] > search->at ? ends[0] : search->at; /* \K could put it anywhere */
			*ret_end = search->at = search->last_end = ends[1];
			search->matched = true;
			return STATUS_OK;
		}
		/* Nothing, right behind the last match: on to the next character. */
		search->at++;
		while (search->at < search->len && ((unsigned char)search->text[search->at] & 0xc0) == 0x80)
			search->at++;
	}
	return STATUS_NOT_FOUND;
}
