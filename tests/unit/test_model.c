/* Unit tests of src/model: loading and what is refused, rope frequencies, and the tiny model against float64 arithmetic
 * (tests/reference/tiny.ref) and against itself: the same bits whatever the batch, the blocks, the steps and the
 * threads. */
#include "model/arch.h"

#include "support/model_runner.h"
#include "support/random.h"
#include "unit/gguf_builder.h"

#include <check.h>
#include <math.h>
#include <stdio.h>

/* ---- A small llama in memory ---- */

enum { WIDTH = 64, HEADS = 2, KV_HEADS = 1, DIM = 32, FFN = 96, VOCAB = 40, LAYERS = 2, KEYS_MAX = 24, TENSORS_MAX =
    40 };

struct key {
	const char *name;
	uint32_t    type; /* BUILD_U32, BUILD_F32 or BUILD_STRING */
	double      number;
	const char *text;
};

struct tensor {
	char     name[64];
	uint32_t type, columns, rows; /* rows 0 = one dimension */
};

struct file {
	struct key    keys[KEYS_MAX];
	struct tensor tensors[TENSORS_MAX];
	size_t        key_count, tensor_count;
	struct buf    bytes;
};

static void set_key(struct file *file, struct key key)
{
	size_t at = 0;

	while (at < file->key_count && strcmp(file->keys[at].name, key.name) != 0)
		at++;
	file->key_count += at == file->key_count;
	file->keys[at] = key;
}

static struct tensor *find(struct file *file, const char *name)
{
	for (size_t i = 0; i < file->tensor_count; i++)
		if (strcmp(file->tensors[i].name, name) == 0)
			return &file->tensors[i];
	return NULL;
}

static void add(struct file *file, const char *name, uint32_t columns, uint32_t rows)
{
	struct tensor *tensor = &file->tensors[file->tensor_count++];

	*tensor = (struct tensor){ .type = GGUF_F32, .columns = columns, .rows = rows };
	snprintf(tensor->name, sizeof tensor->name, "%s", name);
}

static void drop(struct file *file, const char *name)
{
	struct tensor *tensor = find(file, name);
	*tensor = file->tensors[--file->tensor_count];
}

static void good(struct file *file)
{
	static const struct { const char *name; uint32_t columns, rows; } each[] = { { "attn_norm", WIDTH, 0 },
		{ "attn_q", WIDTH, HEADS * DIM }, { "attn_k", WIDTH, KV_HEADS * DIM }, { "attn_v", WIDTH, KV_HEADS * DIM },
		{ "attn_output", HEADS * DIM, WIDTH }, { "ffn_norm", WIDTH, 0 }, { "ffn_gate", WIDTH, FFN }, { "ffn_up", WIDTH,
		    FFN },
		{ "ffn_down", FFN, WIDTH } };

	memset(file, 0, sizeof *file);
	set_key(file, (struct key){ "general.architecture", BUILD_STRING, 0, "llama" });
	set_key(file, (struct key){ "llama.block_count", BUILD_U32, LAYERS, NULL });
	set_key(file, (struct key){ "llama.context_length", BUILD_U32, 512, NULL });
	set_key(file, (struct key){ "llama.embedding_length", BUILD_U32, WIDTH, NULL });
	set_key(file, (struct key){ "llama.feed_forward_length", BUILD_U32, FFN, NULL });
	set_key(file, (struct key){ "llama.attention.head_count", BUILD_U32, HEADS, NULL });
	set_key(file, (struct key){ "llama.attention.head_count_kv", BUILD_U32, KV_HEADS, NULL });
	set_key(file, (struct key){ "llama.attention.layer_norm_rms_epsilon", BUILD_F32, 1e-5, NULL });
	add(file, "token_embd.weight", WIDTH, VOCAB);
	add(file, "output_norm.weight", WIDTH, 0);
	for (int layer = 0; layer < LAYERS; layer++) {
		for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
			char name[64];

			snprintf(name, sizeof name, "blk.%d.%s.weight", layer, each[i].name);
			add(file, name, each[i].columns, each[i].rows);
		}
	}
}

