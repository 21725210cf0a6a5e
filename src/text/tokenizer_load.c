/* tokenizer_load.c: owns the making of a tokenizer from the description of its file.  Does not encode.
 *
 * Byte-level vocabularies spell bytes as characters; where nothing else looks at the spelling, it is undone here once, and
 * the model works on bytes.  Merges name spellings; here they become ids.  Which tokens a BPE gives for their own text is
 * found while they are added (bpe_whole.c), else by asking it, so that most pieces need one look-up later.
 *
 * Invariant: what the model may give for text holds no control token.
 */
#include "base/bytes.h"
#include "text/bpe_whole.h"
#include "text/tokenizer_parts.h"
#include "vocab/bytelevel.h"
#include "vocab/component.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct loading {
	const struct token_file *file;
	struct tokenizer        *tokenizer;
	struct token_index       spelled; /* spellings as they are in the file; the file's own index where it has one */
	struct token_spelling   *forms;   /* [model_size] of tokenizer->text: as the model sees text; len 0: never */
	struct bpe_whole         whole;
	bool                     bytes;   /* the model works on bytes */
	struct error            *error;
};

/* May the model give this token for a text? */
static bool may_give(const struct token_file *file, uint32_t id)
{
	return file->kinds[id] == TOKEN_NORMAL || file->kinds[id] == TOKEN_USER || file->kinds[id] == TOKEN_BYTE;
}

static enum status index_add(struct loading *loading, struct token_index *index, size_t at, size_t len, uint32_t id)
{
	int32_t     other = -1;
	enum status status = token_index_add(index, at, len, (int32_t)id, &other);
	char        quoted[BYTES_QUOTE_MAX];

	if (status == STATUS_INVALID && loading->file->model == TOKEN_UNIGRAM)
		return STATUS_OK;
	if (status == STATUS_INVALID)
		return error_set(loading->error, status, "tokens %d and %u are both spelled %s", other, id,
		    bytes_quote(quoted, index->text + at, len));
	if (status)
		return error_set(loading->error, status, "token %u: too many spellings collide; the vocabulary looks crafted", id);
	return STATUS_OK;
}

static enum status index_spellings(struct loading *loading)
{
	const struct token_file *file = loading->file;
	enum status              status = STATUS_OK;

	if (file->index.entries) {
		loading->spelled = file->index;
		loading->spelled.text = file->text.data;
		return STATUS_OK;
	}
	if (token_index_init(&loading->spelled, file->model_size, file->text.data))
		return error_set(loading->error, STATUS_NOMEM, "no memory for an index of %u tokens", file->model_size);
	for (uint32_t id = 0; id < file->model_size && !status; id++)
		if (file->kinds[id] > TOKEN_PADDING && file->spellings[id].len)
			status = index_add(loading, &loading->spelled, file->spellings[id].at, file->spellings[id].len, id);
	return status;
}

static int32_t find(const struct loading *loading, const char *bytes, size_t len)
{
	return token_index_find(&loading->spelled, bytes, len);
}

/* Does the model itself have this token?  An added one may have an id that the model leaves out. */
static bool is_models(const struct loading *loading, uint32_t id)
{
	const struct token_file *file = loading->file;

	return file->kinds[id] != TOKEN_USER || !file->index.entries ||
	       find(loading, file->text.data + file->spellings[id].at, file->spellings[id].len) == (int32_t)id;
}

/* Can the model work on bytes?  Not where a byte without a token, or an affix, has a meaning of its own. */
static bool works_on_bytes(const struct loading *loading)
{
	const struct token_file *file = loading->file;
	bool                     all = true;

	if (file->model != TOKEN_BPE || *file->prefix || *file->suffix || !token_file_is_byte_level(file))
		return false;
	for (unsigned byte = 0; byte < 256; byte++) {
		char spelled[TOKEN_INDEX_INLINE];
		all = all && find(loading, spelled, utf8_encode(bytelevel_char((unsigned char)byte), spelled)) >= 0;
	}
	return all || (file->unk < 0 && !file->byte_fallback);
}

