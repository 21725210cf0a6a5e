/* Unit tests of mixtures of experts, latent and sparse attention, and layers that draft, on the small checkpoints in
 * tests/data/moe: the same bits however a prompt is cut, wherever blocks lie and whatever else is in the batch; both forms of
 * latent attention; what is not read; drafts one after the other; a million positions.  That logits are right is
 * tests/behaviour/test_moe.py's. */
#include "cpu/cpu.h"
#include "file/safetensors.h"
#include "support/small_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOP_K = 12, CHAIN = 3 };

static const char *const names[] = { "moe/glm4_moe", "moe/glm4_moe-fused", "moe/glm4_moe-int4", "moe/glm4_moe-nvfp4",
	"moe/glm4_moe_lite", "moe/deepseek_v3", "moe/glm_moe_dsa", "moe/glm_moe_dsa-pattern" };
enum { NAMES = sizeof names / sizeof names[0] };
static const enum cpu_isa isas[] = { CPU_ISA_GENERIC, CPU_ISA_AVX2, CPU_ISA_AVX512 }; /* each has the ones before it */

START_TEST(pieces_blocks_threads) { small_model_check_pieces(names[_i % NAMES], isas[_i / NAMES]); }
END_TEST

START_TEST(batch_of_eight) { small_model_check_batch(names[_i % NAMES], isas[_i / NAMES]); }
END_TEST

/* Weights that stay in their files give the same bits, and tiles of them are made only then. */
START_TEST(mapped_weights)
{
	struct runner_options options = small_model_whole_options(CPU_ISA_BEST);
	struct runner        *runner = small_model_open(names[_i], MAPPED, &options);
	struct cpu_work       work;
	int32_t               prompt[PROMPT];
	float                 expected[VOCAB], logits[VOCAB];

	small_model_prompt(prompt, 2);
	small_model_whole(names[_i], 0, CPU_ISA_BEST, prompt, expected);
	ck_assert_uint_gt(runner->info->mapped_bytes, runner->info->weight_bytes / 2);
	small_model_run(runner, 0, prompt, PROMPT, logits);
	ck_assert_mem_eq(logits, expected, sizeof logits);
	cpu_backend_work(runner->backend, &work);
	ck_assert_uint_gt(work.tiles, 0);
	small_model_close(runner);
}
END_TEST

START_TEST(absorbed_is_expanded)
{
	static const char *const latent[] = { "moe/glm4_moe_lite", "moe/deepseek_v3", "moe/glm_moe_dsa" };
	enum cpu_isa             isa = isas[_i / 3];
	int32_t                  prompt[PROMPT];
	float                    absorbed[VOCAB], expanded[VOCAB], largest = 0;

	small_model_prompt(prompt, 3);
	small_model_whole(latent[_i % 3], 0, isa, prompt, absorbed);
	small_model_whole(latent[_i % 3], EXPANDED, isa, prompt, expanded);
	for (unsigned i = 0; i < VOCAB; i++)
		largest = fmaxf(largest, fabsf(absorbed[i]));
	for (unsigned i = 0; i < VOCAB; i++)
		ck_assert_float_eq_tol(absorbed[i], expanded[i], 1e-5f * largest);
	ck_assert_int_ne(memcmp(absorbed, expanded, sizeof absorbed), 0); /* they are two ways indeed */
}
END_TEST

/* What a step of ROWS tokens up to CONTEXT must read: of the cache, per layer, and of the indexer's keys, per one that chooses. */
static void count_sparse(uint32_t context, uint32_t rows, uint64_t *ret_attended, uint64_t *ret_indexed)
{
	*ret_attended = *ret_indexed = 0;
	for (uint32_t t = context - rows + 1; t <= context; t++) {
		*ret_attended += t < TOP_K ? t : TOP_K;
		*ret_indexed += t > TOP_K ? t : 0;
	}
}

START_TEST(sparse_attention_reads_what_was_chosen)
{
	struct runner_options options = small_model_whole_options(CPU_ISA_BEST);
	struct runner        *runner = small_model_open("moe/glm_moe_dsa", 0, &options);
	struct cpu_work       before = { 0 }, after;
	int32_t               prompt[PROMPT];

	small_model_prompt(prompt, 4);
	ck_assert_uint_eq(runner->info->index_top_k, TOP_K);
	for (uint32_t done = 0, rows; done < PROMPT; done += rows) {
		uint64_t attended, indexed;

		rows = done ? 1 : PROMPT - 4; /* then four tokens, one by one */
		small_model_run(runner, 0, prompt + done, rows, NULL);
		cpu_backend_work(runner->backend, &after);
		count_sparse(done + rows, rows, &attended, &indexed);
		ck_assert_uint_eq(after.attended - before.attended, 4 * attended); /* layers */
		ck_assert_uint_eq(after.indexed - before.indexed, 2 * indexed);    /* of them choose */
		before = after;
	}
	small_model_close(runner);
}
END_TEST