/* Writes the file and opens it.  Values come from the tensor's name, so that files differ only where they are meant
 * to. */
static struct gguf *build(struct file *file)
{
	struct gguf *gguf = NULL;
	struct error error;
	uint64_t     offset = 0;

	build_header(&file->bytes, 3, file->tensor_count, file->key_count);
	for (size_t i = 0; i < file->key_count; i++) {
		const struct key *key = &file->keys[i];
		float             number = (float)key->number;

		if (key->type == BUILD_STRING)
			build_key_text(&file->bytes, key->name, key->text);
		else if (key->type == BUILD_F32)
			build_key(&file->bytes, key->name, BUILD_F32, &number, 4);
		else
			build_key_u32(&file->bytes, key->name, (uint32_t)key->number);
	}
	for (size_t i = 0; i < file->tensor_count; i++) {
		const struct tensor *tensor = &file->tensors[i];
		uint64_t             dims[] = { tensor->columns, tensor->rows };
		unsigned             elements, bytes;

		build_tensor(&file->bytes, tensor->name, tensor->type, tensor->rows ? 2 : 1, dims, offset);
		ck_assert(gguf_type_block((enum gguf_type)tensor->type, &elements, &bytes));
		offset += ((uint64_t)tensor->columns * (tensor->rows ? tensor->rows : 1) / elements * bytes + 31) / 32 * 32;
	}
	build_pad(&file->bytes, 32);
	for (size_t i = 0; i < file->tensor_count; i++) {
		const struct tensor *tensor = &file->tensors[i];
		struct random        random = { 0 };

		for (const char *c = tensor->name; *c; c++)
			random.state = random.state * 31 + (unsigned char)*c;
		if (tensor->type != GGUF_F32) {
			build_zeros(&file->bytes, (offset - 0) / file->tensor_count); /* never read: such files are refused */
			continue;
		}
		for (uint32_t k = 0; k < tensor->columns * (tensor->rows ? tensor->rows : 1); k++) {
			float value = strstr(tensor->name, "norm") || strstr(tensor->name, "rope") ? 1 + random_float(&random) / 4
			                                                                            : random_float(&random) / 4;
			build_bytes(&file->bytes, &value, 4);
		}
		build_pad(&file->bytes, 32);
	}
	build_zeros(&file->bytes, 1 << 16);
	ck_assert_msg(gguf_parse(file->bytes.data, file->bytes.len, "memory", &gguf, &error) == STATUS_OK, "%s",
	    error.message);
	return gguf;
}

static void done(struct file *file, struct gguf *gguf)
{
	gguf_close(gguf);
	buf_free(&file->bytes);
}

static const struct runner_options small = { .threads = 1, .max_rows = 32, .block_size = 16, .sequences = 1,
    .max_context = 64 };

/* The logits after a few tokens. */
static void logits_of(struct file *file, float ret[VOCAB], struct model_info *ret_info)
{
	const int32_t       tokens[] = { 1, 2, 3, 39, 0 };
	struct runner_piece piece = { 0, tokens, 5, 1 };
	struct gguf        *gguf = build(file);
	struct runner       runner;
	struct error        error;

	ck_assert_msg(runner_open(gguf, &small, &runner, &error) == STATUS_OK, "%s", error.message);
	ck_assert_int_eq(runner_step(&runner, &piece, 1), STATUS_OK);
	runner_logits(&runner, 0, ret);
	*ret_info = *runner.info;
	runner_close(&runner);
	done(file, gguf);
}