/* The spelling as the model sees text. */
static enum status make_forms(struct loading *loading)
{
	const struct token_file *file = loading->file;
	char                    *text = malloc(file->text.len + 1);
	size_t                   used = 0;

	loading->tokenizer->text = text;
	loading->forms = calloc(file->model_size + (size_t)1, sizeof *loading->forms);
	if (!text || !loading->forms)
		return error_set(loading->error, STATUS_NOMEM, "no memory for %u tokens", file->model_size);
	for (uint32_t id = 0; id < file->model_size; id++) {
		const char *spelling = file->text.data + file->spellings[id].at;
		size_t      len = file->spellings[id].len, from = used;
		if (!may_give(file, id) || !len || !is_models(loading, id))
			continue;
		for (size_t at = 0, step; at < len && loading->bytes; at += step) {
			int byte = bytelevel_next(spelling + at, len - at, &step);
			if (byte < 0) { /* text never has this character here */
				used = from;
				break;
			}
			text[used++] = (char)byte;
		}
		if (!loading->bytes) {
			memcpy(text + used, spelling, len);
			used += len;
		}
		loading->forms[id] = (struct token_spelling){ (uint32_t)from, (uint32_t)(used - from) };
		if (used - from > loading->tokenizer->bpe.longest)
			loading->tokenizer->bpe.longest = used - from;
	}
	return STATUS_OK;
}

static enum status index_forms(struct loading *loading)
{
	const struct token_file *file = loading->file;
	struct tokenizer        *t = loading->tokenizer;
	enum status              status = STATUS_OK;

	if (token_index_init(&t->index, loading->bytes ? 0 : file->model_size, t->text))
		return error_set(loading->error, STATUS_NOMEM, "no memory for an index of %u tokens", file->model_size);
	for (uint32_t i = 0; i < file->model_size && !status && !loading->bytes; i++) {
		uint32_t id = file->model == TOKEN_UNIGRAM ? file->model_size - 1 - i : i; /* of equal pieces the last one counts there */
		if (loading->forms[id].len)
			status = index_add(loading, &t->index, loading->forms[id].at, loading->forms[id].len, id);
	}
	return status;
}

/* BPE by merges. */

static enum status refuse_merge(struct loading *loading, const struct token_merge *merge, size_t index, const char *why)
{
	char  quoted[BYTES_QUOTE_MAX], spelled[BYTES_QUOTE_MAX];
	size_t left = merge->left_len < 40 ? merge->left_len : 40, right = merge->right_len < 40 ? merge->right_len : 40;

	memcpy(spelled, loading->file->text.data + merge->at, left);
	spelled[left] = ' ';
	memcpy(spelled + left + 1, loading->file->text.data + merge->at + merge->left_len, right);
	return error_set(loading->error, STATUS_INVALID, "merge %zu %s: %s", index, bytes_quote(quoted, spelled, left + 1 + right),
	    why);
}

static enum status add_merge(struct loading *loading, const struct token_merge *merge, size_t index, struct buf *joined)
{
	const struct token_file *file = loading->file;
	struct bpe              *bpe = &loading->tokenizer->bpe;
	enum status              status;
	const char              *left = file->text.data + merge->at, *right = left + merge->left_len, *whole = left;
	size_t                   prefix = strlen(file->prefix), whole_len = (size_t)merge->left_len + merge->right_len;
	int32_t                  left_id = find(loading, left, merge->left_len), right_id = find(loading, right, merge->right_len), id;

