/* pretokenizer.c: owns the pre-tokenizer components and the order in which they cut.  The splits of the known families are
 * scanner.c's, expressions are regex.c's.
 *
 * Steps run depth first: a piece goes through all of them before the next one is cut, so no list of pieces is ever kept.
 * Each step looks at nothing but its piece, as in the reference, so the order does not show in the result.
 *
 * A step finds matches and what lies between them; a behavior says which of these become pieces and which are joined.  All
 * behaviors work on a window of two neighbours, see struct cutter.
 *
 * Invariant: pieces are not empty; without REMOVED and without replacements their concatenation is the text. */
#include "text/pretokenizer.h"
#include "vocab/bytelevel.h"
#include "vocab/component.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const behaviors[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous", NULL };

static enum status copy_pattern(struct pretokenizer_step *step, const char *text, size_t len, struct error *error)
{
	step->pattern = malloc(len + 1);
	if (!step->pattern)
		return error_set(error, STATUS_NOMEM, "no memory for a pre-tokenizer");
	memcpy(step->pattern, text, len);
	step->pattern_len = len;
	return STATUS_OK;
}

static enum status init_split(struct pretokenizer_step *step, const json_t *component, struct error *error)
{
	const char *pattern;
	size_t      len;
	bool        regex;
	unsigned    behavior;
	enum status status = component_pattern(component, &regex, &pattern, &len, error);

	if (!status)
		status = component_word(component, "behavior", behaviors, SPLIT_REMOVED, &behavior, error);
	if (!status)
		status = component_bool(component, "invert", false, &step->invert, error);
	if (status)
		return status;
	step->behavior = (enum split_behavior)behavior;
	/* The scanners' expressions match everywhere: isolating matches and removing what is none are the same. */
	if (regex && scanner_find(pattern, len, &step->scanner) &&
	    ((behavior == SPLIT_ISOLATED) || (behavior == SPLIT_REMOVED && step->invert))) {
		step->type = PRETOKENIZER_SCANNER;
		return STATUS_OK;
	}
	step->type = regex ? PRETOKENIZER_REGEX : PRETOKENIZER_STRING;
	return regex ? regex_compile(pattern, len, &step->regex, error) : copy_pattern(step, pattern, len, error);
}

static enum status init_metaspace(struct pretokenizer_step *step, const json_t *component, struct error *error)
{
	static const char *const schemes[] = { "always", "first", "never", NULL };
	const char              *text;
	size_t                   len;
	uint32_t                 code;
	unsigned                 scheme;
	bool                     space;
	enum status              status = component_string(component, "replacement", "\xe2\x96\x81", &text, &len, error);

	if (!status && (len == 0 || (size_t)utf8_decode(text, len, &code) != len))
		status = error_set(error, STATUS_INVALID, "the pre-tokenizer Metaspace: its replacement is not one character");
	if (!status)
		status = copy_pattern(step, text, len, error);
	if (!status)
		status = component_bool(component, "add_prefix_space", true, &space, error);
	if (!status)
		status = component_word(component, "prepend_scheme", schemes, space ? PREPEND_ALWAYS : PREPEND_NEVER, &scheme, error);
	if (!status)
		status = component_bool(component, "split", true, &step->split, error);
	if (!status) {
		step->scheme = (enum prepend_scheme)scheme;
		step->behavior = SPLIT_MERGED_WITH_NEXT;
	}
	return status;
}

static struct pretokenizer_step *new_step(struct pretokenizer *pretokenizer, enum pretokenizer_type type, struct error *error)
{
	struct pretokenizer_step *step;

	if (pretokenizer->count == PRETOKENIZER_STEPS_MAX) {
		error_set(error, STATUS_LIMIT, "the pre-tokenizer has more than %d steps", PRETOKENIZER_STEPS_MAX);
		return NULL;
	}
	step = &pretokenizer->steps[pretokenizer->count++];
	*step = (struct pretokenizer_step){ .type = type, .behavior = SPLIT_ISOLATED };
	return step;
}