START_TEST(numbers)
{
	struct file       file;
	struct model_info info;
	float             tied[VOCAB], own[VOCAB], biased[VOCAB];
	uint64_t          layer = WIDTH * HEADS * DIM * 2 + WIDTH * KV_HEADS * DIM * 2 + 3 * WIDTH * FFN + 2 * WIDTH;

	good(&file);
	logits_of(&file, tied, &info);
	ck_assert_str_eq(info.architecture, "llama");
	ck_assert_uint_eq(info.vocab, VOCAB);
	ck_assert_uint_eq(info.max_context, 512);
	ck_assert_uint_eq(info.layers, LAYERS);
	ck_assert_uint_eq(info.width, WIDTH);
	ck_assert_uint_eq(info.parameters, VOCAB * WIDTH + WIDTH + LAYERS * layer);
	ck_assert_uint_ge(info.weight_bytes, 4 * info.parameters); /* float32; the last tile of 40 rows is padded */
	ck_assert_uint_le(info.weight_bytes, 4 * (info.parameters + 24 * WIDTH));
	ck_assert_uint_eq(info.kv_group_count, 1);
	ck_assert_uint_eq(info.kv_groups[0].layers, LAYERS);
	ck_assert_uint_eq(info.kv_groups[0].kv_heads, KV_HEADS);
	ck_assert_uint_eq(info.kv_groups[0].head_dim, DIM);

	/* An output matrix of its own is used instead of the embedding. */
	good(&file);
	add(&file, "output.weight", WIDTH, VOCAB);
	logits_of(&file, own, &info);
	ck_assert_uint_eq(info.parameters, 2 * VOCAB * WIDTH + WIDTH + LAYERS * layer);
	ck_assert_int_ne(memcmp(tied, own, sizeof tied), 0);

	/* Biases are optional, all or none. */
	good(&file);
	for (int i = 0; i < LAYERS; i++) {
		char name[64];

		for (int part = 0; part < 3; part++) {
			snprintf(name, sizeof name, "blk.%d.attn_%c.bias", i, "qkv"[part]);
			add(&file, name, part ? KV_HEADS * DIM : HEADS * DIM, 0);
		}
	}
	logits_of(&file, biased, &info);
	ck_assert_int_ne(memcmp(tied, biased, sizeof tied), 0);
}
END_TEST

/* ---- What is refused ---- */

static void refused(struct file *file, enum status status, const char *words)
{
	struct gguf    *gguf = build(file);
	struct backend *backend;
	struct model   *model = NULL;
	struct error    error = { 0 };

	ck_assert_int_eq(cpu_backend_create(1, &backend, NULL), STATUS_OK);
	ck_assert_msg(model_load_gguf(gguf, backend, &model, &error) == status, "%s: %s", words, error.message);
	ck_assert_msg(strstr(error.message, words) != NULL, "\"%s\" does not say \"%s\"", error.message, words);
	ck_assert_ptr_null(model);
	backend->ops->destroy(backend);
	done(file, gguf);
}

