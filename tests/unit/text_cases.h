/* text_cases.h: the tiny model and the reference files of tests/data for the tests of src/text. */
#ifndef PENSTOCK_TESTS_TEXT_CASES_H
#define PENSTOCK_TESTS_TEXT_CASES_H

#include "file/gguf.h"
#include "text/tokenizer.h"
#include "vocab/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model {
	struct gguf      *gguf;
	struct vocab     *vocab;
	struct tokenizer *tokenizer;
};

static inline FILE *cases_open(const char *name)
{
	const char *root = getenv("abs_top_srcdir");
	char        path[4096];

	snprintf(path, sizeof path, "%s/tests/data/%s", root ? root : ".", name);
	return fopen(path, "r");
}

static inline enum status model_load(struct model *model, const char *path, struct error *error)
{
	enum status status = gguf_open(path, &model->gguf, error);

	if (!status)
		status = vocab_from_gguf(model->gguf, &model->vocab, error);
	if (!status)
		status = tokenizer_from_gguf(model->gguf, model->vocab, &model->tokenizer, error);
	return status;
}

static inline enum status model_load_tiny(struct model *model, struct error *error)
{
	const char *root = getenv("abs_top_srcdir");
	char        path[4096];

	snprintf(path, sizeof path, "%s/tests/data/tiny.gguf", root ? root : ".");
	return model_load(model, path, error);
}

static inline void model_free(struct model *model)
{
	tokenizer_free(model->tokenizer);
	vocab_free(model->vocab);
	gguf_close(model->gguf);
	*model = (struct model){ 0 };
}

/* Decodes hexadecimal in place up to the first other character; returns the bytes, *ret_end is what follows. */
static inline size_t unhex(char *text, char **ret_end)
{
	size_t   count = 0;
	unsigned value;
	char    *at = text;

	while (sscanf(at, "%2x", &value) == 1 && at[0] != ' ' && at[0] != '\n') {
		text[count++] = (char)value;
		at += 2;
	}
	*ret_end = at;
	return count;
}

/* Compares a file of token cases (see make_cases.py) with TOKENIZER; returns how many differ, −1 when there is no file. */
static inline int cases_compare(const struct tokenizer *tokenizer, const char *name, unsigned *ret_cases)
{
	FILE             *file = cases_open(name);
	char             *line = NULL, *at;
	size_t            capacity = 0;
	int               wrong = 0;
	struct token_list list = { 0 };

	if (!file)
		return -1;
	*ret_cases = 0;
	while (getline(&line, &capacity, file) > 0) {
		struct text_span span = { line + 2, unhex(line + 2, &at), line[0] == 'L' };
		struct error     error = { .message = "" };
		size_t           i = 0;
		bool             same;
		int32_t          id;
		int              n;

		list.count = 0;
		same = tokenizer_encode(tokenizer, &span, 1, 100000, &list, &error) == STATUS_OK;
		for (; sscanf(at, "%d%n", &id, &n) == 1; at += n, i++)
			same = same && i < list.count && list.ids[i] == id;
		same = same && i == list.count;
		if (!same)
			printf("%s, case %u: differs (%s)\n", name, *ret_cases + 1, error.message);
		wrong += !same;
		++*ret_cases;
	}
	free(line);
	token_list_free(&list);
	fclose(file);
	return wrong;
}

/* A repeatable stream of random numbers (xorshift64*). */
static inline uint32_t random_next(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return (uint32_t)(*state * UINT64_C(0x2545f4914f6cdd1d) >> 32);
}

#endif