	if (prefix && merge->right_len >= prefix) { /* the right part loses its continuing prefix */
		buf_clear(joined);
		if (buf_append(joined, left, merge->left_len) || buf_append(joined, right + prefix, merge->right_len - prefix))
			return error_set(loading->error, STATUS_NOMEM, "no memory for merge %zu", index);
		whole = joined->data;
		whole_len = joined->len;
	}
	id = find(loading, whole, whole_len);
	if (left_id < 0 || right_id < 0 || id < 0)
		return refuse_merge(loading, merge, index, left_id < 0 ? "its left part is not in the vocabulary" :
		    right_id < 0 ? "its right part is not in the vocabulary" : "its result is not in the vocabulary");
	if (file->kinds[id] == TOKEN_CONTROL &&
	    bpe_add_control(bpe, (uint32_t)left_id, (uint32_t)right_id, (uint32_t)id))
		return error_set(loading->error, STATUS_NOMEM, "no memory for merge %zu", index);
	status = bpe_add(bpe, (uint32_t)left_id, (uint32_t)right_id, (uint32_t)index, (uint32_t)id, false);
	if (status == STATUS_INVALID) { /* the last of equal ones counts */
		bpe_whole_free(&loading->whole);
		status = bpe_add(bpe, (uint32_t)left_id, (uint32_t)right_id, (uint32_t)index, (uint32_t)id, true);
	}
	if (status)
		return error_set(loading->error, STATUS_LIMIT, "merge %zu: too many merges collide; the file looks crafted", index);
	bpe_whole_rule(&loading->whole, bpe, (uint32_t)left_id, (uint32_t)right_id, (uint32_t)index, (uint32_t)id);
	return STATUS_OK;
}

/* The tokens that merging begins with.  An affix makes a symbol depend on its place. */
static enum status begin_whole(struct loading *loading)
{
	const struct token_file *file = loading->file;

	if (file->ignore_merges || *file->prefix || *file->suffix)
		return STATUS_OK;
	if (bpe_whole_init(&loading->whole, file->model_size))
		return error_set(loading->error, STATUS_NOMEM, "no memory for %u tokens", file->model_size);
	for (uint32_t id = 0; id < file->model_size; id++) {
		const char *bytes = loading->tokenizer->text + loading->forms[id].at;
		size_t      len = loading->forms[id].len;
		uint32_t    code;
		if (len == 1 || (len && !loading->bytes && (size_t)utf8_decode(bytes, len, &code) == len))
			bpe_whole_symbol(&loading->whole, id);
	}
	return STATUS_OK;
}

static enum status add_merges(struct loading *loading)
{
	const struct token_file *file = loading->file;
	struct buf               joined;
	enum status              status;

	if (bpe_init(&loading->tokenizer->bpe, file->merge_count))
		return error_set(loading->error, STATUS_NOMEM, "no memory for %zu merges", file->merge_count);
	status = begin_whole(loading);
	buf_init(&joined, 2 * TOKEN_FILE_TOKEN_MAX);
	for (size_t i = 0; i < file->merge_count && !status; i++)
		status = add_merge(loading, &file->merges[i], i, &joined);
	buf_free(&joined);
	return status;
}

/* BPE by scores: every cut of a token into two tokens is a merge, ranked by the token's score. */

struct scored {
	double   score;
	uint32_t id, rank;
};

static int by_score(const void *a, const void *b)
{
	const struct scored *x = a, *y = b;
	return x->score > y->score ? -1 : x->score < y->score ? 1 : (x->id > y->id) - (x->id < y->id);
}

/* Calls bpe_add for each cut of the tokens, or only counts them. */
static enum status cut_tokens(struct loading *loading, const struct scored *tokens, uint32_t count, size_t *ret_merges)
{
	const struct token_file *file = loading->file;
	size_t                   merges = 0;