START_TEST(keys_refused)
{
	static const struct { const char *key; double value; const char *words; } wrong[] = {
		{ "llama.block_count", 0, "llama.block_count = 0 is outside 1…1024" },
		{ "llama.block_count", 1025, "outside 1…1024" },
		{ "llama.block_count", 3, "blk.2.attn_norm.weight is missing from a llama of 3 layers" },
		{ "llama.block_count", 1, "blk.1." },
		{ "llama.context_length", 0, "llama.context_length" },
		{ "llama.embedding_length", 1 << 17, "llama.embedding_length = 131072" },
		{ "llama.embedding_length", 128, "token_embd.weight\" has the shape [40, 64], [40, 128] is needed" },
		{ "llama.feed_forward_length", 97, "ffn_gate.weight\" has the shape [96, 64], [97, 64] is needed" },
		{ "llama.attention.head_count", 0, "head_count" },
		{ "llama.attention.head_count_kv", 3, "head_count_kv = 3 is outside 1…2" },
		{ "llama.attention.key_length", 513, "key_length" },
		{ "llama.attention.key_length", 16, "attn_q.weight\" has the shape [64, 64], [32, 64] is needed" },
		{ "llama.attention.value_length", 16, "value_length = 16 is outside 32…32" },
		{ "llama.rope.dimension_count", 34, "dimension_count = 34 is outside 2…32" },
		{ "llama.rope.dimension_count", 31, "even" },
		{ "llama.vocab_size", 41, "vocab_size = 41 is outside 40…40" },
		{ "llama.expert_count", 8, "a mixture of experts is not supported" },
		{ "llama.attention.sliding_window", 4096, "windowed attention is not supported" },
	};
	struct file file;

	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		good(&file);
		set_key(&file, (struct key){ wrong[i].key, BUILD_U32, wrong[i].value, NULL });
		refused(&file, strstr(wrong[i].words, "not supported") ? STATUS_UNSUPPORTED : STATUS_INVALID, wrong[i].words);
	}
	for (size_t i = 1; i < 6; i++) { /* the keys that must be there */
		char words[96];

		good(&file);
		snprintf(words, sizeof words, "the file lacks %s", file.keys[i].name);
		file.keys[i] = file.keys[--file.key_count];
		refused(&file, STATUS_INVALID, words);
	}
	good(&file);
	set_key(&file, (struct key){ "llama.block_count", BUILD_STRING, 0, "two" });
	refused(&file, STATUS_INVALID, "llama.block_count");
	good(&file);
	set_key(&file, (struct key){ "general.architecture", BUILD_STRING, 0, "mamba" });
	refused(&file, STATUS_UNSUPPORTED, "\"mamba\" is not known; known are: llama");
	good(&file);
	set_key(&file, (struct key){ "general.architecture", BUILD_STRING, 0, "" });
	refused(&file, STATUS_UNSUPPORTED, "known are: llama");
	good(&file);
	file.keys[0] = file.keys[--file.key_count];
	refused(&file, STATUS_INVALID, "lacks general.architecture");
	good(&file);
	set_key(&file, (struct key){ "llama.rope.scaling.type", BUILD_STRING, 0, "longrope" });
	refused(&file, STATUS_UNSUPPORTED, "\"longrope\": known are none, linear and yarn");
	good(&file);
	set_key(&file, (struct key){ "llama.rope.scaling.type", BUILD_STRING, 0, "yarn" });
	set_key(&file, (struct key){ "llama.rope.scaling.factor", BUILD_F32, 4, NULL });
	refused(&file, STATUS_INVALID, "lacks llama.rope.scaling.original_context_length");
}
END_TEST

START_TEST(tensors_refused)
{
	struct file file;

	good(&file);
	for (size_t i = 0; i < 2 + 9 * LAYERS; i++) { /* each tensor in turn is missing */
		char name[64];

		good(&file);
		snprintf(name, sizeof name, "%s", file.tensors[i].name);
		drop(&file, name);
		refused(&file, STATUS_INVALID, strncmp(name, "blk.", 4) ? name : name + 6);
	}
	good(&file);
	add(&file, "blk.0.attn_q_norm.weight", DIM, 0);
	refused(&file, STATUS_INVALID, "tensor \"blk.0.attn_q_norm.weight\" (F32) is not part of this architecture");
	good(&file);
	add(&file, "blk.1.attn_q.bias", HEADS * DIM, 0);
	refused(&file, STATUS_INVALID, "tensor blk.1.attn_k.bias is missing");
	good(&file);
	add(&file, "blk.1.attn_k.bias", KV_HEADS * DIM, 0);
	refused(&file, STATUS_INVALID, "tensor blk.1.attn_q.bias is missing");
	good(&file);
	find(&file, "blk.1.attn_output.weight")->rows++;
	refused(&file, STATUS_INVALID, "blk.1.attn_output.weight\" has the shape [65, 64], [64, 64] is needed");
	good(&file);
	find(&file, "output_norm.weight")->columns--;
	refused(&file, STATUS_INVALID, "output_norm.weight\" has the shape [63], [64] is needed");
	good(&file);
	find(&file, "blk.0.ffn_norm.weight")->type = GGUF_Q8_0;
	refused(&file, STATUS_UNSUPPORTED, "blk.0.ffn_norm.weight: a vector must be F32, F16 or BF16");
	good(&file);
	add(&file, "rope_freqs.weight", DIM / 2 + 1, 0);
	refused(&file, STATUS_INVALID, "rope_freqs.weight\" has the shape [17], [16] is needed");
}
END_TEST

/* ---- Rope frequencies ---- */