START_TEST(only_chosen_experts_are_read)
{
	struct runner_options options = small_model_whole_options(CPU_ISA_BEST);
	struct runner        *runner = small_model_open("moe/glm4_moe", WITHOUT_DRAFT, &options);
	struct cpu_work       work;
	int32_t               prompt[PROMPT];

	small_model_prompt(prompt, 5);
	ck_assert_uint_eq(runner->info->experts, 8);
	ck_assert_uint_eq(runner->info->experts_used, 2);
	ck_assert_uint_eq(runner->info->draft_layers, 0);
	ck_assert_uint_eq(runner->info->kv_group_count, 1);
	small_model_run(runner, 0, prompt, 1, NULL);
	cpu_backend_work(runner->backend, &work);
	ck_assert_uint_eq(work.experts, 2 * 2); /* of a token in each of two layers */
	ck_assert_uint_eq(work.expert_rows, 2 * 2);
	small_model_close(runner);
}
END_TEST

/* ---- Drafts ---- */

struct golden {
	struct safetensors *file;
	int32_t             ids[PROMPT], chain[CHAIN];
	float               logits[CHAIN * VOCAB];
	uint32_t            count;
};

static void read_tensor(const struct golden *golden, const char *name, unsigned k, void *ret, size_t capacity, size_t *ret_bytes)
{
	const struct safetensors_tensor *tensor;
	char                             full[32];

	snprintf(full, sizeof full, "%s.%u", name, k);
	tensor = safetensors_find(golden->file, full);
	ck_assert_msg(tensor && tensor->bytes <= capacity, "%s", full);
	memcpy(ret, tensor->data, tensor->bytes);
	*ret_bytes = tensor->bytes;
}

static void open_golden(const char *name, unsigned k, struct golden *ret)
{
	struct error error;
	char         path[512];
	size_t       bytes;

	small_model_path(name, "/golden.safetensors", path);
	ck_assert_msg(safetensors_open(path, &ret->file, &error) == STATUS_OK, "%s", error.message);
	read_tensor(ret, "ids", k, ret->ids, sizeof ret->ids, &bytes);
	ret->count = (uint32_t)(bytes / sizeof ret->ids[0]);
	read_tensor(ret, "chain_tokens", k, ret->chain, sizeof ret->chain, &bytes);
	read_tensor(ret, "chain_logits", k, ret->logits, sizeof ret->logits, &bytes);
}

/* The prompt in pieces of SIZE, with drafts beside; then CHAIN drafts.  Logits of the drafts go to RET. */
static void draft_chain(struct runner *runner, uint32_t sequence, const struct golden *golden, uint32_t size, float *ret)
{
	int32_t  rows[PROMPT], last = 0;
	uint32_t from = 0;

	for (uint32_t i = 0; i < PROMPT; i++)
		rows[i] = (int32_t)i;
	for (uint32_t done = 0, n; done < golden->count; done += n) {
		int32_t tokens[PROMPT];

		n = golden->count - done < size ? golden->count - done : size;
		small_model_run(runner, sequence, golden->ids + done, n, NULL);
		for (uint32_t i = 0; i < n; i++)
			tokens[i] = done + i + 1 < golden->count ? golden->ids[done + i + 1] : golden->chain[0];
		ck_assert_int_eq(runner_draft(runner, &(struct runner_piece){ sequence, tokens, n, 1 }, &done, 1, rows, true), STATUS_OK);
		last = (int32_t)n - 1;
	}
	runner_logits(runner, 0, ret);
	for (uint32_t i = 1; i < CHAIN; i++) {
		struct runner_piece piece = { sequence, &golden->chain[i], 1, 1 };

		from = golden->count - 1 + i;
		ck_assert_int_eq(runner_best(ret + (size_t)(i - 1) * VOCAB, VOCAB), golden->chain[i]);
		ck_assert_int_eq(runner_draft(runner, &piece, &from, 1, &last, false), STATUS_OK);
		runner_logits(runner, 0, ret + (size_t)i * VOCAB);
		last = 0;
	}
}

static const char *const drafting[] = { "moe/glm4_moe", "moe/deepseek_v3", "moe/glm_moe_dsa" };