/* The prefix, the split of GPT-2 and the mapping of bytes are three steps here. */
static enum status init_byte_level(struct pretokenizer *pretokenizer, const json_t *component, struct error *error)
{
	struct pretokenizer_step *step;
	bool                      prefix, use_regex;
	enum status               status = component_bool(component, "add_prefix_space", true, &prefix, error);

	if (!status)
		status = component_bool(component, "use_regex", true, &use_regex, error);
	if (status)
		return status;
	if (!(step = new_step(pretokenizer, PRETOKENIZER_BYTE_LEVEL, error)))
		return STATUS_LIMIT;
	step->prefix = prefix;
	if (use_regex) {
		if (!(step = new_step(pretokenizer, PRETOKENIZER_SCANNER, error)))
			return STATUS_LIMIT;
		step->scanner = SCANNER_GPT2;
	}
	if (!(step = new_step(pretokenizer, PRETOKENIZER_BYTE_LEVEL, error)))
		return STATUS_LIMIT;
	step->map = true;
	return STATUS_OK;
}

static enum status add_step(struct pretokenizer *pretokenizer, const json_t *component, unsigned depth, struct error *error)
{
	static const struct {
		const char            *name;
		enum pretokenizer_type type;
	} types[] = { { "Split", PRETOKENIZER_REGEX }, { "Digits", PRETOKENIZER_DIGITS }, { "Punctuation", PRETOKENIZER_PUNCTUATION },
		{ "Whitespace", PRETOKENIZER_WHITESPACE }, { "WhitespaceSplit", PRETOKENIZER_WHITESPACE_SPLIT },
		{ "Metaspace", PRETOKENIZER_METASPACE }, { "BertPreTokenizer", PRETOKENIZER_BERT }, { "CharDelimiterSplit",
		    PRETOKENIZER_STRING } };
	const char               *type = component_type(component), *text;
	struct pretokenizer_step *step;
	size_t                    known = 0, count;
	unsigned                  behavior;
	enum status               status = STATUS_OK;

	if (strcmp(type, "Sequence") == 0) {
		status = component_steps(component, "pretokenizers", depth, &count, error);
		for (size_t i = 0; !status && i < count; i++)
			status = add_step(pretokenizer, component_step(component, "pretokenizers", i), depth + 1, error);
		return status;
	}
	if (strcmp(type, "ByteLevel") == 0)
		return init_byte_level(pretokenizer, component, error);
	while (known < sizeof types / sizeof types[0] && strcmp(type, types[known].name) != 0)
		known++;
	if (known == sizeof types / sizeof types[0])
		return component_unknown(component, "pre-tokenizer", error);
	step = new_step(pretokenizer, types[known].type, error);
	if (!step)
		return STATUS_LIMIT;
	switch (step->type) {
	case PRETOKENIZER_REGEX:
		return init_split(step, component, error);
	case PRETOKENIZER_METASPACE:
		return init_metaspace(step, component, error);
	case PRETOKENIZER_STRING:
		step->behavior = SPLIT_REMOVED;
		status = component_string(component, "delimiter", NULL, &text, &count, error);
		return status ? status : copy_pattern(step, text, count, error);
	case PRETOKENIZER_DIGITS:
		status = component_bool(component, "individual_digits", false, &step->individual, error);
		step->behavior = step->individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
		return status;
	case PRETOKENIZER_PUNCTUATION:
		status = component_word(component, "behavior", behaviors, SPLIT_ISOLATED, &behavior, error);
		if (!status)
			step->behavior = (enum split_behavior)behavior;
		return status;
	default:
		return STATUS_OK;
	}
}

enum status pretokenizer_init(struct pretokenizer *pretokenizer, const struct token_file *file, const struct unicode *unicode,
    bool bytes, struct error *error)
{
	enum status status;

	*pretokenizer = (struct pretokenizer){ .unicode = unicode, .any_bytes = true };
	if (!file->pre_tokenizer) {
		pretokenizer->any_bytes = false;
		return STATUS_OK;
	}
	status = add_step(pretokenizer, file->pre_tokenizer, 0, error);
	if (status)
		return status;
	if (bytes)
		pretokenizer->count--; /* the model takes the bytes themselves */
	for (size_t i = 0; i < pretokenizer->count; i++) {
		const struct pretokenizer_step *step = &pretokenizer->steps[i];
		if (step->type != PRETOKENIZER_SCANNER && step->type != PRETOKENIZER_DIGITS &&
		    !(step->type == PRETOKENIZER_BYTE_LEVEL && !step->map))
			pretokenizer->any_bytes = false;
		if (step->type == PRETOKENIZER_METASPACE && step->scheme == PREPEND_FIRST)
			pretokenizer->asks_first = true;
	}
	pretokenizer->any_bytes = pretokenizer->any_bytes && bytes;
	return STATUS_OK;
}