static void check_frequencies(struct file *file, const float *expected, float scale)
{
	struct gguf    *gguf = build(file);
	struct backend *backend;
	struct model   *model;
	struct error    error;

	ck_assert_int_eq(cpu_backend_create(1, &backend, NULL), STATUS_OK);
	ck_assert_msg(model_load_gguf(gguf, backend, &model, &error) == STATUS_OK, "%s", error.message);
	ck_assert_uint_eq(model->rope.desc.dims, DIM);
	for (int i = 0; i < DIM / 2; i++)
		ck_assert_msg(fabsf(model->rope.desc.frequencies[i] - expected[i]) <= 3e-7f * expected[i],
		    "pair %d: %.9g is not %.9g", i, (double)model->rope.desc.frequencies[i], (double)expected[i]);
	ck_assert_msg(fabsf(model->rope.desc.scale - scale) < 1e-6f, "%g", (double)model->rope.desc.scale);
	model_free(model);
	backend->ops->destroy(backend);
	done(file, gguf);
}

/* The numbers are transformers' (modeling_rope_utils), head dimension 32. */
START_TEST(frequencies)
{
	static const float yarn[] = { 1, 0.562341332f, 0.316227764f, 0.177827939f, 0.100000001f, 0.0502090417f, 0.02484647f,
		0.0120668961f, 0.00571428565f, 0.0026108704f, 0.00112938497f, 0.000444569858f, 0.000250000012f, 0.000140585325f,
		7.90569466e-05f, 4.44569851e-05f };
	static const float linear[] = { 0.400000006f, 0.22493653f, 0.1264911f, 0.0711311772f, 0.0399999991f, 0.0224936511f,
		0.0126491114f, 0.00711311772f, 0.00399999972f, 0.00224936521f, 0.00126491114f, 0.000711311761f, 0.000400000019f,
		0.000224936521f, 0.000126491112f, 7.11311732e-05f };
	float       divided[DIM / 2];
	struct file file;
	struct random random = { 0 };

	good(&file);
	set_key(&file, (struct key){ "llama.rope.scaling.type", BUILD_STRING, 0, "yarn" });
	set_key(&file, (struct key){ "llama.rope.scaling.factor", BUILD_F32, 4, NULL });
	set_key(&file, (struct key){ "llama.rope.scaling.original_context_length", BUILD_U32, 2048, NULL });
	check_frequencies(&file, yarn, 1.13862944f);
	good(&file);
	set_key(&file, (struct key){ "llama.rope.scaling.type", BUILD_STRING, 0, "linear" });
	set_key(&file, (struct key){ "llama.rope.scaling.factor", BUILD_F32, 2.5, NULL });
	check_frequencies(&file, linear, 1);
	good(&file);
	set_key(&file, (struct key){ "llama.rope.scale_linear", BUILD_F32, 2.5, NULL });
	check_frequencies(&file, linear, 1);

	/* Llama 3: the file holds divisors. */
	good(&file);
	set_key(&file, (struct key){ "llama.rope.freq_base", BUILD_F32, 500000, NULL });
	add(&file, "rope_freqs.weight", DIM / 2, 0);
	for (const char *c = "rope_freqs.weight"; *c; c++)
		random.state = random.state * 31 + (unsigned char)*c;
	for (int i = 0; i < DIM / 2; i++)
		divided[i] = (float)pow(500000, -2.0 * i / DIM) / (1 + random_float(&random) / 4);
	check_frequencies(&file, divided, 1);
}
END_TEST

/* ---- The tiny model ---- */

static char *tiny_path(const char *name)
{
	static char path[4096];
	const char *source = getenv("abs_top_srcdir");

	snprintf(path, sizeof path, "%s/tests/%s", source ? source : "..", name);
	return path;
}

static const struct { enum cpu_isa isa; unsigned threads; } variants[] = { { CPU_ISA_GENERIC, 1 }, { CPU_ISA_AVX2, 1 },
    { CPU_ISA_AVX2, 3 }, { CPU_ISA_AVX512, 1 }, { CPU_ISA_AVX512, 3 } };

static bool open_tiny(struct gguf **ret_gguf, struct runner *runner, struct runner_options options, int variant)
{
	struct error error;
	enum status  status;

	options.isa = variants[variant].isa;
	options.threads = variants[variant].threads;
	ck_assert_msg(gguf_open(tiny_path("data/tiny.gguf"), ret_gguf, &error) == STATUS_OK, "%s", error.message);
	status = runner_open(*ret_gguf, &options, runner, &error);
	if (status == STATUS_UNSUPPORTED) {
		gguf_close(*ret_gguf);
		return false;
	}
	ck_assert_msg(status == STATUS_OK, "%s", error.message);
	return true;
}