	for (uint32_t i = 0; i < count; i++) {
		const char *bytes = file->text.data + file->spellings[tokens[i].id].at;
		size_t      len = file->spellings[tokens[i].id].len;
		for (size_t at = 1; at < len; at++) {
			int32_t left, right;
			if (((unsigned char)bytes[at] & 0xc0) == 0x80 || (left = find(loading, bytes, at)) < 0 ||
			    (right = find(loading, bytes + at, len - at)) < 0 || !may_give(file, (uint32_t)left) ||
			    !may_give(file, (uint32_t)right))
				continue;
			if (++merges > BPE_MERGES_MAX)
				return error_set(loading->error, STATUS_LIMIT, "the vocabulary has more than %d merges", BPE_MERGES_MAX);
			if (ret_merges)
				continue;
			if (bpe_add(&loading->tokenizer->bpe, (uint32_t)left, (uint32_t)right, tokens[i].rank, tokens[i].id, true))
				return error_set(loading->error, STATUS_LIMIT, "token %u: too many merges collide; the file looks crafted",
				    tokens[i].id);
		}
	}
	if (ret_merges)
		*ret_merges = merges;
	return STATUS_OK;
}

static enum status merges_from_scores(struct loading *loading)
{
	const struct token_file *file = loading->file;
	struct scored           *tokens = malloc((file->model_size + (size_t)1) * sizeof *tokens);
	uint32_t                 count = 0, rank = 0;
	size_t                   merges = 0;
	enum status              status;

	if (!tokens)
		return error_set(loading->error, STATUS_NOMEM, "no memory for %u tokens", file->model_size);
	for (uint32_t id = 0; id < file->model_size; id++)
		if (file->kinds[id] == TOKEN_NORMAL || file->kinds[id] == TOKEN_USER)
			tokens[count++] = (struct scored){ .score = file->scores[id], .id = id };
	qsort(tokens, count, sizeof *tokens, by_score);
	for (uint32_t i = 0; i < count; i++)
		tokens[i].rank = rank += i > 0 && tokens[i].score != tokens[i - 1].score;
	status = cut_tokens(loading, tokens, count, &merges);
	if (!status && bpe_init(&loading->tokenizer->bpe, merges))
		status = error_set(loading->error, STATUS_NOMEM, "no memory for %zu merges", merges);
	if (!status)
		status = cut_tokens(loading, tokens, count, NULL);
	free(tokens);
	return status;
}

/* Pieces that are one token: with ignore_merges all, else those that merging makes of their own text; what the rules left open is
 * tried. */
static enum status index_whole(struct loading *loading)
{
	const struct token_file *file = loading->file;
	struct tokenizer        *t = loading->tokenizer;
	struct bpe_scratch       scratch = { NULL, NULL, 0 };
	struct token_list        list = { NULL, 0, 0 };
	enum status              status = STATUS_OK;

	if (token_index_init(&t->whole, t->model == TOKEN_BPE ? file->model_size : 0, t->text))
		return error_set(loading->error, STATUS_NOMEM, "no memory for an index of %u tokens", file->model_size);
	for (uint32_t id = 0; id < file->model_size && !status && t->model == TOKEN_BPE; id++) {
		struct token_spelling form = loading->forms[id];
		bool                  whole = file->ignore_merges || bpe_whole_has(&loading->whole, id);
		if (!form.len)
			continue;
		list.count = 0;
		if (!whole && !loading->whole.all &&
		    bpe_encode(&t->bpe, &scratch, t->text + form.at, form.len, SIZE_MAX, &list) == STATUS_OK)
			whole = list.count == 1 && list.ids[0] == (int32_t)id;
		if (whole)
			status = index_add(loading, &t->whole, form.at, form.len, id);
		if (whole && form.len > t->longest)
			t->longest = form.len;
	}
	bpe_scratch_free(&scratch);
	token_list_free(&list);
	return status;
}