void pretokenizer_free(struct pretokenizer *pretokenizer)
{
	for (size_t i = 0; i < PRETOKENIZER_STEPS_MAX; i++) {
		regex_free(pretokenizer->steps[i].regex);
		free(pretokenizer->steps[i].pattern);
		pretokenizer->steps[i] = (struct pretokenizer_step){ .type = PRETOKENIZER_SCANNER };
	}
}

struct run {
	const struct pretokenizer *pretokenizer;
	pretokenizer_sink         *sink;
	void                      *context;
};

static enum status run_from(const struct run *run, size_t at, const char *text, size_t len, size_t head);

/* Joins matches and gaps by the behavior.  `from…to` is the piece that is not handed on yet. */
struct cutter {
	const struct run *run;
	size_t            next; /* step that takes the pieces */
	const char       *text;
	enum split_behavior behavior;
	size_t            head; /* bytes of the text that come from the first character of a prompt */
	size_t            from, to;
	bool              open, matched; /* is there one; was the last stretch a match */
};

static enum status cut_hand_on(struct cutter *cutter)
{
	size_t from = cutter->from, to = cutter->to;

	cutter->open = false;
	return to <= from ? STATUS_OK : run_from(cutter->run, cutter->next, cutter->text + from, to - from,
	    cutter->head > from ? cutter->head - from : 0);
}

/* The next stretch, a match or a gap; empty matches are handed in too: they cut. */
static enum status cut_add(struct cutter *cutter, size_t from, size_t to, bool match)
{
	bool        join = false;
	enum status status = STATUS_OK;

	switch (cutter->behavior) {
	case SPLIT_REMOVED:
		if (match)
			return STATUS_OK;
		break;
	case SPLIT_ISOLATED:
		break;
	case SPLIT_MERGED_WITH_PREVIOUS: /* a match is glued to the gap before it */
		join = cutter->open && match && !cutter->matched;
		break;
	case SPLIT_MERGED_WITH_NEXT: /* a match is glued to the gap behind it */
		join = cutter->open && !match && cutter->matched;
		break;
	case SPLIT_CONTIGUOUS:
		join = cutter->open && match == cutter->matched;
		break;
	}
	cutter->matched = match;
	if (join) {
		cutter->to = to;
		return STATUS_OK;
	}
	if (cutter->open)
		status = cut_hand_on(cutter);
	cutter->from = from;
	cutter->to = to;
	cutter->open = true;
	return status;
}

static enum status cut_end(struct cutter *cutter) { return cutter->open ? cut_hand_on(cutter) : STATUS_OK; }

static enum status cut_by_regex(struct cutter *cutter, const struct pretokenizer_step *step, size_t len)
{
	struct regex_search search;
	size_t              start, end, done = 0;
	enum status         status = regex_search_begin(&search, step->regex, cutter->text, len);

	while (!status && !(status = regex_search_next(&search, &start, &end))) {
		if (start > done)
			status = cut_add(cutter, done, start, step->invert);
		if (!status)
			status = cut_add(cutter, start, end, !step->invert);
		done = end;
	}
	regex_search_end(&search);
	if (status != STATUS_NOT_FOUND)
		return status;
	status = done < len ? cut_add(cutter, done, len, step->invert) : STATUS_OK;
	return status ? status : cut_end(cutter);
}

static enum status cut_by_string(struct cutter *cutter, const struct pretokenizer_step *step, size_t len)
{
	size_t      done = 0;
	enum status status = STATUS_OK;