enum { LINE = 1 << 16, TINY_VOCAB = 640 };

static uint32_t read_ids(char *text, int32_t *ret)
{
	uint32_t n = 0;

	for (char *end; n < 400; n++, text = end) {
		ret[n] = (int32_t)strtol(text, &end, 10);
		if (end == text)
			break;
	}
	return n;
}

START_TEST(tiny_reference)
{
	struct runner_options options = { .max_rows = 300, .block_size = 32, .sequences = 1, .max_context = 400 };
	struct runner         runner;
	struct gguf          *gguf;
	FILE    *file = fopen(tiny_path("reference/tiny.ref"), "r");
	char    *line = malloc(LINE);
	int32_t  prompt[400];
	uint32_t count = 0, compared = 0, steps = 0;
	float    logits[TINY_VOCAB];

	ck_assert_ptr_nonnull(file);
	if (!open_tiny(&gguf, &runner, options, _i)) {
		fclose(file);
		free(line);
		return;
	}
	while (fgets(line, LINE, file)) {
		char *text = line;

		if (strncmp(line, "prompt ", 7) == 0) {
			count = read_ids(line + 7, prompt);
		} else if (strncmp(line, "at ", 3) == 0) {
			uint32_t            position = (uint32_t)strtoul(line + 3, &text, 10);
			struct runner_piece piece = { 0, prompt, position + 1, 1 };

			runner_reset(&runner, 0);
			ck_assert_int_eq(runner_step(&runner, &piece, 1), STATUS_OK);
			runner_logits(&runner, 0, logits);
			for (int i = 0; i < TINY_VOCAB; i++, compared++) {
				double expected = strtod(text, &text);
				ck_assert_msg(fabs((double)logits[i] - expected) <= 5e-5,
				    "%u tokens, position %u, id %d: %.7g is not %.7g", count, position, i, (double)logits[i], expected);
			}
		} else if (strncmp(line, "greedy ", 7) == 0) {
			struct runner_piece piece = { 0, prompt, count, 1 };

			runner_reset(&runner, 0);
			text = line + 7;
			for (int i = 0; i < 16; i++, steps++) {
				int32_t id = (int32_t)strtol(text, &text, 10);
				double  margin = strtod(text + 1, &text);

				ck_assert_int_eq(runner_step(&runner, &piece, 1), STATUS_OK);
				runner_logits(&runner, 0, logits);
				ck_assert_msg(margin < 2e-4 || runner_best(logits, TINY_VOCAB) == id,
				    "%u tokens, step %d: %d is not %d", count, i, runner_best(logits, TINY_VOCAB), id);
				prompt[count] = id; /* fed the reference's tokens */
				piece = (struct runner_piece){ 0, &prompt[count], 1, 1 };
			}
		}
	}
	ck_assert_uint_eq(compared, 7 * TINY_VOCAB);
	ck_assert_uint_eq(steps, 64);
	runner_close(&runner);
	gguf_close(gguf);
	fclose(file);
	free(line);
}
END_TEST

/* Logits of all positions of three prompts, in [3][TOKENS][VOCAB]: alone and together, cut into steps, in other
 * blocks. */
enum { TOKENS = 90 };