/* Does U+2581 stand in tokens only before everything else? */
static bool words_are_whole(const struct loading *loading)
{
	static const char mark[] = "\xe2\x96\x81";
	const struct token_file *file = loading->file;

	if (loading->tokenizer->pretokenizer.count || *file->prefix || *file->suffix || find(loading, mark, 3) < 0)
		return false;
	for (uint32_t id = 0; id < file->model_size; id++) {
		const char *bytes = loading->tokenizer->text + loading->forms[id].at;
		size_t      len = loading->forms[id].len;
		while (len >= 3 && memcmp(bytes, mark, 3) == 0) {
			bytes += 3;
			len -= 3;
		}
		if (len && memmem(bytes, len, mark, 3))
			return false;
	}
	return true;
}

static enum status load_bpe(struct loading *loading)
{
	const struct token_file *file = loading->file;
	struct tokenizer        *t = loading->tokenizer;
	size_t                   longest = t->bpe.longest;
	enum status              status = file->merges_by_score ? merges_from_scores(loading) : add_merges(loading);

	if (status)
		return status;
	t->bpe.longest = longest ? longest : 1;
	t->bpe.characters = !loading->bytes;
	t->bpe.index = &t->index;
	t->bpe.byte_fallback = file->byte_fallback;
	t->bpe.fuse_unk = file->fuse_unk;
	t->bpe.unk = loading->bytes ? -1 : file->unk;
	if (file->byte_fallback)
		t->bpe.symbols_per_byte += strlen(file->prefix) + strlen(file->suffix);
	memcpy(t->bpe.prefix, file->prefix, sizeof t->bpe.prefix);
	memcpy(t->bpe.suffix, file->suffix, sizeof t->bpe.suffix);
	for (unsigned byte = 0; byte < 256; byte++) {
		char    spelled[TOKEN_INDEX_INLINE] = "<0x00>";
		size_t  len = 6;
		int32_t id;
		spelled[3] = "0123456789ABCDEF"[byte >> 4];
		spelled[4] = "0123456789ABCDEF"[byte & 15];
		if (loading->bytes)
			len = utf8_encode(bytelevel_char((unsigned char)byte), spelled);
		id = find(loading, spelled, len);
		if (id >= 0 && may_give(file, (uint32_t)id))
			t->bpe.byte_ids[byte] = id;
		t->bpe.lossy = t->bpe.lossy || t->bpe.byte_ids[byte] < 0;
	}
	if (loading->bytes && !t->bpe.lossy && bpe_index_bytes(&t->bpe))
		return error_set(loading->error, STATUS_NOMEM, "no memory for pairs of bytes");
	return STATUS_OK;
}

static enum status load_model(struct loading *loading)
{
	const struct token_file *file = loading->file;
	struct tokenizer        *t = loading->tokenizer;
	enum status              status = index_spellings(loading);

	if (status)
		return status;
	loading->bytes = works_on_bytes(loading);
	status = pretokenizer_init(&t->pretokenizer, file, &t->unicode, loading->bytes, loading->error);
	if (!status)
		status = make_forms(loading);
	if (!status)
		status = index_forms(loading);
	if (status)
		return status;
	t->wordpiece = (struct wordpiece){ .index = &t->index, .prefix_len = strlen(file->prefix), .max_chars = file->max_word_chars,
		.longest = t->bpe.longest, .unk = file->unk };
	memcpy(t->wordpiece.prefix, file->prefix, sizeof t->wordpiece.prefix);
	if (file->model == TOKEN_BPE)
		status = load_bpe(loading);
	else if (file->model == TOKEN_UNIGRAM)
		status = unigram_init(&t->unigram, file, &t->index, loading->error);
	if (!status)
		status = index_whole(loading);
	if (!status)
		t->whole_words = (file->model == TOKEN_BPE || file->model == TOKEN_UNIGRAM) && !loading->bytes && words_are_whole(loading);
	return status;
}

static enum status load_added(struct loading *loading)
{
	const struct token_file *file = loading->file;
	struct tokenizer        *t = loading->tokenizer;
	struct buf               scratch[2];
	enum status              status = STATUS_OK;

