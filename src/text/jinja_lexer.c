/* jinja_lexer.c: template source → tokens.  Owns whitespace control: trim_blocks (the newline after a block or comment tag
 * goes), lstrip_blocks (so does the indentation before one), `-` and `+` at the marks, and the newline at the end of the
 * file.  Does not own grammar (jinja_parser.c).
 *
 *      text {%- tag +%} text {{ expression -}} text {# comment #} text {% raw %} {{ text }} {% endraw %}
 */
#include "text/jinja_parts.h"

#include "base/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lexer {
	struct jinja_run   *run;
	const char         *source;
	size_t              len, at, counted; /* COUNTED: up to where lines were counted */
	uint32_t            line;
	size_t              line_start;
	bool                line_starting; /* what came before ends with a newline */
	struct jinja_token *tokens;
	size_t              count, capacity;
};

void jinja_refuse(struct jinja_run *run, uint32_t line, uint32_t column, enum status status, const char *format, ...)
{
	char    message[ERROR_MESSAGE_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(message, sizeof message, format, args);
	va_end(args);
	jinja_one_line(message);
	run->status = error_set(run->error, status, "%s:%u:%u: %s", run->label, line, column, message);
	longjmp(run->leave, 1);
}

static void count_lines(struct lexer *l, size_t to)
{
	for (; l->counted < to; l->counted++)
		if (l->source[l->counted] == '\n') {
			l->line++;
			l->line_start = l->counted + 1;
		}
}

static struct jinja_token *add(struct lexer *l, enum jinja_token_type type, const char *text, size_t len, size_t at)
{
	struct jinja_token *token;

	l->tokens = jinja_grow(l->run, l->tokens, l->count, &l->capacity, sizeof *l->tokens, 256);
	count_lines(l, at);
	token = &l->tokens[l->count++];
	*token = (struct jinja_token){ .type = type, .text = text, .len = len, .line = l->line,
		.column = (uint32_t)(at - l->line_start) + 1 };
	return token;
}

static _Noreturn void refuse_at(struct lexer *l, size_t at, const char *what)
{
	count_lines(l, at);
	jinja_refuse(l->run, l->line, (uint32_t)(at - l->line_start) + 1, STATUS_INVALID, "%s", what);
}

static size_t space_at(const struct lexer *l, size_t at)
{
	struct jinja_string rest = { .bytes = l->source, .len = l->len };

	return at < l->len && jinja_is_space(jinja_code_point(rest, at)) ? jinja_character_bytes(rest, at) : 0;
}

static size_t skip_space(const struct lexer *l, size_t at)
{
	size_t bytes;

	while ((bytes = space_at(l, at)))
		at += bytes;
	return at;
}

/* The text from l->at to END, where a tag begins that has SIGN after its mark. */
static void add_data(struct lexer *l, size_t end, char sign, bool variable)
{
	struct jinja_string text = { .bytes = l->source + l->at, .len = end - l->at };

	if (sign == '-') {
		text = jinja_strip(text, NULL, JINJA_STRIP_RIGHT);
	} else if (sign != '+' && !variable) {
		size_t start = text.len;

		while (start > 0 && text.bytes[start - 1] != '\n')
			start--;
		if ((start > 0 || l->line_starting) &&
		    jinja_strip(jinja_part(text, start, text.len), NULL, JINJA_STRIP_BOTH).len == 0)
			text.len = start;
	}
	if (text.len)
		add(l, JINJA_TOKEN_DATA, text.bytes, text.len, l->at);
}

/* Behind the end mark of a tag whose sign before it was SIGN. */
static void after_tag(struct lexer *l, char sign, bool trims_newline)
{
	size_t start = l->at;

	if (sign == '-')
		l->at = skip_space(l, l->at);
	else if (sign != '+' && trims_newline && l->at < l->len && l->source[l->at] == '\n')
		l->at++;
	l->line_starting = l->at > start && l->source[l->at - 1] == '\n';
}

static bool starts(const struct lexer *l, size_t at, const char *text)
{
	return l->len - at >= strlen(text) && memcmp(l->source + at, text, strlen(text)) == 0;
}

static char sign_at(const struct lexer *l, size_t at)
{
	return at < l->len && (l->source[at] == '-' || l->source[at] == '+') ? l->source[at] : 0;
}

/* {% raw %} … {% endraw %}, with l->at behind the first mark.  False: it is another tag. */
static bool lex_raw(struct lexer *l, size_t tag, char sign)
{
	size_t at = skip_space(l, l->at + (sign != 0)), end;
	char   close;

	if (!starts(l, at, "raw"))
		return false;
	at = skip_space(l, at + 3);
	close = at < l->len && l->source[at] == '-' ? '-' : 0;
	if (!starts(l, at + (close != 0), "%}"))
		return false;
	l->at = at + (close != 0) + 2;
	if (close)
		l->at = skip_space(l, l->at);
	l->line_starting = l->source[l->at - 1] == '\n';
	for (end = l->at; end < l->len; end++) {
		size_t inner;
		char   open;

		if (!starts(l, end, "{%"))
			continue;
		open = sign_at(l, end + 2);
		inner = skip_space(l, end + 2 + (open != 0));
		if (!starts(l, inner, "endraw"))
			continue;
		inner = skip_space(l, inner + 6);
		close = sign_at(l, inner);
		if (!starts(l, inner + (close != 0), "%}"))
			continue;
		add_data(l, end, open, false);
		l->at = inner + (close != 0) + 2;
		after_tag(l, close, true);
		return true;
	}
	refuse_at(l, tag, "{% raw %} without {% endraw %}");
}

static void lex_comment(struct lexer *l, size_t tag)
{
	const char *end = memmem(l->source + l->at, l->len - l->at, "#}", 2);
	char        sign;

	if (!end)
		refuse_at(l, tag, "{# without #}");
	sign = end > l->source + l->at && (end[-1] == '-' || end[-1] == '+') ? end[-1] : 0;
	l->at = (size_t)(end - l->source) + 2;
	after_tag(l, sign, true);
}

/* ---- inside tags ----------------------------------------------------------------- */

static bool name_byte(char c, bool first)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (uint8_t)c >= 0x80 || (!first && c >= '0' && c <= '9');
}

