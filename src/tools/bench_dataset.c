/* bench_dataset.c: owns drawing requests and making their text.  Files are read by bench_dataset_file.c.  Does not know when
 * or where a request is sent.  Invariant: an item and its text depend on dataset, seed and index alone. */
#include "tools/bench_dataset_file.h"

#include "base/buf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Common words: with a blank before them, one token each in byte-level and sentence-piece vocabularies of English. */
static const char *const words[] = { "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by",
	"on", "not", "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which", "one", "you",
	"were", "all", "her", "she", "there", "would", "their", "we", "him", "been", "has", "when", "who", "will", "no", "more",
	"if", "out", "so", "up", "said", "what", "its", "about", "than", "into", "them", "can", "only", "other", "time", "new",
	"some", "could", "these", "two", "may", "first", "then", "do", "any", "like", "my", "now", "over", "such", "our", "man",
	"me", "even", "most", "made", "after", "also", "well", "did", "many", "before", "must", "years", "back", "through", "much",
	"where", "your", "way", "down", "should", "because", "long", "each", "just", "state", "those", "people", "too", "how",
	"little", "good", "world", "make", "very", "year", "still", "see", "own", "work", "men", "day", "get", "here", "old", "life",
	"both", "between", "being", "under", "three", "never", "know", "same", "last", "another", "while", "us", "off", "might",
	"great", "go", "come", "since", "against", "right", "came", "take", "used", "himself", "few", "house", "use", "place",
	"during", "high", "without", "again", "home", "around", "small", "however", "found", "part", "school", "every", "water",
	"went", "once", "say", "does", "number", "until", "always", "away", "public", "something", "fact", "less", "put", "think",
	"far", "head", "hand", "set", "nothing", "point", "end", "look", "asked", "later", "left", "next", "system", "city", "give",
	"group", "order", "face", "several", "within", "large", "side", "night", "knew", "light", "word", "money", "open", "line",
	"kind", "car", "power", "young", "case", "name", "best", "four", "river", "field", "stone", "wind", "paper", "table", "green",
	"north", "south", "east", "west", "story", "music", "king", "garden", "letter", "story", "road", "door", "window", "horse" };
enum { WORD_COUNT = sizeof words / sizeof words[0], WORD_BYTES_MAX = 12 };

static uint32_t draw_length(struct random *random, uint32_t length, double ratio)
{
	double low = floor(length * (1 - ratio)), high = ceil(length * (1 + ratio)), drawn;

	drawn = low + floor(random_unit(random) * (high - low + 1));
	return drawn < 1 ? 1 : (uint32_t)drawn;
}

static void draw_synthetic(const struct bench_dataset_options *options, size_t count, uint64_t seed, struct bench_item *items)
{
	bool          several = options->kind == BENCH_DATASET_PREFIX;
	struct random random = random_stream(seed, 0);

	for (size_t i = 0; i < count; i++) {
		struct bench_item *item = &items[i];

		*item = (struct bench_item){ .cancel_after_s = -1, .prefix_tokens = options->prefix_tokens };
		item->output_tokens = options->output_tokens;
		item->input_tokens = options->input_tokens;
		if (!several) {
			item->input_tokens = draw_length(&random, options->input_tokens, options->range_ratio);
			item->output_tokens = draw_length(&random, options->output_tokens, options->range_ratio);
		}
		item->input_tokens += options->prefix_tokens;
		item->prefix_stream = several ? random_below(&random, options->prefixes) : 0;
		item->prefix_stream = random_stream(seed, item->prefix_stream + 1).state;
		item->stream = random_u64(&random);
	}
}

/* Rows in a random order, each as often as any other before one comes again. */
static void draw_rows(const struct bench_dataset *dataset, size_t count, uint64_t seed, struct bench_item *items)
{
	struct random random = random_stream(seed, 0);

	for (size_t begin = 0; begin < count; begin += dataset->row_count) {
		size_t n = count - begin < dataset->row_count ? count - begin : dataset->row_count;

		for (size_t i = 0; i < n; i++)
			items[begin + i] = dataset->rows[i];
		if (!dataset->options.shuffle)
			continue;
		/* The first N of a random permutation of all rows: a row that is passed over takes the place of a drawn one. */
		for (size_t i = n; i < dataset->row_count; i++) {
			size_t at = (size_t)(random_u64(&random) % (i + 1));
			if (at < n)
				items[begin + at] = dataset->rows[i];
		}
		for (size_t i = n; i > 1; i--) {
			size_t            at = (size_t)(random_u64(&random) % i);
			struct bench_item other = items[begin + at];
			items[begin + at] = items[begin + i - 1];
			items[begin + i - 1] = other;
		}
	}
}

enum status bench_dataset_draw(const struct bench_dataset *dataset, size_t count, uint64_t seed, struct bench_item **ret_items,
    size_t *ret_count, struct error *error)
{
	enum bench_dataset_kind kind = dataset->options.kind;
	struct bench_item      *items;

	if (count > BENCH_REQUESTS_MAX)
		count = BENCH_REQUESTS_MAX;
	if (kind == BENCH_DATASET_TRACE || (kind == BENCH_DATASET_CUSTOM && !dataset->options.oversample))
		count = count < dataset->row_count ? count : dataset->row_count;
	items = calloc(count ? count : 1, sizeof *items);
	if (!items)
		return error_set(error, STATUS_NOMEM, "out of memory");
	if (kind == BENCH_DATASET_TRACE) {
		for (size_t i = 0; i < count; i++) {
			items[i] = dataset->rows[i];
			items[i].stream = random_stream(seed, i).state;
			items[i].prefix_stream = random_stream(seed, items[i].prefix_stream).state;
		}
	} else if (kind == BENCH_DATASET_CUSTOM) {
		draw_rows(dataset, count, seed, items);
	} else {
		draw_synthetic(&dataset->options, count, seed, items);
	}
	*ret_items = items;
	*ret_count = count;
	return STATUS_OK;
}

static enum status append_words(struct buf *text, uint64_t stream, uint32_t count)
{
	struct random random = { stream };
	enum status   status = STATUS_OK;

	for (uint32_t i = 0; i < count && !status; i++) {
		const char *word = words[random_below(&random, WORD_COUNT)];
		if (text->len)
			status = buf_append(text, " ", 1);
		if (!status)
			status = buf_append(text, word, strlen(word));
	}
	return status;
}

json_t *bench_dataset_content(const struct bench_dataset *dataset, const struct bench_item *item)
{
	struct buf  text;
	json_t     *content = NULL;
	enum status status;

	if (item->content)
		return json_deep_copy(item->content);
	buf_init(&text, (size_t)item->input_tokens * (WORD_BYTES_MAX + 1) + 1);
	status = append_words(&text, item->prefix_stream, item->prefix_tokens);
	if (!status)
		status = append_words(&text, item->stream, item->input_tokens - item->prefix_tokens);
	if (!status)
		content = json_stringn_nocheck(text.len ? text.data : "", text.len);
	buf_free(&text);
	if (content && dataset->options.chat)
		content = json_pack("[{s:s, s:o}]", "role", "user", "content", content);
	return content;
}