	while (!status && step->pattern_len) {
		const char *found = memmem(cutter->text + done, len - done, step->pattern, step->pattern_len);
		size_t      start = found ? (size_t)(found - cutter->text) : len;
		if (!found)
			break;
		if (start > done)
			status = cut_add(cutter, done, start, step->invert);
		done = start + step->pattern_len;
		if (!status)
			status = cut_add(cutter, start, done, !step->invert);
	}
	if (!status && done < len)
		status = cut_add(cutter, done, len, step->invert);
	return status ? status : cut_end(cutter);
}

/* Every character with one of PROPERTIES, or with CLASS, is a match of its own. */
static enum status cut_by_property(struct cutter *cutter, unsigned properties, unsigned class, size_t len)
{
	const struct unicode *unicode = cutter->run->pretokenizer->unicode;
	size_t                gap = 0, at = 0;
	enum status           status = STATUS_OK;
	uint32_t              code = 0;

	while (at < len && !status) {
		int      n = utf8_decode(cutter->text + at, len - at, &code);
		unsigned here = n > 0 ? unicode_properties(unicode, code) : 0;
		size_t   end = at + (n > 0 ? (size_t)n : 1);
		if (here & properties || (class && (here & UNICODE_CLASS_MASK) == class)) {
			if (at > gap)
				status = cut_add(cutter, gap, at, false);
			if (!status)
				status = cut_add(cutter, at, end, true);
			gap = end;
		}
		at = end;
	}
	if (!status && gap < len)
		status = cut_add(cutter, gap, len, false);
	return status ? status : cut_end(cutter);
}

/* \w+|[^\w\s]+ */
static enum status cut_words(struct cutter *cutter, size_t len)
{
	const struct unicode *unicode = cutter->run->pretokenizer->unicode;
	size_t                from = 0, at = 0;
	int                   before = -1; /* what the stretch from…at is made of */
	enum status           status = STATUS_OK;
	uint32_t              code = 0;

	while (at < len && !status) {
		size_t   n = (size_t)utf8_decode(cutter->text + at, len - at, &code);
		unsigned here = unicode_properties(unicode, code);
		int      kind = (here & UNICODE_CLASS_MASK) == UNICODE_SPACE ? 0 : here & UNICODE_WORD ? 1 : 2;
		if (kind != before && before > 0)
			status = cut_add(cutter, from, at, false);
		if (kind != before)
			from = at;
		before = kind;
		at += n;
	}
	if (!status && before > 0)
		status = cut_add(cutter, from, len, false);
	return status ? status : cut_end(cutter);
}

/* White space is removed, then punctuation isolated: one pass. */
static enum status cut_bert(struct cutter *cutter, size_t len)
{
	const struct unicode *unicode = cutter->run->pretokenizer->unicode;
	size_t                from = 0, at = 0;
	enum status           status = STATUS_OK;
	uint32_t              code = 0;

	while (at < len && !status) {
		size_t   n = (size_t)utf8_decode(cutter->text + at, len - at, &code);
		unsigned here = unicode_properties(unicode, code);
		bool     space = (here & UNICODE_CLASS_MASK) == UNICODE_SPACE;
		if (space || here & UNICODE_PUNCTUATION) {
			if (at > from)
				status = cut_add(cutter, from, at, false);
			if (!status && !space)
				status = cut_add(cutter, at, at + n, false);
			from = at + n;
		}
		at += n;
	}
	if (!status && from < len)
		status = cut_add(cutter, from, len, false);
	return status ? status : cut_end(cutter);
}

/* Spaces become the replacement, one is put before the text where the scheme wants it, and the pieces begin with it. */
static enum status metaspace(struct cutter *cutter, const struct pretokenizer_step *step, size_t len)
{
	const char *text = cutter->text;
	struct buf  out;
	size_t      head = 0;
	bool        prepend = step->scheme == PREPEND_ALWAYS || (step->scheme == PREPEND_FIRST && cutter->head);
	enum status status = STATUS_OK;