static void lex_number(struct lexer *l)
{
	size_t              start = l->at;
	char                text[64];
	size_t              len = 0;
	int                 base = 10;
	bool                real = false;
	struct jinja_token *token;

	if (l->source[start] == '0' && start + 1 < l->len && strchr("xXoObB", l->source[start + 1]) && l->source[start + 1]) {
		base = strchr("xX", l->source[start + 1]) ? 16 : strchr("oO", l->source[start + 1]) ? 8 : 2;
		l->at += 2;
	}
	for (; l->at < l->len; l->at++) {
		char c = l->source[l->at], next = l->at + 1 < l->len ? l->source[l->at + 1] : 0;
		bool digit = base == 16 ? isxdigit((unsigned char)c) : c >= '0' && c <= '9';

		if (c == '_' && (isxdigit((unsigned char)next)))
			continue;
		if (base == 10 && c == '.' && !real && next >= '0' && next <= '9')
			real = true;
		else if (base == 10 && (c == 'e' || c == 'E') && ((next >= '0' && next <= '9') || next == '-' || next == '+'))
			real = true;
		else if (!digit && !(real && (c == '-' || c == '+') && strchr("eE", l->source[l->at - 1])))
			break;
		if (len + 1 >= sizeof text)
			refuse_at(l, start, "a number has more than 63 characters");
		text[len++] = c;
	}
	text[len] = 0;
	token = add(l, real ? JINJA_TOKEN_FLOAT : JINJA_TOKEN_INTEGER, l->source + start, l->at - start, start);
	errno = 0;
	if (real)
		token->real = strtod(text, NULL);
	else
		token->integer = strtoll(text, NULL, base);
	if (errno == ERANGE && !real)
		refuse_at(l, start, "an integer does not fit 64 bits");
}

/* The escapes of Python's strings. */
static size_t unescape(struct lexer *l, size_t at, size_t end, char *out, size_t *ret_len)
{
	static const char plain[] = "n\nt\tr\rb\bf\fv\va\a\\\\''\"\"";
	char              c = l->source[at];
	const char       *found;
	uint32_t          code = 0;
	size_t            digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0, used = 1;

	if (c == '\n') {
		*ret_len = 0;
		return 1;
	}
	if (c == 'N')
		refuse_at(l, at, "\\N{…} in a string is not supported");
	for (found = plain; *found && c; found += 2)
		if (*found == c) {
			*out = found[1];
			*ret_len = 1;
			return 1;
		}
	if (c >= '0' && c <= '7') {
		for (used = 0; used < 3 && at + used < end && l->source[at + used] >= '0' && l->source[at + used] <= '7'; used++)
			code = code * 8 + (uint32_t)(l->source[at + used] - '0');
	} else if (digits) {
		for (; used <= digits; used++) {
			char h = at + used < end ? l->source[at + used] : 0;
			if (!isxdigit((unsigned char)h))
				refuse_at(l, at, "an escape in a string is cut off");
			code = code * 16 + (uint32_t)(h <= '9' ? h - '0' : (h | 0x20) - 'a' + 10);
		}
		if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
			refuse_at(l, at, "an escape in a string is no character");
	} else { /* not an escape: the backslash stays */
		out[0] = '\\';
		out[1] = c;
		*ret_len = 2;
		return 1;
	}
	*ret_len = utf8_encode(code, out);
	return used;
}