	buf_init(&scratch[0], NORMALIZER_TEXT_MAX);
	buf_init(&scratch[1], NORMALIZER_TEXT_MAX);
	for (size_t i = 0; i < file->added_count && !status; i++) {
		const struct token_added *added = &file->added[i];
		struct added_token        token = { .id = (int32_t)added->id, .control = added->special, .single_word = added->single_word,
			       .lstrip = added->lstrip, .rstrip = added->rstrip };
		size_t                    len;
		const char               *bytes = token_file_spelling(file, added->id, &len);
		if (added->normalized && !file->sentencepiece)
			status = normalizer_apply(&t->normalizer, bytes, len, scratch, NULL, &bytes, &len);
		if (!status && added->normalized && file->sentencepiece)
			status = added_add(&t->verbatim, bytes, len, &token);
		if (!status && !(added->normalized && file->sentencepiece && file->model == TOKEN_UNIGRAM))
			status = added_add(added->normalized ? &t->normalized : &t->raw, bytes, len, &token);
	}
	buf_free(&scratch[0]);
	buf_free(&scratch[1]);
	added_finish(&t->raw);
	added_finish(&t->normalized);
	added_finish(&t->verbatim);
	if (t->verbatim.count)
		t->normalizer.verbatim = &t->verbatim;
	return status ? error_set(loading->error, status, "no memory for %zu added tokens", file->added_count) : STATUS_OK;
}

enum status tokenizer_respell(const struct tokenizer *tokenizer, const struct token_file *file, struct vocab *vocab,
    struct error *error)
{
	struct buf  scratch[2];
	enum status status = STATUS_OK;

	buf_init(&scratch[0], NORMALIZER_TEXT_MAX);
	buf_init(&scratch[1], NORMALIZER_TEXT_MAX);
	for (size_t i = 0; i < file->added_count && !status; i++) {
		size_t      len, shown_len = 0;
		const char *bytes = token_file_spelling(file, file->added[i].id, &len), *shown = bytes;
		if (!file->added[i].normalized || file->sentencepiece || !utf8_valid(bytes, len, NULL))
			continue;
		status = normalizer_apply(&tokenizer->normalizer, bytes, len, scratch, NULL, &shown, &shown_len);
		if (status)
			error_set(error, status, "no memory for %zu added tokens", file->added_count);
		else if (shown_len != len || memcmp(shown, bytes, len) != 0)
			status = vocab_respell(vocab, file->added[i].id, shown, shown_len, error);
	}
	buf_free(&scratch[0]);
	buf_free(&scratch[1]);
	return status;
}

/* The frame: what the post-processor puts before and behind a text. */

static enum status frame_add(struct loading *loading, int32_t *ids, size_t *count, const json_t *id)
{
	json_int_t value = json_integer_value(id);

	if (!json_is_integer(id) || value < 0 || value >= (json_int_t)loading->file->size)
		return error_set(loading->error, STATUS_INVALID, "the post-processor names an id that is none of the vocabulary's %u",
		    loading->file->size);
	if (*count == FRAME_MAX)
		return error_set(loading->error, STATUS_LIMIT, "the post-processor adds more than %d tokens", FRAME_MAX);
	ids[(*count)++] = (int32_t)value;
	return STATUS_OK;
}

/* Post-processors hand on a list of parts: the text with what stands round it is one, and a template makes each of its special
 * tokens another one, which the next post-processor frames in turn. */
struct frame_part {
	bool    text;
	int32_t before[FRAME_MAX], behind[FRAME_MAX]; /* without a text all stand before it */
	size_t  before_count, behind_count;
};

struct frame {
	struct frame_part parts[FRAME_MAX];
	size_t            count;
};

static enum status read_template(struct loading *loading, const json_t *component, struct frame *frame)
{
	json_t       *specials = json_object_get(component, "special_tokens"), *item, *id;
	json_t       *pieces = json_object_get(component, frame->count == 1 ? "single" : "pair");
	struct frame *made = calloc(1, sizeof *made);
	size_t        i, k;
	enum status   status = made ? STATUS_OK : error_set(loading->error, STATUS_NOMEM, "no memory for a post-processor");