	buf_init(&out, UINT32_MAX);
	if (prepend && *text != ' ' && !(len >= step->pattern_len && memcmp(text, step->pattern, step->pattern_len) == 0))
		status = buf_append(&out, step->pattern, step->pattern_len);
	for (size_t at = 0; at < len && !status;) {
		const char *space = memchr(text + at, ' ', len - at);
		size_t      n = space ? (size_t)(space - text) - at : len - at;
		if (at < cutter->head)
			head = out.len + (n ? (cutter->head - at < n ? cutter->head - at : n) : step->pattern_len);
		if (n)
			status = buf_append(&out, text + at, n);
		if (!status && space)
			status = buf_append(&out, step->pattern, step->pattern_len);
		at += n + (space != NULL);
	}
	cutter->text = out.data;
	cutter->head = head;
	if (!status)
		status = step->split ? cut_by_string(cutter, step, out.len) : run_from(cutter->run, cutter->next, out.data, out.len, head);
	buf_free(&out);
	return status;
}

static enum status byte_level(const struct run *run, size_t next, const struct pretokenizer_step *step, const char *text,
    size_t len, size_t head)
{
	struct buf  out;
	size_t      out_head = head;
	enum status status = STATUS_OK;

	if (!step->map && (!step->prefix || *text == ' '))
		return run_from(run, next, text, len, head);
	buf_init(&out, UINT32_MAX);
	if (!step->map) {
		status = buf_append(&out, " ", 1);
		if (!status)
			status = buf_append(&out, text, len);
		out_head += head > 0;
	}
	for (size_t at = 0; step->map && at < len && !status; at++) {
		char bytes[4];
		status = buf_append(&out, bytes, utf8_encode(bytelevel_char((unsigned char)text[at]), bytes));
		if (at + 1 == head)
			out_head = out.len;
	}
	if (!status)
		status = run_from(run, next, out.data, out.len, out_head);
	buf_free(&out);
	return status;
}

static enum status scan(const struct run *run, size_t next, enum scanner scanner, const char *text, size_t len, size_t head)
{
	const struct unicode *unicode = run->pretokenizer->unicode;

	if (next == run->pretokenizer->count)
		return scanner_split(scanner, unicode, text, len, run->sink, run->context);
	while (len) {
		size_t      n = scanner_next(scanner, unicode, text, len);
		enum status status = run_from(run, next, text, n, head < n ? head : n);
		if (status)
			return status;
		head -= head < n ? head : n;
		text += n;
		len -= n;
	}
	return STATUS_OK;
}

static enum status run_from(const struct run *run, size_t at, const char *text, size_t len, size_t head)
{
	const struct pretokenizer_step *step = &run->pretokenizer->steps[at];
	struct cutter                   cutter = { .run = run, .next = at + 1, .text = text, .head = head };

	if (at == run->pretokenizer->count)
		return run->sink(run->context, text, len);
	cutter.behavior = step->behavior;
	switch (step->type) {
	case PRETOKENIZER_SCANNER:
		return scan(run, at + 1, step->scanner, text, len, head);
	case PRETOKENIZER_REGEX:
		return cut_by_regex(&cutter, step, len);
	case PRETOKENIZER_STRING:
		return cut_by_string(&cutter, step, len);
	case PRETOKENIZER_DIGITS:
		return cut_by_property(&cutter, UNICODE_NUMERIC, 0, len);
	case PRETOKENIZER_PUNCTUATION:
		return cut_by_property(&cutter, UNICODE_PUNCTUATION, 0, len);
	case PRETOKENIZER_WHITESPACE_SPLIT:
		cutter.behavior = SPLIT_REMOVED;
		return cut_by_property(&cutter, 0, UNICODE_SPACE, len);
	case PRETOKENIZER_WHITESPACE:
		return cut_words(&cutter, len);
	case PRETOKENIZER_BERT:
		return cut_bert(&cutter, len);
	case PRETOKENIZER_METASPACE:
		return metaspace(&cutter, step, len);
	case PRETOKENIZER_BYTE_LEVEL:
		return byte_level(run, at + 1, step, text, len, head);
	}
	return STATUS_INTERNAL;
}

enum status pretokenizer_run(const struct pretokenizer *pretokenizer, const char *text, size_t len, size_t head,
    pretokenizer_sink *sink, void *context)
{
	struct run run = { pretokenizer, sink, context };

	return len ? run_from(&run, 0, text, len, head) : STATUS_OK;
}