static void lex_string(struct lexer *l)
{
	size_t              start = l->at++, end = l->at, len = 0;
	char                quote = l->source[start];
	char               *text;
	struct jinja_token *token;

	while (end < l->len && l->source[end] != quote)
		end += l->source[end] == '\\' ? 2 : 1;
	if (end >= l->len)
		refuse_at(l, start, "a string does not end");
	text = jinja_alloc(l->run, 2 * (end - l->at) + 4);
	while (l->at < end) {
		size_t written = 1;
		if (l->source[l->at] == '\\') {
			l->at++;
			l->at += unescape(l, l->at, end, text + len, &written);
		} else {
			text[len] = l->source[l->at++];
		}
		len += written;
	}
	l->at = end + 1;
	if (!utf8_valid(text, len, NULL)) /* a backslash before a character of several bytes cannot break it, octal can */
		refuse_at(l, start, "a string is not UTF-8");
	token = add(l, JINJA_TOKEN_STRING, text, len, start);
	token->len = len;
}

/* The tokens of a tag or expression up to its end mark. */
static void lex_inside(struct lexer *l, size_t tag, bool variable)
{
	static const char *const operators[] = { "==", "!=", "<=", ">=", "//", "**" };
	const char              *end_mark = variable ? "}}" : "%}";
	uint32_t                 nested = 0; /* inside brackets an end mark may be two closing braces */

	for (;;) {
		char c, sign;

		l->at = skip_space(l, l->at);
		if (l->at >= l->len)
			refuse_at(l, tag, variable ? "{{ without }}" : "{% without %}");
		c = l->source[l->at];
		sign = sign_at(l, l->at);
		if (variable && sign == '+') /* only block tags know it */
			sign = 0;
		if (nested == 0 && starts(l, l->at + (sign != 0), end_mark)) {
			add(l, variable ? JINJA_TOKEN_VARIABLE_END : JINJA_TOKEN_BLOCK_END, end_mark, 2, l->at);
			l->at += (sign != 0) + 2;
			after_tag(l, sign, !variable);
			return;
		}
		if (name_byte(c, true)) {
			size_t              start = l->at;
			struct jinja_string name;

			while (l->at < l->len && name_byte(l->source[l->at], false))
				l->at++;
			name = (struct jinja_string){ .bytes = l->source + start, .len = l->at - start };
			add(l, JINJA_TOKEN_NAME, jinja_terminated(l->run, name), name.len, start);
		} else if (c >= '0' && c <= '9') {
			lex_number(l);
		} else if (c == '\'' || c == '"') {
			lex_string(l);
		} else {
			size_t len = 1;

			for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
				if (starts(l, l->at, operators[i]))
					len = 2;
			if (!c || !strchr("+-*/%~<>=!.,:;|()[]{}", c) || (c == '!' && len == 1))
				refuse_at(l, l->at, "an unexpected character");
			if (c == '(' || c == '[' || c == '{')
				nested++;
			if (c == ')' || c == ']' || c == '}') {
				if (nested == 0)
					refuse_at(l, l->at, "a closing bracket that was not opened");
				nested--;
			}
			add(l, JINJA_TOKEN_OPERATOR, l->source + l->at, len, l->at);
			l->at += len;
		}
	}
}

struct jinja_token *jinja_lex(struct jinja_run *run, const char *source, size_t len, size_t *ret_count)
{
	struct lexer l = { .run = run, .source = source, .len = len, .line = 1, .line_starting = true };

	if (len && source[len - 1] == '\n') /* one newline at the end of the file is not the template's */
		l.len--;
	while (l.at < l.len) {
		const char *found = l.source + l.at;
		size_t      tag;
		char        kind, sign;

		while ((found = memchr(found, '{', (size_t)(l.source + l.len - found))) && found + 1 < l.source + l.len &&
		    found[1] != '%' && found[1] != '{' && found[1] != '#')
			found++;
		if (!found || found + 1 >= l.source + l.len) {
			add(&l, JINJA_TOKEN_DATA, l.source + l.at, l.len - l.at, l.at);
			break;
		}
		tag = (size_t)(found - l.source);
		kind = found[1];
		sign = sign_at(&l, tag + 2);
		if (kind == '{' && sign == '+')
			sign = 0;
		add_data(&l, tag, sign, kind == '{');
		l.at = tag + 2;
		if (kind == '%' && lex_raw(&l, tag, sign))
			continue;
		l.at += sign != 0;
		if (kind == '#') {
			lex_comment(&l, tag);
			continue;
		}
		add(&l, kind == '{' ? JINJA_TOKEN_VARIABLE_BEGIN : JINJA_TOKEN_BLOCK_BEGIN, found, 2, tag);
		lex_inside(&l, tag, kind == '{');
	}
	add(&l, JINJA_TOKEN_END, "", 0, l.len);
	*ret_count = l.count;
	return l.tokens;
}