static void run_way(struct runner *runner, const int32_t prompts[3][TOKENS], uint32_t step, bool together, float *ret)
{
	for (uint32_t first = 0; first < 3; first += together ? 3 : 1) {
		uint32_t progress[3] = { 0 }, members = together ? 3 : 1;

		for (;;) {
			struct runner_piece pieces[3];
			uint32_t            n = 0, index = 0;

			for (uint32_t m = 0; m < members; m++) {
				/* Together, the three run at different speeds: one token, STEP, and twice STEP. */
				uint32_t speed = together ? m * step + (m == 0) : step, s = first + m;
				uint32_t count = TOKENS - progress[m] < speed ? TOKENS - progress[m] : speed;

				if (count == 0)
					continue;
				pieces[n++] = (struct runner_piece){ s, &prompts[s][progress[m]], count, count };
				progress[m] += count;
			}
			if (n == 0)
				break;
			ck_assert_int_eq(runner_step(runner, pieces, n), STATUS_OK);
			for (uint32_t i = 0; i < n; i++) {
				uint32_t s = pieces[i].sequence, at = progress[s - first] - pieces[i].count;

				for (uint32_t t = 0; t < pieces[i].count; t++)
					runner_logits(runner, index++, ret + ((size_t)s * TOKENS + at + t) * TINY_VOCAB);
			}
		}
	}
}

START_TEST(tiny_bits)
{
	static const struct { uint32_t step, block_size; bool together, scattered; int variant; } ways[] = {
		{ TOKENS, 64, false, false, 1 }, { 1, 64, false, false, 1 }, { 7, 16, false, true, 1 }, { 40, 32, false, true,
		    2 },
		{ 11, 16, true, false, 1 }, { 20, 64, true, true, 2 }, { 1, 32, true, true, 2 }, { 64, 8, false, false, 2 } };
	const size_t  floats = (size_t)3 * TOKENS * TINY_VOCAB;
	int32_t       prompts[3][TOKENS];
	struct random random = { 9 };
	float        *first = calloc(floats, sizeof *first), *other = calloc(floats, sizeof *other);
	bool          have_first = false;

	for (int s = 0; s < 3; s++)
		for (int t = 0; t < TOKENS; t++)
			prompts[s][t] = (int32_t)random_below(&random, TINY_VOCAB);
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		struct runner_options options = { .max_rows = 300, .block_size = ways[i].block_size, .sequences = 3,
			.max_context = TOKENS, .scattered = ways[i].scattered };
		struct runner runner;
		struct gguf  *gguf;

		if (!open_tiny(&gguf, &runner, options, _i ? ways[i].variant + 2 * (_i - 1) : 0))
			continue;
		run_way(&runner, (const int32_t(*)[TOKENS])prompts, ways[i].step, ways[i].together, have_first ? other : first);
		if (have_first)
			ck_assert_msg(memcmp(first, other, floats * sizeof *first) == 0, "way %zu gives other bits", i);
		have_first = true;
		runner_close(&runner);
		gguf_close(gguf);
	}
	free(first);
	free(other);
}
END_TEST

START_TEST(plan)
{
	struct runner_options options = { .max_rows = 16, .block_size = 32, .sequences = 1, .max_context = 64 };
	struct runner         runner;
	struct gguf          *gguf;
	struct error          error;
	int32_t               tokens[17] = { 0 };
	struct runner_piece   piece = { 0, tokens, 17, 1 };

	ck_assert(open_tiny(&gguf, &runner, options, 0));
	ck_assert_uint_ge(model_scratch_bytes(runner.model, 16, 16), 16 * TINY_VOCAB * 4);
	ck_assert_uint_gt(model_scratch_bytes(runner.model, 1 << 16, 16), model_scratch_bytes(runner.model, 16, 16));
	ck_assert_int_eq(model_plan(runner.model, 16, 16, 32, 2, &error), STATUS_INVALID); /* once */
	ck_assert_int_eq(runner_step(&runner, &piece, 1), STATUS_INVALID); /* 17 rows in a plan of 16 */
	ck_assert_uint_eq(runner.info->parameters, 205120);
	runner_close(&runner);
	gguf_close(gguf);
	model_free(NULL);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("model");
	TCase   *tcase = tcase_create("model");
	SRunner *runner = srunner_create(suite);
	int      failed;

	tcase_set_timeout(tcase, 900);
	tcase_add_test(tcase, numbers);
	tcase_add_test(tcase, keys_refused);
	tcase_add_test(tcase, tensors_refused);
	tcase_add_test(tcase, frequencies);
	tcase_add_loop_test(tcase, tiny_reference, 0, 5);
	tcase_add_loop_test(tcase, tiny_bits, 0, 3);
	tcase_add_test(tcase, plan);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