START_TEST(drafts_one_after_the_other)
{
	const char           *name = drafting[_i % 3];
	unsigned              k = 2 + (unsigned)_i / 3;
	struct runner_options options = { .threads = 2, .isa = CPU_ISA_BEST, .max_rows = PROMPT, .block_size = BLOCK,
		.sequences = 2, .max_context = 512, .scattered = true };
	struct runner        *runner = small_model_open(name, 0, &options);
	struct golden         golden;
	float                 pieces[CHAIN * VOCAB], whole_prompt[CHAIN * VOCAB], largest = 0;

	open_golden(name, k, &golden);
	draft_chain(runner, 0, &golden, PROMPT, whole_prompt);
	draft_chain(runner, 1, &golden, 7, pieces);
	ck_assert_mem_eq(pieces, whole_prompt, sizeof pieces);
	for (unsigned i = 0; i < CHAIN * VOCAB; i++)
		largest = fmaxf(largest, fabsf(golden.logits[i]));
	for (unsigned i = 0; i < CHAIN * VOCAB; i++)
		ck_assert_msg(fabsf(pieces[i] - golden.logits[i]) <= 5e-5f * largest, "%s: draft %u: %g, not %g", name, i / VOCAB,
		    (double)pieces[i], (double)golden.logits[i]);
	safetensors_close(golden.file);
	small_model_close(runner);
}
END_TEST

START_TEST(drafts_want_rows_that_are_there)
{
	struct runner_options options = small_model_whole_options(CPU_ISA_BEST);
	struct runner        *runner = small_model_open("moe/glm_moe_dsa", 0, &options), *without;
	int32_t               prompt[PROMPT], row = 0;
	uint32_t              from = 0;
	struct runner_piece   piece = { 0, prompt, 1, 1 };

	small_model_prompt(prompt, 6);
	ck_assert_int_eq(runner_draft(runner, &piece, &from, 1, &row, true), STATUS_INVALID); /* nothing was computed */
	small_model_run(runner, 0, prompt, 2, NULL);
	row = 2;
	ck_assert_int_eq(runner_draft(runner, &piece, &from, 1, &row, true), STATUS_INVALID);
	row = 1;
	ck_assert_int_eq(runner_draft(runner, &piece, &from, 1, &row, false), STATUS_INVALID); /* no draft before it */
	ck_assert_int_eq(runner_draft(runner, &piece, &from, 1, &row, true), STATUS_OK);
	small_model_close(runner);
	without = small_model_open("moe/glm4_moe_lite", 0, &options);
	small_model_run(without, 0, prompt, 2, NULL);
	ck_assert_int_eq(runner_draft(without, &piece, &from, 1, &row, true), STATUS_UNSUPPORTED);
	small_model_close(without);
}
END_TEST

/* ---- What a backend lacks ---- */

START_TEST(backends_without_the_operations)
{
	static const struct {
		const char *name, *words;
	} cases[] = { { "moe/glm4_moe", "glm4_moe: the backend cpu has no operations for mixtures of experts" },
		{ "moe/glm4_moe_lite", "glm4_moe_lite: the backend cpu has no operations for latent attention" },
		{ "moe/glm_moe_dsa", "glm_moe_dsa: the backend cpu has no operations for sparse attention" },
		{ "moe/deepseek_v3", "deepseek_v3: the backend cpu has no operations for layers that draft" } };
	struct model_source source;
	struct backend_ops  less;
	struct backend     *b;
	struct model       *model;
	struct error        error;
	char                path[512];

	ck_assert_int_eq(cpu_backend_create(1, &b, &error), STATUS_OK);
	less = *b->ops;
	less.experts = _i == 0 ? NULL : less.experts;
	less.latent_attention = _i == 1 ? NULL : less.latent_attention;
	less.index_select = _i == 2 ? NULL : less.index_select;
	less.draft_input = _i == 3 ? NULL : less.draft_input;
	b->ops = &less;
	small_model_path(cases[_i].name, "", path);
	ck_assert_int_eq(model_source_open(path, &source, &error), STATUS_OK);
	ck_assert_int_eq(model_load(&source, b, &model, &error), STATUS_UNSUPPORTED);
	ck_assert_str_eq(error.message, cases[_i].words);
	model_source_close(&source);
	b->ops->destroy(b);
}
END_TEST

/* ---- A million positions ---- */

/* All blocks of a context of 2^20 are one: a key at offset o recurs every 64 positions, so that scores tie 16,384 times, and
 * the lowest positions of the best offset are what is chosen. */