	if (!status && frame->count > 2)
		status = error_set(loading->error, STATUS_UNSUPPORTED, "a template behind a post-processor that makes %zu parts is not "
		    "known here", frame->count);
	for (i = 0; !status && i < json_array_size(pieces); i++) {
		json_t            *sequence, *special, *ids;
		const char        *which;
		struct frame_part *part = &made->parts[made->count];
		item = json_array_get(pieces, i);
		sequence = json_object_get(item, "Sequence");
		special = json_object_get(item, "SpecialToken");
		which = json_string_value(json_object_get(sequence, "id"));
		if (made->count == FRAME_MAX) {
			status = error_set(loading->error, STATUS_LIMIT, "the post-processor adds more than %d tokens", FRAME_MAX);
		} else if (sequence) {
			k = which && strcmp(which, "A") != 0;
			if (k < frame->count)
				*part = frame->parts[k];
			else
				status = error_set(loading->error, STATUS_INVALID, "the post-processor's template names a text that there is not");
			made->count++;
		} else {
			ids = json_object_get(json_object_get(specials, json_string_value(json_object_get(special, "id"))), "ids");
			if (!json_is_array(ids))
				status = error_set(loading->error, STATUS_INVALID,
				    "the post-processor's template names a special token it does not define");
			for (k = 0; !status && (id = json_array_get(ids, k)); k++)
				status = frame_add(loading, part->before, &part->before_count, id);
			made->count++;
		}
	}
	if (!status)
		*frame = *made;
	free(made);
	return status;
}

/* BertProcessing and RobertaProcessing: CLS text SEP, then the other parts. */
static enum status read_pair(struct loading *loading, const json_t *component, bool roberta, struct frame *frame)
{
	const json_t *cls = json_array_get(json_object_get(component, "cls"), 1);
	const json_t *sep = json_array_get(json_object_get(component, "sep"), 1);
	enum status   status = STATUS_OK;

	for (size_t i = 0; !status && i < frame->count; i++) {
		struct frame_part *part = &frame->parts[i];
		int32_t            first[FRAME_MAX];
		size_t             count = 0;
		if (i == 0 || roberta)
			status = frame_add(loading, first, &count, i == 0 ? cls : sep);
		if (!status && count + part->before_count > FRAME_MAX)
			status = error_set(loading->error, STATUS_LIMIT, "the post-processor adds more than %d tokens", FRAME_MAX);
		if (status)
			return status;
		memmove(part->before + count, part->before, part->before_count * sizeof part->before[0]);
		memcpy(part->before, first, count * sizeof first[0]);
		part->before_count += count;
		status = part->text ? frame_add(loading, part->behind, &part->behind_count, sep) :
		    frame_add(loading, part->before, &part->before_count, sep);
	}
	return status;
}

static enum status read_frame(struct loading *loading, const json_t *component, unsigned depth, struct frame *frame)
{
	const char *type = component_type(component);
	size_t      count;
	enum status status = STATUS_OK;

	if (strcmp(type, "Sequence") == 0) {
		status = component_steps(component, "processors", depth, &count, loading->error);
		for (size_t i = 0; !status && i < count; i++)
			status = read_frame(loading, component_step(component, "processors", i), depth + 1, frame);
		return status;
	}
	if (strcmp(type, "ByteLevel") == 0)
		return STATUS_OK; /* about offsets */
	if (strcmp(type, "TemplateProcessing") == 0)
		return read_template(loading, component, frame);
	if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0)
		return read_pair(loading, component, *type == 'R', frame);
	return component_unknown(component, "post-processor", loading->error);
}