START_TEST(a_million_positions)
{
	enum { HEADS = 2, DIM = 16, SIZE = 64, CONTEXT = 1 << 20 };
	static int32_t        table[CONTEXT / SIZE];
	struct backend_limits limits = { .rows = SIZE, .logit_rows = 1, .vocab = 8, .width = 64, .q_heads = 2, .head_dim = 16,
		.stream = 16, .latent = DIM, .index_heads = HEADS, .index_top_k = TOP_K };
	struct index_desc     index = { HEADS, DIM, TOP_K };
	struct kv_group_desc  group = { 1, 1, DIM, SIZE, 1, KV_ROWS, KV_FLOAT };
	float                 frequencies[1] = { 0 };
	struct rope_desc      rope = { ROPE_INTERLEAVED, 2, frequencies, 1 };
	int32_t               tokens[SIZE] = { 0 }, positions[SIZE], slots[SIZE];
	struct batch_sequence sequence = { .rows = SIZE, .context = SIZE, .blocks = 1, .block_table = { table, table, table, table } };
	struct batch          batch = { .rows = SIZE, .sequence_count = 1, .tokens = tokens, .positions = positions,
		.sequences = &sequence, .kv_slots = { slots, slots, slots, slots } };
	struct activation     q, k, w;
	struct backend       *b;
	struct cpu_backend   *cpu;
	struct cpu_work       before, after;
	struct error          error;

	ck_assert_int_eq(cpu_backend_create(2, &b, &error), STATUS_OK);
	cpu = (struct cpu_backend *)b;
	ck_assert_int_eq(b->ops->scratch_alloc(b, &limits, &error), STATUS_OK);
	ck_assert_int_eq(b->ops->kv_alloc(b, 0, &group, &error), STATUS_OK);
	ck_assert_int_eq(b->ops->activation_alloc(b, SIZE, HEADS * DIM, &q), STATUS_OK);
	ck_assert_int_eq(b->ops->activation_alloc(b, SIZE, DIM, &k), STATUS_OK);
	ck_assert_int_eq(b->ops->activation_alloc(b, SIZE, HEADS, &w), STATUS_OK);
	for (int32_t i = 0; i < SIZE; i++) {
		positions[i] = slots[i] = i;
		for (unsigned d = 0; d < DIM; d++)
			((float *)k.data)[i * DIM + (int32_t)d] = d == 3 ? (float)((i * 29) % SIZE) : 0.5f; /* offset 11 is the largest */
	}
	ck_assert_int_eq(b->ops->step_begin(b, &batch), STATUS_OK);
	ck_assert_int_eq(b->ops->index_write(b, &q, &k, 0, 0, &index, &rope), STATUS_OK);
	/* The last position of the million, whose key goes where one of them was. */
	sequence = (struct batch_sequence){ .rows = 1, .context = CONTEXT, .blocks = CONTEXT / SIZE,
		.block_table = { table, table, table, table } };
	batch.rows = 1;
	positions[0] = CONTEXT - 1;
	slots[0] = -1;
	for (unsigned d = 0; d < HEADS * DIM; d++)
		((float *)q.data)[d] = d % DIM == 3;
	((float *)w.data)[0] = 1;
	((float *)w.data)[1] = 0.5f;
	ck_assert_int_eq(b->ops->step_begin(b, &batch), STATUS_OK);
	cpu_backend_work(b, &before);
	ck_assert_int_eq(b->ops->index_write(b, &q, &k, 0, 0, &index, &rope), STATUS_OK);
	ck_assert_int_eq(b->ops->index_select(b, &q, &w, 0, 0, &index), STATUS_OK);
	cpu_backend_work(b, &after);
	ck_assert_uint_eq(after.indexed - before.indexed, CONTEXT);
	ck_assert_uint_eq(cpu->scratch.selected_counts[0], TOP_K);
	for (uint32_t i = 0; i < TOP_K; i++)
		ck_assert_uint_eq(cpu->scratch.selected[i], 11 + SIZE * i);
	b->ops->activation_free(b, &q);
	b->ops->activation_free(b, &k);
	b->ops->activation_free(b, &w);
	b->ops->destroy(b);
}
END_TEST

int main(void)
{
	Suite   *suite = suite_create("moe");
	TCase   *tcase = tcase_create("moe");
	SRunner *runner = srunner_create(suite);
	int      failed, sets = 1;

	while (sets < 3 && cpu_isa_available(isas[sets]))
		sets++;
	tcase_set_timeout(tcase, 120);
	tcase_add_loop_test(tcase, pieces_blocks_threads, 0, sets * NAMES);
	tcase_add_loop_test(tcase, batch_of_eight, 0, sets * NAMES);
	tcase_add_loop_test(tcase, mapped_weights, 0, NAMES);
	tcase_add_loop_test(tcase, absorbed_is_expanded, 0, sets * 3);
	tcase_add_test(tcase, sparse_attention_reads_what_was_chosen);
	tcase_add_test(tcase, only_chosen_experts_are_read);
	tcase_add_loop_test(tcase, drafts_one_after_the_other, 0, 2 * 3);
	tcase_add_test(tcase, drafts_want_rows_that_are_there);
	tcase_add_loop_test(tcase, backends_without_the_operations, 0, 4);
	tcase_add_test(tcase, a_million_positions);
	suite_add_tcase(suite, tcase);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