static enum status join_ids(struct loading *loading, int32_t *ids, size_t *count, const int32_t *more, size_t more_count)
{
	if (*count + more_count > FRAME_MAX)
		return error_set(loading->error, STATUS_LIMIT, "the post-processor adds more than %d tokens", FRAME_MAX);
	memcpy(ids + *count, more, more_count * sizeof *ids);
	*count += more_count;
	return STATUS_OK;
}

static enum status load_frame(struct loading *loading)
{
	struct tokenizer *t = loading->tokenizer;
	struct frame     *frame = calloc(1, sizeof *frame);
	size_t            texts = 0;
	enum status       status;

	if (!frame)
		return error_set(loading->error, STATUS_NOMEM, "no memory for a post-processor");
	frame->parts[0].text = true;
	frame->count = 1;
	status = read_frame(loading, loading->file->post_processor, 0, frame);
	for (size_t i = 0; !status && i < frame->count; i++) {
		struct frame_part *part = &frame->parts[i];
		texts += part->text;
		status = texts == 0 || part->text ? join_ids(loading, t->before, &t->before_count, part->before, part->before_count) :
		    join_ids(loading, t->behind, &t->behind_count, part->before, part->before_count);
		if (!status)
			status = join_ids(loading, t->behind, &t->behind_count, part->behind, part->behind_count);
	}
	if (!status && texts != 1)
		status = error_set(loading->error, STATUS_UNSUPPORTED, "a post-processor that %s the text is not known here",
		    texts ? "repeats" : "leaves out");
	free(frame);
	return status;
}

static enum status load(struct loading *loading)
{
	struct tokenizer *t = loading->tokenizer;
	enum status       status;

	if (unicode_init(&t->unicode))
		return error_set(loading->error, STATUS_NOMEM, "no memory for a table of characters");
	status = normalizer_init(&t->normalizer, loading->file, &t->unicode, loading->error);
	if (!status)
		status = load_model(loading);
	if (!status)
		status = load_added(loading);
	if (!status && loading->file->post_processor)
		status = load_frame(loading);
	return status;
}

enum status tokenizer_from_file(const struct token_file *file, struct tokenizer **ret, struct error *error)
{
	struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
	struct loading    loading = { .file = file, .tokenizer = tokenizer, .error = error };
	enum status       status;

	if (!tokenizer)
		return error_set(error, STATUS_NOMEM, "no memory for a tokenizer");
	tokenizer->model = file->model;
	status = load(&loading);
	if (!file->index.entries)
		token_index_free(&loading.spelled);
	free(loading.forms);
	bpe_whole_free(&loading.whole);
	if (status)
		tokenizer_free(tokenizer);
	else
		*ret = tokenizer;
	return status;
}

enum status tokenizer_from_gguf(const struct gguf *gguf, const struct vocab *vocab, struct tokenizer **ret, struct error *error)
{
	struct token_file file;
	enum status       status = token_file_from_gguf(gguf, false, &file, error);

	if (status)
		return status;
	if (file.size != vocab_size(vocab))
		status = error_set(error, STATUS_INVALID, "the file has %u tokens, the vocabulary %u: not the same model", file.size,
		    vocab_size(vocab));
	if (!status)
		status = tokenizer_from_file(&file, ret, error);
	token_file_free(&file);
	return gguf_error_prefix(gguf, status, error);
}

void tokenizer_free(struct tokenizer *tokenizer)
{
	if (!tokenizer)
		return;
	unicode_free(&tokenizer->unicode);
	normalizer_free(&tokenizer->normalizer);
	pretokenizer_free(&tokenizer->pretokenizer);
	free(tokenizer->text);
	token_index_free(&tokenizer->index);
	token_index_free(&tokenizer->whole);
	bpe_free(&tokenizer->bpe);
	unigram_free(&tokenizer->unigram);
	added_free(&tokenizer->raw);
	added_free(&tokenizer->normalized);
	added_free(&tokenizer->verbatim);
	free(tokenizer);
}
